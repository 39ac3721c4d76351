"""Ledgers: closing by their writer (rule R1)."""

from __future__ import annotations

import attrs
import pytest

from replog.errors import FencedError, LedgerClosedError
from replog.protocol.closed_contents import Contents
from replog.protocol.effects import SendAdd, WriteMetadata
from replog.protocol.model import LedgerState
from tests.protocol.driving import Cluster


def closed_by(cluster: Cluster, last_entry_id: int) -> None:
    """Somebody else closes the ledger at this entry."""
    cluster.change(cluster.metadata().closed_at(last_entry_id))


def test_r1_closing_ends_at_the_last_add_confirmed() -> None:
    """R1: entry 0 is confirmed, entry 1 is on one bookie: the ledger ends at 0, and late acks change nothing."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    writer.run()
    writer.add(b"b")
    writer.deliver(SendAdd, "b1", 1)
    late = [writer.arrive(SendAdd, name, 1) for name in ("b2", "b3")]
    writer.close()
    for answer in late:
        answer()
    writer.run()
    assert writer.confirmed == [0]
    assert writer.finished == cluster.metadata()
    assert (cluster.metadata().state, cluster.metadata().last_entry_id) == (LedgerState.CLOSED, 0)
    assert writer.machine.unconfirmed == range(1, 2)


def test_r1_conflict_with_an_open_ledger_retries() -> None:
    """R1: a repair changed the record: the close is proposed anew, upon what is there now."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    writer.run()
    cluster.change(attrs.evolve(cluster.metadata(), custom={"owner": "ops"}))
    writer.close()
    writer.run()
    assert writer.finished is not None
    assert cluster.metadata().last_entry_id == 0
    assert cluster.metadata().custom == {"owner": "ops"}


def test_r1_closed_at_the_same_entry_is_success() -> None:
    """R1: somebody recovered the ledger to the very end that the writer wanted."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    writer.run()
    cluster.recovery().recover()
    writer.close()
    writer.run()
    assert writer.error is None
    assert writer.finished == cluster.metadata()


@pytest.mark.parametrize("last_entry_id", [0, 2])
def test_r1_closed_at_another_entry_is_an_error(last_entry_id: int) -> None:
    """R1: a longer one (recovery kept what the writer never confirmed) as well as, by damage, a shorter one."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a", b"b")
    writer.run()
    writer.add(b"c")
    closed_by(cluster, last_entry_id)
    writer.close()
    writer.run()
    assert isinstance(writer.error, LedgerClosedError)
    assert writer.error.unconfirmed == range(2, 3)


def test_r1_in_recovery_is_an_error_for_the_closing_writer() -> None:
    """R1: the writer doesn't win against a recovery that has begun (seed 000)."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    writer.run()
    cluster.recovery().claim()
    writer.close()
    writer.run()
    assert isinstance(writer.error, FencedError)
    assert cluster.metadata().state is LedgerState.IN_RECOVERY


@pytest.mark.parametrize("answer_comes", [True, False])
def test_r1_closing_during_a_change_settles_the_change_first(answer_comes: bool) -> None:
    """R1, C1: one CAS at a time; a fragment that would hold no entry is dropped by the close."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    writer.run()
    writer.add(b"b")
    writer.bookie_failed("b3")
    writer.choose({2: "b4"})
    writer.close()
    assert len(writer.find(WriteMetadata)) == 1
    if not answer_comes:
        writer.write_loses_answer()
    writer.run()
    assert writer.finished == cluster.metadata()
    assert cluster.metadata().last_entry_id == 0
    assert len(cluster.metadata().fragments) == 1


def test_r1_closing_while_replacements_are_chosen_needs_none() -> None:
    """R1: the choice comes too late, and changes nothing."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    writer.bookie_failed("b3")
    writer.close()
    writer.choose({2: "b4"})
    writer.machine.add_fenced(2)  # the metadata decides who closed it
    writer.run()
    assert writer.finished is not None
    assert cluster.metadata().last_entry_id == -1


def test_r1_closing_never_lowers_its_times() -> None:
    """R1: though the clock is set back. Searches by time rely on it; the closed record says the first and the last."""
    cluster = Cluster()
    writer = cluster.writer()
    sent = []
    for time_ns in (5_000_000, 1_000_000, 7_000_001):
        writer.machine.add([b"ab"], time_ns)
        effects = writer.machine.take_effects()
        sent += sorted({each.batch.timestamp_ns for each in effects if isinstance(each, SendAdd)})
        for effect in effects:
            if isinstance(effect, SendAdd):
                writer.machine.add_confirmed(effect.index, effect.bookie_id, effect.batch.first_entry_id)
    assert sent == [5_000_000, 5_000_000, 7_000_001]
    writer.machine.close()
    (proposal,) = [each for each in writer.machine.take_effects() if isinstance(each, WriteMetadata)]
    assert proposal.metadata.contents == Contents(3, 6, 5, 8)
