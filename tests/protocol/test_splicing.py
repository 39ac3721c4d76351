"""A leader that adds a committer's ledgers, and stays (L10): one test for each schedule that could break it."""

from __future__ import annotations

import attrs
import pytest

from replog.errors import FencedError, JobAbandonedError, MetastoreUncertainError, RecoveryUndecidedError
from replog.protocol.appending import AwaitAnswer, AwaitClosed, FindLeader, FindSegments
from replog.protocol.log_effects import CheckLedgers, CreateLedger, RecoverLedger, WriteLog
from replog.protocol.model import LedgerState, LogMetadata
from replog.protocol.rolling import LogRolling
from tests.protocol.driving import Cluster
from tests.protocol.driving_jobs import JobActor, adding, answering, splicing, sweeping, write_ledger
from tests.protocol.driving_logs import NAME, deleting, segments, takeover, trimming

PATIENT = 100


@attrs.define
class Led:
    """A log with a leader, and a job's ledgers that a committer has asked the leader to add."""

    cluster: Cluster
    old: int  # the leader's ledger
    job: list[int]
    commit: JobActor

    @property
    def head(self) -> LogMetadata:
        return self.cluster.logs[NAME][0]

    @property
    def listed(self) -> list[int]:
        return [ledger_id for _, ledger_id in segments(self.cluster)]

    def state(self, ledger_id: int) -> LedgerState:
        return self.cluster.metadata(ledger_id).state


def asked(transaction: tuple[str, int] | None = ("t", 1), patience: int = PATIENT, *, unbounded: bool = False) -> Led:
    cluster = Cluster()
    leader = takeover(cluster, page_segments=2, unbounded=unbounded).run()
    assert leader.changed is not None
    assert leader.changed.ledger_id is not None
    job = [write_ledger(cluster, "job") for _ in range(2)]
    commit = adding(cluster, job, transaction, patience=patience).until(AwaitAnswer)
    return Led(cluster, leader.changed.ledger_id, job, commit)


def requests(led: Led) -> int:
    return len(led.head.requests)


def out_of_patience(led: Led) -> JobActor:
    """The committer no longer waits: it is about to take its request out of the record."""
    led.commit.patience = 0
    return led.commit.until(WriteLog)


def test_l10_one_change_adds_the_ledgers_and_the_leaders_next() -> None:
    led = asked()
    assert requests(led) == 1
    version = led.cluster.logs[NAME][1]
    roll = answering(led.cluster).finish()
    assert roll.changed is not None
    assert led.listed == [led.old, *led.job, roll.changed.ledger_id]
    assert led.cluster.logs[NAME][1] == version + 1
    assert (led.head.first_open_number, requests(led)) == (1, 0)
    assert led.state(led.old) is LedgerState.OPEN
    commit = led.commit.finish()
    assert commit.machine.is_new
    assert [(each.number, each.ledger_id) for each in commit.machine.segments] == [(2, led.job[0]), (3, led.job[1])]
    assert commit.fenced == []


def test_l10_committer_hears_when_the_ledger_before_is_closed() -> None:
    """The leader has not heard yet that its change was written: until then it appends before the job's rows."""
    led = asked()
    answering(led.cluster).finish()
    commit = led.commit.until(AwaitClosed)
    assert commit.changed is None
    led.cluster.recovery(led.old, nonce="close").recover()
    assert commit.finish().machine.is_new
    assert commit.fenced == []


def test_l10_leader_is_fenced_when_it_never_closes_the_ledger() -> None:
    led = asked()
    answering(led.cluster).finish()
    led.commit.until(AwaitClosed)
    led.commit.patience = 0
    commit = led.commit.finish()
    assert commit.machine.is_new
    assert (commit.fenced, commit.closed_late) == ([], [led.old])
    assert led.state(led.old) is LedgerState.CLOSED


def test_l10_added_ledgers_stay_when_fencing_is_impossible() -> None:
    led = asked()
    answering(led.cluster).finish()
    commit = led.commit.until(AwaitClosed)
    commit.patience = 0
    commit.until(RecoverLedger)
    commit.machine.abandon(RecoveryUndecidedError(led.old, "they are away"))
    commit.collect()
    assert commit.error is None
    assert commit.changed is not None
    assert commit.machine.is_new


