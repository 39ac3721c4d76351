"""A log writer's knowledge of its producers, and its record in the metastore (L11).

The record summarises the closed segments up to one of them (`replog.protocol.producers`). Rules:

- The record exists before the first entry with an id is sent. So without a record no entry has one, and nothing needs
  to be read.
- A writer that appends with an id, or finds the record, first reads the segments behind it, up to its own first entry.
  These entries are final, because a takeover has closed what was before. It knows its own entries from then on.
- After a roll it writes the record through the ledger that was closed. A roll is due after `IDS_UNSAVED_MAX` ids, so
  that the next writer has no more than these to read.
- A record is only replaced by one that goes further: so a deposed writer changes nothing that its successor has
  written. Only retiring producers changes a record in its place: it leaves them out, and says so. A writer that knows
  them forgets them when it writes the next record, or has no room; the record after that says nothing of them any more.
- A trim reads the record *after* the log's record, and leaves the segments behind it. The record that it has read can
  only have moved forward; the writer that begins the record changes the log's record afterwards, so that a trim that
  has found none fails.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress

import attrs
import trio

from replog.client.ledgers import Ledgers
from replog.errors import (
    EntryNotFoundError,
    EntryUnreadableError,
    KeyNotFoundError,
    LedgerNotFoundError,
    MetastoreUncertainError,
    ReplogError,
    TrimmedError,
    VersionConflictError,
)
from replog.log.log_records import LogRecords
from replog.log.record_edits import edit
from replog.protocol.envelope import EntryId
from replog.protocol.model import LogMetadata, Position, Segment
from replog.protocol.producers import ProducersRecord, ProducerWindow
from replog.records.encoding import encode
from replog.records.logs import decode_producers
from replog.records.paths import log_producers_key_path

IDS_UNSAVED_MAX = 100_000  # ids behind the record after which a roll is due


class ProducerRecords:
    """The records of logs' producers in one metastore."""

    def __init__(self, ledgers: Ledgers) -> None:
        self._store = ledgers.records

    async def get(self, log_name: str) -> tuple[ProducersRecord | None, int | None]:
        """The record and its version, whichever log of this name it is of; None and None if there is none. Raises
        `MetastoreError`."""
        key = log_producers_key_path(log_name)
        try:
            found = await self._store.read(f"reading {key}", lambda: self._store.metastore.get(key))
        except KeyNotFoundError:
            return None, None
        return decode_producers(key, found.value, log_name), found.version

    async def advance(self, window: ProducerWindow) -> ProducersRecord:
        """Writes the record of this window, unless there is one that goes as far; returns the one that is there now.
        The window forgets retired producers. Raises `MetastoreError`: then it may be written, and writing it again is
        harmless."""
        record = window.record()

        # A lost answer needs no token: any record that goes as far says the same.
        async def advanced(found: ProducersRecord | None) -> ProducersRecord | None:
            wanted = record
            if found is not None and found.deletions == record.deletions:
                window.retire(found.retired)
                # Another writer, which takes over just now, may still know producers retired since the last record.
                recently = tuple(each for each in found.retired if each.through >= found.through)
                wanted = attrs.evolve(window.record(), retired=recently)
            return None if found is not None and found.place >= wanted.place else wanted

        written = await self._edit(record.log_name, advanced)
        assert written is not None, "it was there, or was written"
        return written

    async def retire(self, head: LogMetadata, names: Collection[str], before_ms: int) -> list[str]:
        """Leaves these producers out of the record of this log, and those that were silent since before that time; returns their
        names. Raises `MetastoreError`: then they may be retired or not."""
        retired: dict[str, None] = {}

        async def without(found: ProducersRecord | None) -> ProducersRecord | None:
            if found is None or found.deletions != head.deletions:
                return None
            changed = found.without(names, before_ms)
            gone = changed.retired[len(found.retired) :]
            # Those of an attempt whose answer was lost count as well.
            retired.update((each.name, None) for each in gone)
            return changed if gone else None

        await self._edit(head.name, without)
        return list(retired)

    async def _edit(
        self, log_name: str, change: Callable[[ProducersRecord | None], Awaitable[ProducersRecord | None]]
    ) -> ProducersRecord | None:
        key = log_producers_key_path(log_name)

        async def write(record: ProducersRecord | None, version: int | None) -> None:
            assert record is not None, "it is never deleted here"
            await self._store.write(key, encode(record), version)

        return await self._store.edit(f"changing {key}", lambda: self.get(log_name), change, write)

    async def first_needed(self, head: LogMetadata) -> int | None:
        """The first segment of the log with this record that a trim must leave; None if the log's entries have no ids."""
        record, _ = await self.get(head.name)
        return None if record is None or record.deletions != head.deletions else record.through + 1

    async def forget(self, head: LogMetadata) -> None:
        """Deletes the record of a log that was deleted, whose head is this; never that of a later one of its name."""
        record, version = await self.get(head.name)
        if record is not None and record.deletions < head.deletions:
            key = log_producers_key_path(head.name)
            # A failure is harmless: the record is unused, and the next log of this name writes over it.
            with suppress(KeyNotFoundError, VersionConflictError, MetastoreUncertainError):
                await self._store.persist(f"deleting {key}", lambda: self._store.metastore.delete(key, version))


