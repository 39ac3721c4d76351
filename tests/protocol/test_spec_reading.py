"""Ledgers: reading (rules D)."""

from __future__ import annotations

import itertools

import attrs
import pytest

from replog.errors import EntryNotFoundError, EntryUnreadableError, LedgerNotFoundError
from replog.protocol import batch as batches
from replog.protocol.effects import ReadMetadata, SendAdd, SendRead, SendReadLastAddConfirmed
from replog.protocol.model import LedgerState
from replog.protocol.quorum import Quorum
from tests.protocol.driving import STRIPED, THREE, Cluster, Writer


def written(cluster: Cluster, *gatherings: int) -> Writer:
    """A writer that has confirmed gatherings of this many entries, each entry with its id as payload, and told so."""
    writer = cluster.writer()
    for size in gatherings:
        first = writer.machine.last_add_pushed + 1
        writer.add(*[b"%d" % entry_id for entry_id in range(first, first + size)])
        writer.run()
    writer.machine.publish()
    writer.run()
    return writer


def payloads(count: int) -> list[bytes]:
    return [b"%d" % entry_id for entry_id in range(count)]


@pytest.mark.parametrize("quorum", [THREE, STRIPED, Quorum(4, 2, 2)])
def test_d1_a_normal_open_fences_nothing_and_changes_nothing(quorum: Quorum) -> None:
    """D1: a reader comes, polls and reads; the writer goes on as before, and metadata and fences are untouched."""
    cluster = Cluster(quorum)
    writer = written(cluster, 3, 4)
    record = cluster.records[7]
    reader = cluster.reader()
    reader.poll()
    assert reader.read_all() == payloads(7)
    assert {bookie.ledger(7).fence_term for bookie in cluster.bookies.values()} <= {0, 1}
    assert cluster.records[7] == record
    writer.add(b"7")
    writer.run()
    assert writer.confirmed[-1] == 7


def test_d1_only_confirmed_entries_are_asked_for() -> None:
    """D1: entry 1 is on every bookie, but nobody has said that it is confirmed."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"0")
    writer.run()
    writer.add(b"1")
    for name in ("b1", "b2", "b3"):
        writer.arrive(SendAdd, name, 1)  # the header says: 0 is confirmed
    reader = cluster.reader()
    reader.read_on()
    assert not reader.waiting
    reader.poll()
    assert reader.read_all() == [b"0"]
    assert not reader.find(SendRead)


def test_d1_mark_in_a_read_entry_counts() -> None:
    """D1: the reader was told 0 only, and reads on as far as the headers that it sees allow."""
    cluster = Cluster()
    written(cluster, 1, 1, 1)
    reader = cluster.reader()
    reader.machine.last_add_confirmed_heard(1)
    assert reader.read_all() == payloads(2)
    assert reader.machine.last_readable == 1
    reader.machine.last_add_confirmed_heard(2)
    assert reader.read_all() == payloads(3)


def test_d1_a_batch_may_be_handed_out_in_parts() -> None:
    """D1: the bound stands inside a batch; when it moves, the rest follows, without gap or repetition."""
    for quorum in (THREE, STRIPED):
        cluster = Cluster(quorum)
        written(cluster, 12)
        reader = cluster.reader()
        for bound in range(12):
            reader.machine.last_add_confirmed_heard(bound)
            assert reader.read_all() == payloads(bound + 1)


def test_d1_a_poll_asks_the_last_ensemble() -> None:
    """D1: long-poll: `after` is what the reader knows."""
    cluster = Cluster()
    written(cluster, 2)
    reader = cluster.reader()
    reader.machine.last_add_confirmed_heard(0)
    reader.machine.poll_last_add_confirmed()
    reader.collect()
    assert {(each.bookie_id, each.after) for each in reader.find(SendReadLastAddConfirmed)} == {
        ("b1", 0),
        ("b2", 0),
        ("b3", 0),
    }


@pytest.mark.parametrize("fault", ["damage", "absence", "silence", "forgery"])
def test_d2_a_bad_copy_sends_the_read_to_the_next_bookie(fault: str) -> None:
    """D2: a bad authentication code, a missing entry or a silent bookie: the next of the write set is asked."""
    cluster = Cluster()
    written(cluster, 1)
    bookie = cluster["b1"]
    reader = cluster.reader(order=("b1", "b2", "b3"))
    reader.poll()
    if fault == "damage":
        bookie.disk.damaged.add((7, 0))
    elif fault == "absence":
        bookie.disk.batches.clear()
    elif fault == "silence":
        cluster.down = {"b1"}
    else:
        bookie.disk.batches[7] = tampered_cluster()["b1"].disk.batches[7]
    reader.read_on()
    assert [effect.bookie_id for effect in reader.find(SendRead)] == ["b1"]
    reader.deliver(SendRead, "b1")
    assert [effect.bookie_id for effect in reader.find(SendRead)] == ["b2"]
    assert reader.read_all() == [b"0"]


def tampered_cluster() -> Cluster:
    """The same ledger with one flipped bit in the payload, under a code that doesn't match."""
    cluster = Cluster()
    written(cluster, 1)
    (batch,) = cluster["b1"].disk.batches[7]
    data = bytearray(batch.data)
    data[-5] ^= 1
    cluster["b1"].disk.batches[7] = [batches.decode(bytes(data))]
    return cluster


