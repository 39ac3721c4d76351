"""The cursors of logs: creating, listing, moving and deleting them, and what a trim must leave for them.

The log's record names its cursors, each with an id that is unique permanently. A cursor's own record is below its id, so that
thousands of commits touch neither the log's record nor another cursor. Rules:

- A cursor exists if and only if the log's record names it. So creating one conflicts with a trim, and a deleted log has
  none.
- The id is named before the record exists. So a record whose id is not named never will be, and may be deleted at any
  time.
- Before one is created, such records are deleted: the worker of a cursor whose deletion was cut short never commits
  beside the worker of a new one with its name.
- A trim reads the cursors *after* the log's record, and cuts that record by CAS. So the positions that it has read can
  only have moved forward: a client that moves a cursor back changes the log's record afterwards, and finds out whether
  a trim was faster.
- A cursor behind the last entry that was trimmed goes on where the log begins: the log's record says where that is.
- Each acquisition and each move raises the cursor's term by CAS, and a commit is a CAS in its own term. Leases are
  advice (M3).
"""

from __future__ import annotations

import attrs
import trio

from replog.client.ledgers import Ledgers
from replog.errors import (
    ConfigError,
    CursorLostError,
    CursorNotFoundError,
    KeyExistsError,
    KeyNotFoundError,
    LogNotFoundError,
    MetastoreUncertainError,
    PositionError,
    TrimmedError,
    VersionConflictError,
)
from replog.log.log_records import LogRecords
from replog.log.record_edits import edit
from replog.protocol.cursors import CursorRecord
from replog.protocol.model import LogCursor, LogMetadata, Position
from replog.records.encoding import encode
from replog.records.logs import decode_cursor
from replog.records.paths import cursor_election_key_path, log_cursor_key_path

CURSORS_MAX = 100  # of one log: they are in its record


@attrs.frozen
class HeldCursor:
    """A cursor whose term this client has raised: its record as it wrote it, and that record's version."""

    cursor: LogCursor
    record: CursorRecord
    version: int


