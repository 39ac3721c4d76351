"""Schedules that broke BookKeeper, its published models or a mutant of them, replayed step by step.

X7 to X13 are about unbounded ledgers, which have another ending.
"""

from __future__ import annotations

import attrs
import pytest

from replog.errors import FencedError, LedgerError, RecoveryUndecidedError
from replog.protocol.bookie import LedgerOnBookie
from replog.protocol.chaining import ReadLog, RecoverLedger, WriteLog
from replog.protocol.effects import (
    AwaitSilentBookies,
    ChooseReplacements,
    ReadMetadata,
    SendAdd,
    SendFence,
    SendRecoveryRead,
    WriteMetadata,
)
from replog.protocol.messages import FenceRequest, Status
from replog.protocol.model import LedgerState
from replog.protocol.mutations import Marks
from tests.protocol.bookies import Bookie
from tests.protocol.driving import Cluster
from tests.protocol.driving_logs import rolling, segments, takeover


def test_x1_recovery_reads_must_fence() -> None:
    """Issue 2614. Rules R4, R3."""
    cluster = Cluster()
    w1 = cluster.writer()
    w2 = cluster.recovery()
    w1.add(b"e0")
    w1.lose(SendAdd, "b1")  # w1 adds e0, lost on the way to b1
    w2.claim()  # w2: IN_RECOVERY
    w2.deliver(SendFence, "b1")
    w1.deliver(SendAdd, "b2")  # b2 isn't fenced yet: it takes e0
    w2.deliver(SendFence, "b2")  # with b1 and b2 each write quorum is covered
    w2.lose(SendFence, "b3")  # b3 was never fenced
    w2.deliver(SendRecoveryRead, "b1", 0)  # b1: no entry
    w2.deliver(SendRecoveryRead, "b3", 0)  # b3: no entry - and fenced by this very read
    w2.deliver(AwaitSilentBookies)  # b2, which has e0, stays silent
    w2.deliver(WriteMetadata)  # two negatives of three: w2 closes at -1
    assert cluster.metadata().last_entry_id == -1
    w1.deliver(SendAdd, "b3")  # the add that would have made e0 confirmed, and lost
    assert not cluster["b3"].disk.holds(7, 0)
    assert isinstance(w1.error, FencedError)
    assert w1.confirmed == []


def test_x2_recovery_starts_no_earlier_than_the_last_fragment() -> None:
    """Issue 2615. Rules R4, C2."""
    cluster = Cluster()
    w1 = cluster.writer()
    w1.add(*[b"x"] * 10)
    w1.run()  # 0..9 on b1, b2, b3
    w1.add(b"e10")
    for name in ("b1", "b2", "b3"):
        w1.fail(SendAdd, name, 10)  # e10 is lost everywhere, and w1 changes to a wholly new ensemble
    w1.choose({0: "b4"})
    w1.deliver(WriteMetadata)
    w1.choose({1: "b5", 2: "b6"})
    w1.deliver(WriteMetadata)
    assert [fragment.first_entry_id for fragment in cluster.metadata().fragments] == [0, 10]
    w2 = cluster.recovery()
    w2.claim()
    w2.deliver(SendFence, "b4")  # they have never heard of the ledger: -1
    w2.deliver(SendFence, "b5")
    assert w2.machine.frozen_last_add_confirmed == 9
    assert {effect.entry_id for effect in w2.find(SendRecoveryRead)} == {10}  # not 0
    w2.run()
    assert cluster.metadata().last_entry_id == 9
    assert cluster.metadata().fragment_of(9).ensemble == ("b1", "b2", "b3")


def test_x2_a_private_change_starts_no_earlier_either() -> None:
    """G3: recovery's own ensemble change at the mark of 0 would put a fragment 1 behind a fragment 2."""
    cluster = Cluster()
    w1 = cluster.writer()
    w1.add(b"e0", b"e1")
    w1.run()
    cluster.down = {"b1", "b2", "b3"}
    w1.add(b"e2")
    w1.run()  # e2 on b4, b5, b6, in a fragment from 2 on
    cluster.down = set()
    w2 = cluster.recovery()
    w2.claim()
    w2.deliver(SendFence, "b4")
    w2.deliver(SendFence, "b5")
    w2.deliver(SendRecoveryRead, "b4", 2)
    w2.fail(SendAdd, "b6", 2)
    w2.choose({cluster.metadata().last_fragment.ensemble.index("b6"): "b7"})
    w2.run()
    firsts = [fragment.first_entry_id for fragment in cluster.metadata().fragments]
    assert firsts == sorted(set(firsts)) == [0, 2]
    assert cluster.metadata().last_entry_id == 2


