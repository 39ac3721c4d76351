"""Unbounded ledgers at the floor: X7 to X13 of the counterexamples, and the questions of takeovers, replayed step by step.

A ledger has one writer per term. A takeover claims the next term, fences the last fragment's bookies, recovers what may be
confirmed under the stamps that it has, and opens a fragment of its own term behind that (T1-T3, R2-R11).
"""

from __future__ import annotations

import attrs
import pytest

from replog.errors import (
    FencedError,
    LedgerError,
    LedgerFinishedError,
    LedgerRolledBackError,
    LedgerTrimmedError,
    RecoveryUndecidedError,
)
from replog.protocol.effects import (
    ReadMetadata,
    SendAdd,
    SendFence,
    SendLastAddConfirmed,
    SendRead,
    SendReadLastAddConfirmed,
    SendRecoveryRead,
    WriteMetadata,
)
from replog.protocol.model import Fragment, LedgerMetadata, LedgerState
from replog.protocol.quorum import Quorum
from tests.protocol.driving import STRIPED, THREE, Cluster, Writer


def unbounded(quorum: Quorum = THREE, bookies: int = 8) -> Cluster:
    cluster = Cluster(quorum, bookies)
    cluster.create_ledger(unbounded=True)
    return cluster


def written(cluster: Cluster, *payloads: bytes) -> Writer:
    """A writer of term 1 that has confirmed these."""
    writer = cluster.writer()
    for payload in payloads:
        writer.add(payload)
    writer.run()
    return writer


def read_all(cluster: Cluster, *order: str) -> list[bytes]:
    """The entries that a new reader finds when it asks these bookies first."""
    reader = cluster.reader(order=order, first_entry_id=cluster.metadata().trim_to)
    reader.poll()
    return reader.read_all()


def starts(metadata: LedgerMetadata) -> list[tuple[int, int]]:
    return [(each.first_entry_id, each.term) for each in metadata.fragments]


def test_takeover_goes_on_behind_the_last_entry() -> None:
    """T2, T3: ids continue, under the next stamp."""
    cluster = unbounded()
    written(cluster, b"a", b"b")
    w2 = cluster.taken_over()
    w2.add(b"c")
    w2.run()
    metadata = cluster.metadata()
    assert (metadata.state, metadata.term, metadata.open_term) == (LedgerState.OPEN, 2, 2)
    assert starts(metadata) == [(0, 1), (2, 2)]
    assert w2.confirmed == [2]
    w2.machine.publish()
    w2.collect()
    w2.run()
    assert read_all(cluster) == [b"a", b"b", b"c"]


def test_eight_takeovers_leave_one_log() -> None:
    cluster = unbounded(STRIPED)
    expected = []
    writer = cluster.writer()
    for term in range(1, 9):
        payloads = [b"%d:%d" % (term, number) for number in range(term)]
        expected += payloads
        writer.add(*payloads)
        writer.run()
        writer = cluster.taken_over(nonce=f"w{term + 1}")
    assert cluster.metadata().term == 9
    assert read_all(cluster) == expected


def test_x7_zombie_entry_never_replaces_a_confirmed_one() -> None:
    """The seed's own schedule, without truncation. Rule T3."""
    cluster = unbounded()
    w1 = written(cluster, b"A")  # e0 on all
    w1.add(b"B")
    w1.deliver(SendAdd, "b1")  # e1 = B only on b1
    w2 = cluster.takeover("w2")
    cluster.down.add("b1")
    w2.recover()  # L = 0
    writer = w2.writer_of_term()
    writer.add(b"C")
    writer.run()  # e1 = C on b2, and on who stands in for b1
    cluster.down.clear()
    assert writer.confirmed == [1]
    w3 = cluster.takeover("w3")
    w3.recover()
    assert read_all(cluster, "b1") == [b"A", b"C"]


