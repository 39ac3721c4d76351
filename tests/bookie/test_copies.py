"""A bookie that is asked what it holds, and that copies are read from and stored at (F1-F3)."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio

from replog.abc import Damage, Doubt, Mutation, PutBatch, Storage, StoredRange
from replog.backends import memory
from replog.bookie.server import BookieServer
from replog.config import BookieOptions
from replog.errors import StorageUncertainError
from replog.protocol.batch import Batch, decode
from replog.protocol.digest import DigestType, stored_ledger_key
from replog.protocol.holding import Holding, decode_holding
from replog.protocol.messages import (
    AddRequest,
    CopyReadRequest,
    CopyRequest,
    FenceRequest,
    RangesRequest,
    ReadRequest,
    Response,
    Status,
)
from replog.protocol.releasing import ForeignRange, Release
from replog.testing.storage_conformance import make_batch
from tests.bookie.disks import SmallStorage
from tests.bookie.test_hostile_requests import Asker

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
STORED_KEY = stored_ledger_key(KEY)
LEDGER = 7


class Bookie(Asker):
    """Asks a bookie, as the ledger's client and as a repairer."""

    def __init__(self, server: BookieServer) -> None:
        super().__init__(server)
        self._number = 0

    async def one(self, kind: type, *arguments: object, **named: object) -> Response:
        self._number += 1
        (answer,) = await self.ask(kind(self._number, LEDGER, *arguments, **named))
        return answer

    async def add(self, batch: Batch, term: int = 1) -> Status:
        return (await self.one(AddRequest, KEY, term, batch)).status

    async def copy(self, batch: Batch, term: int = 1, key: bytes = b"", stored_key: bytes = STORED_KEY) -> Response:
        return await self.one(CopyRequest, key, term, batch, recovery=True, stored_key=stored_key)

    async def holding(self, first: int = 0, last: int = 99, key: bytes = b"", stamp: int = 1) -> Holding:
        answer = await self.one(RangesRequest, key, stamp, first, last, STORED_KEY)
        assert answer.status is Status.OK
        return decode_holding(answer.detail, RangesRequest(1, LEDGER, key, stamp, first, last))


@asynccontextmanager
async def bookie_of(storage: Storage | None = None) -> AsyncIterator[Bookie]:
    server = BookieServer(storage or memory.open_storage(), BookieOptions(storage="memory"), lambda _event: None)
    async with server.running():
        yield Bookie(server)


async def test_ranges_describe_the_held_entries() -> None:
    async with bookie_of() as bookie:
        assert await bookie.holding() == Holding((), 99)
        for first in (0, 3, 9):
            assert await bookie.add(make_batch(LEDGER, first)) is Status.OK
        assert await bookie.holding() == Holding(((0, 5, 1), (9, 11, 1)), 99)
        assert await bookie.holding(4, 9, KEY) == Holding(((4, 5, 1), (9, 9, 1)), 9)
        assert await bookie.holding(stamp=2) == Holding((), 99)
        assert (await bookie.one(RangesRequest, OTHER_KEY, 1, 0, 9)).status is Status.UNAUTHORIZED
        for first, last in ((5, 4), (-1, 4)):
            answer = await bookie.one(RangesRequest, b"", 1, first, last, STORED_KEY)
            assert answer.status is Status.BAD_REQUEST
            assert "of ledger 7: none" in answer.detail


async def test_copies_are_read_by_role_or_by_key() -> None:
    """B7: the role is what the transport checks; a key is checked here, also on this way."""
    batches = [make_batch(LEDGER, 0), make_batch(LEDGER, 3)]
    async with bookie_of() as bookie:
        for batch in batches:
            await bookie.add(batch)
        for key in (b"", KEY):
            answer = await bookie.one(CopyReadRequest, key, 1, 1, 1 << 20, STORED_KEY)
            assert (answer.status, list(answer.batches)) == (Status.OK, batches)
        assert (await bookie.one(CopyReadRequest, OTHER_KEY, 1, 1, 1 << 20)).status is Status.UNAUTHORIZED
        assert (await bookie.one(ReadRequest, b"", 1, 1, 1 << 20)).status is Status.UNAUTHORIZED
        assert (await bookie.one(CopyReadRequest, b"", 9, 1, 1 << 20, STORED_KEY)).status is Status.NO_ENTRY