def test_d2_a_slow_bookie_is_not_waited_for_alone() -> None:
    """D2: speculative: the next is asked as well, the first good answer counts, and late ones change nothing."""
    cluster = Cluster()
    written(cluster, 1, 1)
    reader = cluster.reader(order=("b1", "b2", "b3"))
    reader.poll()
    reader.read_on()
    slow = reader.arrive(SendRead, "b1")
    reader.machine.read_slow(0)
    reader.collect()
    reader.deliver(SendRead, "b2")
    assert reader.payloads == payloads(2)
    slow()
    reader.machine.read_slow(0)
    reader.machine.read_absent(2, 0)
    reader.collect()
    assert reader.payloads == payloads(2)
    assert reader.error is None


def test_d2_silence_of_all_may_be_retried_and_absence_may_not() -> None:
    """D2: one bookie that could not say makes the entry unreadable for now; negatives of all say it is lost."""
    for doubt in (True, False):
        cluster = Cluster()
        written(cluster, 1)
        for name in ("b1", "b2", "b3"):
            cluster[name].disk.batches.clear()
        if doubt:
            cluster.down = {"b2"}
        reader = cluster.reader()
        reader.machine.last_add_confirmed_heard(0)
        expected = EntryUnreadableError if doubt else EntryNotFoundError
        with pytest.raises(expected, match="b2") as caught:
            reader.read_all()
        assert type(caught.value) is expected
        assert caught.value.entry_id == 0


def test_d2_an_unreadable_entry_is_told_behind_those_before_it() -> None:
    """D2, D3: entries are asked for side by side; the loss of a later one is known first, and keeps no earlier one back."""
    cluster = Cluster(Quorum(2, 1, 1))
    written(cluster, 1, 1, 1)
    cluster["b2"].disk.batches.clear()
    reader = cluster.reader()
    reader.machine.last_add_confirmed_heard(2)
    reader.read_on()
    assert {(each.bookie_id, each.entry_id) for each in reader.find(SendRead)} == {("b1", 0), ("b2", 1)}
    reader.deliver(SendRead, "b2")
    reader.deliver(ReadMetadata)
    reader.deliver(SendRead, "b2")
    assert reader.error is None
    reader.deliver(SendRead, "b1")
    assert reader.payloads == [b"0"]
    assert isinstance(reader.error, EntryNotFoundError)
    assert reader.error.entry_id == 1
    assert reader.machine.next_entry_id == 1


@pytest.mark.parametrize("way", ["late answer", "long poll"])
def test_d2_a_late_entry_is_no_failure(way: str) -> None:
    """D2: it was given up, and those before it are still awaited. Nothing is raised for it, nor for one behind it."""
    cluster = Cluster(Quorum(2, 1, 1))
    written(cluster, 1, 1, 1, 1)
    late = cluster["b2"].disk.batches[7][:1]
    reader = cluster.reader()
    reader.machine.last_add_confirmed_heard(3)
    reader.read_on()
    (asked,) = [each for each in reader.find(SendRead) if each.bookie_id == "b2"]
    reader.machine.read_unknown(asked.index, 1)
    reader.collect()
    reader.deliver(ReadMetadata)
    reader.machine.read_unknown(asked.index, 1)
    if way == "late answer":
        reader.machine.read_found(asked.index, 1, late)
    else:
        reader.machine.last_add_confirmed_answered(3, late)
    reader.deliver(SendRead, "b1")
    assert reader.error is None
    assert reader.payloads == payloads(3)
    assert reader.read_all() == payloads(4)