def test_x8_confirmed_entry_survives_an_untruncated_bookie() -> None:
    """G1 of the published model: b1 keeps B, whatever the takeover reached. Rules T3, R11."""
    cluster = unbounded()
    w1 = cluster.writer()
    w1.add(b"A")
    w1.deliver(SendAdd, "b1")
    w1.deliver(SendAdd, "b2")
    w1.add(b"B")
    w1.deliver(SendAdd, "b1", 1)  # e1 = B only on b1
    w2 = cluster.takeover("w2")
    w2.claim()
    w2.deliver(SendFence, "b2")
    w2.deliver(SendFence, "b3")
    w2.fail(SendFence, "b1")  # b1 is neither fenced nor read
    w2.deliver(SendRecoveryRead, "b2", 0)
    w2.run_without(SendRecoveryRead)
    for bookie in ("b2", "b3"):
        w2.deliver(SendRecoveryRead, bookie, 1)
    w2.run()
    writer = w2.writer_of_term()
    assert starts(cluster.metadata())[-1] == (1, 2)
    writer.add(b"C")
    writer.add(b"D")
    writer.run()
    cluster.takeover("w3").recover()
    assert read_all(cluster, "b1") == [b"A", b"C", b"D"]


def test_x9_rejoining_bookie_does_not_bring_its_zombies_along() -> None:
    """F1: b1, evicted with dirty entries, comes back into the ensemble. Rule T3."""
    cluster = unbounded(bookies=4)
    w1 = cluster.writer()
    w1.add(b"A")
    w1.add(b"B")
    w1.deliver(SendAdd, "b1", 0)  # both only on b1
    w1.deliver(SendAdd, "b1", 1)
    cluster.down.add("b1")
    w2 = cluster.taken_over("w2")  # L = -1: the empty fragment 0 is replaced
    assert starts(cluster.metadata()) == [(0, 2)]
    assert "b4" in cluster.metadata().last_fragment.ensemble
    cluster.down.clear()
    cluster.down.add("b4")
    w2.add(b"C")
    w2.run()  # b4 fails, and b1 is back in the ensemble
    cluster.down.clear()
    assert w2.confirmed == [0]
    assert "b1" in cluster.metadata().last_fragment.ensemble
    cluster.down.add("b3")
    cluster.takeover("w3").recover()  # from b1 and b2
    assert read_all(cluster, "b1")[:1] == [b"C"]


def test_x10_dying_takeover_leaves_no_hole() -> None:
    """F3: entries of one writer appear from the first to the last, without a gap. Rules R4, R6."""
    cluster = unbounded(Quorum(2, 2, 2))
    w1 = cluster.writer()
    w1.add(b"v1")
    w1.add(b"v2")
    w1.deliver(SendAdd, "b1", 0)
    w1.deliver(SendAdd, "b1", 1)  # both only on b1
    w2 = cluster.takeover("w2")
    w2.claim()
    w2.deliver(SendFence, "b2")
    w2.deliver(SendRecoveryRead, "b2", 0)  # b2: no entry; w2 dies here
    w3 = cluster.takeover("w3")
    w3.recover()
    assert cluster.metadata().term == 3
    assert read_all(cluster) == [b"v1", b"v2"]


def test_x11_reader_with_old_metadata_reads_no_zombie() -> None:
    """F4: fresh last add confirmed, old fragments. Rules R11, D1, D3; readers that believe it diverged in 1,050 of 5,000."""
    cluster = unbounded()
    w1 = written(cluster, b"0", b"1")
    w1.add(b"zombie")
    w1.deliver(SendAdd, "b1", 2)
    reader = cluster.reader(order=("b1",))  # knows fragment 0 of stamp 1 only
    cluster.down.add("b1")
    w2 = cluster.taken_over()
    for payload in (b"2", b"3"):
        w2.add(payload)
        w2.run()
    cluster.down.clear()
    reader.machine.poll_last_add_confirmed()
    reader.collect()
    reader.deliver(SendReadLastAddConfirmed, "b2")  # last add confirmed 2, of stamp 2: of no use with this record
    assert reader.machine.last_readable < 2
    assert reader.find(ReadMetadata), "the record is read again instead"
    assert not reader.find(SendRead)
    reader.run()
    assert reader.read_all()[:3] == [b"0", b"1", b"2"]


