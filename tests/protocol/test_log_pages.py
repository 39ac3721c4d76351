"""Logs whose lists go over into pages, and logs that are deleted (L1, L3, L4, M1): what breaks in between."""

from __future__ import annotations

import attrs
import pytest

from replog.errors import FencedError, LogNotFoundError, RecoveryUndecidedError
from replog.protocol.chaining import (
    CreateLedger,
    DeleteLedger,
    ReadLog,
    RecoverLedger,
    WriteLog,
    WritePage,
)
from replog.protocol.dropping import DropSegments, ListPending
from replog.protocol.model import LedgerState
from tests.protocol.driving import Cluster
from tests.protocol.driving_logs import NAME, LogActor, cas, deleting, rolling, segments, takeover, trimming


def log_of(count: int) -> Cluster:
    """A log with so many segments, in pages of two; ledger ids are segment numbers. Its next change writes a page if the
    number is odd."""
    cluster = Cluster()
    takeover(cluster, "t1", 2).run()
    for number in range(2, count + 1):
        assert rolling(cluster, f"r{number}").run().changed is not None
        cluster.recovery(number - 1, nonce=f"closing {number}").recover()
    return cluster


def at_page(actor: LogActor) -> LogActor:
    actor.run_until(WritePage)
    return actor


# -- pages ---------------------------------------------------------------------------------------------------------


def test_l3_a_page_is_written_before_the_record_drops_it() -> None:
    cluster = log_of(5)
    roll = at_page(rolling(cluster))
    assert roll.find(WritePage)[0].page.segments == cluster.logs[NAME][0].segments[:2]
    assert roll.find(WriteLog) == []
    roll.deliver(WritePage)
    assert [segment.number for segment in roll.find(WriteLog)[0].metadata.segments] == [4, 5, 6]
    roll.run()
    assert segments(cluster) == [(number, number) for number in range(1, 7)]


def test_l1_a_page_is_found_after_a_crash_before_the_record() -> None:
    cluster = log_of(5)
    dead = at_page(rolling(cluster, "dead"))
    dead.deliver(WritePage)
    assert takeover(cluster, "t2").run().changed is not None
    assert [number for number, _ in segments(cluster)] == [1, 2, 3, 4, 5, 7 - 1]
    assert set(cluster.records) == {ledger_id for _, ledger_id in segments(cluster)} | {6}, (
        "the dead one's ledger is left"
    )
    dead.run()
    assert isinstance(dead.error, FencedError)
    assert set(cluster.records) == {ledger_id for _, ledger_id in segments(cluster)}


def test_l3_two_write_the_same_page_and_one_of_them_wins() -> None:
    cluster = log_of(5)
    one, other = at_page(rolling(cluster, "r6")), at_page(takeover(cluster, "t2"))
    assert one.find(WritePage)[0].page == other.find(WritePage)[0].page
    other.run()
    one.run()
    assert other.changed is not None
    assert isinstance(one.error, FencedError)
    assert len(segments(cluster)) == 6


def test_l3_a_page_trimmed_before_it_was_written_is_not_used() -> None:
    """The one who knows the older record finds a page without some of its segments: it must not leave them out."""
    cluster = log_of(5)
    late = at_page(rolling(cluster, "late"))
    assert trimming(cluster, 3).run().changed is not None
    newer = at_page(rolling(cluster, "newer"))
    assert [segment.number for segment in newer.find(WritePage)[0].page.segments] == [3]
    newer.run()
    late.deliver(WritePage)
    assert late.find(WriteLog) == []
    late.run()
    assert isinstance(late.error, FencedError)
    assert [number for number, _ in segments(cluster)] == [3, 4, 5, 6]


def test_l3_late_page_stays_until_a_trim_finds_it() -> None:
    cluster = log_of(5)
    late = at_page(rolling(cluster, "late"))
    assert trimming(cluster, 5).run().changed is not None
    late.run()  # its page is written, and then it goes on upon the trimmed list
    assert late.changed is not None
    assert set(cluster.log_pages) == {1}
    assert trimming(cluster, 5, "again").run().changed is not None
    assert cluster.log_pages == {}
    assert [number for number, _ in segments(cluster)] == [5, 6]


