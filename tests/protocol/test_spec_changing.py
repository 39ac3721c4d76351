"""Ledgers: ensemble change (rules C)."""

from __future__ import annotations

import attrs
import pytest

from replog.errors import FencedError, LedgerClosedError, LedgerDeletedError
from replog.protocol.effects import (
    ChooseReplacements,
    ReadMetadata,
    SendAdd,
    SendFence,
    SendLastAddConfirmed,
    SendRecoveryRead,
    WriteMetadata,
)
from replog.protocol.model import LedgerState
from replog.protocol.quorum import Quorum
from tests.protocol.driving import STRIPED, Cluster


def test_c1_one_change_at_a_time_freezes_completions() -> None:
    """C1, C9: with two indices gone nothing is confirmed, and a second failure waits for the first change to end."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    writer.bookie_failed("b3")
    writer.bookie_failed("b2")
    writer.deliver(SendAdd, "b1")
    writer.deliver(SendAdd, "b2")  # the ack quorum is there, and may not count yet
    assert writer.confirmed == []
    assert len(writer.find(ChooseReplacements)) == 1
    writer.choose({2: "b4"})
    assert writer.machine.is_changing
    writer.bookie_failed("b1")
    assert not writer.find(ChooseReplacements)
    writer.deliver(WriteMetadata)
    assert writer.confirmed == []
    assert writer.find(ChooseReplacements)[0].failed == (0, 1)  # those that failed meanwhile, as one change
    writer.run()
    assert writer.confirmed == [0]
    assert cluster.copies(0) == 3


def test_c1_a_failure_reported_twice_is_one_change() -> None:
    """C1: ten adds time out at one bookie: one change, and a report about the bookie that was replaced counts no more."""
    cluster = Cluster()
    writer = cluster.writer()
    for _ in range(10):
        writer.add(b"x")
    for entry_id in range(10):
        writer.fail(SendAdd, "b3", entry_id)
    writer.run()
    writer.machine.bookie_failed(2, "b3")
    writer.run()
    assert cluster.records[7][1] == 1
    assert writer.confirmed[-1] == 9


def test_c2_the_new_fragment_starts_after_the_confirmed_entries() -> None:
    """C2: entries 0 and 1 are confirmed: the change appends a fragment at 2."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a", b"b")
    writer.run()
    writer.add(b"c")
    writer.fail(SendAdd, "b3")
    writer.run_without(SendAdd)
    writer.run()
    assert [(fragment.first_entry_id, fragment.ensemble) for fragment in cluster.metadata().fragments] == [
        (0, ("b1", "b2", "b3")),
        (2, ("b1", "b2", "b4")),
    ]


def test_c2_fragment_is_replaced_when_it_starts_there_already() -> None:
    """C2: two changes without a confirmation between them leave one fragment, never two with one first entry."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    writer.run()
    writer.add(b"b")
    for failed, replacement in (("b3", "b4"), ("b4", "b5")):
        writer.bookie_failed(failed)
        writer.choose({2: replacement})
        writer.deliver(WriteMetadata)
    writer.run()
    assert [(fragment.first_entry_id, fragment.ensemble) for fragment in cluster.metadata().fragments] == [
        (0, ("b1", "b2", "b3")),
        (1, ("b1", "b2", "b5")),
    ]


def test_c2_the_placement_gets_the_bookies_in_use() -> None:
    """C2: what stands in the ensemble is excluded; a bookie at two indices is a bug of the caller."""
    writer = Cluster().writer()
    writer.add(b"a")
    writer.bookie_failed("b3")
    effect = writer.find(ChooseReplacements)[0]
    assert (effect.failed, effect.excluded) == ((2,), {"b1", "b2"})
    with pytest.raises(AssertionError):
        writer.choose({2: "b1"})


def test_c2_recovery_puts_no_bookie_at_two_indices_either() -> None:
    """C2, W1: one bookie at two indices would be an ack quorum on its own."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    writer.run()
    recovery = cluster.recovery()
    recovery.claim()
    for name in ("b1", "b2"):
        recovery.deliver(SendFence, name)
    recovery.deliver(SendRecoveryRead, "b1", 0)
    recovery.fail(SendAdd, "b3")
    with pytest.raises(AssertionError):
        recovery.choose({2: "b1"})


