"""Logs' records in the metastore, and driving the chaining machines with them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio

from replog.abc import Versioned
from replog.client.ledger_writer import LedgerWriter
from replog.client.ledgers import Ledgers
from replog.errors import (
    KeyExistsError,
    KeyNotFoundError,
    LedgerNotFoundError,
    LogNotFoundError,
    MetastoreCorruptError,
    MetastoreError,
    MetastoreUncertainError,
    ReplogError,
    VersionConflictError,
)
from replog.log.checking import AT_ONCE, JOB_KEY, check_ledgers, condemn
from replog.protocol.appending import CheckLedgers, FindSegment, LogAppending
from replog.protocol.chaining import (
    CreateLedger,
    DeleteLedger,
    LogChanged,
    LogEffect,
    LogFailed,
    LogMachine,
    LogRolling,
    LogTakeover,
    ReadLog,
    RecoverLedger,
    WriteLog,
    WritePage,
)
from replog.protocol.dropping import DeletePending, DropSegments, ListPending, LogDeleting, LogTrimming
from replog.protocol.model import PAGE_SEGMENTS, LogMetadata, LogPage, PendingLedger, Segment
from replog.protocol.sweeping import CondemnLedgers, DeleteUnnamed, LogSweeping
from replog.records.logs import (
    decode_log,
    decode_log_page,
    decode_pending,
    encode_log,
    encode_log_page,
    encode_pending,
    list_log_pages,
)
from replog.records.paths import log_key_path, log_page_key_path, log_pending_key_path
from replog.runtime.nursery import for_each

PENDING_KEPT_S = 600.0  # a request to create a ledger that was sent before that never arrives any more
_FINISHING_S = 1.0  # that leaving a writer may wait, each time, for what others have left unfinished


async def no_ledger(segment_number: int) -> int:
    """For machines that create nothing."""
    raise AssertionError("this creates nothing")


class LogRecords:
    """The logs' part of a metastore."""

    def __init__(self, ledgers: Ledgers, page_segments: int = PAGE_SEGMENTS) -> None:
        self.page_segments = page_segments  # of logs that are made
        self._ledgers = ledgers
        self._records = ledgers.records

    async def get(self, name: str) -> tuple[LogMetadata, int]:
        """A log's record and its version. Raises `LogNotFoundError`, also for a log that was deleted, `MetastoreError`,
        `ConfigError` for a bad name."""
        metadata, version = await self.head(name)
        if metadata is None:
            raise LogNotFoundError(name, "there is no such log: open it for writing once, to create it")
        if metadata.is_deleted:
            raise LogNotFoundError(name, "it was deleted: open it for writing, to begin it anew")
        assert version is not None
        return metadata, version

    async def head(self, name: str) -> tuple[LogMetadata | None, int | None]:
        """What stands for the log, also what a deleted one left behind, and its version; None if there is nothing."""
        found = await self._read(f"log {name!r}", log_key_path(name))
        return (None, None) if found is None else (decode_log(log_key_path(name), found.value), found.version)

    async def page(self, name: str, page_number: int) -> LogPage | None:
        """A page of a log; None if it was not written, or is gone because all its segments were trimmed.
        Raises `MetastoreError`."""
        key = log_page_key_path(name, page_number)
        found = await self._read(f"page {page_number} of log {name!r}", key)
        return None if found is None else decode_log_page(key, found.value)

    async def _read(self, what: str, key: str) -> Versioned | None:
        try:
            return await self._records.persist(f"reading {what}", lambda: self._records.metastore.get(key))
        except KeyNotFoundError:
            return None
        except MetastoreUncertainError as error:  # nothing was changed by a read
            raise MetastoreError(f"reading {what}: {error}") from error

    async def page_numbers(self, name: str) -> list[int]:
        """The numbers of the pages that a log has, ascending; also such as nothing refers to any more."""
        what = f"listing the pages of log {name!r}"
        try:
            return await self._records.persist(what, lambda: list_log_pages(self._records.metastore, name))
        except MetastoreUncertainError as error:
            raise MetastoreError(f"{what}: {error}") from error

    async def segments(self, name: str, first: int = 1, end: int | None = None) -> list[Segment]:
        """The segments of a log that are numbered from `first` to before `end`, in order; those that are trimmed meanwhile
        may be in or not. One read, and one for each page. Raises as `get`; `MetastoreCorruptError` if a page is missing."""
        head, _ = await self.get(name)
        found: list[Segment] = []
        while True:
            start = max(head.first_segment_number, first, found[-1].number + 1 if found else 0)
            stop = head.next_segment_number if end is None else min(end, head.next_segment_number)
            if start >= min(stop, head.first_listed_number):
                return [*found, *(each for each in head.segments if start <= each.number < stop)]
            page = await self.page(name, head.page_of(start))
            more = [] if page is None else [each for each in page.segments if start <= each.number < stop]
            if more[:1] and more[0].number == start:
                found += more
                continue
            head = await self.after_missing(head, start)
            if start < head.first_segment_number:
                found = []  # else there would be a gap

    async def after_missing(self, head: LogMetadata, segment_number: int) -> LogMetadata:
        """The record as it is now, after a segment was not found in its page: then it must have been trimmed meanwhile.
        Raises `MetastoreCorruptError` if it was not."""
        now, _ = await self.get(head.name)
        if now.deletions == head.deletions and segment_number >= now.first_segment_number:
            key = log_page_key_path(head.name, head.page_of(segment_number))
            problem = f"segment {segment_number} of log {head.name!r} stands nowhere: not in the log's record, nor in its page"
            raise MetastoreCorruptError(f"{problem}, key {key!r}; restore that from a backup of the metastore")
        return now

    # -- changing -----------------------------------------------------------------------------------------------------

    async def drive(
        self, machine: LogMachine, create_ledger: Callable[[int], Awaitable[int]], password: bytes
    ) -> LogChanged:
        """Runs a machine to its end. Raises what it failed with. If cancelled, the log may be changed or not; a ledger may
        be left that no log names: it is pending, or among those that the log has dropped (L7)."""
        doubts: list[float] = []  # when answers were lost
        while True:
            for effect in machine.take_effects():
                if isinstance(effect, LogChanged):
                    return effect
                if isinstance(effect, LogFailed):
                    raise effect.error
                try:
                    await self._perform(effect, machine, create_ledger, password, doubts)
                except ReplogError as error:
                    if machine.is_done:
                        raise  # the record stands as it was decided; what was to be deleted after it stays
                    machine.abandon(error)
                    break  # what else it wanted no longer matters

    async def _perform(
        self,
        effect: LogEffect,
        machine: LogMachine,
        create_ledger: Callable[[int], Awaitable[int]],
        password: bytes,
        doubts: list[float],
    ) -> None:
        if isinstance(effect, ReadLog):
            machine.log_read(*await self.head(effect.name))
        elif isinstance(effect, WritePage):
            await self._write_page(effect, machine)
        elif isinstance(effect, WriteLog):
            await self._write(effect, machine, doubts)
        elif isinstance(effect, RecoverLedger):
            assert isinstance(machine, LogTakeover | LogDeleting | LogAppending)
            try:
                await self._ledgers.recover(effect.ledger_id, password)
            except LedgerNotFoundError:
                machine.ledger_missing(effect.ledger_id)
            else:
                machine.ledger_recovered(effect.ledger_id)
        elif isinstance(effect, CreateLedger):
            assert isinstance(machine, LogTakeover | LogRolling)
            machine.ledger_created(await create_ledger(effect.segment_number))
        elif isinstance(effect, DeleteLedger):
            await self._give_back(effect)
        elif isinstance(machine, LogTrimming | LogDeleting):
            await self._perform_dropping(effect, machine)
        elif isinstance(machine, LogAppending):
            await self._perform_addition(effect, machine, password)
        elif isinstance(machine, LogSweeping):
            await self._perform_sweep(effect, machine)

    async def _perform_dropping(self, effect: LogEffect, machine: LogTrimming | LogDeleting) -> None:
        if isinstance(effect, DropSegments):
            machine.segments_dropped(await self._drop(effect))
        elif isinstance(effect, ListPending):
            machine.pending_listed(await self.pending(effect.log_name))
        elif isinstance(effect, DeletePending):
            log = effect.log
            await for_each(lambda each: self._delete_pending(log, each), effect.pending, AT_ONCE)
            machine.pending_deleted()

    async def _perform_addition(self, effect: LogEffect, machine: LogAppending, password: bytes) -> None:
        if isinstance(effect, CheckLedgers):
            named = await self._named_in_pages(effect.metadata) if effect.looks_into_pages else frozenset()
            await check_ledgers(effect, self._ledgers, password, named)
            machine.ledgers_checked()
        elif isinstance(effect, FindSegment):
            page = await self.page(effect.log_name, effect.page_number)
            found = () if page is None else page.segments
            machine.segment_found(next((each for each in found if each.number == effect.segment_number), None))

    async def _perform_sweep(self, effect: LogEffect, machine: LogSweeping) -> None:
        if isinstance(effect, CondemnLedgers):
            await condemn(effect.ledger_ids, self._ledgers)
            machine.ledgers_condemned()
        elif isinstance(effect, DeleteUnnamed):
            named = await self.named(effect.log_name)
            unnamed = tuple(each for each in effect.ledger_ids if each not in named)
            await for_each(self._ledgers.delete, unnamed, AT_ONCE)
            machine.ledgers_deleted(unnamed)

    async def named(self, name: str) -> frozenset[int]:
        """The ledgers that the log names, from its beginning; none if there is no such log."""
        try:
            return frozenset(segment.ledger_id for segment in await self.segments(name))
        except LogNotFoundError:
            return frozenset()

    async def _named_in_pages(self, log: LogMetadata) -> frozenset[int]:
        """The ledgers that the log names before those in this record of it. If it was deleted since, that record is not its
        record any more."""
        try:
            segments = await self.segments(log.name, end=log.first_listed_number)
        except LogNotFoundError:
            return frozenset()
        return frozenset(segment.ledger_id for segment in segments)

    async def _write(self, effect: WriteLog, machine: LogMachine, doubts: list[float]) -> None:
        key, value = log_key_path(effect.metadata.name), encode_log(effect.metadata)
        metastore, expected = self._records.metastore, effect.expected
        try:
            if expected is None:
                version = await self._records.persist(f"creating {key}", lambda: metastore.create(key, value))
            else:
                version = await self._records.persist(f"changing {key}", lambda: metastore.put(key, value, expected))
        except (VersionConflictError, KeyExistsError, KeyNotFoundError):
            machine.log_conflict()
        except MetastoreUncertainError as error:
            doubts.append(trio.current_time())
            await self._records.pause(doubts[0] + self._records.timeout_s, error)
            machine.log_uncertain()
        else:
            machine.log_written(version)

    async def _write_page(self, effect: WritePage, machine: LogMachine) -> None:
        """Creates a page. One that exists has the same segments: numbers are never reused, and only what a record named is
        written to pages. It may lack some that were trimmed; then the record is not what the machine knows any more."""
        name, number, wanted = effect.page.log_name, effect.page.number, effect.page.segments
        key, value = log_page_key_path(name, number), encode_log_page(effect.page)
        deadline = trio.current_time() + self._records.timeout_s
        while True:
            try:
                await self._records.persist(f"creating {key}", lambda: self._records.metastore.create(key, value))
                break
            except MetastoreUncertainError as error:
                await self._records.pause(deadline, error)  # else again: that it exists now is as good
            except KeyExistsError:
                found = await self.page(name, number)
                if found is not None and set(wanted) <= set(found.segments):
                    break
                _, version = await self.head(name)
                if found is None or version != effect.head_version:
                    machine.log_conflict()
                    return
                raise MetastoreCorruptError(
                    f"key {key!r}: the page does not name the segments {wanted[0].number} to {wanted[-1].number} as the "
                    f"record of log {name!r} does, which was not changed; restore the page from a backup of the metastore"
                ) from None
        machine.page_written(number)

    async def _give_back(self, effect: DeleteLedger) -> None:
        if effect.page_number is not None:
            page = await self.page(effect.log_name, effect.page_number)
            if page is not None and any(segment.ledger_id == effect.ledger_id for segment in page.segments):
                return  # it did not lose: the log names it
        await self._ledgers.delete(effect.ledger_id)

    async def _drop(self, effect: DropSegments) -> tuple[int, ...]:
        """Returns the ledgers of the segments that were dropped, in their order. What else the pages that are emptied name is
        deleted again."""
        name, size = effect.log_name, effect.page_segments
        emptied: list[int] = []
        if effect.first // size < effect.end // size or effect.first == effect.end:
            emptied = [number for number in await self.page_numbers(name) if (number + 1) * size <= effect.end]
        known = {segment.number: segment.ledger_id for segment in effect.known}
        start = max(effect.first, effect.end - effect.end % size)  # of those in a page that stays, or was never written
        if any(number not in known for number in range(start, effect.end)):
            page = await self.page(name, effect.end // size)
            found = () if page is None else page.segments
            known.update((each.number, each.ledger_id) for each in found if start <= each.number < effect.end)
        await self._delete_dropped(name, tuple(known.values()))
        for number in emptied:
            page = await self.page(name, number)
            found = () if page is None else page.segments
            # All of them: an earlier trim may have failed to delete some.
            more = {each.number: each.ledger_id for each in found if each.number not in known}
            await self._delete_dropped(name, tuple(more.values()))
            known.update(more)
            await self._delete_page(name, number)
        return tuple(known[segment_number] for segment_number in sorted(known) if segment_number >= effect.first)

    async def _delete_dropped(self, name: str, ledger_ids: tuple[int, ...]) -> None:
        """Deletes ledgers that the log named. Those that jobs handed in are swept: somebody who repeats a job's commit may be
        about to add them once more. A leader's nobody ever adds again."""
        handed_in: set[int] = set()

        async def look(ledger_id: int) -> None:
            try:
                metadata, _ = await self._ledgers.records.get(ledger_id)
            except LedgerNotFoundError:
                return
            if JOB_KEY in metadata.custom:
                handed_in.add(ledger_id)

        await for_each(look, ledger_ids, AT_ONCE)
        for ledger_id in ledger_ids:
            if ledger_id not in handed_in:
                await self._ledgers.delete(ledger_id)
        if handed_in:
            chance = self._ledgers.chance
            machine = LogSweeping(name, tuple(sorted(handed_in)), chance.token(), chance.time_ms())
            machine.start()
            await self.drive(machine, no_ledger, b"")

    async def _delete_page(self, name: str, page_number: int) -> None:
        await self._delete_key(log_page_key_path(name, page_number))

    # -- ledgers that are pending (L7) ----------------------------------------------------------------------------------

    async def pending(self, name: str) -> tuple[PendingLedger, ...]:
        """The ledgers that are being created for the log, or were and are left over. Raises `MetastoreError`."""
        key, what = log_pending_key_path(name), f"listing the pending ledgers of log {name!r}"
        try:
            found = await self._records.persist(what, lambda: self._records.metastore.values(key))
        except MetastoreUncertainError as error:
            raise MetastoreError(f"{what}: {error}") from error
        return tuple(decode_pending(f"{key}/{word}", each.value) for word, each in sorted(found.items()))

    async def announce(self, name: str, ledger_id: int, segment_number: int) -> None:
        """Writes down that a ledger is about to be created for this segment of the log. Raises `MetastoreError`."""
        key = log_pending_key_path(name, ledger_id)
        value = encode_pending(PendingLedger(name, ledger_id, segment_number, self._ledgers.chance.time_ms()))
        deadline = trio.current_time() + self._records.timeout_s
        while True:
            try:
                await self._records.persist(f"creating {key}", lambda: self._records.metastore.create(key, value))
                return
            except KeyExistsError:
                return  # by an earlier attempt: nobody else has this id
            except MetastoreUncertainError as error:
                await self._records.pause(deadline, error)

    async def settle(self, name: str, writer: LedgerWriter) -> None:
        """The log names this writer's ledger now, so it is pending no more. If that can't be written down in a moment, whoever
        comes next sees it in the log."""
        if writer.is_created_for_certain:  # else a request that is under way could create it again once it was trimmed
            with trio.move_on_after(_FINISHING_S), suppress(MetastoreError):
                await self._delete_key(log_pending_key_path(name, writer.ledger_id))

    async def finish(self, name: str) -> None:
        """Finishes what others have left unfinished, as far as that can be done in a moment; whoever comes next does the
        rest (L7)."""
        chance = self._ledgers.chance
        machine = LogTrimming(name, None, chance.token(), chance.time_ms())
        machine.start()
        with trio.move_on_after(_FINISHING_S), suppress(MetastoreError, LogNotFoundError):
            await self.drive(machine, no_ledger, b"")

    async def _delete_pending(self, log: LogMetadata, pending: PendingLedger) -> None:
        key = log_pending_key_path(pending.log_name, pending.ledger_id)
        if not await self._names(log, pending):
            await self._ledgers.delete(pending.ledger_id)
        age_ms = self._ledgers.chance.time_ms() - pending.created_at_ms
        if (
            age_ms >= 1000 * PENDING_KEPT_S
        ):  # before, a request of its creator that is still under way could create it again
            await self._delete_key(key)

    async def _names(self, log: LogMetadata, pending: PendingLedger) -> bool:
        """Whether the log names a pending ledger: only under the number that it was created for."""
        while log.first_segment_number <= pending.segment_number < log.next_segment_number:
            segment = log.listed(pending.segment_number)
            if segment is not None:
                return segment.ledger_id == pending.ledger_id
            page = await self.page(log.name, log.page_of(pending.segment_number))
            for each in () if page is None else page.segments:
                if each.number == pending.segment_number:
                    return each.ledger_id == pending.ledger_id
            try:
                log = await self.after_missing(log, pending.segment_number)
            except LogNotFoundError:
                return False  # it was deleted since
        return False

    async def _delete_key(self, key: str) -> None:
        deadline = trio.current_time() + self._records.timeout_s
        while True:
            try:
                return await self._records.persist(f"deleting {key}", lambda: self._records.metastore.delete(key))
            except KeyNotFoundError:
                return None
            except MetastoreUncertainError as error:
                await self._records.pause(deadline, error)  # else again: deleting twice is deleting once
