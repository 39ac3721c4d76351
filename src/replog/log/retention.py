"""Retention of a log: dropping old segments by age, by bytes, and by commits of cursors.

Rules:

- It only trims: whole segments, from the beginning on, never the last one, and segments that a cursor still needs stay.
- In doubt a segment stays, and with it all that follow. An age is in doubt if the log's record does not say when the
  last entry was sent; a size if it does not say how many bytes there are. So the segments that were closed last stay a
  while longer.
- A segment goes once one of the limits lets it go.
- Nothing goes by age on the word of one clock (L3a). A majority of the bookies of the last ensemble must tell the same
  time as this client, and its wall clock must not have jumped since the last pass. A segment whose times cannot be
  right stays (`replog.log.segment_ages`). Segments kept for such a reason are named, with the clocks. The other limits
  are enforced anyway.
- A log's writer can see to it (`enforced`): until it is left, or deposed. Failures are logged and retried later, since
  a log that is larger than it should be is not a reason to stop appending to it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

import trio

from replog.client.ledgers import Ledgers
from replog.errors import (
    ClockMismatchError,
    LogNotFoundError,
    ReplogError,
    TrimBlockedError,
)
from replog.log import trimming
from replog.log.cursor_catalog import CursorCatalog
from replog.log.log_driver import LogDriver
from replog.log.log_options import Retention
from replog.log.log_writer import LogWriter
from replog.log.right_time import clock_refusal
from replog.log.segment_ages import SegmentAges
from replog.protocol.model import Position, Segment
from replog.runtime.loggers import logger
from replog.runtime.nursery import open_service_nursery

_log = logger("replog.log")

_NO_AGE_MS = -(1 << 62)  # by a clock that says this, nothing that has entries is old


async def retain(
    name: str, retention: Retention, ledgers: Ledgers, driver: LogDriver, cursors: CursorCatalog
) -> Position:
    """Drops what a log need not keep; returns where it begins now.

    Raises as `trimming.trim` does, and `ClockMismatchError` if something stays only because clocks contradict each other."""
    head, _ = await driver.records.get(name)
    committed = await cursors.needed(head) if retention.committed else None
    segments = await driver.records.segments(name, end=head.next_segment_number)
    reading, jump = ledgers.clocks.pass_over(name)
    committed_before = None if committed is None else committed.begins_at.segment
    first = first_kept(segments, retention, reading.time_ms, committed_before)
    refusal: ClockMismatchError | None = None
    if retention.age is not None and len(segments) > 1:
        without_age = first_kept(segments, retention, _NO_AGE_MS, committed_before)
        outcome, last = "Nothing was dropped by age", segments[-1].ledger_id
        is_needed = first > without_age
        refusal = await clock_refusal(name, last, reading, ledgers, outcome, jump=jump, is_needed=is_needed)
        if refusal is not None:
            first = without_age
        else:
            refusal = _segment_refusal(name, segments, first, reading.time_ms)
    begins_at = await trimming.trim(name, Position(first, 0), ledgers, driver, cursors, ignores_cursors=False)
    if refusal is not None:
        raise refusal
    return begins_at


def _segment_refusal(name: str, segments: Sequence[Segment], first: int, now_ms: int) -> ClockMismatchError | None:
    """Why the first segment that stays is in doubt; None if it is not, or if it is the last one."""
    doubt = SegmentAges(segments, now_ms).doubts.get(first)
    if doubt is None:
        return None
    command = f"replog log trim {name} --before {doubt.segment + 1}:0"
    problem = (
        f"segment {first} stays, with all that follow: {doubt.problem}. If that is old enough, drop it with `{command}`"
    )
    return ClockMismatchError(name, problem, segment=first)


@asynccontextmanager
async def enforced(
    writer: LogWriter, retention: Retention | None, ledgers: Ledgers, driver: LogDriver, cursors: CursorCatalog
) -> AsyncIterator[None]:
    """Drops what its log need not keep while this context lasts, every `retention_interval_s`, unless the writer has ended."""
    if retention is None:
        yield
        return
    async with while_leading(writer, lambda: _enforce(writer, retention, ledgers, driver, cursors)):
        yield


@asynccontextmanager
async def while_leading(writer: LogWriter, work: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Does this beside the leader of a log while the context lasts, unless the writer has ended."""
    async with open_service_nursery() as nursery:
        nursery.start_soon(_work, writer, work)
        yield
        nursery.cancel_scope.cancel()


async def _work(writer: LogWriter, work: Callable[[], Awaitable[None]]) -> None:
    async with open_service_nursery() as nursery:
        nursery.start_soon(_cancel_when_ended, writer, nursery.cancel_scope)
        await work()
        nursery.cancel_scope.cancel()


async def _enforce(
    writer: LogWriter, retention: Retention, ledgers: Ledgers, driver: LogDriver, cursors: CursorCatalog
) -> None:
    told: object = None  # the cursor, or the clocks, that were named last as what keeps something
    while True:
        try:
            await retain(writer.name, retention, ledgers, driver, cursors)
            told = None
        except TrimBlockedError as error:
            if told != error.cursor_name:
                told = error.cursor_name
                _log.warning("log %r: a cursor keeps more than its retention does: %s", writer.name, error)
        except ClockMismatchError as error:
            if told != (error.segment, error.bookies):
                told = error.segment, error.bookies
                _log.warning("log %r keeps more than its retention does: %s", writer.name, error)
        except LogNotFoundError:
            return  # the client that deleted it has deposed this writer
        except ReplogError as error:
            _log.warning("log %r: its retention could not be enforced; tried again: %s", writer.name, error)
        await trio.sleep(ledgers.options.retention_interval_s)


async def _cancel_when_ended(writer: LogWriter, scope: trio.CancelScope) -> None:
    """Only the leader of a log decides on its retention, and on what it archives."""
    await writer._wait_background_ended()
    scope.cancel()


def first_kept(segments: Sequence[Segment], retention: Retention, now_ms: int, committed_before: int | None) -> int:
    """The number of the first segment that stays, of a log with these; those before `committed_before` are committed."""
    limit_ms = None if retention.age is None else now_ms - retention.age / timedelta(milliseconds=1)
    ages = SegmentAges(segments, now_ms)
    sizes = [0 if each.contents is None else each.contents.size_bytes or 0 for each in segments]
    # Payload that is known to follow. An unknown size counts for nothing: the log keeps rather more than was asked for.
    following_bytes = sum(sizes)
    for segment, size_bytes in zip(segments[:-1], sizes, strict=False):
        following_bytes -= size_bytes
        is_past = limit_ms is not None and ages.ended_before(segment, limit_ms)
        is_surplus = retention.size_bytes is not None and _has_size(segment) and following_bytes >= retention.size_bytes
        is_committed = committed_before is not None and segment.number < committed_before
        if not (is_past or is_surplus or is_committed):
            return segment.number
    return segments[-1].number


def _has_size(segment: Segment) -> bool:
    return segment.contents is not None and segment.contents.size_bytes is not None