def test_x11_reader_trims_a_batch_at_the_end_of_its_term() -> None:
    """A takeover ends inside a batch: what the batch holds behind that has another stamp. Rules R7, D3."""
    cluster = unbounded(STRIPED)
    w1 = written(cluster, b"0")
    w1.add(*[b"z%d" % number for number in range(1, 12)])  # batches 1,6,11 and 2,7 and so on
    for bookie in ("b2", "b3", "b4"):
        w1.deliver(SendAdd, bookie, 1)
    w2 = cluster.taken_over()
    first = cluster.metadata().last_fragment.first_entry_id
    assert first == 2, "entry 1 was found, entry 2 was not: the batch of 1, 6 and 11 reaches beyond the end"
    payloads = [b"n%d" % number for number in range(first, 20)]
    w2.add(*payloads)
    w2.run()
    w2.machine.publish()
    w2.collect()
    w2.run()
    assert read_all(cluster) == [b"0", b"z1", *payloads]


def test_reader_forgets_entries_cut_off_by_a_takeover() -> None:
    """The batch was read before the takeover was known. Rules D3, R7."""
    cluster = unbounded(STRIPED)
    w1 = written(cluster, b"0")
    w1.add(b"1", *[b"z%d" % number for number in range(2, 12)])
    for bookie in ("b2", "b3", "b4"):
        w1.deliver(SendAdd, bookie, 1)
    reader = cluster.reader()
    reader.machine.last_add_confirmed_heard(1)  # as a proof of stamp 1 would say
    reader.read_on()
    for effect in list(reader.waiting):
        if isinstance(effect, SendRead) and effect.entry_id == 1:
            reader.deliver(SendRead, effect.bookie_id, 1)  # the batch of 1, 6 and 11, before entry 0
    w2 = cluster.taken_over()
    payloads = [b"n%d" % number for number in range(2, 9)]
    w2.add(*payloads)
    w2.run()
    reader.refresh()
    reader.poll()
    assert reader.read_all()[:3] == [b"0", b"1", *payloads[:1]] or reader.payloads == [b"0", b"1"]
    w2.machine.publish()
    w2.collect()
    w2.run()
    reader.poll()
    assert reader.read_all() == [b"0", b"1", *payloads]


def test_x12_late_message_of_a_former_term_changes_nothing() -> None:
    """A recovery's add of term 2 arrives when term 3 writes. Rules T1, T3."""
    cluster = unbounded()
    w1 = cluster.writer()
    w1.add(b"A")
    w1.deliver(SendAdd, "b1")
    w2 = cluster.takeover("w2")
    w2.claim()
    for bookie in ("b1", "b2", "b3"):
        w2.deliver(SendFence, bookie)
    w2.deliver(SendRecoveryRead, "b1", 0)  # writes A back
    late = w2.take(SendAdd, "b3", 0)
    w3 = cluster.taken_over("w3")
    w3.add(b"B")
    w3.run()
    w2.waiting.append(late)
    w2.deliver(SendAdd, "b3", 0)
    assert w2.find(ReadMetadata), "b3 knows a later term: the record says whose it is"
    w2.run()
    assert isinstance(w2.error, FencedError)
    assert w2.error.term == 3
    cluster.takeover("w4").recover()
    assert read_all(cluster) == [b"A", b"B"]


def test_x13_confirmed_entry_stays_where_its_fragment_says() -> None:
    """A change of the ensemble keeps an entry whose one copy is the ack quorum. Rules C2, C5."""
    cluster = unbounded(Quorum(2, 2, 1), bookies=3)
    w1 = cluster.writer()
    w1.add(b"e0")
    w1.deliver(SendAdd, "b1", 0)  # confirmed by b1 alone
    w1.add(b"e1")
    w1.fail(SendAdd, "b1", 1)
    w1.run()
    assert w1.confirmed[-1] == 1
    assert cluster.copies(0) >= 1
    cluster.takeover("w2").recover()
    assert read_all(cluster) == [b"e0", b"e1"]


# -- section 7, and the takeover's steps --------------------------------------------------------------------------------