def test_c3_nothing_is_sent_to_the_new_ensemble_before_the_cas() -> None:
    """C3: between choice and CAS the new bookie gets nothing, also not what is added meanwhile."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    writer.bookie_failed("b3")
    writer.choose({2: "b4"})
    writer.add(b"b")
    assert not writer.find(SendAdd, "b4")
    assert not writer.find(SendAdd, "b3", 1)
    assert writer.machine.ensemble() == ("b1", "b2", "b3")
    writer.machine.add_confirmed(2, "b4", 0)  # nobody asked it
    writer.machine.add_confirmed(0, "b1", 0)
    writer.deliver(WriteMetadata)
    assert writer.confirmed == []
    assert [effect.batch.first_entry_id for effect in writer.find(SendAdd, "b4")] == [0, 1]


def test_c3_a_cas_without_answer_counts_only_when_read_back() -> None:
    """C3, C9, M1: the new ensemble is in the metadata, but until the writer knows it, nothing is sent there."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    writer.bookie_failed("b3")
    writer.choose({2: "b4"})
    writer.write_loses_answer()
    writer.deliver(SendAdd, "b1")
    writer.deliver(SendAdd, "b2")
    assert cluster.metadata().last_fragment.ensemble == ("b1", "b2", "b4")
    assert writer.confirmed == [0]
    assert not writer.find(SendAdd, "b4")
    writer.deliver(ReadMetadata)
    assert writer.find(SendAdd, "b4")


def test_c4_conflict_with_an_open_ledger_tries_again() -> None:
    """C4: a repair changed something else of the record: the change is proposed anew, upon what is there now."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    writer.bookie_failed("b3")
    writer.choose({2: "b4"})
    cluster.change(attrs.evolve(cluster.metadata(), custom={"owner": "ops"}))
    writer.run()
    assert writer.confirmed == [0]
    assert cluster.metadata().custom == {"owner": "ops"}
    assert cluster.metadata().last_fragment.ensemble == ("b1", "b2", "b4")


def test_c4_conflict_with_a_recovery_is_fenced() -> None:
    """C4: state IN_RECOVERY ends the writer, and what is outstanding fails; late acks confirm nothing."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    cluster.recovery().claim()
    writer.bookie_failed("b3")
    writer.choose({2: "b4"})
    writer.deliver(WriteMetadata)
    writer.deliver(SendAdd, "b1")
    late = writer.arrive(SendAdd, "b2")
    writer.deliver(ReadMetadata)
    late()
    assert isinstance(writer.error, FencedError)
    assert writer.error.unconfirmed == range(0, 1)
    assert writer.confirmed == []


