"""Takeovers of unbounded logs at the floor (L9): schedules that break naive designs, replayed step by step."""

from __future__ import annotations

import pytest

from replog.errors import FencedError, TakeoverFailedError
from replog.protocol.chaining import ContinueLedger, CreateLedger, LogTakeover, ReadLog, RecoverLedger, WriteLog
from replog.protocol.effects import SendAdd
from replog.protocol.model import LedgerState, Position
from tests.protocol.driving import Cluster, Writer
from tests.protocol.driving_jobs import adding, write_ledger
from tests.protocol.driving_logs import NAME, LogActor, deleting, rolling, segments, takeover, trimming
from tests.protocol.test_spec_logs import read_log


def led(cluster: Cluster, nonce: str) -> tuple[LogActor, Writer]:
    actor = takeover(cluster, nonce, 2, unbounded=True).run()
    return actor, actor.writer()


def appended(writer: Writer, *payloads: bytes) -> None:
    for payload in payloads:
        writer.add(payload)
    writer.run()


def terms(cluster: Cluster) -> list[tuple[int, int, int]]:
    return [(each.number, each.ledger_id, each.term) for each in cluster.logs[NAME][0].segments]


def contents(cluster: Cluster) -> list[bytes]:
    return [payload for _, payload in read_log(cluster)]


def published(writer: Writer) -> None:
    writer.machine.publish()
    writer.collect()
    writer.run()


def test_l9_a_takeover_goes_on_in_the_last_ledger() -> None:
    """L9, L4: no ledger is created, positions continue, and the log's record names the term."""
    cluster = Cluster()
    _, first = led(cluster, "t1")
    appended(first, b"a", b"b")
    actor, second = led(cluster, "t2")
    appended(second, b"c")
    published(second)
    assert terms(cluster) == [(1, 1, 2)]
    assert not actor.find(CreateLedger)
    assert read_log(cluster) == [(Position(1, 0), b"a"), (Position(1, 1), b"b"), (Position(1, 2), b"c")]
    appended(first, b"late")
    assert isinstance(first.error, FencedError)


def test_l9_a_takeover_keeps_the_kind_of_the_log() -> None:
    """L9: without a wish, the log's record decides; with one, the log changes: an unbounded ledger is closed for that."""
    cluster = Cluster()
    led(cluster, "t1")
    takeover(cluster, "t2", 2).run()
    assert terms(cluster) == [(1, 1, 2)]
    takeover(cluster, "t3", 2, unbounded=False).run()
    assert terms(cluster) == [(1, 1, 2), (2, 2, 1)]
    assert cluster.metadata(1).state is LedgerState.CLOSED
    assert not cluster.metadata(2).is_unbounded
    takeover(cluster, "t4", 2).run()
    led(cluster, "t5")
    assert terms(cluster)[-2:] == [(3, 3, 1), (4, 4, 1)]
    assert cluster.metadata(4).is_unbounded


def test_l9_an_idle_leader_learns_it_when_it_rolls() -> None:
    """L9: the deposed leader has nothing to append, so no bookie tells it. If the takeover had not changed the log's record, its
    roll would add a ledger behind the one in which the new leader writes: two leaders would confirm."""
    cluster = Cluster()
    _, first = led(cluster, "t1")
    appended(first, b"a")
    roll = rolling(cluster, "r1")
    _, second = led(cluster, "t2")
    roll.run()
    assert isinstance(roll.error, FencedError)
    assert terms(cluster) == [(1, 1, 2)]
    appended(second, b"b")
    assert second.confirmed == [1]


def test_l9_a_roll_between_reading_and_the_change_wins() -> None:
    """L9, L1: the takeover has the ledger already, and the old leader's roll changes the record first. The takeover begins again,
    and closes the ledger that it holds, since there is one behind it now."""
    cluster = Cluster()
    _, first = led(cluster, "t1")
    appended(first, b"a")
    second = takeover(cluster, "t2", 2)
    second.run_until(WriteLog)
    roll = rolling(cluster, "r1").run()
    third = roll.writer()
    second.run()
    assert cluster.metadata(1).state is LedgerState.CLOSED
    assert terms(cluster) == [(1, 1, 1), (2, 2, 2)]
    appended(third, b"x")
    assert isinstance(third.error, FencedError)
    fourth = second.writer()
    appended(fourth, b"b")
    published(fourth)
    assert contents(cluster) == [b"a", b"b"]


