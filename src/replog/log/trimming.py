"""Trimming: a log drops the segments before a position, and what earlier changes left unfinished (L3, L7)."""

from __future__ import annotations

from contextlib import suppress

import trio

from replog.client.ledgers import Ledgers
from replog.errors import LogNotFoundError, PositionError, TrimBlockedError
from replog.hookspecs import LogTrimmed
from replog.log.cursor_catalog import CursorCatalog
from replog.log.log_driver import NO_WRITERS, LogDriver
from replog.log.log_records import LogRecords
from replog.log.producers import ProducerRecords
from replog.log.record_edits import edit
from replog.protocol.cursors import CursorRecord
from replog.protocol.dropping import LogTrimming
from replog.protocol.model import LogMetadata, Position

_CLOSING_S = 1.0  # how long a trim waits for a leader that has rolled to close its ledger, which takes it milliseconds
_LOOK_S = 0.05


async def trim(
    name: str, before: Position, ledgers: Ledgers, driver: LogDriver, cursors: CursorCatalog, *, ignores_cursors: bool
) -> Position:
    """Drops the ledgers that are entirely before the position (L3), and that no cursor needs, unless that does not matter;
    returns where the log begins now.

    Raises `TrimBlockedError`, `LogNotFoundError`, `PositionError`, `MetastoreError`. If it raises or is cancelled, the log may be
    trimmed or not, and trimmed ledgers may wait to be deleted; the next trim, deletion, sweep or takeover deletes them (L7)."""
    needed: CursorRecord | None = None
    is_closing = False
    waits_until = trio.current_time() + _CLOSING_S
    producers = ProducerRecords(ledgers)

    async def cut(head: LogMetadata) -> LogMetadata | None:
        nonlocal needed, is_closing
        if before.segment >= head.next_segment_number:
            last = head.next_segment_number - 1
            raise PositionError(
                f"{before} is not a position of log {name!r}: its last segment is {last}; nothing was trimmed"
            )
        needed = None if ignores_cursors else await cursors.needed(head)
        end = before.segment if needed is None else min(before.segment, needed.begins_at.segment)
        # In spite of everything: what is behind the record of producers says which entries are repetitions (L11).
        unread = await producers.first_needed(head)
        trimmed = head.trimmed_before(end if unread is None else min(end, unread))
        if trimmed == head:
            return None
        first = trimmed.first_segment_number
        end_before = await _end_before(first, head, driver.records)
        # Still unknown if a leader died before it could close the ledger: there may be entries that no reader has seen,
        # as only a recovery finds out. So readers that have read up to there may have missed something, and get an
        # error that says so.
        may_be_open = end_before is None and first > head.first_open_number
        is_closing = may_be_open and trio.current_time() < waits_until
        return None if is_closing else head.trimmed_before(first, end_before)

    with suppress(LogNotFoundError):  # the machine raises it after it has removed the rest of the log
        await edit(name, cut, ledgers, driver.records)
        while is_closing:
            await trio.sleep(_LOOK_S)
            await edit(name, cut, ledgers, driver.records)
    # The list was cut first: the machine deletes what is below its beginning, and stray pages. It cuts nothing (L3, L7).
    machine = LogTrimming(name, 1, ledgers.entropy.token(), ledgers.entropy.time_ms())
    machine.start()
    changed = await driver.drive(machine, NO_WRITERS, b"")
    first = changed.metadata.begins_at
    if machine.dropped:
        ledgers.observe(LogTrimmed(name, first.segment, machine.dropped))
    if needed is not None and needed.begins_at.segment < before.segment:
        problem = (
            f"it has committed up to {needed.begins_at} only, and {before} was to be the beginning; the log begins at {first}: "
            "wait until it has committed more, move or delete it, or trim in spite of cursors"
        )
        raise TrimBlockedError(name, needed.name, problem, needed.begins_at, first)
    return first


async def _end_before(number: int, head: LogMetadata, logs: LogRecords) -> Position | None:
    """Behind the last entry before this segment of a log; None if the end of a ledger there is not known yet."""
    for each in range(number - 1, head.first_segment_number - 1, -1):
        entries = await logs.entries_in(head, each)
        if entries is None:
            return None
        if entries:
            return Position(each, entries)
    return head.trimmed_to


async def finish(name: str, ledgers: Ledgers, driver: LogDriver) -> None:
    """Finishes what other clients left unfinished, even for a log that was deleted or never created (L7). Raises
    `MetastoreError`."""
    machine = LogTrimming(name, None, ledgers.entropy.token(), ledgers.entropy.time_ms())
    machine.start()
    # Ledgers may be pending for a log that was never created: its takeover failed.
    with suppress(LogNotFoundError):
        await driver.drive(machine, NO_WRITERS, b"")
