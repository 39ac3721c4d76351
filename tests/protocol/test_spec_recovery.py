"""Ledgers: recovery (rules R4-R9)."""

from __future__ import annotations

import pytest

from replog.errors import (
    NotEnoughBookiesError,
    RecoveryUndecidedError,
)
from replog.protocol import batch as batches
from replog.protocol.batch import Batch
from replog.protocol.digest import ledger_key, stored_ledger_key
from replog.protocol.effects import (
    AwaitSilentBookies,
    ChooseReplacements,
    SendAdd,
    SendFence,
    SendRecoveryRead,
    WriteMetadata,
)
from replog.protocol.model import LedgerState
from replog.protocol.proofs import claimed
from replog.protocol.quorum import Quorum
from tests.protocol.bookies import Bookie
from tests.protocol.driving import PASSWORD, STRIPED, THREE, Cluster, Recovery, fenced

KEY = ledger_key(7, PASSWORD)
QUORUMS = [Quorum(1, 1, 1), Quorum(2, 2, 2), THREE, Quorum(3, 2, 2), Quorum(4, 3, 2), STRIPED, Quorum(6, 2, 2)]


def closed_by(cluster: Cluster, last_entry_id: int) -> None:
    """Somebody else closes the ledger at this entry."""
    cluster.change(cluster.metadata().closed_at(last_entry_id))


# -- R4: reading ---------------------------------------------------------------------------------------------------


def test_r4_recovery_starts_behind_the_highest_reported_mark() -> None:
    """R4: entries up to a reported mark are at their quorum: they are not read again."""
    cluster = Cluster()
    writer = cluster.writer()
    for _ in range(3):
        writer.add(b"x")
        writer.run()
    recovery = fenced(cluster, "b1", "b2")  # their headers say 1
    assert {effect.entry_id for effect in recovery.find(SendRecoveryRead)} == {2}
    recovery.run()
    assert cluster.metadata().last_entry_id == 2


def test_r4_starts_behind_the_last_fragments_first_entry() -> None:
    """R4: the new ensemble's bookies know nothing yet: recovery starts at the fragment, not at 0."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    writer.add(b"b")
    writer.run()
    writer.add(b"c")
    for name in ("b1", "b2", "b3"):
        writer.fail(SendAdd, name, 2)
    writer.run()  # 2.. is on other bookies
    ensemble = cluster.metadata().last_fragment.ensemble
    for name in ensemble:
        cluster.bookies[name] = Bookie()  # nothing of entry 2 came through
    recovery = fenced(cluster, *ensemble[:2])
    assert {effect.entry_id for effect in recovery.find(SendRecoveryRead)} == {2}
    recovery.run()
    assert cluster.metadata().last_entry_id == 1
    assert [fragment.first_entry_id for fragment in cluster.metadata().fragments] == [0]


def test_r4_one_valid_copy_is_written_back() -> None:
    """R4: generous on positives: one copy, two negatives that come later."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    writer.deliver(SendAdd, "b3")
    recovery = fenced(cluster, "b1", "b2")
    recovery.deliver(SendRecoveryRead, "b1", 0)
    recovery.deliver(SendRecoveryRead, "b3", 0)
    recovery.deliver(SendRecoveryRead, "b2", 0)  # too late to be the second negative
    recovery.lose(SendAdd, "b3")
    recovery.deliver(SendAdd, "b1")
    assert not recovery.find(WriteMetadata)
    recovery.run()
    assert cluster.metadata().last_entry_id == 0
    assert cluster.holders(0) == {"b1", "b2", "b3"}


@pytest.mark.parametrize("quorum", QUORUMS)
def test_r4_absence_needs_enough_negatives_of_the_write_set(quorum: Quorum) -> None:
    """R4: one negative fewer, with the others unknown, leaves the ledger in recovery; that many close it."""
    for negatives in (quorum.negatives_needed - 1, quorum.negatives_needed):
        cluster = Cluster(quorum)
        cluster.create_ledger()
        names = list(cluster.bookies)[: quorum.ensemble]
        recovery = fenced(cluster, *names)
        write_set = [names[index] for index in quorum.write_set(0)]
        for place, name in enumerate(write_set):
            if place >= quorum.write - negatives:
                recovery.deliver(SendRecoveryRead, name, 0)
            else:
                recovery.fail(SendRecoveryRead, name, 0)
        if negatives == quorum.negatives_needed:
            recovery.run()
            assert cluster.metadata().last_entry_id == -1
        else:
            recovery.run()
            assert isinstance(recovery.give_up(), RecoveryUndecidedError)
            assert cluster.metadata().state is LedgerState.IN_RECOVERY