def test_d2_recovery_reads_and_writes_do_not_move_a_readers_mark() -> None:
    """D2, R5: while a recovery writes entries back, no bookie and no batch tells a reader that they are confirmed."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"0")
    writer.run()
    writer.add(b"1")
    writer.deliver(SendAdd, "b2", 1)
    recovery = cluster.recovery()
    recovery.claim()
    for kind in ("SendFence", "SendRecoveryRead", "SendAdd"):
        for effect in [each for each in recovery.waiting if type(each).__name__ == kind]:
            recovery.deliver(type(effect), effect.bookie_id)
    assert cluster.holders(1) >= {"b1", "b2", "b3"}
    reader = cluster.reader()
    reader.poll()
    assert reader.read_all() == [b"0"]
    recovery.run()
    reader.refresh()
    assert reader.read_all() == payloads(2)


@pytest.mark.parametrize("quorum", [THREE, STRIPED, Quorum(4, 2, 2), Quorum(5, 2, 2)])
def test_d3_every_order_of_asking_reads_the_same_entries(quorum: Quorum) -> None:
    """D3: whatever bookies answer first, a scan from anywhere gives the ids in order without a gap."""
    cluster = Cluster(quorum)
    written(cluster, 1, 7, 2, 11, 1)
    names = list(cluster.bookies)[: quorum.ensemble]
    for first, order in itertools.product((0, 1, 5, 21), itertools.islice(itertools.permutations(names), 0, 120, 7)):
        reader = cluster.reader(first_entry_id=first, order=order)
        reader.poll()
        reader.read_on()
        reader.waiting.reverse()
        assert reader.read_all() == payloads(22)[first:]


def test_d3_overtaking_answers_are_delivered_in_order() -> None:
    """D3: the bookie of entries 0 to 2 answers last: nothing is handed out before it, and then everything."""
    cluster = Cluster(STRIPED)
    written(cluster, 10)
    reader = cluster.reader(order=("b3", "b5"))
    reader.poll()
    reader.read_on()
    assert [(effect.bookie_id, effect.entry_id) for effect in reader.find(SendRead)] == [("b3", 0), ("b5", 3)]
    reader.deliver(SendRead, "b5")
    assert reader.payloads == []
    reader.deliver(SendRead, "b3")
    assert reader.payloads == payloads(10)


@pytest.mark.parametrize("fault", ["slow", "absence", "silence"])
def test_d2_a_guest_does_not_wait_for_its_hosts_bookie(fault: str) -> None:
    """D2: entries 1 and 2 were to come with 0 from b3. As soon as that is in doubt, others are asked for them too."""
    cluster = Cluster(STRIPED)
    written(cluster, 10)
    reader = cluster.reader(order=("b3", "b5", "b1", "b2"))
    reader.poll()
    if fault == "absence":
        cluster["b3"].disk.batches.clear()
    reader.read_on()
    reader.deliver(SendRead, "b5")
    if fault == "slow":
        reader.lose(SendRead, "b3")
        reader.machine.read_slow(0)
        reader.collect()
    elif fault == "silence":
        reader.fail(SendRead, "b3")
    else:
        reader.deliver(SendRead, "b3")
    assert reader.find(SendRead, "b1", 0)
    asked = {effect.entry_id: effect for effect in reader.find(SendRead)}
    assert 1 in asked
    cluster.down = {"b3"} if fault == "slow" else set()
    assert reader.read_all() == payloads(10)


def test_d3_short_answers_are_completed_in_parallel() -> None:
    """D3: each answer has room for one batch: after the first one everybody asks for itself, until answers are long again."""
    cluster = Cluster(Quorum(4, 2, 2))
    writer = written(cluster, *[8] * 6)
    writer.close()
    writer.run()
    reader = cluster.reader(order=("b2", "b4"))
    reader.read_on()

    def answer(bookie_id: str, entry_id: int, count: int) -> None:
        effect = reader.take(SendRead, bookie_id, entry_id)
        found = cluster[bookie_id].disk.read(7, entry_id, effect.stamp)
        assert found is not None
        reader.machine.read_found(effect.index, entry_id, found[:count])
        reader.collect()

    def asked() -> list[int]:
        return sorted(effect.entry_id for effect in reader.find(SendRead))

    assert asked() == [0, 2]
    answer("b2", 0, 1)
    assert asked() == [1, 2]  # 1 was not brought
    answer("b4", 2, 1)
    assert asked() == [1, 3]
    answer("b2", 1, 1)
    answer("b4", 3, 1)
    assert reader.payloads == payloads(8)
    reader.read_on()
    assert asked() == [8, 9, 10, 11]
    for entry_id in (8, 9, 10):
        answer("b2" if entry_id < 10 else "b4", entry_id, 1)
    answer("b4", 11, 2)  # has room for two write sets again
    reader.read_on()
    assert len(asked()) == 2
    assert reader.read_all() == payloads(48)


def test_d3_unwanted_entries_are_not_asked_for() -> None:
    """D3: of one entry only its write set is asked, also while all of the ledger could be read."""
    cluster = Cluster(STRIPED)
    written(cluster, 10)
    reader = cluster.reader(first_entry_id=6)
    reader.machine.last_add_confirmed_heard(9)
    reader.machine.last_wanted = 6
    reader.read_on()
    assert [effect.entry_id for effect in reader.find(SendRead)] == [6]
    assert reader.read_all() == [b"6"]


def test_d3_no_more_is_read_ahead_than_was_asked_for() -> None:
    """D3: what an answer completes is handed out, and nothing else is asked for until somebody reads on."""
    cluster = Cluster(STRIPED)
    writer = written(cluster, 10, 10)
    writer.close()
    writer.run()
    reader = cluster.reader()
    reader.read_on()
    reads = reader.find(SendRead)
    assert len(reads) == 2
    for effect in reads:
        reader.take(SendRead, effect.bookie_id)
        found = cluster[effect.bookie_id].disk.read(7, effect.entry_id, effect.stamp)
        assert found is not None
        reader.machine.read_found(effect.index, effect.entry_id, [each for each in found if each.first_entry_id < 10])
        reader.collect()
    assert reader.payloads == payloads(10)
    assert not reader.waiting


def test_d3_a_reader_with_old_metadata_finds_moved_entries() -> None:
    """D3: b1..b3 never got entry 1; the fragment that has it is in metadata that the reader hasn't seen."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"0")
    writer.run()
    reader = cluster.reader()
    cluster.down = {"b1", "b2", "b3"}
    writer.add(b"1")
    writer.run()
    cluster.down = set()
    assert cluster.holders(1) == {"b4", "b5", "b6"}
    reader.machine.last_add_confirmed_heard(1)
    assert reader.read_all() == payloads(2)