async def test_copy_gives_an_unknown_ledger_its_key_and_fence() -> None:
    """F3: a target that never saw the ledger must not take the first key that somebody shows it."""
    async with bookie_of() as bookie:
        answer = await bookie.copy(make_batch(LEDGER, 0), 2)
        assert (answer.status, answer.fence_term) == (Status.OK, 2)
        assert await bookie.add(make_batch(LEDGER, 3)) is Status.FENCED
        assert (await bookie.one(ReadRequest, OTHER_KEY, 1, 1, 1 << 20)).status is Status.UNAUTHORIZED
        assert (await bookie.one(ReadRequest, KEY, 1, 1, 1 << 20)).status is Status.OK
        assert await bookie.holding() == Holding(((0, 2, 1),), 99)


async def test_copy_by_key_needs_no_stored_key() -> None:
    async with bookie_of() as bookie:
        assert (await bookie.copy(make_batch(LEDGER, 0), key=KEY, stored_key=b"")).status is Status.OK
        assert (await bookie.copy(make_batch(LEDGER, 3), key=OTHER_KEY, stored_key=b"")).status is Status.UNAUTHORIZED
        assert await bookie.holding() == Holding(((0, 2, 1),), 99)


async def test_copy_does_not_fence_the_writer() -> None:
    """F2: the copy carries the record's term, which is the writer's."""
    async with bookie_of() as bookie:
        assert await bookie.add(make_batch(LEDGER, 10)) is Status.OK
        assert (await bookie.copy(make_batch(LEDGER, 0))).status is Status.OK
        assert await bookie.add(make_batch(LEDGER, 13)) is Status.OK


async def test_copy_of_an_old_record_is_fenced() -> None:
    """T1, F4: a filler that does not know of a recovery reads the record again."""
    async with bookie_of() as bookie:
        assert (await bookie.one(FenceRequest, KEY, 2)).status is Status.OK
        answer = await bookie.copy(make_batch(LEDGER, 0), 1)
        assert (answer.status, answer.fence_term) == (Status.FENCED, 2)
        assert (await bookie.copy(make_batch(LEDGER, 0), 2)).status is Status.OK


@pytest.mark.parametrize("stored_key", [b"", b"short", STORED_KEY + b"x", stored_ledger_key(OTHER_KEY)])
async def test_copy_with_a_wrong_stored_key_is_refused(stored_key: bytes) -> None:
    async with bookie_of() as bookie:
        if len(stored_key) != len(STORED_KEY):
            answer = await bookie.copy(make_batch(LEDGER, 0), stored_key=stored_key)
            assert answer.status is Status.BAD_REQUEST
        await bookie.add(make_batch(LEDGER, 3))
        answer = await bookie.copy(make_batch(LEDGER, 0), stored_key=stored_key)
        assert answer.status is Status.UNAUTHORIZED
        assert await bookie.holding() == Holding(((3, 5, 1),), 99)


async def test_a_repeated_copy_changes_nothing_and_others_conflict() -> None:
    """T3, F6."""
    async with bookie_of() as bookie:
        batch, other = make_batch(LEDGER, 0), make_batch(LEDGER, 0, size_bytes=9)
        for _ in range(2):
            assert (await bookie.copy(batch)).status is Status.OK
        assert (await bookie.copy(other)).status is Status.CONFLICT
        assert list((await bookie.one(CopyReadRequest, b"", 0, 1, 1, STORED_KEY)).batches) == [batch]


async def test_damaged_copy_is_refused() -> None:
    async with bookie_of() as bookie:
        data = bytearray(make_batch(LEDGER, 0).data)
        data[-10] ^= 1
        assert (await bookie.copy(decode(bytes(data)))).status is Status.BAD_REQUEST
        assert (await bookie.copy(make_batch(LEDGER, 0, stride=3))).status is Status.OK
        assert (await bookie.copy(make_batch(LEDGER, 1, stride=2))).status is Status.BAD_REQUEST