def test_c4_conflict_with_a_closed_ledger_ends_the_writer() -> None:
    """C4: state CLOSED is an error of its own kind for the writer: what was outstanding has an unknown fate."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    cluster.recovery().recover()
    writer.bookie_failed("b3")
    writer.deliver(ChooseReplacements)
    writer.deliver(WriteMetadata)
    writer.deliver(ReadMetadata)
    assert isinstance(writer.error, LedgerClosedError)
    assert writer.error.unconfirmed == range(0, 1)
    assert "closed" in str(writer.error)


def test_c4_a_deletion_or_foreign_ensemble_ends_the_writer() -> None:
    """C4: nobody else may change the ensemble of an open ledger, or delete it under its writer."""
    for sabotage in (True, False):
        cluster = Cluster()
        writer = cluster.writer()
        writer.add(b"a")
        if sabotage:
            metadata = cluster.metadata()
            foreign = attrs.evolve(metadata.last_fragment, ensemble=("b1", "b2", "b8"))
            cluster.change(metadata.with_fragment(foreign))
        else:
            del cluster.records[7]
        writer.bookie_failed("b3")
        writer.run_without(SendAdd)
        # Of a log's leader that was paused: the next one has trimmed the ledger away. It is deposed like any other.
        assert isinstance(writer.error, LedgerClosedError if sabotage else LedgerDeletedError)
        assert writer.error.unconfirmed == range(0, 1)
        assert writer.confirmed == []


def test_c5_acks_of_replaced_indices_are_dropped() -> None:
    """C5: entry 1 had its quorum in the old ensemble; in the new one b1 alone has it, until b4 or b2 says so."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    writer.add(b"b")
    writer.deliver(SendAdd, "b1", 1)
    writer.deliver(SendAdd, "b3", 1)  # a quorum, but entry 0 is not confirmed
    writer.deliver(SendAdd, "b1", 0)
    writer.fail(SendAdd, "b3", 0)
    writer.deliver(ChooseReplacements)
    writer.deliver(WriteMetadata)
    assert cluster.metadata().last_fragment.first_entry_id == 0
    writer.deliver(SendAdd, "b2", 0)
    assert writer.confirmed == [0]
    writer.deliver(SendAdd, "b4", 1)
    assert writer.confirmed == [0, 1]
    assert cluster.copies(1) >= 2


def test_c5_completion_is_evaluated_once_after_all_resends() -> None:
    """C5: one Confirmed for all entries that are at their quorum in the new ensemble, behind all resends."""
    cluster = Cluster(Quorum(3, 3, 1))
    writer = cluster.writer()
    for _ in range(5):
        writer.add(b"x")
    for entry_id in range(1, 5):
        writer.deliver(SendAdd, "b1", entry_id)
    writer.fail(SendAdd, "b3", 0)
    writer.deliver(SendAdd, "b1", 0)
    assert writer.confirmed == []
    writer.deliver(ChooseReplacements)
    writer.deliver(WriteMetadata)
    assert writer.confirmed == [4]
    assert len(writer.find(SendAdd, "b4")) == 5


def test_c5_empty_difference_still_resends_failed_entries() -> None:
    """C5: the same bookie again: no CAS, but what it did not acknowledge is sent to it once more. No hang."""
    cluster = Cluster(Quorum(3, 3, 3))
    writer = cluster.writer()
    writer.add(b"a")
    writer.fail(SendAdd, "b3")
    writer.choose({2: "b3"})
    assert not writer.find(WriteMetadata)
    assert len(writer.find(SendAdd, "b3")) == 1
    writer.run()
    assert writer.confirmed == [0]


def test_c5_nothing_to_replace_with_still_evaluates_completion() -> None:
    """C5: no spare bookie: the quorum of the others confirms, and what is missing is resent when bookies come."""
    cluster = Cluster(Quorum(3, 3, 1), bookies=3)
    writer = cluster.writer()
    writer.add(b"a")
    writer.fail(SendAdd, "b3")
    writer.deliver(SendAdd, "b1")
    writer.deliver(SendAdd, "b2")
    assert writer.confirmed == []
    writer.choose({})
    assert writer.confirmed == [0]
    writer.add(b"b")
    assert not writer.find(SendAdd, "b3")


@pytest.mark.parametrize("quorum", [STRIPED, Quorum(6, 3, 2), Quorum(4, 2, 2)])
def test_c5_only_batches_of_the_index_are_resent(quorum: Quorum) -> None:
    """C5, W1: with E > Qw a replacement gets the batches of its rotations, and no others."""
    cluster = Cluster(quorum)
    writer = cluster.writer()
    writer.add(*[b"x"] * (2 * quorum.ensemble))
    writer.bookie_failed("b2")
    writer.deliver(ChooseReplacements)
    writer.deliver(WriteMetadata)
    new = cluster.metadata().last_fragment.ensemble[1]
    expected = {first for first in range(quorum.ensemble) if 1 in quorum.write_set(first)}
    assert {effect.batch.first_entry_id for effect in writer.find(SendAdd, new)} == expected
    writer.run()
    assert all(cluster.copies(entry_id) == quorum.write for entry_id in range(2 * quorum.ensemble))


