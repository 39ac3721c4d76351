"""R10, R12, B8, B8a: what it takes to call an entry absent, and who is asked until then."""

from __future__ import annotations

import itertools

import pytest

from replog.errors import FencedError, RecoveryUndecidedError
from replog.protocol.absence import Absences, Hearing, Verdict
from replog.protocol.effects import AwaitSilentBookies, SendAdd, SendFence, SendRecoveryRead, WriteMetadata
from replog.protocol.messages import Denial, Status
from replog.protocol.model import LedgerState
from replog.protocol.quorum import Quorum
from replog.protocol.recovery import LedgerRecovery
from tests.protocol.driving import Cluster, Recovery, fenced

WEAK = [Status.NO_ENTRY_IN_DOUBT, Status.NO_ENTRY_AFTER_LOSS]


def confirmed_on(cluster: Cluster, *holders: str) -> None:
    """One entry, confirmed by these bookies; the others never heard of it."""
    writer = cluster.writer()
    writer.add(b"a")
    for name in holders:
        writer.deliver(SendAdd, name)
    assert writer.confirmed == [0]


def shortened(cluster: Cluster, name: str, denial: Status = Status.NO_ENTRY_AFTER_LOSS) -> None:
    """The end of this bookie's journal is gone, and it notices at its restart."""
    cluster[name].disk.lose_from(7, 0)
    cluster[name].restart_in_doubt(denial)


# -- R10: weak denials ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("denial", WEAK)
def test_r10_one_copy_is_found_behind_a_weak_and_a_strong_denial(denial: Status) -> None:
    """R10: b1 lost its journal's end and b3 lagged: both deny, and only then b2 answers. Today's rule closed at -1."""
    cluster = Cluster()
    confirmed_on(cluster, "b1", "b2")
    shortened(cluster, "b1", denial)
    recovery = fenced(cluster, "b1", "b3")
    recovery.deliver(SendRecoveryRead, "b1", 0)
    recovery.deliver(SendRecoveryRead, "b3", 0)
    assert not recovery.find(WriteMetadata)
    assert not recovery.find(AwaitSilentBookies), "one proven denial is no quorum: there is nothing to wait for"
    recovery.run()
    assert cluster.metadata().last_entry_id == 0
    assert cluster.copies(0) == 3


@pytest.mark.parametrize("denial", WEAK)
def test_r10_a_weak_denial_proves_nothing_while_a_member_is_away(denial: Status) -> None:
    """R10: The one that is away may be the one that has the entry: recovery waits for it, and says so."""
    cluster = Cluster()
    confirmed_on(cluster, "b1", "b2")
    shortened(cluster, "b1", denial)
    cluster.down = {"b2"}
    recovery = fenced(cluster, "b1", "b3")
    recovery.run()
    error = recovery.give_up()
    assert isinstance(error, RecoveryUndecidedError)
    assert set(error.bookies) == {"b1", "b2"}
    assert "b2 could not be reached" in str(error)
    assert cluster.metadata().state is LedgerState.IN_RECOVERY
    cluster.down = set()
    assert cluster.recovery(nonce="w3").recover().last_entry_id == 0


def test_r10_a_weak_denial_counts_when_all_members_deny() -> None:
    """R10: a weak denial counts when all members deny."""
    cluster = Cluster()
    cluster.writer()
    shortened(cluster, "b1")
    assert cluster.recovery().recover().last_entry_id == -1


def test_r10_no_decision_when_an_ack_quorum_knows_its_loss() -> None:
    """R10: b1 and b2 had confirmed it, and both lost it: no answer can tell, and closing would lose it silently."""
    cluster = Cluster()
    confirmed_on(cluster, "b1", "b2")
    for name in ("b1", "b2"):
        shortened(cluster, name)
    with pytest.raises(RecoveryUndecidedError, match="b1, b2 lost what they stored") as raised:
        cluster.recovery().recover()
    assert raised.value.bookies == ("b1", "b2")
    assert cluster.metadata().state is LedgerState.IN_RECOVERY


def test_r10_accepted_loss_closes_at_the_remaining_entries() -> None:
    """R10: somebody who knows it decided so; what any bookie still has is kept all the same."""
    cluster = Cluster()
    confirmed_on(cluster, "b1", "b2")
    for name in ("b1", "b2"):
        shortened(cluster, name)
    metadata, version = cluster.records[7]
    machine = LedgerRecovery(metadata, version, cluster.digest(), "w9", is_loss_accepted=True)
    assert Recovery(cluster, machine, 7).recover().last_entry_id == -1


