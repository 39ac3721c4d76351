"""Ledgers: confirming while the ensemble changes (rule C9)."""

from __future__ import annotations

import attrs
import pytest

from replog.errors import MetastoreUnavailableError
from replog.protocol.effects import ChooseReplacements, ReadMetadata, SendAdd, WriteMetadata
from replog.protocol.gaps import Gap
from replog.protocol.model import LedgerState
from replog.protocol.quorum import Quorum
from tests.protocol.driving import Cluster, Writer

SILENCE = MetastoreUnavailableError("the metastore did not answer")


def changing(cluster: Cluster, *, kept_bytes_max: int = 1 << 20) -> Writer:
    """A writer whose entry 0 is confirmed; b3 has failed, and that b4 takes its place is being written."""
    writer = cluster.writer(kept_bytes_max=kept_bytes_max)
    writer.add(b"a")
    writer.run()
    writer.bookie_failed("b3")
    writer.choose({2: "b4"})
    return writer


def append(writer: Writer, payload: bytes = b"x") -> None:
    """Adds an entry, which all bookies that it is sent to store."""
    writer.add(payload)
    while writer.find(SendAdd):
        writer.deliver(SendAdd)


def fragments(cluster: Cluster) -> list[tuple[int, tuple[str, ...]]]:
    return [(each.first_entry_id, each.ensemble) for each in cluster.metadata().fragments]


def confirmed_copies(cluster: Cluster, writer: Writer) -> list[int]:
    return [cluster.copies(entry_id) for entry_id in range(writer.machine.last_add_confirmed + 1)]


def test_c9_entries_are_confirmed_while_a_replacement_is_chosen() -> None:
    """C9, C2: by b1 and b2. They belong to the old fragment: the new one begins behind them, when its change is sent."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.bookie_failed("b3")
    append(writer)
    assert writer.confirmed == [0]
    writer.choose({2: "b4"})
    writer.deliver(WriteMetadata)
    assert fragments(cluster) == [(0, ("b1", "b2", "b3")), (1, ("b1", "b2", "b4"))]
    assert cluster.metadata().gaps == (Gap(2, 0, 0),)


def test_c9_entries_are_confirmed_while_the_change_is_written() -> None:
    """C9: and are sent to the replacement once it is in the record, from the first entry of its fragment on."""
    cluster = Cluster()
    writer = changing(cluster)
    append(writer)
    append(writer)
    assert writer.confirmed == [0, 1, 2]
    assert not writer.find(SendAdd, "b4"), "nothing before the record names it (C3)"
    writer.deliver(WriteMetadata)
    assert [each.batch.first_entry_id for each in writer.find(SendAdd, "b4")] == [1, 2]
    writer.run()
    writer.close()
    writer.run()
    assert fragments(cluster) == [(0, ("b1", "b2", "b3")), (1, ("b1", "b2", "b4"))]
    assert cluster.metadata().gaps == ()
    assert confirmed_copies(cluster, writer) == [3, 3, 3]


@pytest.mark.parametrize("moment", ["choosing", "writing"])
def test_c9_a_replaced_index_does_not_count(moment: str) -> None:
    """C9, C6: b3 acknowledges entry 0 after it failed. With b1 that is no ack quorum of the record that may be written."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    late = writer.arrive(SendAdd, "b3")
    writer.bookie_failed("b3")
    if moment == "writing":
        writer.choose({2: "b4"})
    late()
    writer.deliver(SendAdd, "b1")
    assert writer.confirmed == []
    writer.deliver(SendAdd, "b2")
    assert writer.confirmed == [0]


def test_c9_lost_answer_readmits_no_index() -> None:
    """C9, M1: the change was written and its answer lost; the metastore is silent, and b3 is back. Recovery, which reads the new
    record and cannot reach b1, finds each confirmed entry on b2."""
    cluster = Cluster()
    writer = changing(cluster)
    writer.write_loses_answer()
    for _ in range(3):
        writer.lose(ReadMetadata)
        writer.machine.metadata_silent(SILENCE)
        writer.machine.bookies_changed()
        writer.collect()
    writer.add(b"b")
    assert not writer.find(SendAdd, "b3")
    writer.machine.add_confirmed(2, "b3", 1)
    writer.deliver(SendAdd, "b1")
    writer.collect()
    assert writer.confirmed == [0], "b3 may not be in the record any more"
    writer.deliver(SendAdd, "b2")
    assert writer.confirmed == [0, 1]
    cluster.down |= {"b1"}
    recovery = cluster.recovery()
    recovery.recover()
    assert recovery.finished is not None
    assert recovery.finished.last_entry_id == 1