def test_c6_a_late_ack_of_a_replaced_bookie_counts_for_nothing() -> None:
    """C6: b3's answer arrives after b4 took its place: entry 0 is at b1 alone in the ensemble that metadata names."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    late = writer.arrive(SendAdd, "b3")
    writer.bookie_failed("b3")
    writer.deliver(ChooseReplacements)
    writer.deliver(WriteMetadata)
    writer.deliver(SendAdd, "b1")
    late()
    assert writer.confirmed == []
    writer.deliver(SendAdd, "b4")
    assert writer.confirmed == [0]


def test_c6_bookie_counts_again_when_it_returns_to_its_index() -> None:
    """C6: b3, replaced and then chosen again, holds the bytes: its acks count again, from that CAS on."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    late = writer.arrive(SendAdd, "b3")
    for name in ("b3", "b4"):
        writer.bookie_failed(name)
        writer.choose({2: "b4" if name == "b3" else "b3"})
        writer.deliver(WriteMetadata)
    late()
    writer.deliver(SendAdd, "b1")
    assert writer.confirmed == [0]
    assert cluster.metadata().state is LedgerState.OPEN
    assert cluster.copies(0) >= 2


def test_c7_index_missing_from_the_start_gets_nothing() -> None:
    """C7: it counts as failed: no add, no last add confirmed; the two others confirm."""
    cluster = Cluster()
    cluster.down.add("b3")
    writer = cluster.writer(missing=0b100)
    writer.add(b"a")
    assert {effect.bookie_id for effect in writer.find(SendAdd)} == {"b1", "b2"}
    writer.run()
    writer.machine.publish()
    writer.collect()
    assert {effect.bookie_id for effect in writer.find(SendLastAddConfirmed)} == {"b1", "b2"}
    writer.run()
    assert writer.confirmed == [0]
    assert cluster.records[7][1] == 0, "nothing was changed for it"


def test_c7_an_absent_bookie_is_taken_in_when_it_returns() -> None:
    """C7: what is pending is sent to it; what was confirmed without it is not."""
    cluster = Cluster()
    writer = cluster.writer(missing=0b100)
    writer.add(b"a")
    writer.run()
    writer.add(b"b")
    writer.machine.bookies_changed()
    writer.collect()
    writer.choose({2: "b3"})
    assert [effect.batch.first_entry_id for effect in writer.find(SendAdd, "b3")] == [1]
    writer.run()
    assert (cluster.copies(0), cluster.copies(1)) == (2, 3)
    assert writer.machine.missing == 0


def test_c8_replacement_is_preferred_to_the_absent_bookie() -> None:
    """C8: a replacement beats the one that is away."""
    cluster = Cluster()
    cluster.down.add("b3")
    writer = cluster.writer(missing=0b100)
    writer.add(b"a")
    writer.run()
    writer.machine.bookies_changed()
    writer.collect()
    writer.run()
    assert cluster.metadata().last_fragment.ensemble == ("b1", "b2", "b4")


def test_c7_an_ensemble_with_too_many_missing_is_a_bug() -> None:
    """C7: more missing than writing and recovery can do without is a bug."""
    cluster = Cluster()
    with pytest.raises(AssertionError, match="C7"):
        cluster.writer(missing=0b110)


def test_c7_recovery_works_with_an_always_absent_index() -> None:
    """C7, R2, R4: (3,3,2) without its third bookie is fenced, read, written back and closed."""
    cluster = Cluster()
    cluster.down.update(set(cluster.bookies) - {"b1", "b2"})
    writer = cluster.writer(missing=0b100)
    writer.add(b"a")
    writer.run()
    writer.add(b"b")
    writer.deliver(SendAdd, "b1")
    recovery = cluster.recovery()
    recovery.start()
    recovery.run()
    assert recovery.finished is not None
    assert recovery.finished.last_entry_id == 1
    assert cluster.copies(1) == 2