def test_l9_two_takeovers_at_once_leave_one_leader() -> None:
    """L9, M1: both hold the ledger one after the other; the first one's change of the record finds that it was fenced,
    or begins again. Only the writer that serves last confirms."""
    cluster = Cluster()
    _, first = led(cluster, "t1")
    appended(first, b"a")
    one, other = takeover(cluster, "t2", 2), takeover(cluster, "t3", 2)
    one.run_until(WriteLog)
    other.run_until(WriteLog)
    one.run()
    assert terms(cluster) == [(1, 1, 2)], "it is in the record, and fenced by the other one's term"
    appended(one.writer(), b"lost")
    other.run()
    assert terms(cluster) == [(1, 1, 4)]
    last = other.writer()
    appended(last, b"b")
    published(last)
    assert contents(cluster) == [b"a", b"b"]


def test_l9_yielding_takeover_stops_when_contested() -> None:
    """L9, M3: another client was elected meanwhile: the loser must not fence it again."""
    cluster = Cluster()
    led(cluster, "t1")
    actor = LogActor(cluster, LogTakeover(NAME, "t2", 5, 2, yields=True))
    actor.deliver(ReadLog)
    machine = actor.machine
    machine.ledger_contested(1)
    actor.collect()
    assert isinstance(actor.error, TakeoverFailedError)
    assert machine.was_overtaken


def test_l9_a_contested_takeover_reads_the_log_again() -> None:
    cluster = Cluster()
    led(cluster, "t1")
    actor = takeover(cluster, "t2", 2)
    actor.deliver(ReadLog)
    actor.take(ContinueLedger)
    actor.machine.ledger_contested(1)
    actor.collect()
    assert actor.find(ReadLog)
    actor.run()
    assert terms(cluster) == [(1, 1, 2)]


@pytest.mark.parametrize("arrives", [1, 2, 3])
def test_l9_late_confirmed_append_is_kept_or_gone_for_all(arrives: int) -> None:
    """L5, O6: the deposed leader's entry reaches some bookies before the fence, and the answers come after the
    takeover. In any case, a confirmed entry is in the log, and stays there."""
    cluster = Cluster()
    _, first = led(cluster, "t1")
    appended(first, b"a")
    first.add(b"late")
    adds = [effect for effect in first.waiting if isinstance(effect, SendAdd)]
    tells = []
    for effect in adds[:arrives]:
        first.waiting.remove(effect)
        tells.append(first._arrive(effect))
    _, second = led(cluster, "t2")
    appended(second, b"b")
    for tell in tells:
        tell()
    first.run()
    published(second)
    found = contents(cluster)
    assert found in ([b"a", b"b"], [b"a", b"late", b"b"])
    if 1 in first.confirmed:
        assert found == [b"a", b"late", b"b"]
    assert contents(cluster) == found


def test_l9_a_job_between_takeover_and_first_append() -> None:
    """L8, L9: a job's ledgers come behind the leader's: so its ledger is closed for good, and the leader fenced. The next
    takeover creates a ledger behind the job's."""
    cluster = Cluster()
    _, first = led(cluster, "t1")
    appended(first, b"a")
    _, second = led(cluster, "t2")
    job = write_ledger(cluster, "job")
    added = adding(cluster, [job]).finish()
    assert added.error is None
    appended(second, b"lost")
    assert isinstance(second.error, FencedError)
    assert cluster.metadata(1).state is LedgerState.CLOSED
    third_actor, third = led(cluster, "t3")
    appended(third, b"b")
    published(third)
    assert [number for number, _ in segments(cluster)] == [1, 2, 3]
    assert third_actor.changed is not None
    assert cluster.metadata(third_actor.changed.ledger_id or 0).is_unbounded
    assert contents(cluster) == [b"a", b"b"]


def test_l9_earlier_job_makes_the_takeover_begin_again() -> None:
    """L8, L9: the takeover holds the ledger, the job closes it and changes the record: the takeover must not serve in it."""
    cluster = Cluster()
    _, first = led(cluster, "t1")
    appended(first, b"a")
    actor = takeover(cluster, "t2", 2)
    actor.run_until(WriteLog)
    adding(cluster, [write_ledger(cluster, "job")]).finish()
    actor.run()
    assert [number for number, _ in segments(cluster)] == [1, 2, 3]
    second = actor.writer()
    appended(second, b"b")
    published(second)
    assert contents(cluster) == [b"a", b"b"]