def test_c9_old_version_read_back_ends_nothing() -> None:
    """C9, M1: the first attempt may still arrive, so b3 stays excluded, and the repeat has the same bytes, though more is
    confirmed by now."""
    cluster = Cluster()
    writer = changing(cluster)
    first = writer.find(WriteMetadata)[0].metadata
    arrives_late = writer.write_loses_request()
    append(writer)
    writer.deliver(ReadMetadata)
    assert writer.confirmed == [0, 1]
    assert writer.find(WriteMetadata)[0].metadata == first
    writer.add(b"c")
    assert not writer.find(SendAdd, "b3")
    arrives_late()
    writer.run()
    writer.close()
    writer.run()
    assert fragments(cluster) == [(0, ("b1", "b2", "b3")), (1, ("b1", "b2", "b4"))]
    assert confirmed_copies(cluster, writer) == [3, 3, 3]


def test_c9_higher_version_begins_behind_the_confirmed_entries() -> None:
    """C9, C4: somebody else changed the record, so the first proposal can't be written any more: what was confirmed meanwhile is
    in the old fragment, where b3 lacks it."""
    cluster = Cluster()
    writer = changing(cluster)
    cluster.change(attrs.evolve(cluster.metadata(), custom={"owner": "ops"}))
    append(writer)
    writer.deliver(WriteMetadata)
    writer.deliver(ReadMetadata)
    append(writer)
    writer.run()
    writer.close()
    writer.run()
    assert fragments(cluster) == [(0, ("b1", "b2", "b3")), (2, ("b1", "b2", "b4"))]
    assert cluster.metadata().gaps == (Gap(2, 1, 1),)
    assert confirmed_copies(cluster, writer) == [3, 2, 3]


def test_c9_resends_begin_where_the_durable_fragment_does() -> None:
    """C9: the change was written; then somebody changed the record, so that the writer reads another version than it wrote. Its
    fragment begins where the record says."""
    cluster = Cluster()
    writer = changing(cluster)
    writer.write_loses_answer()
    cluster.change(attrs.evolve(cluster.metadata(), custom={"owner": "ops"}))
    append(writer)
    append(writer)
    writer.deliver(ReadMetadata)
    assert [each.batch.first_entry_id for each in writer.find(SendAdd, "b4")] == [1, 2]
    writer.run()
    assert confirmed_copies(cluster, writer) == [3, 3, 3]


def test_c9_oldest_overflowing_entries_are_a_gap() -> None:
    """C9, W7: room for two entries of ten bytes: of four the first two are dropped, and recorded as lacking at b4."""
    cluster = Cluster()
    writer = changing(cluster, kept_bytes_max=20)
    for _ in range(4):
        append(writer, b"ten bytes.")
    assert writer.confirmed[-1] == 4
    writer.deliver(WriteMetadata)
    assert [each.batch.first_entry_id for each in writer.find(SendAdd, "b4")] == [3, 4]
    writer.run()
    writer.close()
    writer.run()
    assert cluster.metadata().gaps == (Gap(2, 1, 2),)
    assert confirmed_copies(cluster, writer) == [3, 2, 2, 3, 3]


def test_c9_unconfirmed_entries_leave_less_room() -> None:
    """C9, W6: what is kept and what is unconfirmed share the budget, and the unconfirmed never wait."""
    cluster = Cluster()
    writer = changing(cluster, kept_bytes_max=20)
    append(writer, b"ten bytes.")
    writer.add(b"twenty bytes........")
    writer.deliver(WriteMetadata)
    assert [each.batch.first_entry_id for each in writer.find(SendAdd, "b4")] == [2]
    writer.run()
    writer.close()
    writer.run()
    assert cluster.metadata().gaps == (Gap(2, 1, 1),)


def test_c9_close_records_unsent_entries() -> None:
    """C9, R1: the writer closes while the change is written: b4, which the record names, lacks what was confirmed meanwhile."""
    cluster = Cluster()
    writer = changing(cluster)
    append(writer)
    writer.close()
    writer.run()
    assert cluster.metadata().state is LedgerState.CLOSED
    assert fragments(cluster) == [(0, ("b1", "b2", "b3")), (1, ("b1", "b2", "b4"))]
    assert cluster.metadata().gaps == (Gap(2, 1, 1),)