def test_r10_weak_denials_decide_when_all_members_deny() -> None:
    """R10: two that cannot vouch but know of no loss may decide with all others."""
    cluster = Cluster()
    cluster.writer()
    for name in ("b1", "b2"):
        shortened(cluster, name, Status.NO_ENTRY_IN_DOUBT)
    assert cluster.recovery().recover().last_entry_id == -1


# -- R10: a positive always wins -------------------------------------------------------------------------------------


def test_r10_a_silent_member_is_waited_for_once() -> None:
    """R10: Proven denials are enough, but a copy may be on its way: it wins if it comes in time."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    writer.deliver(SendAdd, "b2")
    recovery = fenced(cluster, "b1", "b3")
    for name in ("b1", "b3"):
        recovery.deliver(SendRecoveryRead, name, 0)
    assert len(recovery.find(AwaitSilentBookies)) == 1
    assert not recovery.find(WriteMetadata)
    recovery.deliver(SendRecoveryRead, "b2", 0)
    recovery.run()
    assert cluster.metadata().last_entry_id == 0


def test_r10_repeatedly_answering_bookie_is_not_silent() -> None:
    """R10: b1 is silent at first, then answers, and another one has forgotten entry 1 without a trace: it is still waited for."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    writer.add(b"b")
    for entry_id in (0, 1):
        writer.deliver(SendAdd, "b1", entry_id)
    recovery = fenced(cluster, "b2", "b3")
    for name in ("b2", "b3"):
        recovery.deliver(SendRecoveryRead, name, 0)
    patience_ends = recovery.arrive(AwaitSilentBookies)
    recovery.deliver(SendRecoveryRead, "b1", 0)
    for name in ("b2", "b3"):
        recovery.deliver(SendRecoveryRead, name, 1)
    patience_ends()
    assert not recovery.find(WriteMetadata), "b1 answered while it was waited for: entry 1 is on its way"
    (again,) = recovery.find(AwaitSilentBookies)
    assert again.has_answered
    recovery.run()
    assert cluster.metadata().last_entry_id == 1


def test_r10_proven_denials_decide_after_waiting_for_the_silent() -> None:
    """R10: silence does not hinder proven denials for ever."""
    cluster = Cluster()
    cluster.writer()
    recovery = fenced(cluster, "b1", "b3")
    for name in ("b1", "b3"):
        recovery.deliver(SendRecoveryRead, name, 0)
    recovery.deliver(AwaitSilentBookies)
    recovery.deliver(WriteMetadata)
    assert cluster.metadata().last_entry_id == -1


def test_r10_refusing_bookie_is_not_awaited() -> None:
    """R10: One of three is away: the takeover costs no wait."""
    cluster = Cluster()
    cluster.writer()
    cluster.down = {"b2"}
    recovery = fenced(cluster, "b1", "b3")
    recovery.run()
    assert recovery.finished is not None
    assert not recovery.find(AwaitSilentBookies)


def test_r10_denials_are_not_carried_over_to_the_next_entry() -> None:
    """R10: b1 and b3 deny entry 0 late, after b2 gave it: they say nothing about entry 1."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    writer.add(b"b")
    for entry_id in (0, 1):
        writer.deliver(SendAdd, "b2", entry_id)
    recovery = fenced(cluster, "b1", "b3")
    recovery.deliver(SendRecoveryRead, "b1", 0)
    late = recovery.arrive(SendRecoveryRead, "b3", 0)
    recovery.deliver(SendRecoveryRead, "b2", 0)
    late()
    recovery.deliver(SendRecoveryRead, "b3", 1)
    assert not recovery.find(WriteMetadata)
    assert not recovery.find(AwaitSilentBookies)
    recovery.run()
    assert cluster.metadata().last_entry_id == 1


# -- R12 -----------------------------------------------------------------------------------------------------------


def test_r12_a_bookie_is_asked_as_soon_as_it_is_back() -> None:
    """R12: Two of three restart during a takeover: it ends when one of them is back."""
    cluster = Cluster()
    confirmed_on(cluster, "b1", "b2")
    cluster.down = {"b2", "b3"}
    recovery = cluster.recovery()
    recovery.start()
    recovery.run()
    assert recovery.error is None
    cluster.down = set()
    for index in (1, 2):
        recovery.machine.bookie_reachable(index)
        recovery.run()
    assert recovery.finished is not None
    assert recovery.finished.last_entry_id == 0


def test_r12_a_bookie_in_doubt_may_answer_later() -> None:
    """R12: whoever could not tell may tell later."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    writer.deliver(SendAdd, "b1")
    cluster["b1"].disk.damaged.add((7, 0))
    cluster.down = {"b3"}
    recovery = fenced(cluster, "b1", "b2")
    read = recovery.find(SendRecoveryRead, "b1", 0)[0]
    recovery.run()
    assert recovery.machine.is_wanted(read)
    cluster["b1"].disk.damaged.clear()
    recovery.waiting.append(read)
    recovery.run()
    assert recovery.finished is not None
    assert recovery.finished.last_entry_id == 0
    assert not recovery.machine.is_wanted(read)