def test_r4_corruption_is_unknown_never_absence() -> None:
    """R4: b1's only copy is damaged and b3 silent: b2's negative proves nothing, and the ledger isn't cut."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    writer.deliver(SendAdd, "b1")
    cluster["b1"].disk.damaged.add((7, 0))
    recovery = fenced(cluster, "b1", "b2")
    recovery.deliver(SendRecoveryRead, "b1", 0)
    recovery.deliver(SendRecoveryRead, "b2", 0)
    assert recovery.error is None
    recovery.fail(SendRecoveryRead, "b3", 0)
    assert isinstance(recovery.give_up(), RecoveryUndecidedError)
    cluster["b1"].disk.damaged.clear()
    assert cluster.recovery(nonce="w3").recover().last_entry_id == 0


@pytest.mark.parametrize("what", ["code", "ledger", "stamp", "stride", "entry"])
def test_r4_unverified_copy_counts_as_unknown(what: str) -> None:
    """R4: a bad code, or another ledger's, stamp's or place's bytes, from a bookie that says "found"."""
    cluster = Cluster()
    writer = cluster.writer(8 if what == "ledger" else 7)
    cluster.writer()
    if what == "entry":
        writer.add(b"before")
    writer.add(b"a")
    good = writer.find(SendAdd)[-1].batch
    bad = spoiled(good, what)
    recovery = fenced(cluster, "b1", "b2")
    recovery.machine.read_found(0, 0, bad)
    recovery.deliver(SendRecoveryRead, "b2", 0)
    assert recovery.error is None
    assert not recovery.find(SendAdd)
    recovery.fail(SendRecoveryRead, "b3", 0)
    recovery.collect()
    assert isinstance(recovery.give_up(), RecoveryUndecidedError)


def spoiled(good: Batch, what: str) -> Batch:
    if what == "code":
        return batches.decode(good.data[:-1] + bytes([good.data[-1] ^ 1]))
    if what in ("ledger", "entry"):
        return good
    return batches.build(
        Cluster().digest(),
        ledger_id=7,
        first_entry_id=0,
        stride=2 if what == "stride" else 1,
        payloads=[b"a"],
        last_add_confirmed=-1,
        stamp=2 if what == "stamp" else 1,
        timestamp_ns=1,
        cumulative_length=1,
    )


def test_r4_every_recovery_read_fences() -> None:
    """R4: a bookie that the fencing missed is fenced by the read; see also C1 among the counterexamples."""
    cluster = Cluster()
    cluster.create_ledger()
    recovery = fenced(cluster, "b1", "b2")
    recovery.lose(SendFence, "b3")
    recovery.deliver(SendRecoveryRead, "b3", 0)
    assert cluster["b3"].disk.marks[7].fence_term == 2
    assert cluster["b3"].disk.marks[7].key == stored_ledger_key(KEY)


def test_r4_recovery_ends_inside_a_striped_gathering() -> None:
    """R4: of one gathering of 12 over 5 bookies the batch of rotation 2 is nowhere: the ledger ends at 1."""
    cluster = Cluster(STRIPED)
    writer = cluster.writer()
    writer.add(*[bytes([number]) for number in range(12)])
    for effect in [each for each in writer.find(SendAdd) if each.batch.first_entry_id != 2]:
        writer.deliver(SendAdd, effect.bookie_id, effect.batch.first_entry_id)
    assert writer.confirmed == []
    closed = cluster.recovery().recover()
    assert closed.last_entry_id == 1
    assert cluster.reader().read_all() == [b"\0", b"\1"]
    assert cluster.reader(first_entry_id=2).read_all() == []


# -- R5, R6: writing back and closing ---------------------------------------------------------------------------