def test_x3_recoverys_ensemble_is_not_published_before_the_close() -> None:
    """Mutant rec_publish. Rule R6."""
    cluster = Cluster()
    w1 = cluster.writer()
    w1.add(b"e0")
    w1.deliver(SendAdd, "b1")
    w1.deliver(SendAdd, "b2")  # e0 is confirmed
    assert w1.confirmed == [0]
    w2 = cluster.recovery(nonce="w2")
    w2.claim()
    w2.deliver(SendFence, "b1")
    w2.deliver(SendFence, "b3")
    w2.deliver(SendRecoveryRead, "b1", 0)
    w2.fail(SendAdd, "b1", 0)  # w2 replaces b1 by b4, and dies
    w2.choose({0: "b4"})
    assert cluster.metadata().last_fragment.ensemble == ("b1", "b2", "b3")
    w3 = cluster.recovery(nonce="w3")  # w3 must ask b1 and b2, who have e0, not b4, who hasn't
    w3.start()
    assert {effect.bookie_id for effect in w3.find(SendFence)} == {"b1", "b2", "b3"}
    w3.run()
    assert cluster.metadata().last_entry_id == 0


def test_x4_recovery_reads_the_frozen_ensemble() -> None:
    """Mutant read_new_ens. Rule R9."""
    cluster = Cluster()
    w1 = cluster.writer()
    w1.add(b"e0")
    w1.add(b"e1")
    for name in ("b1", "b2"):
        w1.deliver(SendAdd, name, 0)
        w1.deliver(SendAdd, name, 1)  # both are confirmed, on b1 and b2
    assert w1.confirmed == [0, 1]
    w2 = cluster.recovery()
    w2.claim()
    w2.deliver(SendFence, "b1")
    w2.deliver(SendFence, "b3")
    w2.deliver(SendRecoveryRead, "b1", 0)
    w2.fail(SendAdd, "b1", 0)  # b1 and b2 refuse to be written to: replaced by b4 and b5, who know nothing
    w2.choose({0: "b4"})
    w2.fail(SendAdd, "b2", 0)
    w2.choose({1: "b5"})
    asked = {effect.bookie_id for effect in w2.find(SendRecoveryRead, entry_id=1)}
    assert asked == {"b1", "b2", "b3"}  # from b4 and b5 it would hear "no entry" twice, and cut e1
    w2.run()
    assert cluster.metadata().last_entry_id == 1


def test_x5_acks_of_an_evicted_bookie_are_dropped() -> None:
    """Mutant keep_evicted_ack. Rules C5, C6."""
    cluster = Cluster()
    w1 = cluster.writer()
    w1.add(b"e0")
    w1.add(b"e1")
    w1.deliver(SendAdd, "b3", 1)
    w1.deliver(SendAdd, "b2", 1)  # e1 has two acks; e0 has none, so nothing is confirmed
    w1.fail(SendAdd, "b3", 0)
    w1.choose({2: "b4"})
    w1.deliver(WriteMetadata)  # the fragment from 0 on: b1, b2, b4
    w1.deliver(SendAdd, "b1", 0)
    w1.deliver(SendAdd, "b2", 0)  # e0 is confirmed; e1 is on b2 alone in the ensemble that metadata names
    assert w1.confirmed == [0]
    cluster.down = {"b2"}
    w2 = cluster.recovery()
    w2.claim()
    w2.deliver(SendFence, "b1")
    w2.deliver(SendFence, "b4")
    w2.run()  # nobody who answers has e1: it may be cut, because it was not confirmed
    assert cluster.metadata().last_entry_id == 0