def test_l3_a_trim_writes_no_page() -> None:
    """Such a page would lack the trimmed segments, and its CAS may lose."""
    cluster = log_of(7)
    trim = trimming(cluster, 3)
    trim.run_until(WriteLog)
    assert trim.find(WritePage) == []
    trim.run()
    assert [number for number, _ in segments(cluster)] == [3, 4, 5, 6, 7]
    assert set(cluster.log_pages) == {1}
    assert set(cluster.records) == {3, 4, 5, 6, 7}


def test_m1_pages_are_written_again_with_a_repeated_proposal() -> None:
    """Somebody says conflict before the record was written at all: nothing may be left out that stands in no page."""
    cluster = log_of(5)
    roll = at_page(rolling(cluster))
    roll.machine.log_conflict()
    roll.machine.log_conflict()
    roll.waiting.clear()
    roll.collect()
    assert len(roll.find(ReadLog)) == 1
    roll.deliver(ReadLog)
    assert roll.find(WriteLog) == []
    assert roll.run().changed is not None
    assert len(segments(cluster)) == 6


def test_an_answer_about_a_page_counts_once() -> None:
    cluster = log_of(5)
    roll = at_page(rolling(cluster))
    page = roll.find(WritePage)[0].page
    roll.machine.page_written(99)
    roll.deliver(WritePage)
    roll.machine.page_written(page.number)
    roll.collect()
    assert len(roll.find(WriteLog)) == 1


@pytest.mark.parametrize("is_written", [True, False])
def test_l1_a_lost_ledger_is_looked_for_in_its_page(is_written: bool) -> None:
    """Others have changed the log so often that the record doesn't tell any more: the ledger may be the log's."""
    cluster = log_of(2)
    slow = takeover(cluster, "slow")
    slow.run_until(WriteLog)
    mine = slow.find(WriteLog)[0].metadata.segments[-1]
    if is_written:
        slow.write_loses_answer()
    else:
        slow.write_loses_request()
    for number in range(6):
        assert takeover(cluster, f"t{number}").run().changed is not None
    slow.deliver(ReadLog)
    effect = slow.find(DeleteLedger)[0]
    assert (effect.ledger_id, effect.segment_number, effect.page_number) == (mine.ledger_id, mine.number, 1)
    slow.deliver(DeleteLedger)
    assert (mine.ledger_id in cluster.records) is is_written
    assert all(ledger_id in cluster.records for _, ledger_id in segments(cluster))
    assert ((mine.number, mine.ledger_id) in segments(cluster)) is is_written


@pytest.mark.slow
def test_a_long_record_is_split_at_the_next_change() -> None:
    cluster = log_of(1)
    head, version = cluster.logs[NAME]
    for ledger_id in range(2, 1000):
        cluster.create_ledger(next(cluster.ledger_ids))
        cluster.recovery(ledger_id, nonce=f"{ledger_id}").recover()
    long = attrs.evolve(head, page_segments=100).with_ledgers(range(2, 1000), 0).open_from(998)
    assert cas(cluster, long, version) is not None
    roll = rolling(cluster)
    roll.run_until(WritePage)
    assert [effect.page.number for effect in roll.find(WritePage)] == list(range(9))
    roll.run()
    assert segments(cluster) == [(number, number) for number in range(1, 1001)]
    assert len(cluster.logs[NAME][0].segments) == 101


# -- deleting ------------------------------------------------------------------------------------------------------


def test_l3_deleting_fences_then_cuts_then_deletes() -> None:
    cluster = log_of(6)
    writer = cluster.writer(6, "r6")
    writer.add(b"a")
    writer.run()
    delete = deleting(cluster)
    delete.deliver(ListPending)
    delete.deliver(ReadLog)
    assert [effect.ledger_id for effect in delete.waiting] == [5, 6]
    assert all(isinstance(effect, RecoverLedger) for effect in delete.waiting)
    delete.deliver(RecoverLedger)
    assert delete.find(WriteLog) == []
    delete.deliver(RecoverLedger)
    assert cluster.metadata(6).state is LedgerState.CLOSED
    assert set(cluster.records) == {1, 2, 3, 4, 5, 6}
    delete.run()
    assert delete.machine.dropped == (1, 2, 3, 4, 5, 6)
    assert (cluster.records, cluster.log_pages) == ({}, {})
    writer.add(b"b")
    writer.run()
    assert isinstance(writer.error, FencedError)


