"""What a log keeps: dropping old segments by age, by bytes, and by what cursors have committed.

Rules:

- It only trims: whole segments, from the beginning on, never the last one, and what a cursor still needs stays.
- In doubt a segment stays, and with it all that follow. An age is in doubt if the log's record does not say when the last entry
  was sent; a size if it does not say how many bytes there are. So the segments that were closed last stay a while longer.
- A segment goes once one of the limits lets it go.
- A log's writer can see to it (`enforced`): until it is left, or deposed. What goes wrong is logged and tried again later, since
  a log that is larger than it should be is not a reason to stop appending to it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

import attrs
import trio

from replog.client.ledgers import Ledgers
from replog.config import check_number
from replog.errors import ConfigError, LogNotFoundError, ReplogError, TrimBlockedError
from replog.log import catalog
from replog.log.cursor_catalog import CursorCatalog
from replog.log.log_driver import LogDriver
from replog.log.log_writer import LogWriter
from replog.protocol.model import Position, Segment
from replog.runtime.nursery import open_service_nursery

_log = logging.getLogger("replog.log")


@attrs.frozen(kw_only=True)
class Retention:
    """What a log keeps: entries younger than `age`; the newest `size_bytes` of payload; with `committed`, what a cursor has not
    committed. What none of these keeps may go. Raises `ConfigError` if none is given, or one is impossible."""

    age: timedelta | None = None
    size_bytes: int | None = None
    committed: bool = False

    def __attrs_post_init__(self) -> None:
        if self.age is not None and (not isinstance(self.age, timedelta) or self.age < timedelta(0)):
            raise ConfigError(f"age={self.age!r} must be a timedelta, and not negative; nothing was dropped")
        if self.size_bytes is not None:
            check_number("size_bytes", self.size_bytes, 0)
        if self.age is None and self.size_bytes is None and not self.committed:
            raise ConfigError(
                "nothing says what to keep: give age=, size_bytes= or committed=True; nothing was dropped"
            )


async def retain(
    name: str, retention: Retention, ledgers: Ledgers, driver: LogDriver, cursors: CursorCatalog
) -> Position:
    """Drops what a log need not keep; returns where it begins now. Raises as `catalog.trim` does."""
    head, _ = await driver.records.get(name)
    committed = await cursors.needed(head) if retention.committed else None
    segments = await driver.records.segments(name, end=head.next_segment_number)
    now_ms = ledgers.chance.time_ms()
    first = first_kept(segments, retention, now_ms, None if committed is None else committed.begins_at.segment)
    return await catalog.trim(name, Position(first, 0), ledgers, driver, cursors, ignores_cursors=False)


@asynccontextmanager
async def enforced(
    writer: LogWriter, retention: Retention | None, ledgers: Ledgers, driver: LogDriver, cursors: CursorCatalog
) -> AsyncIterator[None]:
    """Drops what its log need not keep while this context lasts, every `retention_interval_s`, unless the writer has ended."""
    if retention is None:
        yield
        return
    async with open_service_nursery() as nursery:
        nursery.start_soon(_enforce, writer, retention, ledgers, driver, cursors)
        yield
        nursery.cancel_scope.cancel()


async def _enforce(
    writer: LogWriter, retention: Retention, ledgers: Ledgers, driver: LogDriver, cursors: CursorCatalog
) -> None:
    told = ""  # of which cursor it was said that it blocks
    with trio.CancelScope() as scope:
        async with open_service_nursery() as nursery:
            nursery.start_soon(_cancel_when_ended, writer, scope)
            while True:
                try:
                    await retain(writer.name, retention, ledgers, driver, cursors)
                    told = ""
                except TrimBlockedError as error:
                    if told != error.cursor_name:
                        told = error.cursor_name
                        _log.warning("log %r: a cursor keeps more than its retention does: %s", writer.name, error)
                except LogNotFoundError:
                    return  # the client that deleted it has deposed this writer
                except ReplogError as error:
                    _log.warning("log %r: its retention could not be enforced; tried again: %s", writer.name, error)
                await trio.sleep(ledgers.options.retention_interval_s)


async def _cancel_when_ended(writer: LogWriter, scope: trio.CancelScope) -> None:
    """Only who leads a log decides what it keeps."""
    await writer.wait_ended()
    scope.cancel()


def first_kept(segments: Sequence[Segment], retention: Retention, now_ms: int, committed_before: int | None) -> int:
    """The number of the first segment that stays, of a log with these; those before `committed_before` are committed."""
    limit_ms = None if retention.age is None else now_ms - retention.age / timedelta(milliseconds=1)
    sizes = [0 if each.contents is None else each.contents.size_bytes or 0 for each in segments]
    # Payload that is known to follow. An unknown size counts for nothing: what is kept is rather more than was asked for.
    following_bytes = sum(sizes)
    for segment, size_bytes in zip(segments[:-1], sizes, strict=False):
        following_bytes -= size_bytes
        is_past = limit_ms is not None and _was_sent_before(segment, limit_ms)
        is_surplus = retention.size_bytes is not None and _has_size(segment) and following_bytes >= retention.size_bytes
        is_committed = committed_before is not None and segment.number < committed_before
        if not (is_past or is_surplus or is_committed):
            return segment.number
    return segments[-1].number


def _was_sent_before(segment: Segment, limit_ms: float) -> bool:
    """True if all of a segment is known to have been sent before this time."""
    contents = segment.contents
    if contents is None:
        return False
    return not contents.entries or (contents.last_sent_ms is not None and contents.last_sent_ms < limit_ms)


def _has_size(segment: Segment) -> bool:
    return segment.contents is not None and segment.contents.size_bytes is not None