def test_x6_recovery_writes_carry_the_frozen_mark() -> None:
    """Commit 5d69fdd, mutant unfrozen_lac. Rules R5, R6."""
    cluster = Cluster()
    w1 = cluster.writer()
    w1.add(b"e0")
    w1.add(b"e1")
    w1.deliver(SendAdd, "b1", 0)
    w1.deliver(SendAdd, "b1", 1)  # both only on b1, neither confirmed
    w2 = cluster.recovery(nonce="w2")
    w2.claim()
    w2.deliver(SendFence, "b1")
    w2.deliver(SendFence, "b2")
    w2.deliver(SendRecoveryRead, "b1", 0)
    w2.fail(SendAdd, "b2", 0)
    w2.choose({1: "b4"})  # w2's private ensemble: b1, b4, b3
    w2.deliver(SendAdd, "b1", 0)
    w2.deliver(SendAdd, "b4", 0)  # e0 has its quorum there: would the next write say so ...
    w2.deliver(SendRecoveryRead, "b1", 1)
    w2.deliver(SendAdd, "b3", 1)
    reader = cluster.reader()
    reader.poll()  # ... a reader would read e0 now,
    assert reader.read_all() == []
    w3 = cluster.recovery(nonce="w3")  # and w2 dies. w3 does not know its private ensemble,
    w3.start()
    cluster.down = {"b1"}
    w3.deliver(SendFence, "b2")
    w3.deliver(SendFence, "b3")
    assert w3.machine.frozen_last_add_confirmed == -1  # nor may it trust that e0 is at its quorum,
    cluster["b3"].disk.batches.clear()
    w3.run()  # since in the published ensemble too few have it: e0 is cut, and nobody has seen it
    assert cluster.metadata().last_entry_id == -1
    reader.refresh()
    assert reader.read_all() == []


def test_x14_no_ack_counts_from_an_ensemble_before_its_cas() -> None:
    """Issue 1591, mutant local_ens. Rule C3."""
    cluster = Cluster()
    w1 = cluster.writer()
    w1.add(b"e0")
    w1.deliver(SendAdd, "b1")
    w1.fail(SendAdd, "b2")
    w1.fail(SendAdd, "b3")
    w1.choose({1: "b4"})
    assert not w1.find(SendAdd, "b4")  # nothing is sent there
    w1.machine.add_confirmed(1, "b4", 0)  # and were it answered, it would not count
    w1.collect()
    assert w1.confirmed == []
    w2 = cluster.recovery()
    w2.claim()  # w2 wins the metadata
    w1.deliver(WriteMetadata)
    w1.deliver(ReadMetadata)
    assert isinstance(w1.error, FencedError)
    assert w1.confirmed == []


@pytest.mark.parametrize("moment", ["choosing", "writing"])
def test_x15_acks_between_choosing_the_first_entry_and_the_cas(moment: str) -> None:
    """Issues 4651, 4097. Rules C1, C2, C9."""
    cluster = Cluster()
    w1 = cluster.writer()
    w1.add(b"e0")
    w1.add(b"e1")
    w1.add(b"e2")
    w1.deliver(SendAdd, "b3", 2)
    w1.fail(SendAdd, "b3", 0)  # the change begins
    if moment == "writing":
        w1.deliver(ChooseReplacements)
    for entry_id in (0, 1):
        w1.deliver(SendAdd, "b1", entry_id)
        w1.deliver(SendAdd, "b2", entry_id)  # both reach their quorum meanwhile, without the index that is replaced
    w1.deliver(SendAdd, "b1", 2)
    assert w1.confirmed[-1] == 1, "entry 2 is on b1, and on b3, which the new fragment does not name"
    if moment == "choosing":
        w1.deliver(ChooseReplacements)
    first = 0 if moment == "writing" else 2
    assert w1.find(WriteMetadata)[0].metadata.last_fragment.first_entry_id == first
    w1.deliver(WriteMetadata)
    assert w1.confirmed[-1] == 1
    assert cluster.metadata().last_fragment.first_entry_id == first
    assert all(cluster.copies(entry_id) >= 2 for entry_id in (0, 1))
    w1.run()
    assert w1.confirmed[-1] == 2
    assert all(cluster.copies(entry_id) >= 2 for entry_id in (0, 1, 2))


def test_x16_a_racing_fence_and_add_pass_through_one_object() -> None:
    """PR 4701: with two handles of one ledger the add passed beside the fence. PR 4462: on an evicted handle. B2."""
    bookie = Bookie()
    writer = Cluster().writer()
    writer.add(b"e0")
    request = writer.add_request(writer.find(SendAdd, "b1")[0])
    fence = bookie.accept(FenceRequest(1, 7, writer.key, 2))
    add = bookie.accept(request)  # both are under way; the fence isn't durable yet
    assert add.refusal is not None
    assert bookie.finish(fence).status is Status.OK
    assert bookie.finish(add).status is Status.FENCED
    remade = LedgerOnBookie(7, bookie.disk.marks[7])  # the object was evicted and made anew from what is durable
    assert remade.accept(request).refusal is not None
    assert LedgerOnBookie(7, Marks()).accept(request).refusal is None  # what a second handle, made too early, would do