class Rotten(SmallStorage):
    """Storing a damaged batch again mends it."""

    def commit(self, mutations: Sequence[Mutation]) -> None:
        super().commit(mutations)
        stored = [each.batch.first_entry_id for each in mutations if isinstance(each, PutBatch)]
        self.rotten = [each for each in self.rotten if each.first_entry_id not in stored]


@pytest.mark.parametrize("digest_type", list(DigestType))
async def test_copy_repairs_damaged_entries(digest_type: DigestType) -> None:
    """Unreadable entries are stored again; an add for them stays in doubt, as it is not a repair (R4)."""
    storage = Rotten(memory.open_storage())
    batch = make_batch(LEDGER, 0, digest_type=digest_type)
    async with bookie_of(storage) as bookie:
        assert await bookie.add(batch) is Status.OK
        storage.rotten = [Damage(LEDGER, 1, 0, 2, "bits fell over")]
        with pytest.raises(StorageUncertainError):
            storage.read(LEDGER, 1, 1, 1)
        assert await bookie.add(batch) is Status.UNKNOWN
        assert (await bookie.copy(batch)).status is Status.OK
        assert storage.rotten == []
        assert list((await bookie.one(CopyReadRequest, b"", 1, 1, 1, STORED_KEY)).batches) == [batch]


async def test_bookie_in_doubt_takes_copies_and_says_so() -> None:
    """B8, R10: what it holds may not be all; recovery adds and copies are accepted."""
    storage = SmallStorage(memory.open_storage())
    storage.doubts = Doubt(doubted_below=100, lost_below=100)
    async with bookie_of(storage) as bookie:
        assert await bookie.add(make_batch(LEDGER, 0)) is Status.IN_DOUBT
        assert (await bookie.copy(make_batch(LEDGER, 0))).status is Status.OK
        assert await bookie.holding() == Holding(((0, 2, 1),), 99, Status.NO_ENTRY_AFTER_LOSS)


class SlowLooks(SmallStorage):
    """A thread that looks at what is stored has seen it, and tells it only when it may."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner, is_instant=False)
        self.seen, self.may_tell = threading.Event(), threading.Event()

    def ranges(self, ledger_id: int) -> Sequence[StoredRange]:
        found = super().ranges(ledger_id)
        self.seen.set()
        assert self.may_tell.wait(60), "a test forgot to let it go on"
        return found


async def test_ranges_seen_before_a_drop_are_hidden_after_it() -> None:
    """F5: a filler that reads the record after the proof, and asks then, would name this bookie for what it has just dropped."""
    storage = SlowLooks(memory.open_storage())
    all_of_it = ForeignRange(1, 0, 99)
    told: list[Holding] = []
    async with bookie_of(storage) as bookie:
        assert await bookie.add(make_batch(LEDGER, 0)) is Status.OK

        async def ask() -> None:
            told.append(await bookie.holding())

        async with trio.open_nursery() as nursery:
            release = Release([all_of_it])
            with bookie.server.filling.releasing(LEDGER, release):
                assert release.may_drop()
                nursery.start_soon(ask)
                await trio.to_thread.run_sync(storage.seen.wait, 60)
                await bookie.server.drop(LEDGER, all_of_it)
            storage.may_tell.set()
        assert told == [Holding((), 99)]
        assert bookie.server.filling.leaving == {}
        assert await bookie.copy(make_batch(LEDGER, 0)) is not None
        assert await bookie.holding() == Holding(((0, 2, 1),), 99), "what is stored again is told again"


async def test_release_within_a_look_hides_seen_entries() -> None:
    """F5: the release begins and ends while a thread still has what it saw before."""
    storage = SlowLooks(memory.open_storage())
    all_of_it = ForeignRange(1, 0, 99)
    told: list[Holding] = []
    async with bookie_of(storage) as bookie:
        assert await bookie.add(make_batch(LEDGER, 0)) is Status.OK

        async def ask() -> None:
            told.append(await bookie.holding())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.to_thread.run_sync(storage.seen.wait, 60)
            with bookie.server.filling.releasing(LEDGER, Release([all_of_it])):
                await bookie.server.drop(LEDGER, all_of_it)
            storage.may_tell.set()
        assert told == [Holding((), 99)]