class CursorCatalog:
    """The cursors of one client's logs."""

    def __init__(self, ledgers: Ledgers, logs: LogRecords) -> None:
        self._ledgers = ledgers
        self._logs = logs
        self._store = ledgers.records

    # -- looking ------------------------------------------------------------------------------------------------------

    async def all_of(self, log_name: str) -> list[CursorRecord]:
        """The cursors of a log, by name. Raises `LogNotFoundError`, `MetastoreError`."""
        head, _ = await self._logs.get(log_name)
        return await self.records_of(head)

    async def records_of(self, head: LogMetadata) -> list[CursorRecord]:
        """The cursors that this record of a log names, by name. Raises `MetastoreError`."""
        return [await self.record_of(head.name, each) for each in sorted(head.cursors, key=lambda each: each.name)]

    async def find(self, log_name: str, name: str) -> LogCursor:
        """The cursor of this name, as the log's record has it. Raises `CursorNotFoundError`, `LogNotFoundError`."""
        cursor_election_key_path(log_name, name)
        head, _ = await self._logs.get(log_name)
        found = _named(head, name)
        if found is None:
            known = ", ".join(sorted(each.name for each in head.cursors)) or "none"
            raise CursorNotFoundError(
                log_name, name, f"there is no such cursor: the log has {known}; nothing was changed"
            )
        return found

    async def record_of(self, log_name: str, cursor: LogCursor) -> CursorRecord:
        """The record of a cursor; one that was never acquired is where it was created."""
        record, _ = await self._read(log_name, cursor)
        return record

    async def _read(self, log_name: str, cursor: LogCursor) -> tuple[CursorRecord, int | None]:
        key = log_cursor_key_path(log_name, cursor.cursor_id)
        try:
            found = await self._store.read(f"reading {key}", lambda: self._store.metastore.get(key))
        except KeyNotFoundError:
            return CursorRecord(log_name, cursor.name, cursor.begins_at), None
        return decode_cursor(key, found.value, log_name, cursor.name), found.version

    # -- creating and acquiring -----------------------------------------------------------------------------------------

    async def create(self, log_name: str, name: str, start: Position | None) -> LogCursor:
        """Creates a cursor at this position, or at the log's beginning, unless it exists; returns it.

        Raises `TrimmedError`, `PositionError`, `LogNotFoundError`, `ConfigError`, `MetastoreError`."""
        cursor_election_key_path(log_name, name)
        cursor_id = self._ledgers.entropy.token()

        async def add(head: LogMetadata) -> LogMetadata | None:
            if _named(head, name) is not None:
                return None
            if len(head.cursors) >= CURSORS_MAX:
                raise ConfigError(f"log {log_name!r} has {CURSORS_MAX} cursors: delete one before creating {name!r}")
            begins_at = head.begins_at if start is None else start
            _check_available(head, name, begins_at)
            await self._check_held(head, name, begins_at)
            await self.sweep(log_name)
            return attrs.evolve(head, cursors=(*head.cursors, LogCursor(name, cursor_id, begins_at)))

        head = await edit(log_name, add, self._ledgers, self._logs)
        created = _named(head, name)
        assert created is not None, "the log's record names it now"
        return created

    async def acquire(
        self, log_name: str, name: str, owner: str, start: Position | None, *, creates: bool = True
    ) -> HeldCursor:
        """Raises a cursor's term, so that the client that held it can't commit any more; creates the cursor if need be.

        Raises `CursorNotFoundError` if it does not exist and is not to be created; otherwise as `create`."""
        while True:
            cursor = await (self.create(log_name, name, start) if creates else self.find(log_name, name))
            held = await self._raise_term(log_name, cursor, owner, None)
            if await self._is_named(log_name, cursor):
                return held
            # It was deleted in between, maybe before this wrote its record, which is not needed then.
            await self._forget(log_name, cursor)

    async def _raise_term(self, log_name: str, cursor: LogCursor, owner: str, to: Position | None) -> HeldCursor:
        while True:
            record, version = await self._read(log_name, cursor)
            raised = attrs.evolve(record, term=record.term + 1, owner=owner, begins_at=to or record.begins_at)
            written = await self._write(raised, cursor, version)
            if written is not None:
                return written

    async def _write(self, record: CursorRecord, cursor: LogCursor, version: int | None) -> HeldCursor | None:
        """Writes a cursor's record by CAS, or creates it; None if another client was faster."""
        key = log_cursor_key_path(record.log_name, cursor.cursor_id)
        record = attrs.evolve(record, token=self._ledgers.entropy.token())
        value = encode(record)
        deadline = trio.current_time() + self._store.timeout_s
        while True:
            try:
                return HeldCursor(cursor, record, await self._store.write(key, value, version))
            except KeyNotFoundError:
                return None
            except (VersionConflictError, KeyExistsError, MetastoreUncertainError) as error:
                # The token tells whether an earlier request of this call was applied after all (M1).
                now, found = await self._read(record.log_name, cursor)
                if now.token == record.token and found is not None:
                    return HeldCursor(cursor, record, found)
                if found != version:
                    return None
                await self._store.pause(deadline, error)

    # -- committing -----------------------------------------------------------------------------------------------------

    async def commit(self, held: HeldCursor, begins_at: Position) -> HeldCursor:
        """Writes how far a held cursor has come. Raises `CursorLostError` if its term was raised since, or it was deleted;
        `MetastoreError`: then it is written or not, and committing again is harmless."""
        now_ms = self._ledgers.entropy.time_ms()
        while True:
            record = attrs.evolve(held.record, begins_at=begins_at, committed_at_ms=now_ms)
            written = await self._write(record, held.cursor, held.version)
            if written is not None:
                return written
            held = await self._still_held(held)

    async def _still_held(self, held: HeldCursor) -> HeldCursor:
        """The cursor as it is now, if it is still this client's: then an earlier commit of it arrived late."""
        log_name, name = held.record.log_name, held.cursor.name
        record, version = await self._read(log_name, held.cursor)
        if version is not None and record.term > held.record.term:
            raise CursorLostError(
                log_name,
                name,
                f"{record.owner or 'another client'} has acquired or moved it since, in term {record.term}; this client had "
                f"term {held.record.term}, and what it has not committed is given out again; this commit may be written, if an "
                "answer of the metastore was lost: stop, or acquire it again and read from there",
            )
        if version is None or not await self._is_named(log_name, held.cursor):
            raise CursorLostError(log_name, name, "it was deleted: stop, or acquire it again and read from there")
        return HeldCursor(held.cursor, record, version)

    # -- moving and deleting --------------------------------------------------------------------------------------------

    async def move(self, log_name: str, name: str, to: Position, owner: str) -> CursorRecord:
        """Moves a cursor, forward or back: the client that holds it loses it. Raises `CursorNotFoundError`, `TrimmedError`,
        `PositionError`, `LogNotFoundError`, `MetastoreError`."""
        cursor = await self.find(log_name, name)
        head, _ = await self._logs.get(log_name)
        _check_available(head, name, to)
        await self._check_held(head, name, to)
        held = await self._raise_term(log_name, cursor, owner, to)

        async def touch(head: LogMetadata) -> LogMetadata:
            # A trim that has read the cursor before it was moved now loses its CAS, or has won it, which shows here.
            if _named(head, name) != cursor:
                raise CursorNotFoundError(log_name, name, "it was deleted while it was moved")
            _check_available(head, name, to)
            return head

        try:
            await edit(log_name, touch, self._ledgers, self._logs)
        except (CursorNotFoundError, LogNotFoundError):
            await self._forget(log_name, cursor)
            raise
        return held.record

    async def delete(self, log_name: str, name: str) -> None:
        """Deletes a cursor; the client that holds it loses it. Raises `CursorNotFoundError`, `LogNotFoundError`.

        After `MetastoreError` it is deleted or not, and deleting again is harmless."""
        cursor = await self.find(log_name, name)

        async def remove(head: LogMetadata) -> LogMetadata | None:
            left = tuple(each for each in head.cursors if each != cursor)
            return None if left == head.cursors else attrs.evolve(head, cursors=left)

        await edit(log_name, remove, self._ledgers, self._logs)
        await self._forget(log_name, cursor)

    async def _check_held(self, head: LogMetadata, name: str, place: Position) -> None:
        """Raises `PositionError` if this is behind the end of a closed segment. The end of an open one is not known yet."""
        # The end of one that was trimmed meanwhile is not known either: the change of the log's record finds that out.
        entries = await self._logs.entries_in(head, place.segment) if place.entry else None
        if entries is not None and place.entry > entries:
            raise PositionError(
                f"{place} is not a position of log {head.name!r}: that segment ends at {entries - 1}; "
                f"cursor {name!r} was not changed"
            )

    async def _is_named(self, log_name: str, cursor: LogCursor) -> bool:
        head, _ = await self._logs.head(log_name)
        return head is not None and cursor in head.cursors

    async def _forget(self, log_name: str, cursor: LogCursor) -> None:
        await self._store.delete_key(log_cursor_key_path(log_name, cursor.cursor_id))

    async def sweep(self, log_name: str) -> None:
        """Deletes the records of cursors that the log does not name: of a deleted log, or of deletions that were cut short."""
        parent = log_cursor_key_path(log_name)
        # Listed before the log's record is read: an id is named there before its record exists.
        found = await self._store.read(f"listing {parent}", lambda: self._store.metastore.children(parent))
        if found:
            head, _ = await self._logs.head(log_name)
            named = {each.cursor_id for each in head.cursors} if head is not None else set()
            for cursor_id in found:
                if cursor_id not in named:
                    await self._store.delete_key(f"{parent}/{cursor_id}")

    # -- for trims --------------------------------------------------------------------------------------------------------

    async def needed(self, head: LogMetadata) -> CursorRecord | None:
        """The cursor that needs most of the log with this record, at the first position that it needs; None without cursors."""
        records = await self.records_of(head)
        if not records:
            return None
        last = min(records, key=lambda each: each.begins_at)
        return attrs.evolve(last, begins_at=await self._after_ends(head, last.begins_at))

    async def _after_ends(self, head: LogMetadata, begins_at: Position) -> Position:
        """The same place, but at the beginning of the next segment if it is at the end of a closed one."""
        begins_at = head.resume(begins_at) or begins_at
        while True:
            # Nobody knows it of a segment that was trimmed in spite of the cursor, or is not there yet.
            entries = await self._logs.entries_in(head, begins_at.segment)
            if entries is None or begins_at.entry < entries:
                return begins_at
            begins_at = Position(begins_at.segment + 1, 0)


def _named(head: LogMetadata, name: str) -> LogCursor | None:
    return next((each for each in head.cursors if each.name == name), None)


def _check_available(head: LogMetadata, name: str, place: Position) -> None:
    if head.resume(place) is None:
        problem = f"cursor {name!r} can't begin at {place}, which was trimmed away; the log begins at {head.begins_at}"
        raise TrimmedError(head.name, problem, head.begins_at)
    if place.segment >= head.next_segment_number:
        raise PositionError(
            f"{place} is not a position of log {head.name!r}: it ends before; cursor {name!r} was not changed"
        )