class Producers:
    """The producers of a log, as its writer knows them. `first` is where that writer's own entries begin, and `segment` returns
    the segment that it appends to now."""

    def __init__(
        self,
        name: str,
        deletions: int,
        first: Position,
        segment: Callable[[], int],
        ledgers: Ledgers,
        logs: LogRecords,
        password: bytes,
    ) -> None:
        self.are_saved = False  # the record had as many producers as fit, when this writer had no room
        self._name = name
        self._deletions = deletions
        self._first = first
        self._segment = segment
        self._ledgers = ledgers
        self._logs = logs
        self._password = password
        self._records = ProducerRecords(ledgers)
        self._window: ProducerWindow | None = None
        self._loading = trio.Lock()
        self._is_beginning = False  # it has begun the record, or may have
        self._are_used: bool | None = None  # whether the log had a record when this writer looked; None: it has not
        self._unsaved = 0  # ids behind the record
        self._roll_at = IDS_UNSAVED_MAX  # so many

    async def window(self) -> ProducerWindow:
        """The ids of the log: all that were written before this writer, and its own. Reads them the first time.

        Raises `MetastoreError`, `EntryUnreadableError` (retry: yes) and what reading a log raises: nothing was appended."""
        if self._window is None:
            async with self._loading:
                if self._window is None:
                    self._window = await self._read_window()
        return self._window

    def add(self, window: ProducerWindow, position: Position, entry_id: EntryId) -> bool:
        """This writer has pushed an entry with this id. Returns True if a roll is due."""
        window.add(position, entry_id, self._ledgers.entropy.time_ms())
        self._unsaved += 1
        if self._unsaved < self._roll_at:
            return False
        self._roll_at = self._unsaved + IDS_UNSAVED_MAX  # once, also if it fails
        return True

    async def make_room(self, window: ProducerWindow) -> bool:
        """Forgets the producers that were retired since; returns whether there was one. Raises `MetastoreError`."""
        record, _ = await self._records.get(self._name)
        if record is None or record.deletions != self._deletions:
            return False
        self.are_saved = record.is_full
        return window.retire(record.retired)

    async def look(self) -> None:
        """Reads the log's producers, if it has any: so that the first append does not wait for that. Failures are
        retried then."""
        with suppress(ReplogError):
            if await self._look():
                await self.window()

    async def _look(self) -> bool:
        if self._are_used is None:
            record, _ = await self._records.get(self._name)
            self._are_used = record is not None and record.deletions == self._deletions
        return self._are_used

    async def closed(self, through: int) -> None:
        """All segments up to this one are closed, with all that this writer has put into them: writes the record through it.
        Raises as `window`: then the next roll, or the next writer, does it."""
        if self._window is None and not await self._look():
            return
        window = await self.window()
        window.fold(through)
        await self._records.advance(window)
        self._unsaved = window.recent
        self._roll_at = self._unsaved + IDS_UNSAVED_MAX

    # -- what was there before ----------------------------------------------------------------------------------------

    async def _read_window(self) -> ProducerWindow:
        record, _ = await self._records.get(self._name)
        if record is not None and record.deletions > self._deletions:
            # The log was deleted since: its writer is fenced, and nothing that it appends will be confirmed.
            return ProducerWindow(ProducersRecord(self._name, self._deletions, self._first.segment))
        if record is None or record.deletions < self._deletions or self._is_beginning:
            window = ProducerWindow(await self._begin())
        else:
            window = await self._read_behind(record)
        self._are_used = True
        self._unsaved = window.recent
        return window

    async def _begin(self) -> ProducersRecord:
        """Begins the record of a log in which no entry has an id; then no trim drops one without it."""
        self._is_beginning = True
        empty = ProducersRecord(self._name, self._deletions, self._segment() - 1)
        record = await self._records.advance(ProducerWindow(empty))
        if record.deletions != self._deletions:
            return empty  # the log was deleted meanwhile

        async def touch(head: LogMetadata) -> LogMetadata:
            return head

        # A trim that has found no record now loses its compare-and-set, or has won it, which shows here.
        head = await edit(self._name, touch, self._ledgers, self._logs)
        if head.first_segment_number > self._segment():
            begin = Position(head.first_segment_number, 0)
            problem = (
                f"it was trimmed up to {begin} while this writer rolls to there: nothing was appended, append again"
            )
            raise TrimmedError(self._name, problem, begin)
        self._is_beginning = False
        return record

    async def _read_behind(self, record: ProducersRecord) -> ProducerWindow:
        """The window with the ids that are behind the record and before this writer; writes the record through the last closed
        segment."""
        while True:
            window = ProducerWindow(record)
            # What is not there any more is in the record.
            found = await self._logs.segments(self._name, window.through + 1, self._first.segment + 1)
            try:
                for segment in found:
                    await self._read_segment(window, segment)
                break
            except (LedgerNotFoundError, EntryNotFoundError):
                head, _ = await self._logs.get(self._name)
                if head.first_segment_number <= found[0].number:
                    raise
                # It was trimmed meanwhile: then the record has moved on, and this writer is deposed.
                again, _ = await self._records.get(self._name)
                if again is None or again.deletions != self._deletions:
                    raise
                record = again
        window.fold(self._first.segment - 1)
        if window.through > record.through:
            await self._records.advance(window)
        return window

    async def _read_segment(self, window: ProducerWindow, segment: Segment) -> None:
        """Adds the ids of one segment: of a closed one all, of one that this writer goes on with (L9) those before its own."""
        is_closed = segment.number < self._first.segment
        if not is_closed and not self._first.entry:
            return
        ledger, _ = await self._ledgers.records.get(segment.ledger_id)
        scan = self._ledgers.scan(ledger, 0, self._password)
        if is_closed:
            assert ledger.last_entry_id is not None, "a takeover closes all segments before its own (L1, L8)"
            last = ledger.last_entry_id
        else:
            last = self._first.entry - 1
            scan.adopt(last)
        scan.want_only(0, last)
        done = -1
        while done < last:
            batch = await scan.take()
            if batch is None:
                # Otherwise a repeated append would be taken for a new one.
                problem = f"{last} was confirmed, and this reader cannot read on"
                raise EntryUnreadableError(segment.ledger_id, done + 1, problem)
            done = batch.last_entry_id
            if batch.has_envelopes:
                for entry in batch:
                    if entry.id is not None and entry.entry_id <= last:
                        window.add(Position(segment.number, entry.entry_id), entry.id, entry.timestamp_ns // 1_000_000)
        if is_closed:
            window.fold(segment.number)