def test_lost_answer_of_a_claim_is_recognized_by_its_owner() -> None:
    """Q3, M1."""
    cluster = unbounded()
    w2 = cluster.takeover("w2")
    w2.start()
    w2.write_loses_answer()
    w2.run()
    assert cluster.metadata().term == 2


def test_claim_is_recognized_after_a_repair_changed_the_record() -> None:
    """The token is the repair's now; term and owner are still the client's. Q3, F4."""
    cluster = unbounded()
    w2 = cluster.takeover("w2")
    w2.start()
    w2.write_loses_answer()
    cluster.change(cluster.metadata())
    w2.run()
    assert (cluster.metadata().term, cluster.metadata().owner) == (2, "w2")
    assert cluster.metadata().state is LedgerState.OPEN


def test_two_takeovers_at_once_open_once() -> None:
    """X20: both read term 1; one gets term 2, the other one term 3 and the ledger. Rule M1."""
    cluster = unbounded()
    written(cluster, b"a")
    w2, w3 = cluster.takeover("w2"), cluster.takeover("w3")
    w2.start()
    w3.start()
    w2.deliver(WriteMetadata)  # term 2
    w3.run()  # its claim meets another version: term 3
    assert w3.finished is not None
    assert cluster.metadata().term == 3
    w2.run()
    assert isinstance(w2.error, FencedError)
    assert w2.error.term == 3
    assert starts(cluster.metadata()) == [(0, 1), (1, 3)]


def test_deposed_takeover_opens_nothing() -> None:
    """It has recovered all; before its last compare-and-set another client claims the next term. Rules M1, C4."""
    cluster = unbounded()
    written(cluster, b"a")
    w2 = cluster.takeover("w2")
    w2.start()
    w2.run_without(WriteMetadata)
    w2.deliver(WriteMetadata)
    w2.run_without(WriteMetadata)
    assert w2.find(WriteMetadata), "the ledger is to be opened"
    cluster.takeover("w3").claim()
    w2.run()
    assert isinstance(w2.error, FencedError)
    assert cluster.metadata().state is LedgerState.IN_RECOVERY


def test_lost_answer_of_an_opening_is_recognized() -> None:
    cluster = unbounded()
    w2 = cluster.takeover("w2")
    w2.start()
    w2.run_without(WriteMetadata)
    w2.deliver(WriteMetadata)
    w2.run_without(WriteMetadata)
    w2.write_loses_answer()
    cluster.change(cluster.metadata())
    w2.run()
    assert w2.finished is not None


def test_deposed_writer_gets_the_term_and_the_unknown_entries() -> None:
    cluster = unbounded()
    w1 = written(cluster, b"a")
    cluster.taken_over()
    w1.add(b"b")
    w1.run()
    assert isinstance(w1.error, FencedError)
    assert (w1.error.term, w1.error.unconfirmed) == (2, range(1, 2))
    assert w1.confirmed == [0]


def test_writer_changes_no_ensemble_after_its_term() -> None:
    """The record is open again, for another client. Rules C4, T2."""
    cluster = unbounded()
    w1 = written(cluster, b"a")
    cluster.taken_over()
    w1.bookie_failed("b1")
    w1.run()
    assert isinstance(w1.error, FencedError)
    assert w1.error.term == 2
    assert cluster.metadata().owner == "w2"


def test_finished_ledger_is_not_taken_over() -> None:
    cluster = unbounded()
    w1 = written(cluster, b"a")
    w1.close()
    w1.run()
    w2 = cluster.takeover()
    w2.start()
    w2.run()
    assert isinstance(w2.error, LedgerFinishedError)
    assert not isinstance(w2.error, FencedError)


def test_recovering_an_unbounded_ledger_closes_it() -> None:
    """A client that recovers takes the next term, too, and ends the ledger."""
    cluster = unbounded()
    written(cluster, b"a")
    w2 = cluster.recovery()
    assert w2.recover().last_entry_id == 0
    assert cluster.metadata().term == 2


