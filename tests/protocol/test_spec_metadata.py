"""Metadata: every change is a CAS, and a lost answer is read back (rule M1). All interleavings: see test_change.py."""

from __future__ import annotations

import attrs
import pytest

from replog.protocol.chaining import WriteLog
from replog.protocol.effects import ReadMetadata, SendAdd, WriteMetadata
from replog.protocol.model import LedgerState
from tests.protocol.driving import Cluster
from tests.protocol.driving_logs import segments, takeover


@pytest.mark.parametrize("happened", [True, False])
def test_m1_a_lost_answer_to_the_ensemble_change_is_read_back(happened: bool) -> None:
    """M1: written: known by its token, and not written again. Not written: sent again. One change in either case."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    writer.fail(SendAdd, "b3")
    writer.choose({2: "b4"})
    if happened:
        writer.write_loses_answer()
    else:
        writer.write_loses_request()
    writer.run()
    assert writer.confirmed == [0]
    assert cluster.records[7][1] == 1
    assert cluster.metadata().last_fragment.ensemble == ("b1", "b2", "b4")


def test_m1_a_late_copy_of_a_cas_applies_at_most_once() -> None:
    """M1: the CAS is late, not lost: the writer repeats it, then the first one arrives: it meets a newer version."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    writer.fail(SendAdd, "b3")
    writer.choose({2: "b4"})
    late = writer.write_loses_request()
    writer.deliver(ReadMetadata)
    repeated = writer.find(WriteMetadata)
    assert len(repeated) == 1
    assert late() is not None  # the first one arrives before the repetition
    writer.deliver(WriteMetadata)
    writer.deliver(ReadMetadata)  # our token: written
    writer.run()
    assert cluster.records[7][1] == 1
    assert writer.confirmed == [0]
    assert late() is None


@pytest.mark.parametrize("happened", [True, False])
def test_m1_a_lost_answer_to_closing_is_read_back(happened: bool) -> None:
    """M1: the writer's close, as above."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    writer.run()
    writer.close()
    if happened:
        writer.write_loses_answer()
    else:
        writer.write_loses_request()
    writer.run()
    assert writer.finished == cluster.metadata()
    assert cluster.records[7][1] == 1


@pytest.mark.parametrize("claim_happened", [True, False])
@pytest.mark.parametrize("close_happened", [True, False])
def test_m1_lost_answers_in_recovery_are_read_back(claim_happened: bool, close_happened: bool) -> None:
    """M1: claim and close of a recovery each lose an answer; the record still changes exactly twice."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    writer.run()
    recovery = cluster.recovery()
    recovery.start()
    for happened in (claim_happened, close_happened):
        while not recovery.find(WriteMetadata):
            effect = recovery.waiting[0]
            recovery.deliver(type(effect), getattr(effect, "bookie_id", None))
        if happened:
            recovery.write_loses_answer()
        else:
            recovery.write_loses_request()
    recovery.run()
    assert recovery.finished == cluster.metadata()
    assert cluster.records[7][1] == 2
    assert cluster.metadata().last_entry_id == 0


def test_m1_written_change_counts_before_a_later_change() -> None:
    """M1: our token is gone from the record, but our fragment stands there: the change is not made twice."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    writer.fail(SendAdd, "b3")
    writer.choose({2: "b4"})
    writer.write_loses_answer()
    cluster.change(attrs.evolve(cluster.metadata(), custom={"repair": "done"}))
    writer.run()
    assert writer.confirmed == [0]
    assert cluster.records[7][1] == 2
    writer.close()
    writer.write_loses_answer()
    cluster.change(attrs.evolve(cluster.metadata(), custom={"repair": "again"}))
    writer.run()
    assert writer.finished == cluster.metadata()
    assert cluster.metadata().state is LedgerState.CLOSED


def test_m1_tokens_are_never_used_twice() -> None:
    """M1: each attempt has a token of its own, else a conflict could look like success."""
    cluster = Cluster()
    writer = cluster.writer()
    tokens = [cluster.metadata().token]
    for entry_id, (failed, replacement) in enumerate([("b3", "b4"), ("b4", "b5"), ("b5", "b6")]):
        writer.add(b"%d" % entry_id)
        writer.bookie_failed(failed)
        writer.choose({2: replacement})
        tokens.append(writer.find(WriteMetadata)[0].metadata.token)
        writer.run()
    writer.close()
    tokens.append(writer.find(WriteMetadata)[0].metadata.token)
    assert len(set(tokens)) == len(tokens)


@pytest.mark.parametrize("happened", [True, False])
def test_m1_a_lost_answer_to_a_takeover_is_read_back(happened: bool) -> None:
    """M1: the log names the new ledger once, and the takeover knows whether it won."""
    cluster = Cluster()
    takeover(cluster, "t0").run()
    actor = takeover(cluster, "t1")
    actor.run_until(WriteLog)
    if happened:
        actor.write_loses_answer()
    else:
        actor.write_loses_request()
    actor.run()
    assert actor.changed is not None
    assert segments(cluster) == [(1, 1), (2, 2)]
    assert set(cluster.records) == {1, 2}