def test_r12_recovery_looks_for_bookies_to_write_back_to() -> None:
    """R12: bookies for the write back are looked for until there are some."""
    cluster = Cluster(bookies=3)
    writer = cluster.writer()
    writer.add(b"a")
    writer.deliver(SendAdd, "b1")
    recovery = fenced(cluster, "b1", "b2", "b3")
    recovery.deliver(SendRecoveryRead, "b1", 0)
    for name in ("b2", "b3"):
        recovery.fail(SendAdd, name)
        recovery.choose({})
    assert recovery.machine.lacks_bookies
    assert recovery.error is None
    recovery.machine.bookies_changed()
    recovery.collect()
    recovery.choose({1: "b2", 2: "b3"})
    recovery.run()
    assert cluster.metadata().last_entry_id == 0


# -- B8a -----------------------------------------------------------------------------------------------------------


def declare_lost(recovery: Recovery, *indices: int, is_loss_accepted: bool = False) -> None:
    for index in indices:
        recovery.machine.bookie_declared_lost(index, is_loss_accepted=is_loss_accepted)
    recovery.collect()


def test_b8a_a_lost_bookie_is_not_waited_for() -> None:
    """B8a: b1 lost its journal's end and b2 is lost for good: b1's weak denial counts now, since all others were heard."""
    cluster = Cluster()
    cluster.writer()
    shortened(cluster, "b1", Status.NO_ENTRY_IN_DOUBT)
    cluster.down = {"b2"}
    recovery = fenced(cluster, "b1", "b3")
    recovery.run()
    assert recovery.finished is None
    declare_lost(recovery, 1)
    recovery.run()
    assert recovery.finished is not None


def test_b8a_all_others_must_be_fenced_and_heard() -> None:
    """B8a: all others must be fenced and heard."""
    cluster = Cluster(Quorum(5, 5, 3))
    cluster.create_ledger()
    recovery = fenced(cluster)
    declare_lost(recovery, 0)
    for name in ("b2", "b3", "b4"):
        recovery.deliver(SendFence, name)
    assert not recovery.find(SendRecoveryRead), "b5 is not fenced"
    recovery.deliver(SendFence, "b5")
    assert {effect.bookie_id for effect in recovery.find(SendRecoveryRead)} == {"b2", "b3", "b4", "b5"}
    for name in ("b2", "b3", "b4"):
        recovery.deliver(SendRecoveryRead, name, 0)
    assert not recovery.find(WriteMetadata), "b5 was not heard"
    recovery.deliver(SendRecoveryRead, "b5", 0)
    assert recovery.find(WriteMetadata)


@pytest.mark.parametrize("is_loss_accepted", [False, True])
def test_b8a_two_lost_of_three_need_a_second_confirmation(is_loss_accepted: bool) -> None:
    """B8a: two lost of three need a second confirmation."""
    cluster = Cluster()
    cluster.writer()
    cluster.down = {"b1", "b2"}
    recovery = fenced(cluster, "b3")
    declare_lost(recovery, 0, 1, is_loss_accepted=is_loss_accepted)
    recovery.run()
    if is_loss_accepted:
        assert recovery.finished is not None
        assert recovery.finished.last_entry_id == -1
    else:
        assert isinstance(recovery.error, RecoveryUndecidedError)
        assert recovery.error.bookies == ("b1", "b2")
        assert "accept" in str(recovery.error)