def test_r5_recovery_writes_carry_the_frozen_mark() -> None:
    """R5: the mark of the second written-back batch is that of the fencing, though the first is at its quorum."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    writer.run()
    for payload in (b"b", b"c"):
        writer.add(payload)
        writer.deliver(SendAdd, "b1", writer.machine.last_add_pushed)
    recovery = fenced(cluster, "b1", "b2", "b3")
    for entry_id in (1, 2):
        recovery.deliver(SendRecoveryRead, "b1", entry_id)
        assert {claimed(effect.proof) for effect in recovery.find(SendAdd, entry_id=entry_id)} == {0}
        for name in ("b1", "b2", "b3"):
            recovery.deliver(SendAdd, name, entry_id)
    assert recovery.machine.frozen_last_add_confirmed == 0
    assert {bookie.ledger(7).last_add_confirmed for name, bookie in cluster.bookies.items() if name < "b4"} == {0}
    recovery.run()
    assert cluster.metadata().last_entry_id == 2


def test_r6_recoverys_ensemble_shows_only_in_its_closing_cas() -> None:
    """R6: b3 is replaced while entry 0 is written back; until the close, metadata names the old ensemble."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    writer.deliver(SendAdd, "b1")
    recovery = fenced(cluster, "b1", "b2")
    recovery.deliver(SendRecoveryRead, "b1", 0)
    recovery.fail(SendAdd, "b2")
    assert recovery.find(ChooseReplacements)[0].failed == (1,)
    recovery.choose({1: "b4"})
    assert not recovery.find(WriteMetadata)
    recovery.deliver(SendAdd, "b4")
    recovery.deliver(SendAdd, "b1")
    assert cluster.metadata().last_fragment.ensemble == ("b1", "b2", "b3")
    recovery.run()
    assert cluster.metadata().last_fragment.ensemble == ("b1", "b4", "b3")
    assert cluster.copies(0) >= 2


def test_r6_the_loser_of_the_closing_cas_adopts_the_metadata() -> None:
    """R6: w2 saw entry 0 on b1, w3 heard b2 and b3 only: whoever closes first decides, and both report the same."""
    for w3_first in (True, False):
        cluster = Cluster()
        writer = cluster.writer()
        writer.add(b"a")
        writer.deliver(SendAdd, "b1")
        w2 = fenced(cluster, "b1", "b2", nonce="w2")
        w3 = fenced(cluster, "b2", "b3", nonce="w3")
        w3.deliver(SendRecoveryRead, "b2", 0)
        w3.deliver(SendRecoveryRead, "b3", 0)
        w3.deliver(AwaitSilentBookies)
        assert w3.find(WriteMetadata)[0].metadata.last_entry_id == -1
        w2.deliver(SendRecoveryRead, "b1", 0)
        for actor in (w3, w2) if w3_first else (w2, w3):
            actor.run()
        assert w2.finished == w3.finished == cluster.metadata()
        assert cluster.metadata().last_entry_id == (-1 if w3_first else 0)
        assert cluster.reader().read_all() == ([] if w3_first else [b"a"])


def recovering_one_entry(cluster: Cluster) -> Recovery:
    """Entry 0 was found on b1, and is on its way back; entry 1 is proven absent: only the acks are missing."""
    writer = cluster.writer()
    writer.add(b"a")
    writer.deliver(SendAdd, "b1")
    recovery = fenced(cluster, "b1", "b2")
    recovery.deliver(SendRecoveryRead, "b1", 0)
    for name in ("b1", "b2"):
        recovery.deliver(SendRecoveryRead, name, 1)
    recovery.deliver(AwaitSilentBookies)  # for b3
    return recovery


def test_r4_no_close_before_the_last_entry_is_at_its_ack_quorum() -> None:
    """R4: the end is known, and waits for the second ack."""
    recovery = recovering_one_entry(Cluster())
    assert not recovery.find(WriteMetadata)
    recovery.deliver(SendAdd, "b1")
    assert not recovery.find(WriteMetadata)
    recovery.deliver(SendAdd, "b3")
    assert recovery.find(WriteMetadata)[0].metadata.last_entry_id == 0


def test_r6_acks_of_bookies_replaced_by_recovery_do_not_count() -> None:
    """R6, C5, C6: b3 acknowledged and was replaced by b4, b2 acknowledges after it was replaced by b5: only b1's ack
    is left, until b4 or b5 has the entry."""
    cluster = Cluster()
    recovery = recovering_one_entry(cluster)
    recovery.deliver(SendAdd, "b3")
    recovery.machine.bookie_failed(2, "b3")
    recovery.collect()
    recovery.choose({2: "b4"})
    late = recovery.arrive(SendAdd, "b2")
    recovery.machine.bookie_failed(1, "b2")
    recovery.collect()
    recovery.choose({1: "b5"})
    late()
    recovery.deliver(SendAdd, "b1")
    assert not recovery.find(WriteMetadata)
    recovery.deliver(SendAdd, "b5")
    recovery.deliver(WriteMetadata)
    assert cluster.metadata().last_fragment.ensemble == ("b1", "b5", "b4")
    assert cluster.copies(0) >= 2


