"""Drives the machines of logs: performs their effects, and tells them the answers.

A machine of `replog.protocol` decides what happens to a log: a takeover, a roll, a trim, a sweep, an addition, a deletion. Its
effects read and change records in the metastore, and recover, create and delete ledgers. They are performed one by one, in order.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

import attrs
import trio

from replog.abc import Metastore
from replog.client.entry_writer import EntryWriter
from replog.client.ledgers import Ledgers
from replog.errors import (
    FencedError,
    KeyExistsError,
    KeyNotFoundError,
    LedgerFinishedError,
    LedgerNotFoundError,
    LogNotFoundError,
    MetastoreCorruptError,
    MetastoreError,
    MetastoreUncertainError,
    ReplogError,
    TransientError,
    VersionConflictError,
)
from replog.log.checking import AT_ONCE, JOB_KEY, REFUSALS, check_ledgers, condemn
from replog.log.log_records import LogRecords
from replog.protocol.appending import AwaitAnswer, AwaitClosed, FindLeader, FindSegments, LogAppending
from replog.protocol.chaining import LogMachine, LogTakeover
from replog.protocol.dropping import DeletePending, DropSegments, ListPending, LogDeleting, LogTrimming
from replog.protocol.log_effects import (
    CheckLedgers,
    ContinueLedger,
    CreateLedger,
    DeleteLedger,
    LogChanged,
    LogEffect,
    LogFailed,
    ReadLog,
    RecoverLedger,
    WriteLog,
    WritePage,
)
from replog.protocol.model import LedgerMetadata, LedgerState, LogMetadata, PendingLedger
from replog.protocol.rolling import LogRolling
from replog.protocol.sweeping import CondemnLedgers, DeleteUnnamed, LogSweeping
from replog.records.encoding import encode
from replog.records.paths import (
    ledger_key_path,
    log_key_path,
    log_leaders_key_path,
    log_page_key_path,
    log_pending_key_path,
)
from replog.runtime.nursery import for_each

PENDING_KEPT_S = 600.0  # a request to create a ledger that is older than this never arrives any more
# How long a client that lost a term of a ledger to another one waits at most: the first time, and ever
_CONTESTED_S = 0.05
_CONTESTED_MAX_S = 10.0
_ANNOUNCING_S = 0.2  # a leader that has begun so long ago is announced, if the metastore is not very slow
_AGAIN_S = 0.2
_FINISHING_S = 1.0  # for finishing what other clients left unfinished, each time


class Writers(Protocol):
    """Where a machine that makes its client a log's writer gets ledgers to write to."""

    async def create(self, segment_number: int, *, is_unbounded: bool) -> int:
        """Creates a ledger for this segment; returns its id."""

    async def take_over(self, ledger_id: int) -> int:
        """Takes this ledger over; returns its term. Raises as `Ledgers.take_over`."""


class NoWriters:
    """For machines that write to no ledger."""

    async def create(self, segment_number: int, *, is_unbounded: bool) -> int:
        """Never called."""
        raise AssertionError("this machine creates no ledger")

    async def take_over(self, ledger_id: int) -> int:
        """Never called."""
        raise AssertionError("this machine takes no ledger over")


NO_WRITERS = NoWriters()


@attrs.define
class _Waits:
    """Since when one machine waits: `doubted_at_s` is when the first answer was lost; `asked_at_s` is when the first wait for a
    leader's answer began, and `answered_at_s` when the first wait did for what it closes after that. All waits of either kind
    last `patience_s` together."""

    patience_s: float
    doubted_at_s: float | None = None
    asked_at_s: float | None = None
    answered_at_s: float | None = None