def test_l10_repetition_waits_as_well_and_fences_no_leader() -> None:
    led = asked()
    answering(led.cluster).finish()
    again = adding(led.cluster, [write_ledger(led.cluster, "again")], ("t", 1), nonce="a2", patience=PATIENT)
    again.until(AwaitClosed)
    again.patience = 0
    again.finish()
    assert again.changed is not None
    assert not again.machine.is_new
    assert (again.fenced, again.closed_late) == ([], [])


def test_l10_the_leaders_answer_comes_before_the_withdrawal() -> None:
    led = asked(patience=0)
    out_of_patience(led)
    answering(led.cluster).finish()
    commit = led.commit.finish()
    assert commit.machine.is_new
    assert (commit.fenced, commit.closed_late) == ([], [led.old])


def test_l10_a_withdrawn_request_is_not_answered() -> None:
    """The leader has read the request, and is about to answer it: its CAS loses, and it is fenced as by any takeover."""
    led = asked(patience=0)
    roll = answering(led.cluster).until(WriteLog)
    commit = out_of_patience(led).until(RecoverLedger)
    assert requests(led) == 0
    commit.finish()
    assert commit.machine.is_new
    assert commit.fenced == [led.old]
    assert led.listed == [led.old, *led.job]
    roll.finish()
    assert isinstance(roll.error, FencedError)
    assert set(led.cluster.records) == {led.old, *led.job}, "what the leader had created is left (L7)"


def test_l10_the_leader_goes_on_when_the_request_was_withdrawn() -> None:
    led = asked(patience=0)
    roll = answering(led.cluster).until(WriteLog)
    out_of_patience(led).deliver(WriteLog)
    roll.finish()
    assert roll.changed is not None
    assert roll.machine.answered is None
    assert led.listed == [led.old, roll.changed.ledger_id]
    assert led.commit.finish().machine.is_new


@pytest.mark.parametrize("dies_before_its_close", [False, True])
def test_l8_takeover_closes_ledgers_before_the_spliced(dies_before_its_close: bool) -> None:
    led = asked()
    roll = answering(led.cluster).finish()
    if not dies_before_its_close:
        led.cluster.recovery(led.old, nonce="close").recover()
    assert roll.changed is not None
    assert roll.changed.ledger_id is not None
    takeover(led.cluster, "t2").run()
    assert led.state(led.old) is LedgerState.CLOSED
    assert led.state(roll.changed.ledger_id) is LedgerState.CLOSED
    assert led.commit.finish().machine.is_new


def test_l10_two_committers_are_answered_one_after_the_other() -> None:
    led = asked()
    other = [write_ledger(led.cluster, "other")]
    second = adding(led.cluster, other, ("u", 1), nonce="a2", patience=PATIENT).until(AwaitAnswer)
    assert requests(led) == 2
    first_roll = answering(led.cluster).finish()
    assert requests(led) == 1
    led.cluster.recovery(led.old, nonce="close").recover()
    second_roll = answering(led.cluster, "r2").finish()
    assert first_roll.changed is not None
    assert second_roll.changed is not None
    assert led.listed == [led.old, *led.job, first_roll.changed.ledger_id, *other, second_roll.changed.ledger_id]
    for commit in (led.commit, second):
        assert commit.finish().machine.is_new
        assert commit.fenced == []


def test_l10_second_request_makes_the_first_answer_lose_its_cas() -> None:
    led = asked()
    roll = answering(led.cluster).until(WriteLog)
    second = adding(led.cluster, [write_ledger(led.cluster, "b")], ("u", 1), "a2", patience=PATIENT).until(AwaitAnswer)
    roll.finish()
    assert roll.machine.answered.addition.ledger_ids == tuple(led.job)
    assert requests(led) == 1
    assert led.commit.finish().machine.is_new
    assert second.waiting


def test_m1_transaction_asked_for_twice_is_added_once() -> None:
    led = asked()
    again = [write_ledger(led.cluster, "again")]
    second = adding(led.cluster, again, ("t", 1), nonce="a2", patience=PATIENT).until(AwaitAnswer)
    answering(led.cluster).finish()
    led.cluster.recovery(led.old, nonce="close").recover()
    roll = answering(led.cluster, "r2").finish()
    assert roll.machine.answered is None
    assert requests(led) == 0
    assert led.commit.finish().machine.is_new
    assert second.finish().changed is not None
    assert not second.machine.is_new
    assert again[0] not in led.listed