def test_l4_a_log_of_the_same_name_goes_on_with_the_numbers() -> None:
    cluster = log_of(6)
    deleting(cluster).run()
    head = cluster.logs[NAME][0]
    assert (head.is_deleted, head.deleted_at_ms, head.deletions, segments(cluster)) == (True, 7, 1, [])
    anew = takeover(cluster, "t2").run()
    assert anew.changed is not None
    assert segments(cluster) == [(7, 7)]
    head = anew.changed.metadata
    assert (head.is_deleted, head.created_at_ms, head.deletions, head.page_segments) == (False, 5, 1, 2)


def test_deleting_an_absent_log_and_trimming_a_deleted_one() -> None:
    cluster = Cluster()
    assert isinstance(deleting(cluster).run().error, LogNotFoundError)
    cluster = log_of(5)
    assert deleting(cluster).run().changed is not None
    for actor in (deleting(cluster, "d2"), trimming(cluster, 3)):
        assert isinstance(actor.run().error, LogNotFoundError)


def test_deleting_again_finishes_an_interrupted_deletion() -> None:
    cluster = log_of(7)
    dead = deleting(cluster, "dead")
    dead.run_until(DropSegments)
    assert cluster.logs[NAME][0].is_deleted
    assert isinstance(deleting(cluster).run().error, LogNotFoundError)
    assert cluster.log_pages == {}
    assert not set(cluster.records) & {1, 2, 3}


@pytest.mark.parametrize("is_written", [True, False])
def test_m1_a_log_is_recreated_after_a_deletion_without_answer(is_written: bool) -> None:
    """The log that somebody has begun meanwhile is another one: it stays."""
    cluster = log_of(5)
    slow, quick = deleting(cluster, "slow"), deleting(cluster, "quick")
    slow.run_until(WriteLog)
    if is_written:
        slow.write_loses_answer()
    else:
        slow.write_loses_request()
        quick.run()
    assert takeover(cluster, "t2").run().changed is not None
    assert rolling(cluster, "r2").run().changed is not None
    slow.run()
    assert slow.changed is not None
    assert segments(cluster) == [(6, 6), (7, 7)]
    assert set(cluster.records) == {6, 7}


def test_deletion_fences_the_new_ledger_when_it_meets_a_roll() -> None:
    cluster = log_of(4)
    delete = deleting(cluster)
    delete.run_until(WriteLog)
    assert rolling(cluster, "quick").run().changed is not None
    delete.run()
    assert delete.changed is not None
    assert delete.machine.dropped == (1, 2, 3, 4, 5)
    assert cluster.records == {}


def test_l5_roll_ends_the_writer_when_it_meets_a_deletion() -> None:
    cluster = log_of(4)
    roll = rolling(cluster, "slow")
    roll.run_until(WriteLog)
    assert deleting(cluster).run().changed is not None
    roll.run()
    assert isinstance(roll.error, FencedError)
    assert cluster.records == {}


def test_l1_a_takeover_begins_the_log_again_after_a_deletion() -> None:
    cluster = log_of(4)
    slow = takeover(cluster, "t2")
    slow.run_until(CreateLedger)
    assert deleting(cluster).run().changed is not None
    slow.run()
    assert slow.changed is not None
    assert [number for number, _ in segments(cluster)] == [5]
    assert set(cluster.records) == {ledger_id for _, ledger_id in segments(cluster)}


def test_unfenceable_writer_keeps_its_log() -> None:
    cluster = log_of(3)
    cluster.down |= {"b1", "b2", "b3"}
    delete = deleting(cluster).run()
    assert isinstance(delete.error, RecoveryUndecidedError)
    assert [number for number, _ in segments(cluster)] == [1, 2, 3]