class LogDriver:
    """Drives the machines of one client's logs."""

    def __init__(self, ledgers: Ledgers, records: LogRecords) -> None:
        self.records = records
        self._ledgers = ledgers
        self._store = ledgers.records

    async def drive(
        self, machine: LogMachine, writers: Writers, password: bytes, patience_s: float = 0.0
    ) -> LogChanged:
        """Runs a machine to its end. Raises the error with which it failed. `patience_s`: how long it waits for a log's leader.

        If cancelled, the log may be changed or not. A ledger may be left that no log names: it is pending, or in the list of
        those that the log has dropped (L7)."""
        waits = _Waits(patience_s)
        while True:
            for effect in machine.take_effects():
                if isinstance(effect, LogChanged):
                    return effect
                if isinstance(effect, LogFailed):
                    raise effect.error
                try:
                    await _at_last(machine, partial(self._perform, effect, machine, writers, password, waits))
                except ReplogError as error:
                    if machine.is_done:
                        # The record is written; ledgers that should be deleted after that stay.
                        raise
                    machine.abandon(error)
                    break  # its other effects no longer matter

    async def _perform(
        self,
        effect: LogEffect,
        machine: LogMachine,
        writers: Writers,
        password: bytes,
        waits: _Waits,
    ) -> None:
        if isinstance(effect, ReadLog):
            machine.log_read(*await self.records.head(effect.name))
        elif isinstance(effect, WritePage):
            await self._write_page(effect, machine)
        elif isinstance(effect, WriteLog):
            await self._write(effect, machine, waits)
        elif isinstance(effect, RecoverLedger):
            assert isinstance(machine, LogTakeover | LogDeleting | LogAppending)
            await self._recover(effect.ledger_id, machine, password)
        elif isinstance(effect, ContinueLedger):
            assert isinstance(machine, LogTakeover)
            await self._continue(effect.ledger_id, machine, writers, password)
        elif isinstance(effect, CreateLedger):
            assert isinstance(machine, LogTakeover | LogRolling)
            machine.ledger_created(await writers.create(effect.segment_number, is_unbounded=effect.is_unbounded))
        elif isinstance(effect, DeleteLedger):
            await self._give_back(effect)
        elif isinstance(machine, LogTrimming | LogDeleting):
            await self._perform_dropping(effect, machine)
        elif isinstance(effect, CheckLedgers):
            assert isinstance(machine, LogAppending | LogRolling)
            await self._check(effect, machine, password)
        elif isinstance(machine, LogAppending):
            await self._perform_addition(effect, machine, waits)
        elif isinstance(machine, LogSweeping):
            await self._perform_sweep(effect, machine)

    async def _recover(
        self, ledger_id: int, machine: LogTakeover | LogDeleting | LogAppending, password: bytes
    ) -> None:
        """Closes a ledger, although others may claim terms of it at the same time: one of them is left, and the others repeat."""
        deadline_s = trio.current_time() + self._ledgers.options.takeover_timeout_s
        for contests in itertools.count():
            started_s = trio.current_time()
            try:
                # What is deleted needs no copies: a bookie that is gone must not keep a log from that.
                closed = await self._ledgers.recover(ledger_id, password, fills=not isinstance(machine, LogDeleting))
            except LedgerNotFoundError:
                machine.ledger_missing(ledger_id)
                return
            except FencedError:
                if trio.current_time() >= deadline_s:
                    raise
                await self._pause_contested(started_s, contests)
            else:
                machine.ledger_recovered(ledger_id, closed.contents)
                return

    async def _continue(self, ledger_id: int, machine: LogTakeover, writers: Writers, password: bytes) -> None:
        """Takes the log's last ledger over (L9); closes a bounded one, which may be there from before, or from a job."""
        started_s = trio.current_time()
        try:
            metadata, _ = await self._store.get(ledger_id)
            if not metadata.is_unbounded or metadata.state is LedgerState.CLOSED:
                await self._recover(ledger_id, machine, password)
                return
            term = await writers.take_over(ledger_id)
        except LedgerFinishedError:
            machine.ledger_recovered(ledger_id)
        except LedgerNotFoundError:
            machine.ledger_missing(ledger_id)
        except FencedError:
            await self._pause_contested(started_s, machine.contests)
            machine.ledger_contested(ledger_id)
        else:
            machine.ledger_continued(ledger_id, term)

    async def _pause_contested(self, started_s: float, contests: int) -> None:
        """Waits after an attempt, begun then, that lost a term to another client, as `contests` before it had."""
        # Rivals must stop fencing each other: so the pauses soon outlast an attempt, however slow.
        lasted_s = _CONTESTED_S + trio.current_time() - started_s
        longest_s = min(lasted_s * 2 ** min(contests, 8), _CONTESTED_MAX_S)
        await trio.sleep(self._ledgers.entropy.random.uniform(0, longest_s))

    async def _perform_dropping(self, effect: LogEffect, machine: LogTrimming | LogDeleting) -> None:
        if isinstance(effect, DropSegments):
            machine.segments_dropped(await self._drop(effect))
        elif isinstance(effect, ListPending):
            machine.pending_listed(await self.records.pending(effect.log_name))
        elif isinstance(effect, DeletePending):
            log = effect.log
            await for_each(lambda each: self._delete_pending(log, each), effect.pending, AT_ONCE)
            machine.pending_deleted()

    async def _check(self, effect: CheckLedgers, machine: LogAppending | LogRolling, password: bytes) -> None:
        named = await self.records.named_before(effect.metadata) if effect.looks_into_pages else frozenset()
        try:
            known = await check_ledgers(effect, self._ledgers, password, named)
        except REFUSALS:
            if not isinstance(machine, LogRolling):
                raise
            machine.ledgers_refused()  # the committer looks for itself, and says why (L10)
        else:
            machine.ledgers_checked(known)

    async def _perform_addition(self, effect: LogEffect, machine: LogAppending, waits: _Waits) -> None:
        if isinstance(effect, FindSegments):
            try:
                found = await self.records.segments(effect.log_name, effect.first, effect.end)
            except LogNotFoundError:
                found = []  # it was deleted meanwhile
            machine.segments_found(found)
        elif isinstance(effect, FindLeader):
            machine.leader_found(is_led=await _is_led(self._store.metastore, effect.log_name))
        elif isinstance(effect, AwaitAnswer):
            now_s = trio.current_time()
            waits.asked_at_s = now_s if waits.asked_at_s is None else waits.asked_at_s
            with trio.move_on_at(waits.asked_at_s + waits.patience_s) as waiting:
                await _may_have_changed(self._store.metastore, log_key_path(effect.log_name), effect.version)
            machine.answer_awaited(is_patient=not waiting.cancelled_caught)
        elif isinstance(effect, AwaitClosed):
            still_open = list(effect.ledger_ids)
            now_s = trio.current_time()
            waits.answered_at_s = now_s if waits.answered_at_s is None else waits.answered_at_s
            with trio.move_on_at(waits.answered_at_s + waits.patience_s):
                while still_open:
                    await self._until_closed(still_open[-1])
                    still_open.pop()
            machine.closing_awaited(still_open)

    async def _until_closed(self, ledger_id: int) -> None:
        """Returns when the ledger is closed, or gone."""
        with suppress(LedgerNotFoundError):
            while True:
                metadata, version = await self._store.get(ledger_id)
                if metadata.state is LedgerState.CLOSED:
                    return
                await _may_have_changed(self._store.metastore, ledger_key_path(ledger_id), version)

    async def _perform_sweep(self, effect: LogEffect, machine: LogSweeping) -> None:
        if isinstance(effect, CondemnLedgers):
            await condemn(effect.ledger_ids, self._ledgers)
            machine.ledgers_condemned()
        elif isinstance(effect, DeleteUnnamed):
            named = await self.records.named(effect.log_name)
            unnamed = tuple(each for each in effect.ledger_ids if each not in named)
            await for_each(self._ledgers.read_and_delete, unnamed, AT_ONCE)
            machine.ledgers_deleted(unnamed)

    async def _write(self, effect: WriteLog, machine: LogMachine, waits: _Waits) -> None:
        key, value = log_key_path(effect.metadata.name), encode(effect.metadata)
        metastore, expected = self._store.metastore, effect.expected
        try:
            if expected is None:
                version = await self._store.persist(f"creating {key}", lambda: metastore.create(key, value))
            else:
                version = await self._store.persist(f"changing {key}", lambda: metastore.put(key, value, expected))
        except (VersionConflictError, KeyExistsError, KeyNotFoundError):
            machine.log_conflict()
        except MetastoreUncertainError as error:
            # Counted from the first lost answer: a metastore that loses every answer ends this at the deadline.
            waits.doubted_at_s = trio.current_time() if waits.doubted_at_s is None else waits.doubted_at_s
            await self._store.pause(waits.doubted_at_s + self._store.timeout_s, error)
            machine.log_uncertain()
        else:
            machine.log_written(version)

    async def _write_page(self, effect: WritePage, machine: LogMachine) -> None:
        """Creates a page. One that exists has the same segments: numbers are never reused, and only what a record named is
        written to pages. It may lack some that were trimmed; then the record is not what the machine knows any more. Or it is
        a tentative one of a log that was never made: that is replaced."""
        name, number, wanted = effect.page.log_name, effect.page.number, effect.page.segments
        key, value = log_page_key_path(name, number), encode(effect.page)
        deadline = trio.current_time() + self._store.timeout_s
        while True:
            try:
                await self._store.persist(f"creating {key}", lambda: self._store.metastore.create(key, value))
                break
            except MetastoreUncertainError as error:
                await self._store.pause(
                    deadline, error
                )  # otherwise repeat it: if the page exists then, that is as good
            except KeyExistsError:
                found, page_version = await self.records.versioned_page(name, number)
                if found is not None and set(wanted) <= set(found.segments):
                    break
                _, version = await self.records.head(name)
                if found is None or version != effect.head_version:
                    machine.log_conflict()
                    return
                if found.is_tentative:
                    # The head was read after the page: no client with a newer head has written this version of the page.
                    await self._replace(key, value, page_version, deadline)
                    continue
                raise MetastoreCorruptError(
                    f"key {key!r}: the page does not name the segments {wanted[0].number} to {wanted[-1].number} as the "
                    f"record of log {name!r} does, which was not changed; restore the page from a backup of the metastore"
                ) from None
        machine.page_written(number)

    async def _replace(self, key: str, value: bytes, expected: int, deadline: float) -> None:
        """Replaces a value, unless another client is faster."""
        metastore = self._store.metastore
        try:
            await self._store.persist(f"changing {key}", lambda: metastore.put(key, value, expected))
        except (VersionConflictError, KeyNotFoundError):
            return
        except MetastoreUncertainError as error:
            await self._store.pause(deadline, error)

    async def _give_back(self, effect: DeleteLedger) -> None:
        if effect.page_number is not None:
            # A segment that is no longer in the head may be in its page.
            page = await self.records.page(effect.log_name, effect.page_number)
            if page is not None and any(segment.ledger_id == effect.ledger_id for segment in page.segments):
                return  # the log names it after all
        await self._ledgers.delete(effect.ledger_id)

    async def _drop(self, effect: DropSegments) -> tuple[int, ...]:
        """Deletes the ledgers of dropped segments, and returns them in order. Pages that become empty are deleted, too, with all
        ledgers that they name."""
        name, size = effect.log_name, effect.page_segments
        # Only a trim that crosses the border of a page, or one that finishes another, needs to list the pages.
        emptied: list[int] = []
        if effect.first // size < effect.end // size or effect.first == effect.end:
            emptied = [number for number in await self.records.page_numbers(name) if (number + 1) * size <= effect.end]
        known = {segment.number: segment.ledger_id for segment in effect.known}
        start = max(
            effect.first, effect.end - effect.end % size
        )  # the first segment in a page that stays, or was never written
        if any(number not in known for number in range(start, effect.end)):
            page = await self.records.page(name, effect.end // size)
            found = () if page is None else page.segments
            known.update((each.number, each.ledger_id) for each in found if start <= each.number < effect.end)
        await self._delete_dropped(name, tuple(known.values()))
        for number in emptied:
            page = await self.records.page(name, number)
            found = () if page is None else page.segments
            # All of them: an earlier trim may have failed to delete some.
            more = {each.number: each.ledger_id for each in found if each.number not in known}
            await self._delete_dropped(name, tuple(more.values()))
            known.update(more)
            # The page goes last. If this is cut short before, the next trim finds the page, and with it the ledgers (L7).
            await self.records.delete_key(log_page_key_path(name, number))
        return tuple(known[segment_number] for segment_number in sorted(known) if segment_number >= effect.first)

    async def _delete_dropped(self, name: str, ledger_ids: tuple[int, ...]) -> None:
        """Deletes ledgers that the log named. Ledgers of jobs are swept, because a client that repeats a job's commit
        may be about to add them again. A leader's ledger is never added again."""
        found: dict[int, LedgerMetadata] = {}

        async def look(ledger_id: int) -> None:
            with suppress(LedgerNotFoundError):
                found[ledger_id], _ = await self._ledgers.records.get(ledger_id)

        await for_each(look, ledger_ids, AT_ONCE)
        handed_in = {ledger_id for ledger_id, metadata in found.items() if JOB_KEY in metadata.custom}
        for ledger_id in ledger_ids:
            if ledger_id not in handed_in:
                await self._ledgers.delete(ledger_id, found.get(ledger_id))
        if handed_in:
            entropy = self._ledgers.entropy
            machine = LogSweeping(name, tuple(sorted(handed_in)), entropy.token(), entropy.time_ms())
            machine.start()
            await self.drive(machine, NO_WRITERS, b"")

    async def _delete_pending(self, log: LogMetadata, pending: PendingLedger) -> None:
        # The key goes last, too: a ledger without its key would never be found again (L7).
        key = log_pending_key_path(pending.log_name, pending.ledger_id)
        if not await self._names(log, pending):
            await self._ledgers.delete(pending.ledger_id)
        age_ms = self._ledgers.entropy.time_ms() - pending.created_at_ms
        if age_ms >= 1000 * PENDING_KEPT_S:  # a younger one could be created again by a late request
            await self.records.delete_key(key)

    async def _names(self, log: LogMetadata, pending: PendingLedger) -> bool:
        """True if the log names a pending ledger, which it can only under the number that the ledger was created for."""
        while log.first_segment_number <= pending.segment_number < log.next_segment_number:
            segment = log.listed(pending.segment_number)
            if segment is not None:
                return segment.ledger_id == pending.ledger_id
            page = await self.records.page(log.name, log.page_of(pending.segment_number))
            for each in () if page is None else page.segments:
                if each.number == pending.segment_number:
                    return each.ledger_id == pending.ledger_id
            try:
                log = await self.records.after_missing(log, pending.segment_number)
            except LogNotFoundError:
                return False  # it was deleted since
        return False

    async def settle(self, name: str, writer: EntryWriter) -> None:
        """The log names this writer's ledger now, so it is no longer pending. If that can't be written quickly, the next client
        finds the ledger in the log."""
        if writer.is_created_for_certain:  # otherwise a late request could create it again after it was trimmed
            with trio.move_on_after(_FINISHING_S), suppress(MetastoreError):
                await self.records.delete_key(log_pending_key_path(name, writer.ledger_id))

    async def finish(self, name: str) -> None:
        """Finishes what other clients left unfinished, for at most a second; the next client does the rest (L7)."""
        entropy = self._ledgers.entropy
        machine = LogTrimming(name, None, entropy.token(), entropy.time_ms())
        machine.start()
        # The next client can finish this as well, so no takeover or roll waits long for it.
        with trio.move_on_after(_FINISHING_S), suppress(MetastoreError, LogNotFoundError):
            await self.drive(machine, NO_WRITERS, b"")


async def _at_last(machine: LogMachine, perform: Callable[[], Awaitable[None]]) -> None:
    """Does what the machine asks for: what a commit does after it has added its ledgers, again and again while it fails for
    reasons that may pass. It is done when those before them are closed, and must not say so before (L10)."""
    while True:
        try:
            await perform()
            return
        except TransientError:
            if not isinstance(machine, LogAppending) or not machine.is_added:
                raise
        await trio.sleep(_AGAIN_S)


async def _is_led(metastore: Metastore, log_name: str) -> bool:
    """Whether a client announces that it leads the log. Looks twice: a leader that has just begun does not wait for its
    announcement, and would be deposed."""
    path = log_leaders_key_path(log_name)
    if await metastore.announced(path):
        return True
    await trio.sleep(_ANNOUNCING_S)
    return bool(await metastore.announced(path))


async def _may_have_changed(metastore: Metastore, key: str, version: int) -> None:
    """Returns when a key has another version; also a moment after its session was lost, because the next read says more."""
    try:
        await metastore.wait_changed(key, version)
    except TransientError:
        await trio.sleep(_AGAIN_S)