def test_l10_a_takeover_ends_requests_and_its_leader_is_asked() -> None:
    led = asked()
    takeover(led.cluster, "t2").run()
    assert requests(led) == 0
    led.commit.until(WriteLog).until(AwaitAnswer)
    assert requests(led) == 1
    roll = answering(led.cluster, "r2").finish()
    assert roll.machine.answered is not None
    commit = led.commit.finish()
    assert commit.machine.is_new
    assert commit.fenced == []


def test_l10_a_takeover_meanwhile_makes_the_answer_lose_its_cas() -> None:
    led = asked()
    roll = answering(led.cluster).until(WriteLog)
    takeover(led.cluster, "t2").run()
    roll.finish()
    assert isinstance(roll.error, FencedError)
    led.commit.patience = 0
    assert led.commit.finish().machine.is_new
    assert led.listed[-2:] == led.job


def test_l10_fencing_commit_ends_requests_of_others() -> None:
    led = asked()
    adding(led.cluster, [write_ledger(led.cluster, "b")], ("u", 1), nonce="a2").finish()
    assert requests(led) == 0
    commit = led.commit.finish()
    assert commit.machine.is_new
    assert led.listed[-2:] == led.job


@pytest.mark.parametrize("is_answered", [False, True])
def test_l7_a_request_ends_with_the_log(is_answered: bool) -> None:
    led = asked(None)
    if is_answered:
        answering(led.cluster).finish()
    deleting(led.cluster).run()
    assert requests(led) == 0
    commit = led.commit.finish()
    if is_answered:  # whether it was is not known any more: the log has forgotten all
        assert isinstance(commit.error, MetastoreUncertainError)
    else:
        assert commit.machine.is_new
        assert led.listed == led.job


@pytest.mark.parametrize("transaction", [None, ("t", 1)])
def test_l10_transaction_answers_for_a_trimmed_answer(transaction: tuple[str, int] | None) -> None:
    led = asked(transaction)
    answering(led.cluster).finish()
    trimming(led.cluster, 4).run()
    commit = led.commit.finish()
    if transaction is None:
        assert isinstance(commit.error, MetastoreUncertainError)
    else:
        assert commit.changed is not None
        assert not commit.machine.is_new
    assert commit.fenced == []


def test_l10_an_answer_is_found_in_a_page() -> None:
    led = asked()
    answering(led.cluster).finish()
    for number in range(4):
        takeover(led.cluster, f"later {number}", page_segments=2).run()
    assert led.head.first_listed_number > 3
    commit = led.commit.until(FindSegments).finish()
    assert commit.machine.is_new
    assert commit.fenced == []
    assert [each.number for each in commit.machine.segments] == [2, 3]


def test_l10_log_without_a_leader_is_not_asked() -> None:
    cluster = Cluster()
    takeover(cluster).run()
    commit = adding(cluster, [write_ledger(cluster, "a")], patience=PATIENT)
    commit.is_led = False
    assert commit.finish().machine.is_new
    assert [each.addition for each in cluster.logs[NAME][0].requests] == []
    # All its ledgers are closed now: not even an announcement is looked for.
    second = adding(cluster, [write_ledger(cluster, "b")], nonce="a2", patience=PATIENT).until(WriteLog)
    assert second.find(FindLeader) == []
    assert second.finish().machine.is_new


@pytest.mark.parametrize("is_answered", [False, True])
@pytest.mark.parametrize("is_written", [False, True])
def test_m1_the_answer_to_the_request_is_lost(is_written: bool, is_answered: bool) -> None:
    cluster = Cluster()
    takeover(cluster).run()
    job = [write_ledger(cluster, "a")]
    commit = adding(cluster, job, patience=PATIENT).until(FindLeader)
    commit.until(WriteLog)
    arrives_late = commit.write_loses_answer if is_written else commit.write_loses_request()
    if is_written:
        arrives_late()
    if is_answered:
        answering(cluster).finish()
    commit.until(AwaitAnswer) if commit.waiting and not (is_written and is_answered) else commit.finish()
    if not is_written:
        assert arrives_late() is None, "the lost request finds another version"
    if commit.waiting:
        answering(cluster, "r2").finish()
        commit.finish()
    assert commit.machine.is_new
    assert commit.fenced == []
    assert [ledger_id for _, ledger_id in segments(cluster)].count(job[0]) == 1