def test_c9_close_records_the_failed_bookie_after_a_lost_change() -> None:
    """C9, C4: the record keeps the old fragment, in which b3 lacks what was confirmed without it."""
    cluster = Cluster()
    writer = changing(cluster)
    cluster.change(attrs.evolve(cluster.metadata(), custom={"owner": "ops"}))
    append(writer)
    writer.close()
    writer.run()
    assert fragments(cluster) == [(0, ("b1", "b2", "b3"))]
    assert cluster.metadata().gaps == (Gap(2, 1, 1),)


@pytest.mark.parametrize("quorum", [Quorum(3, 3, 3), Quorum(3, 3, 1), Quorum(2, 2, 2), Quorum(5, 2, 2)])
def test_c9_a_change_freezes_where_a_write_set_keeps_too_few(quorum: Quorum) -> None:
    """C9, C7: max(Qa, Qw - Qa + 1) other indices: so many that entries can be confirmed, and recovered."""
    cluster = Cluster(quorum)
    writer = cluster.writer()
    writer.bookie_failed("b2")
    writer.add(*[b"x"] * quorum.ensemble)
    while writer.find(SendAdd):
        writer.deliver(SendAdd)
    assert writer.confirmed == []
    writer.run()
    assert writer.confirmed == [quorum.ensemble - 1]


@pytest.mark.parametrize("quorum", [Quorum(4, 3, 2), Quorum(5, 3, 2), Quorum(4, 4, 3)])
def test_c9_each_write_set_is_looked_at(quorum: Quorum) -> None:
    """C9: entries stripe, and each write set has enough without b2; without b3 as well it has not."""
    cluster = Cluster(quorum)
    writer = cluster.writer()
    writer.bookie_failed("b2")
    writer.choose({1: "b8"})
    append(writer)
    writer.add(*[b"x"] * quorum.ensemble)
    while writer.find(SendAdd):
        writer.deliver(SendAdd)
    assert writer.confirmed[-1] == quorum.ensemble
    writer.bookie_failed("b3")
    append(writer)
    append(writer)
    append(writer)
    assert writer.confirmed[-1] == quorum.ensemble
    writer.run()
    assert writer.confirmed[-1] == quorum.ensemble + 3
    assert min(confirmed_copies(cluster, writer)[1:]) >= quorum.ack


def test_c9_a_roll_freezes_confirmations() -> None:
    """C9, C1: it may replace every index."""
    cluster = Cluster()
    writer = cluster.writer()
    append(writer)
    writer.machine.roll()
    writer.collect()
    writer.add(b"b")
    assert not writer.find(SendAdd)
    writer.machine.add_confirmed(0, "b1", 1)
    writer.machine.add_confirmed(1, "b2", 1)
    writer.collect()
    assert writer.confirmed == [0]
    writer.run()
    assert writer.confirmed == [0, 1]


def test_c9_silent_metastore_is_asked_until_it_answers() -> None:
    """C9: during a change no silence fails the writer; while it closes, its deadline does (W6)."""
    cluster = Cluster()
    writer = changing(cluster)
    for _ in range(20):
        writer.take(WriteMetadata) if writer.find(WriteMetadata) else writer.take(ReadMetadata)
        writer.machine.metadata_silent(SILENCE)
        writer.collect()
        append(writer)
    assert writer.error is None
    assert writer.confirmed[-1] == 20
    writer.run()
    assert min(confirmed_copies(cluster, writer)) == 3
    writer.close()
    writer.take(WriteMetadata)
    writer.machine.metadata_silent(SILENCE)
    writer.collect()
    assert writer.error is SILENCE


def test_c9_second_failure_is_replaced_after_the_first_change() -> None:
    """C9, C1: b2 fails during b3's change, so confirmations freeze; each entry gets its copies in the end."""
    cluster = Cluster()
    writer = changing(cluster)
    append(writer)
    writer.bookie_failed("b2")
    append(writer)
    assert writer.confirmed == [0, 1]
    assert not writer.find(ChooseReplacements)
    writer.run()
    assert writer.confirmed[-1] == 2
    writer.close()
    writer.run()
    lacking = {(gap.index, entry_id) for gap in cluster.metadata().gaps for entry_id in range(3) if gap.holds(entry_id)}
    for entry_id in range(3):
        assert cluster.copies(entry_id) >= 3 - sum((index, entry_id) in lacking for index in range(3))
