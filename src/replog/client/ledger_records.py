"""Ledgers' records in the metastore: reading, changing by CAS, creating, deleting; and the ids of new ledgers.

A call that failed without a change is repeated until the deadline. If an answer was lost, the machine is told at once, and
resolves that by reading back (M1).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import TypeVar

import trio

from replog.abc import Metastore, Versioned
from replog.errors import (
    KeyExistsError,
    KeyNotFoundError,
    LedgerNotFoundError,
    MetastoreError,
    MetastoreUnavailableError,
    MetastoreUncertainError,
    TransientError,
    VersionConflictError,
)
from replog.protocol.chunks import Chunk, new_chunks
from replog.protocol.effects import ReadMetadata, WriteMetadata
from replog.protocol.machine import LedgerMachine
from replog.protocol.model import LedgerMetadata
from replog.records.chunks import decode_chunk, read_ledger, unnamed_chunks
from replog.records.editing import edit
from replog.records.encoding import encode
from replog.records.ledgers import ledger_pages
from replog.records.paths import NEXT_LEDGER_ID_KEY, chunk_key_path, decode_next_ledger_id, ledger_key_path

_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 1.0
# A metastore whose own deadline is the same ends a call with an error that names its servers: it gets to say so.
_OWN_WORDS_S = 0.25
_SILENCE_PAUSE_S = 0.1  # before a writer asks a silent metastore again what became of its change (C9)

TAKEN_MAX = 64  # ledger ids, at once
_BLOCK_S = 1.0  # a block of ids that lasts shorter is too small
# The rest of an older block is lost: a bookie that starts in doubt takes nothing under ids that were given out before (B8).
_BLOCK_MAX_S = 10.0
_FIRST_ID = 1

Result = TypeVar("Result")
Version = TypeVar("Version")


class LedgerRecords:
    """The records of ledgers in one metastore. Every call ends within `timeout_s`, and a moment for the metastore's own words, or
    raises `MetastoreError`."""

    def __init__(self, metastore: Metastore, timeout_s: float) -> None:
        self.metastore = metastore
        self.timeout_s = timeout_s
        self.ids_from: Callable[[], int] = lambda: 0  # no ledger gets a lower id: above all that bookies announce (M5)
        self._ids = LedgerIds(self)

    async def persist(
        self,
        what: str,
        call: Callable[[], Awaitable[Result]],
        cut_short: type[MetastoreError] = MetastoreUncertainError,
    ) -> Result:
        """Repeats the call while it fails without effect. Raises `MetastoreUnavailableError` at the deadline, or `cut_short` if
        it cuts a call short; and at once errors that repeating does not solve: errors about the key, lost answers,
        damage, a full disk, missing rights."""
        pause_s = _FIRST_PAUSE_S
        deadline_s = trio.current_time() + self.timeout_s
        last: MetastoreError | None = None
        is_under_way = False
        with trio.move_on_at(deadline_s + _OWN_WORDS_S):
            while True:
                try:
                    is_under_way = True
                    return await call()
                except MetastoreUncertainError:
                    raise
                except MetastoreError as error:
                    if not isinstance(error, TransientError):
                        raise
                    last, is_under_way = error, False
                await trio.sleep_until(min(trio.current_time() + pause_s, deadline_s))
                if trio.current_time() >= deadline_s:
                    break
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        if last is None or is_under_way:  # a call was cut short: what it did is unknown
            before = "" if last is None else f"; an earlier attempt: {last}"
            raise cut_short(f"{what}: the metastore did not answer in {self.timeout_s:g} s{before}") from last
        raise MetastoreUnavailableError(f"{what}: the metastore failed for {self.timeout_s:g} s: {last}") from last

    async def read(self, what: str, call: Callable[[], Awaitable[Result]]) -> Result:
        """Repeats a call that changes nothing, like `persist`: a lost answer leaves nothing uncertain, and is
        `MetastoreUnavailableError`."""
        try:
            return await self.persist(what, call, MetastoreUnavailableError)
        except MetastoreUncertainError as error:  # of the metastore itself
            raise MetastoreUnavailableError(f"{what}: {error}") from error

    async def create_key(self, key: str, value: bytes) -> bool:
        """Creates a key. False if it exists: even if an earlier request of this call has created it, whose answer was lost.
        Raises `MetastoreError`."""
        deadline = trio.current_time() + self.timeout_s
        while True:
            try:
                await self.persist(f"creating {key}", lambda: self.metastore.create(key, value))
                return True
            except KeyExistsError:
                return False
            except MetastoreUncertainError as error:
                await self.pause(deadline, error)

    async def delete_key(self, key: str) -> None:
        """Deletes a key, if there is one. Raises `MetastoreError`."""
        deadline = trio.current_time() + self.timeout_s
        while True:
            try:
                return await self.persist(f"deleting {key}", lambda: self.metastore.delete(key))
            except KeyNotFoundError:
                return None
            except MetastoreUncertainError as error:
                # Otherwise repeat it: deleting twice is deleting once.
                await self.pause(deadline, error)

    async def write(self, key: str, value: bytes, version: int | None) -> int:
        """Changes a key by CAS, or creates it if there is no version; returns its new version. Raises `KeyExistsError`,
        `KeyNotFoundError`, `VersionConflictError`, `MetastoreError`."""
        if version is None:
            return await self.persist(f"creating {key}", lambda: self.metastore.create(key, value))
        return await self.persist(f"changing {key}", lambda: self.metastore.put(key, value, version))

    async def edit(
        self,
        what: str,
        read: Callable[[], Awaitable[tuple[Result, Version]]],
        change: Callable[[Result], Awaitable[Result | None]],
        write: Callable[[Result, Version], Awaitable[object]],
    ) -> Result:
        """Changes a record by CAS within the timeout (`replog.records.editing`). Raises `MetastoreError` afterwards: then it may
        be changed or not."""
        deadline_s = trio.current_time() + self.timeout_s

        async def wait(error: MetastoreError) -> None:
            if trio.current_time() >= deadline_s and not isinstance(error, MetastoreUncertainError):
                problem = f"{what}: others were faster for {self.timeout_s} s"
                raise MetastoreUnavailableError(problem) from error
            await self.pause(deadline_s, error)

        return await edit(read, change, write, wait)

    async def get(self, ledger_id: int, known: Versioned | None = None) -> tuple[LedgerMetadata, int]:
        """A ledger's record, with all its fragments, and its version; `known` is what a page had of it. Raises
        `LedgerNotFoundError`, `MetastoreError`."""
        return await self._get(ledger_id, lambda _chunk: True, known)

    async def get_head(
        self, ledger_id: int, *, at: int | None = None, since: int | None = None
    ) -> tuple[LedgerMetadata, int]:
        """The record without the fragments that are in chunks (M4); but with the fragment of the entry `at`, and with
        all from the entry `since` on."""

        def wanted(chunk: Chunk) -> bool:
            return (at is not None and chunk.holds(at)) or (since is not None and chunk.last_entry_id >= since)

        return await self._get(ledger_id, wanted)

    async def _get(
        self, ledger_id: int, wanted: Callable[[Chunk], bool], known: Versioned | None = None
    ) -> tuple[LedgerMetadata, int]:
        def get(key: str) -> Awaitable[Versioned]:
            return self.read(f"reading ledger {ledger_id}", lambda: self.metastore.get(key))

        try:
            metadata, found = await read_ledger(get, ledger_id, wanted, known)
        except KeyNotFoundError as error:
            raise LedgerNotFoundError(ledger_id, "there is no such ledger: never created, or deleted") from error
        return metadata, found.version

    async def wait_changed(self, ledger_id: int, version: int) -> None:
        """Returns soon after a ledger's record has another version than this, or is gone. May return early."""
        await self.metastore.wait_changed(ledger_key_path(ledger_id), version)

    def pages(self) -> AsyncGenerator[list[tuple[int, Versioned]], None]:
        """All records as they are stored, with the ids of their ledgers, ascending (`ledger_pages`)."""
        return ledger_pages(self.metastore, self.read)

    async def each(
        self, look: Callable[[LedgerMetadata], None], has: Callable[[int], bool] = lambda _ledger_id: True
    ) -> None:
        """Calls `look` with the record of every ledger that `has` is true of. Raises `MetastoreError`."""
        # Closed even if a read fails or is cancelled: a generator that is left to the collector warns.
        async with aclosing(self.pages()) as pages:
            async for page in pages:
                for ledger_id, found in page:
                    await trio.lowlevel.checkpoint()
                    if has(ledger_id):
                        with suppress(LedgerNotFoundError):  # it was deleted meanwhile
                            metadata, _ = await self.get(ledger_id, found)
                            look(metadata)

    async def new_id(self) -> int:
        """A unique ledger id (M2). Ids need not grow, and those not used are lost."""
        return await self._ids.new()

    async def pause(self, deadline: float, error: MetastoreError) -> None:
        """Waits a moment before a change whose answer was lost is tried again. After the deadline, raises the error instead."""
        if trio.current_time() >= deadline:
            raise error
        await trio.sleep(_FIRST_PAUSE_S)

    async def create(self, metadata: LedgerMetadata) -> tuple[int, bool]:
        """Writes a new ledger's record; returns its version, and True if no other request to create it can still arrive.
        `metadata.token` resolves a lost answer (M1)."""
        key = ledger_key_path(metadata.ledger_id)
        value = encode(metadata)
        deadline = trio.current_time() + self.timeout_s
        is_only_request = True
        while True:
            try:
                version = await self.persist("creating a ledger", lambda: self.metastore.create(key, value))
                return version, is_only_request
            except (MetastoreUncertainError, KeyExistsError) as error:
                is_only_request = False
                try:
                    found, version = await self.get_head(metadata.ledger_id)
                except LedgerNotFoundError:
                    await self.pause(deadline, error)
                    # It was not written; if an earlier request arrives late, it writes the same record.
                    continue
                # The token tells this client's record from one that another client wrote under this key (M1).
                if found.token == metadata.token:
                    return version, False
                # The counter has gone back, and another client was given this id: the others of the block may be, too (M5).
                self._ids.forget()
                raise

    async def delete(self, ledger_id: int, known: LedgerMetadata | None = None) -> None:
        """Deletes a ledger's record, if there is one; and behind it the chunks that it had, as far as `known` says that. Raises
        `MetastoreError`: then a repair deletes them."""
        await self.delete_key(ledger_key_path(ledger_id))
        if known is not None and (known.chunks or known.unnamed):
            for name in await self.read(
                "listing index chunks", lambda: self.metastore.children(chunk_key_path(ledger_id))
            ):
                await self.delete_key(chunk_key_path(ledger_id, name))

    async def perform(self, effect: WriteMetadata | ReadMetadata, machine: LedgerMachine) -> None:
        """Performs a machine's metadata effect and tells the machine the answer."""
        try:
            if isinstance(effect, WriteMetadata):
                machine.metadata_written(await self.put(effect.metadata, effect.expected))
            else:
                machine.metadata_read(*await self.get_head(effect.ledger_id, at=effect.at))
        except VersionConflictError:
            machine.metadata_conflict()
        except MetastoreUncertainError:
            # The machine reads back next. A metastore that has just lost an answer gets a moment before that.
            await trio.sleep(_FIRST_PAUSE_S)
            machine.metadata_uncertain()
        except LedgerNotFoundError:
            machine.metadata_missing()
        except MetastoreUnavailableError as error:
            await trio.sleep(_SILENCE_PAUSE_S)
            machine.metadata_silent(error)
        except MetastoreError as error:
            machine.abandon(error)

    async def put(self, metadata: LedgerMetadata, expected: int) -> int:
        """Changes a ledger's record by CAS; returns its new version. New chunks are written before, and those that it no longer
        names are deleted behind it (M4). Raises `VersionConflictError`, `LedgerNotFoundError`, `MetastoreUncertainError`,
        `MetastoreError`."""
        metadata = metadata.packed(expected)
        for chunk in new_chunks(metadata.chunks):
            assert chunk.version == expected, "a chunk is made for one version (M4)"
            assert chunk.contents is not None, "a new chunk has contents (M4)"
            await self.create_key(chunk_key_path(metadata.ledger_id, chunk.name), encode(chunk.contents))
        key, value = ledger_key_path(metadata.ledger_id), encode(metadata)
        try:
            version = await self.persist(f"changing {key}", lambda: self.metastore.put(key, value, expected))
        except KeyNotFoundError as error:
            raise LedgerNotFoundError(metadata.ledger_id, "it was deleted") from error
        await self._delete_chunks(metadata, metadata.unnamed)
        return version

    async def _delete_chunks(self, metadata: LedgerMetadata, chunks: Sequence[Chunk]) -> None:
        """Deletes chunks that the record does not name any more. The next repair retries failed deletions."""
        with suppress(MetastoreError):
            for chunk in chunks:
                key = chunk_key_path(metadata.ledger_id, chunk.name)
                with suppress(KeyNotFoundError):  # another client was faster
                    # All of it was trimmed. One that was only loaded has chunks that are still named, or are here by themselves.
                    if chunk.level > 1 and chunk.last_entry_id < metadata.trim_to:
                        contents = decode_chunk(key, (await self.metastore.get(key)).value, chunk)
                        await self._delete_chunks(metadata, contents.chunks)
                    await self.metastore.delete(key)

    async def delete_unnamed_chunks(self, has: Callable[[int], bool] = lambda _ledger_id: True) -> int:
        """Deletes the chunks that no record names, or ever will, of ledgers that `has` is true of; returns how many. Raises
        `MetastoreError`."""
        keys = await self.read("looking for index chunks", lambda: unnamed_chunks(self.metastore, has))
        for key in keys:
            await self.delete_key(key)
        return len(keys)