def test_r6_lack_of_a_replacement_is_an_error_to_retry() -> None:
    """R6, W6: too few bookies to write back to: the ledger stays in recovery, and a later one ends it."""
    cluster = Cluster(bookies=3)
    writer = cluster.writer()
    writer.add(b"a")
    writer.deliver(SendAdd, "b1")
    recovery = fenced(cluster, "b1", "b2", "b3")
    recovery.deliver(SendRecoveryRead, "b1", 0)
    for name in ("b2", "b3"):
        recovery.fail(SendAdd, name)
        recovery.deliver(ChooseReplacements)
    assert isinstance(recovery.give_up(), NotEnoughBookiesError)
    assert cluster.metadata().state is LedgerState.IN_RECOVERY
    later = fenced(cluster, "b1", "b2", nonce="w3")
    later.deliver(SendRecoveryRead, "b1", 0)
    later.run()
    assert cluster.metadata().last_entry_id == 0


# -- R7, R8, R9 ----------------------------------------------------------------------------------------------------


def test_r7_nothing_past_the_last_entry_is_readable_after_close() -> None:
    """R7: entry 1 is on every disk; the ledger was closed at 0, also for a reader that thinks otherwise."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    writer.run()
    early = cluster.reader()
    writer.add(b"b")
    for name in ("b1", "b2", "b3"):
        writer.arrive(SendAdd, name, 1)
    writer.close()
    writer.run()
    assert cluster.metadata().last_entry_id == 0
    assert cluster.holders(1) == {"b1", "b2", "b3"}
    for reader in (cluster.reader(), early):
        reader.refresh()
        reader.poll()
        reader.machine.last_add_confirmed_heard(1)  # nobody who knows says so
        assert reader.read_all() == [b"a"]
        assert reader.machine.is_at_end


def test_r7_the_end_inside_a_batch_is_trimmed() -> None:
    """R7: the bytes stay, and what lies past the end is not handed out."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a", b"b", b"c")
    writer.run()
    closed_by(cluster, 1)
    assert cluster.reader().read_all() == [b"a", b"b"]


@pytest.mark.parametrize("quorum", QUORUMS)
def test_r8_an_empty_ledger_closes_at_minus_one(quorum: Quorum) -> None:
    """R8: by its writer as well as by recovery; the first fragment stays."""
    for by_writer in (True, False):
        cluster = Cluster(quorum)
        writer = cluster.writer()
        if by_writer:
            writer.close()
            writer.run()
        else:
            cluster.recovery().recover()
        assert (cluster.metadata().state, cluster.metadata().last_entry_id) == (LedgerState.CLOSED, -1)
        assert len(cluster.metadata().fragments) == 1
        reader = cluster.reader()
        assert reader.read_all() == []
        assert reader.machine.is_at_end


def test_r9_recovery_reads_ask_the_ensemble_as_it_stood() -> None:
    """R9: after its own change to b4, recovery reads the next entry from b2, not from b4. (Mutant read_new_ens.)"""
    cluster = Cluster()
    writer = cluster.writer()
    for payload in (b"a", b"b"):
        writer.add(payload)
        writer.deliver(SendAdd, "b1", writer.machine.last_add_pushed)
    recovery = fenced(cluster, "b1", "b2")
    recovery.deliver(SendRecoveryRead, "b1", 0)
    recovery.fail(SendAdd, "b2", 0)
    recovery.choose({1: "b4"})
    recovery.deliver(SendRecoveryRead, "b1", 1)
    assert {effect.bookie_id for effect in recovery.find(SendRecoveryRead, entry_id=2)} == {"b1", "b2", "b3"}
    recovery.run()
    assert cluster.metadata().last_entry_id == 1


def test_r9_recovery_closes_after_it_finds_entries() -> None:
    """R9: the published model starts at a mark >= 0, recovers an entry, and never closes."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    writer.run()
    writer.add(b"b")
    writer.deliver(SendAdd, "b1", 1)
    recovery = fenced(cluster, "b1", "b3")
    assert recovery.machine.frozen_last_add_confirmed == 0
    recovery.deliver(SendRecoveryRead, "b1", 1)
    recovery.run()
    assert recovery.finished is not None
    assert recovery.finished.last_entry_id == 1
    assert recovery.machine.recovered_entries == 1


def test_r9_recovery_needs_every_bookie_with_one_ack() -> None:
    """R9: Qa = 1: any single bookie might have acknowledged, so one that is silent blocks recovery."""
    cluster = Cluster(Quorum(3, 3, 1))
    writer = cluster.writer()
    writer.add(b"a")
    writer.deliver(SendAdd, "b3")
    assert writer.confirmed == [0]
    cluster.down = {"b3"}
    with pytest.raises(RecoveryUndecidedError):
        cluster.recovery().recover()
    cluster.down = set()
    assert cluster.recovery(nonce="w3").recover().last_entry_id == 0