def test_m1_the_answer_to_the_withdrawal_is_lost() -> None:
    led = asked(patience=0)
    out_of_patience(led).write_loses_answer()
    takeover(led.cluster, "t2").run()
    commit = led.commit.finish()
    assert commit.machine.is_new
    assert led.listed.count(led.job[0]) == 1


@pytest.mark.parametrize("loses", ["answer", "request"])
def test_m1_the_leaders_lost_answer_is_settled_by_reading(loses: str) -> None:
    led = asked()
    roll = answering(led.cluster).until(WriteLog)
    roll.write_loses_answer() if loses == "answer" else roll.write_loses_request()
    roll.finish()
    assert roll.changed is not None
    assert roll.machine.answered is not None
    assert led.listed == [led.old, *led.job, roll.changed.ledger_id]
    assert led.commit.finish().machine.is_new


def test_m1_interrupted_roll_is_repeated_unchanged() -> None:
    """The CAS of an answer fails for want of a metastore; the leader keeps the ledger, and tries again: as the same answer."""
    led = asked()
    roll = answering(led.cluster).until(WriteLog)
    effect = roll.take(WriteLog)
    kept = effect.metadata.segments[-1].ledger_id
    again = JobActor(led.cluster, LogRolling(roll.machine.base, "r2", 7, kept)).finish()
    assert again.changed is not None
    assert again.machine.answered is not None
    assert led.listed == [led.old, *led.job, kept]
    assert roll._cas(effect) is None, "the first attempt arrives late, and finds another version"
    assert led.commit.finish().machine.is_new


def test_l10_leader_refuses_ledgers_abandoned_by_a_sweep() -> None:
    """The leader has looked before the sweep, so its CAS loses; it looks again, and refuses."""
    led = asked(None)
    roll = answering(led.cluster).until(WriteLog)
    sweeping(led.cluster, led.job).finish()
    roll.finish()
    assert roll.changed is not None
    assert roll.machine.answered is None
    assert led.listed == [led.old, roll.changed.ledger_id]
    assert requests(led) == 0
    assert led.commit.finish().error is not None
    assert led.commit.fenced == []


def test_l10_refused_committer_says_why_and_fences_no_leader() -> None:
    led = asked(None)
    sweeping(led.cluster, led.job).until(WriteLog)  # they are condemned, and whoever sweeps is killed
    roll = answering(led.cluster).finish()
    assert roll.changed is not None
    assert roll.machine.answered is None
    commit = led.commit.finish()
    assert isinstance(commit.error, JobAbandonedError)
    assert commit.fenced == []


def test_l10_ledgers_are_checked_before_the_next_is_created() -> None:
    led = asked()
    roll = answering(led.cluster).until(CheckLedgers)
    assert roll.find(CreateLedger) == []
    roll.until(CreateLedger)
    assert roll.find(CreateLedger)[0].segment_number == 4


def test_l10_a_committer_asks_three_leaders_at_most() -> None:
    led = asked(None)
    for number in range(5):
        takeover(led.cluster, f"later {number}").run()
        while led.commit.waiting and not led.commit.find(AwaitAnswer):
            led.commit.step()
        if led.commit.waiting:
            led.commit.step()
    commit = led.commit.finish()
    assert commit.machine.is_new
    assert commit.fenced != []


def test_l9_leader_of_an_unbounded_log_continues_in_a_new_ledger() -> None:
    led = asked(unbounded=True)
    roll = answering(led.cluster).finish()
    assert roll.changed is not None
    new = roll.changed.ledger_id
    assert new not in (None, led.old)
    assert led.listed == [led.old, *led.job, new]
    following = takeover(led.cluster, "t2").run()
    assert following.changed is not None
    assert following.changed.ledger_id == new
    assert led.state(led.old) is LedgerState.CLOSED
    assert (led.head.segments[-1].term, requests(led)) == (2, 0)


def test_l7_takeover_in_the_last_ledger_ends_requests() -> None:
    led = asked(unbounded=True)
    takeover(led.cluster, "t2").run()
    assert (led.listed, requests(led)) == ([led.old], 0)


def test_l10_request_is_answered_after_its_committer_died() -> None:
    cluster = Cluster()
    takeover(cluster).run()
    job = [write_ledger(cluster, "a") for _ in range(3)]
    roll = splicing(cluster, job).finish()
    assert roll.changed is not None
    assert [ledger_id for _, ledger_id in segments(cluster)][1:] == [*job, roll.changed.ledger_id]