def test_interrupted_takeover_is_taken_over() -> None:
    """IN_RECOVERY of a dead client: the next one has a term of its own."""
    cluster = unbounded()
    written(cluster, b"a")
    cluster.takeover("w2").claim()
    cluster.takeover("w3").recover()
    assert cluster.metadata().term == 3


def test_takeover_replaces_absent_bookies_before_it_opens() -> None:
    """C7: the new term's fragment names bookies that are there."""
    cluster = unbounded(bookies=4)
    written(cluster, b"a")
    cluster.down.add("b2")
    w2 = cluster.taken_over()
    assert cluster.metadata().last_fragment == Fragment(1, ("b1", "b4", "b3"), 2)
    w2.add(b"b")
    w2.run()
    assert w2.confirmed == [1]


def test_takeover_opens_with_one_bookie_missing_of_three() -> None:
    """C7, W7: nobody stands in; the gap is recorded, and the writer counts the index as failed."""
    cluster = unbounded(bookies=3)
    written(cluster, b"a")
    cluster.down.add("b2")
    w2 = cluster.taken_over()
    assert w2.machine.missing == 0b010
    assert [(gap.index, gap.first_entry_id, gap.last_entry_id) for gap in cluster.metadata().gaps][-1] == (1, 1, None)
    w2.add(b"b")
    w2.run()
    assert w2.confirmed == [1]
    assert cluster.copies(1) == 2


def test_rolled_back_record_is_not_written() -> None:
    """Q4: bookies know term 3, the restored record says 1."""
    cluster = unbounded()
    old = cluster.metadata()
    written(cluster, b"a")
    cluster.taken_over("w2")
    w3 = cluster.taken_over("w3")
    w3.add(b"b")
    w3.run()
    cluster.change(old)
    w4 = cluster.takeover("w4")
    w4.start()
    w4.run()
    assert isinstance(w4.error, LedgerRolledBackError)
    assert not isinstance(w4.error, FencedError)
    assert w4.error.term == 3
    # An operator raises the term; what only the lost record named is gone, and nothing mixes.
    cluster.change(attrs.evolve(cluster.metadata(), term=3))
    w5 = cluster.taken_over("w5")
    w5.add(b"c")
    w5.run()
    assert read_all(cluster)[0] == b"a"
    assert starts(cluster.metadata()) == [(0, 1), (1, 4)]


def test_takeover_opens_nothing_after_a_higher_fence() -> None:
    """Q4: one bookie knows the lost terms, the others suffice, and the metastore is slower than they are. Rule T1."""
    cluster = unbounded()
    old = cluster.metadata()
    written(cluster, b"a")
    for nonce in ("w2", "w3"):
        lost = cluster.takeover(nonce)
        lost.claim()
        lost.deliver(SendFence, "b3")
    cluster.change(old)
    w4 = cluster.takeover("w4")
    w4.claim()
    w4.run_without(ReadMetadata)
    assert cluster.metadata().state is LedgerState.IN_RECOVERY, "its writer would be another one of term 2"
    w4.run()
    assert isinstance(w4.error, LedgerRolledBackError)
    assert w4.error.term == 3


def test_two_clients_of_one_term_never_mix() -> None:
    """Q4: the record was rolled back by exactly one term, so no fence is higher. Rule T3."""
    cluster = unbounded()
    old = cluster.metadata()
    written(cluster, b"a")
    w2 = cluster.taken_over("w2")
    w2.add(b"theirs")
    w2.add(b"more")
    w2.run()
    cluster.change(old)
    w3 = cluster.takeover("w3")
    w3.start()
    w3.run()
    assert isinstance(w3.error, LedgerRolledBackError), "bookies prove a last add confirmed of its own term"


def test_conflict_under_ones_own_term_ends_the_writer() -> None:
    """As before, but nothing proves the other one's entries but the entries themselves. Rule T3."""
    cluster = unbounded()
    old = cluster.metadata()
    w1 = cluster.writer()
    w2 = cluster.taken_over("w2")
    w2.add(b"theirs")
    w2.run()
    cluster.change(old)
    w3 = cluster.taken_over("w3")
    w3.add(b"other")
    w3.run()
    assert isinstance(w3.error, LedgerRolledBackError)
    assert w3.confirmed == []
    assert w1.confirmed == []