def test_d3_a_reader_of_a_closed_ledger_follows_its_repair() -> None:
    """D3, D2: all three bookies were replaced one after the other since the reader opened the closed ledger."""
    cluster = Cluster()
    writer = written(cluster, 1)
    writer.close()
    writer.run()
    reader = cluster.reader()
    for old, new in (("b1", "b4"), ("b2", "b5"), ("b3", "b6")):
        cluster[new].disk.batches[7] = cluster[old].disk.batches.pop(7)
        fragment = cluster.metadata().last_fragment
        ensemble = tuple(new if bookie == old else bookie for bookie in fragment.ensemble)
        cluster.change(cluster.metadata().with_fragment(attrs.evolve(fragment, ensemble=ensemble)))
    assert reader.read_all() == [b"0"]


def test_d3_closed_is_final_for_a_reader() -> None:
    """D3, O8: an old copy of the record, from before the close, takes nothing back."""
    cluster = Cluster()
    writer = written(cluster, 1)
    before = cluster.metadata()
    writer.close()
    writer.run()
    reader = cluster.reader()
    reader.machine.metadata_read(before)
    assert reader.read_all() == [b"0"]
    assert reader.machine.is_at_end


def test_d3_entries_of_a_fragment_are_read_under_its_stamp() -> None:
    """D3, T3: a zombie of an older term on the same bookie is never handed out (F4)."""
    cluster = Cluster()
    written(cluster, 1)
    metadata = cluster.metadata()
    newer = attrs.evolve(metadata, fragments=(attrs.evolve(metadata.last_fragment, term=3),), state=LedgerState.CLOSED)
    cluster.change(attrs.evolve(newer, last_entry_id=0))
    reader = cluster.reader()
    reader.read_on()
    (batch,) = cluster["b1"].disk.batches[7]
    reader.machine.read_found(reader.take(SendRead).index, 0, [batch])  # stamp 1, from a bookie that doesn't look
    reader.run()
    assert reader.payloads == []
    assert isinstance(reader.error, EntryNotFoundError)


def test_d3_a_deleted_ledger_is_an_error_not_an_end() -> None:
    """D3: nothing may look like the end of the ledger but its end."""
    cluster = Cluster()
    written(cluster, 1)
    reader = cluster.reader()
    reader.machine.last_add_confirmed_heard(0)
    for name in ("b1", "b2", "b3"):
        cluster[name].disk.batches.clear()
    reader.read_on()
    while reader.find(SendRead):
        reader.deliver(SendRead)
    del cluster.records[7]
    reader.deliver(ReadMetadata)
    assert isinstance(reader.error, LedgerNotFoundError)
    assert not reader.machine.is_at_end