class LedgerIds:
    """The ids that one client takes from a counter in the metastore, by CAS: no other client has them (M2), and unused
    ones are lost.

    Each block costs a change of the metastore, and clients that take ids at the same moment make each other try again. So a
    client takes twice as many the next time, up to `TAKEN_MAX`, while it meets others or uses a block up within a second, and
    half as many otherwise; and as many as wait. What is left of a block after ten seconds is lost. Within a client one task takes
    them for all."""

    def __init__(self, records: LedgerRecords) -> None:
        self._records = records
        self._taken: deque[int] = deque()  # and not given out
        self._count = 1  # to take the next time
        self._taken_at_s = -math.inf
        self._taking = trio.Lock()

    async def new(self) -> int:
        """Returns an id that no other ledger has. Raises `MetastoreError` within twice the records' timeout. If it raises or is
        cancelled, some ids may be lost."""
        with trio.move_on_after(self._records.timeout_s) as waiting:
            await self._taking.acquire()
        if waiting.cancelled_caught:
            raise MetastoreUnavailableError(
                f"taking a ledger id: others of this client waited {self._records.timeout_s} s for theirs"
            )
        try:
            if trio.current_time() - self._taken_at_s > _BLOCK_MAX_S:
                self._taken.clear()
            while not self._taken:
                self._taken.extend(await self._take_some())
            return self._taken.popleft()
        finally:
            self._taking.release()

    def forget(self) -> None:
        """The ids that were taken and not given out are not to be trusted: takes others the next time."""
        self._taken.clear()

    async def _take_some(self) -> range:
        now_s = trio.current_time()
        deadline_s = now_s + self._records.timeout_s
        is_soon = now_s - self._taken_at_s < _BLOCK_S
        wanted = max(2 * self._count if is_soon else self._count // 2, 1 + self._taking.statistics().tasks_waiting)
        self._count = min(wanted, TAKEN_MAX)
        while True:
            try:
                taken = await self._records.persist("taking a ledger id", self._take)
            except (VersionConflictError, KeyExistsError, KeyNotFoundError) as error:  # another client was faster
                self._count = min(2 * self._count, TAKEN_MAX)
                if trio.current_time() >= deadline_s:
                    timeout_s = self._records.timeout_s
                    raise MetastoreUnavailableError(
                        f"taking a ledger id: others were faster for {timeout_s} s"
                    ) from error
            except MetastoreUncertainError as error:
                # These ids may be lost; the next ones are as good.
                await self._records.pause(deadline_s, error)
            else:
                self._taken_at_s = trio.current_time()
                return taken

    async def _take(self) -> range:
        metastore, count = self._records.metastore, self._count
        # Older metadata, put back, would give out ids again that bookies have entries of (M5).
        lowest = max(_FIRST_ID, self._records.ids_from())
        try:
            found = await metastore.get(NEXT_LEDGER_ID_KEY)
        except KeyNotFoundError:
            await metastore.create(NEXT_LEDGER_ID_KEY, b"%d" % (lowest + count))
            return range(lowest, lowest + count)
        first = max(lowest, decode_next_ledger_id(found.value))
        await metastore.put(NEXT_LEDGER_ID_KEY, b"%d" % (first + count), found.version)
        return range(first, first + count)