def test_b8a_lost_bookies_and_known_losses_add_up() -> None:
    """B8a: a lost bookie and one that knows its loss are an ack quorum."""
    cluster = Cluster()
    confirmed_on(cluster, "b1", "b2")
    shortened(cluster, "b1")
    cluster.down = {"b2"}
    recovery = fenced(cluster, "b1", "b3")
    declare_lost(recovery, 1)
    recovery.run()
    assert isinstance(recovery.error, RecoveryUndecidedError)
    assert recovery.error.bookies == ("b1", "b2")


# -- B8: a bookie in doubt --------------------------------------------------------------------------------------------


def test_b8_a_bookie_in_doubt_takes_no_plain_adds() -> None:
    """B8: b1 lost the fence of a recovery together with its journal's end: the deposed writer must not find its way in."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    cluster.recovery().recover()
    assert cluster.metadata().last_entry_id == -1
    shortened(cluster, "b1")
    writer.deliver(SendAdd, "b1")
    assert writer.error is None, "in doubt is not Fenced"
    assert not cluster.holders(0)
    writer.run()
    assert isinstance(writer.error, FencedError)
    assert writer.confirmed == []


def test_b8_a_bookie_in_doubt_takes_fences_and_recovery_adds() -> None:
    """B8: a bookie in doubt takes fences and recovery adds."""
    cluster = Cluster()
    confirmed_on(cluster, "b2", "b3")
    shortened(cluster, "b1")
    assert cluster.recovery().recover().last_entry_id == 0
    assert cluster.holders(0) == {"b1", "b2", "b3"}


def test_b8_a_fenced_bookie_in_doubt_answers_fenced() -> None:
    """B8: what a bookie in doubt has been fenced with says fenced."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    shortened(cluster, "b1")
    fenced(cluster, "b1")
    writer.deliver(SendAdd, "b1")
    assert isinstance(writer.error, FencedError)


# -- the decision, in every situation -----------------------------------------------------------------------------------


SITUATIONS = ["proven", "in doubt", "after loss", "unknown", "unreachable", "silent", "lost"]


@pytest.mark.parametrize(
    "quorum", [Quorum(1, 1, 1), Quorum(2, 2, 2), Quorum(3, 3, 2), Quorum(3, 3, 3), Quorum(4, 4, 2)]
)
@pytest.mark.parametrize("is_patience_over", [False, True])
def test_r10_in_every_situation(quorum: Quorum, is_patience_over: bool) -> None:
    """R10: The rule once more, written another way, for every combination of what members say."""
    for said in itertools.product(SITUATIONS, repeat=quorum.write):
        hearing = Hearing(quorum, 0)
        absences = Absences(given_up=(1 << quorum.ensemble) - 1 if is_patience_over else 0)
        for index, situation in enumerate(said):
            tell(hearing, absences, index, situation)
        count = {situation: said.count(situation) for situation in SITUATIONS}
        others_deny = not (count["unknown"] or count["unreachable"] or count["silent"])
        proven = count["proven"] > quorum.write - quorum.ack and not count["lost"]
        may_be_gone = count["after loss"] + count["lost"] >= quorum.ack
        if proven and (is_patience_over or not count["silent"]):
            expected = Verdict.ABSENT
        elif proven:
            expected = Verdict.WAIT
        elif not others_deny:
            expected = Verdict.OPEN
        else:
            expected = Verdict.LOST if may_be_gone else Verdict.ABSENT
        assert hearing.decide(absences) is expected, said


def tell(hearing: Hearing, absences: Absences, index: int, situation: str) -> None:
    denials = {"proven": Denial.PROVEN, "in doubt": Denial.IN_DOUBT, "after loss": Denial.AFTER_LOSS}
    if situation in denials:
        hearing.denies(index, denials[situation])
    elif situation == "unknown":
        hearing.cannot_tell(index)
    elif situation == "unreachable":
        absences.unreachable |= 1 << index
    elif situation == "lost":
        absences.lost |= 1 << index


def test_r10_last_answer_of_a_bookie_counts() -> None:
    """R10: what a bookie says last counts."""
    hearing = Hearing(Quorum(3, 3, 2), 0)
    for index in range(3):
        hearing.cannot_tell(index)
    hearing.denies(0, Denial.PROVEN)
    hearing.denies(1, Denial.AFTER_LOSS)
    hearing.denies(1, Denial.PROVEN)
    assert hearing.decide(Absences()) is Verdict.ABSENT
    hearing.cannot_tell(1)
    assert hearing.decide(Absences()) is Verdict.OPEN