def test_x17_a_corrupt_entry_is_not_a_missing_one() -> None:
    """Issue 2908. Rule R4."""
    cluster = Cluster()
    w1 = cluster.writer()
    w1.add(b"e0")
    w1.deliver(SendAdd, "b1")
    w1.deliver(SendAdd, "b2")  # confirmed, on b1 and b2
    cluster["b1"].disk.damaged.add((7, 0))  # b1 can't read it any more
    cluster.down = {"b2"}
    with pytest.raises(RecoveryUndecidedError):  # b3's negative alone proves nothing
        cluster.recovery().recover()
    assert cluster.metadata().state is LedgerState.IN_RECOVERY
    cluster.down = set()
    assert cluster.recovery(nonce="w3").recover().last_entry_id == 0  # retried: b2 has it


def test_x18_a_wiped_bookie_is_another_bookie() -> None:
    """Issues 2612, 4812: rules B4, R4. The floor's part: an identity is what the ensemble names, not an address; a
    bookie that comes back with another identity is not there."""
    cluster = Cluster()
    w1 = cluster.writer()
    w1.add(b"e0")
    w1.deliver(SendAdd, "b1")
    w1.deliver(SendAdd, "b2")  # confirmed, on b1 and b2
    cluster.down = {"b1"}  # b1's disk was wiped: at its address answers b9, and nobody asks it in b1's name
    cluster.bookies["b9"] = Bookie()
    w2 = cluster.recovery()
    w2.claim()
    w2.run()
    assert w2.error is None  # b2 and b3 suffice
    assert cluster.metadata().last_entry_id == 0
    assert not cluster["b9"].disk.marks  # what b9 says about e0 would have been a lie
    w1.machine.add_confirmed(0, "b9", 0)
    assert w1.machine.unconfirmed == range(1, 1)


def test_x19_a_takeover_fences_the_last_two_ledgers() -> None:
    """The old leader still writes to the penultimate ledger, and the last one hides it. Rule L1."""
    cluster = Cluster()
    takeover(cluster, "t1").run()
    old = cluster.writer(1, "old")
    old.add(b"e0")
    old.run()
    rolling(cluster, "r1").run()  # the list names ledger 2; ledger 1 isn't closed yet
    old.add(b"e1")
    old.deliver(SendAdd, "b1", 1)  # under way in ledger 1
    takeover(cluster, "t2").run()
    assert segments(cluster) == [(1, 1), (2, 2), (3, 3)]
    old.run()
    assert isinstance(old.error, FencedError)
    assert old.confirmed == [0]
    assert cluster.metadata(1).state is LedgerState.CLOSED
    old_end = cluster.metadata(1).last_entry_id
    assert old_end is not None
    assert old_end >= 0


def test_x20_one_of_two_takeovers_of_the_same_list_serves() -> None:
    """Both read the same version and believe that they own the next place. Rules L1, M1."""
    cluster = Cluster()
    takeover(cluster, "t0").run()
    one, other = takeover(cluster, "t1"), takeover(cluster, "t2")
    for actor in (one, other):
        actor.deliver(ReadLog)
        actor.deliver(RecoverLedger)
    one.run_until(WriteLog)
    other.run_until(WriteLog)
    one.deliver(WriteLog)
    other.deliver(WriteLog)  # the same version, too late
    assert one.changed is not None
    assert other.changed is None
    assert segments(cluster) == [(1, 1), (2, 2)]
    first = cluster.writer(2, "t1")
    first.add(b"served by t1")
    first.run()
    other.run()  # starts again: reads the new list, and deposes t1
    assert segments(cluster) == [(1, 1), (2, 2), (3, 4)]
    assert 3 not in cluster.records  # the ledger that it had made for nothing
    first.add(b"too late")
    first.run()
    assert isinstance(first.error, FencedError)
    assert first.confirmed == [0]


def test_x20_two_writers_of_one_ledger_cannot_be() -> None:
    """Two claims upon the same version: one CAS; the loser rereads, and shares the recovery's term (T2)."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"e0")
    one, other = cluster.recovery(nonce="w2"), cluster.recovery(nonce="w3")
    one.start()
    other.start()
    one.deliver(WriteMetadata)
    other.deliver(WriteMetadata)
    assert not other.find(SendFence)
    other.deliver(ReadMetadata)
    assert other.find(SendFence)
    assert cluster.records[7][1] == 1
    cluster.change(attrs.evolve(cluster.metadata(), state=LedgerState.CLOSED, last_entry_id=-1))
    writer.close()
    writer.run()
    assert writer.error is None or isinstance(writer.error, LedgerError)