def test_l9_a_job_loses_to_a_takeover_and_begins_again() -> None:
    """L8, L9: the job has closed the ledger; the takeover finds it finished, and creates the next one."""
    cluster = Cluster()
    _, first = led(cluster, "t1")
    appended(first, b"a")
    job = adding(cluster, [write_ledger(cluster, "job")])
    job.until(WriteLog)
    _, second = led(cluster, "t2")
    appended(second, b"b")
    assert second.confirmed == [0], "in a ledger of its own"
    job.finish()
    appended(second, b"lost")
    assert isinstance(second.error, FencedError)
    assert [number for number, _ in segments(cluster)] == [1, 2, 3]
    assert contents(cluster) == [b"a", b"b"]


def test_l9_the_ledger_taken_over_is_trimmed_meanwhile() -> None:
    """L3, L9: the leader rolls twice and trims, while the takeover has read the old list."""
    cluster = Cluster()
    led(cluster, "t1")
    actor = takeover(cluster, "t2", 2)
    actor.deliver(ReadLog)
    for number in (1, 2):
        rolling(cluster, f"r{number}").run()
        cluster.recovery(number, nonce=f"closes {number}").recover()
    trimming(cluster, 3).run()
    actor.run()
    assert terms(cluster) == [(3, 3, 2)]
    writer = actor.writer()
    appended(writer, b"a")
    assert writer.confirmed == [0]


def test_l9_a_finished_ledger_is_followed_by_a_new_one() -> None:
    """L9: somebody closed the last ledger: nobody can go on in it."""
    cluster = Cluster()
    _, first = led(cluster, "t1")
    appended(first, b"a")
    cluster.recovery(1, nonce="operator").recover()
    _, second = led(cluster, "t2")
    appended(second, b"b")
    published(second)
    assert terms(cluster) == [(1, 1, 1), (2, 2, 1)]
    assert contents(cluster) == [b"a", b"b"]


@pytest.mark.parametrize("was_written", [True, False])
def test_l9_the_answer_to_the_change_is_lost(was_written: bool) -> None:
    """M1, L9: the token in the record tells. Nothing is claimed once more."""
    cluster = Cluster()
    led(cluster, "t1")
    actor = takeover(cluster, "t2", 2)
    actor.run_until(WriteLog)
    if was_written:
        actor.write_loses_answer()
    else:
        actor.write_loses_request()
    actor.run()
    assert terms(cluster) == [(1, 1, 2)]
    writer = actor.writer()
    appended(writer, b"a")
    assert writer.confirmed == [0]


def test_l9_late_change_deposes_no_leader() -> None:
    """M1, L9: the first attempt's request comes when another leader serves: it expects an older record."""
    cluster = Cluster()
    led(cluster, "t1")
    one = takeover(cluster, "t2", 2)
    one.run_until(WriteLog)
    late = one.write_loses_request()
    _, second = led(cluster, "t3")
    assert late() is None
    appended(second, b"a")
    assert second.confirmed == [0]
    assert terms(cluster) == [(1, 1, 3)]


def test_l9_a_trim_conflicts_and_the_takeover_still_leads() -> None:
    """L3, L9: a trim changes the record, and deposes nobody: not even a takeover that yields."""
    cluster = Cluster()
    led(cluster, "t1")
    rolling(cluster, "r1").run()
    cluster.recovery(1, nonce="closes").recover()
    actor = LogActor(cluster, LogTakeover(NAME, "t2", 5, 2, yields=True))
    actor.run_until(WriteLog)
    trimming(cluster, 2).run()
    actor.run()
    assert actor.error is None
    assert terms(cluster)[-1][:2] == (2, 2)


def test_l9_a_ledger_in_the_middle_is_closed() -> None:
    """L1, L9: a leader died while it rolled. The takeover goes on in the last ledger only; the one before is closed, since
    readers cross to the last one there."""
    cluster = Cluster()
    _, first = led(cluster, "t1")
    appended(first, b"a")
    rolling(cluster, "r1").run()
    actor = takeover(cluster, "t2", 2)
    actor.deliver(ReadLog)
    assert [each.ledger_id for each in actor.find(RecoverLedger)] == [1]
    assert [each.ledger_id for each in actor.find(ContinueLedger)] == [2]
    actor.run()
    assert cluster.metadata(1).state is LedgerState.CLOSED
    assert terms(cluster) == [(1, 1, 1), (2, 2, 2)]


def test_l9_deleted_log_begins_again_with_a_new_ledger() -> None:
    """L4, L9: its numbers go on, and what kind it was is forgotten."""
    cluster = Cluster()
    led(cluster, "t1")
    assert deleting(cluster).run().error is None
    takeover(cluster, "t2", 2).run()
    assert terms(cluster) == [(2, 2, 1)]
    assert not cluster.metadata(2).is_unbounded