def test_undecided_takeover_leaves_the_ledger_in_recovery() -> None:
    """Unknown never shortens. Rules R4, R12."""
    cluster = unbounded()
    written(cluster, b"a")
    cluster.down.update({"b1", "b2"})
    w2 = cluster.takeover()
    w2.start()
    w2.run()
    assert isinstance(w2.give_up(), RecoveryUndecidedError)
    assert cluster.metadata().state is LedgerState.IN_RECOVERY
    cluster.down.clear()
    cluster.takeover("w3").recover()
    assert read_all(cluster) == [b"a"]


def test_trim_during_a_takeover_is_kept() -> None:
    """The opening meets another version, and adopts it. Rule F4."""
    cluster = unbounded()
    w1 = written(cluster, b"a")
    w1.machine.roll()
    w1.run()
    w1.add(b"b")
    w1.run()
    w2 = cluster.takeover()
    w2.start()
    w2.deliver(WriteMetadata)
    cluster.change(cluster.metadata().trimmed(1))
    w2.run()
    assert w2.finished is not None
    assert starts(cluster.metadata()) == [(1, 1), (2, 2)]
    assert cluster.metadata().trim_to == 1


# -- rolling and trimming -------------------------------------------------------------------------------------------------


def test_roll_begins_a_fragment_of_the_same_term() -> None:
    cluster = unbounded(bookies=3)
    w1 = written(cluster, b"a", b"b")
    w1.machine.roll()
    w1.run()
    assert starts(cluster.metadata()) == [(0, 1), (2, 1)]
    w1.machine.roll()
    w1.run()
    assert len(cluster.metadata().fragments) == 2, "an empty fragment is not rolled"
    w1.add(b"c")
    w1.run()
    assert w1.confirmed[-1] == 2
    assert read_all(cluster)[:2] == [b"a", b"b"]
    assert cluster.metadata().gaps == ()


def test_roll_carries_pending_entries_along() -> None:
    """C5: the entry belongs to the new fragment, and is sent to all of its bookies."""
    cluster = unbounded(bookies=6)
    w1 = written(cluster, b"a")
    w1.add(b"b")
    for bookie in ("b1", "b2"):
        w1.lose(SendAdd, bookie)
    w1.machine.roll()
    w1.collect()
    w1.run()
    assert w1.confirmed[-1] == 1
    assert cluster.copies(1) == 3


def test_reader_below_the_trim_learns_the_ledgers_beginning() -> None:
    """Q9: never silence."""
    cluster = unbounded()
    w1 = written(cluster, b"a", b"b")
    stale = cluster.reader()
    w1.machine.roll()
    w1.run()
    w1.add(b"c")
    w1.run()
    cluster.change(cluster.metadata().trimmed(1))
    assert cluster.metadata().trim_to == 0, "whole fragments only"
    cluster.change(cluster.metadata().trimmed(2))
    assert cluster.metadata().trim_to == 2
    cluster.change(cluster.metadata().trimmed(99))
    assert cluster.metadata().trim_to == 2, "the last fragment always stays"
    reader = cluster.reader()
    with pytest.raises(LedgerTrimmedError) as raised:
        reader.read_all()
    assert raised.value.first_available == 2
    stale.refresh()
    with pytest.raises(LedgerTrimmedError):
        stale.read_all()


def test_publishing_in_a_new_term_tells_of_entries_of_the_former() -> None:
    """R11: the claim has the writer's stamp, the entry an earlier one."""
    cluster = unbounded()
    written(cluster, b"a")
    w2 = cluster.taken_over()
    w2.machine.publish()
    w2.collect()
    assert w2.find(SendLastAddConfirmed)
    w2.run()
    assert read_all(cluster) == [b"a"]


def test_bounded_ledger_is_not_taken_over() -> None:
    cluster = Cluster()
    cluster.create_ledger()
    with pytest.raises(AssertionError):
        cluster.takeover()
    assert not issubclass(LedgerFinishedError, FencedError)
    assert issubclass(LedgerFinishedError, LedgerError)
