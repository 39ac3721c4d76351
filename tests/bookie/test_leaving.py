"""Leaving a bookie: in which order, and what happens if the disk does not answer (B1, W6)."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from replog.backends.memory import MemoryStorage
from replog.bookie.calls import StorageCalls
from replog.bookie.serving import ServedBookie, Way, serving
from replog.config import BookieOptions
from replog.config.bookie import BookieTuning
from replog.errors import MetastoreError, StorageFailedError, StorageIdentityError
from replog.hookspecs import Event, StorageFailed
from replog.metastores.memory import MemoryMetastore
from replog.protocol.messages import Status
from replog.records.ids import raise_next_ledger_id
from replog.testing import FaultyMetastore
from replog.transports.memory import MemoryTransport
from tests.bookie.disks import SmallStorage
from tests.bookie.test_server import Asker, a_batch, add, read
from tests.kit import until

WAYS = [Way("memory", MemoryTransport(), "")]
PATIENT = BookieOptions(storage="memory")
IMPATIENT = BookieTuning(storage="memory", close_timeout_s=0.2)


class Left:
    """A bookie, and what observers were told of it."""

    def __init__(self, storage: SmallStorage, served: ServedBookie, events: list[Event]) -> None:
        self.storage = storage
        self.served = served
        self.events = events
        self.asker = Asker(served._server)

    async def has_begun(self, name: str) -> None:
        await until(self.storage.begun[name].is_set)


@asynccontextmanager
async def left_bookie(options: BookieOptions) -> AsyncIterator[Left]:
    storage = SmallStorage(MemoryStorage(), is_instant=False)
    events: list[Event] = []
    metastore = MemoryMetastore()
    await raise_next_ledger_id(metastore, 1000)
    async with serving(storage, metastore, WAYS, options, events.append) as served:
        left = Left(storage, served, events)
        yield left


@pytest.mark.slow
async def test_storage_is_closed_when_no_call_is_in_it() -> None:
    async with left_bookie(PATIENT) as left:
        assert (await left.asker.ask(add(a_batch(0)))).status is Status.OK
        commit, reading = left.storage.hang("commit"), left.storage.hang("read")
        space = left.storage.hang("free_bytes")
        left.asker.send(add(a_batch(1)), read())
        for name in ("commit", "read", "free_bytes"):
            await left.has_begun(name)
        trio.lowlevel.spawn_system_task(open_one_after_another, left, [commit, reading, space])
    assert left.storage.calls == ["close"]
    assert left.storage.commits[-1]
    assert left.events == []
    assert left.storage.inner.is_closed  # type: ignore[attr-defined]


async def open_one_after_another(left: Left, gates: list[threading.Event]) -> None:
    """Each of them keeps the storage from being closed."""
    for gate in gates:
        await trio.sleep(0.1)
        assert left.storage.calls == [], "it was closed under a call"
        gate.set()


@pytest.mark.parametrize("name", ["compact", "scrub"])
async def test_leaving_waits_until_long_work_has_been_ended(name: str) -> None:
    async with trio.open_nursery() as nursery:
        with trio.fail_after(5):
            async with left_bookie(PATIENT) as left:
                left.storage.hang(name)

                async def run() -> None:
                    with pytest.raises(trio.ClosedResourceError):
                        await getattr(left.served, name)()

                nursery.start_soon(run)
                await left.has_begun(name)
        assert left.served._server.calls._long == 0
    assert left.storage.calls[0] == "close"
    assert len(left.storage.calls) == 2, "it was not ended by the closing, but before or never"
    assert left.events == []


@pytest.mark.real
@pytest.mark.parametrize("name", ["commit", "read", "free_bytes", "damage", "close"])
async def test_unresponsive_disk_does_not_block_leaving(name: str) -> None:
    """And nothing is closed under the call; observers learn that it was left behind."""
    with trio.fail_after(5):
        async with left_bookie(IMPATIENT) as left:
            assert (await left.asker.ask(add(a_batch(0)))).status is Status.OK
            gate = left.storage.hang(name)
            left.asker.send(add(a_batch(1)), read())
            if name == "damage":
                left.served._maintenance._nursery.start_soon(left.served._maintenance._look_for_damage)
            if name != "close":
                await left.has_begun(name)
            started = time.monotonic()
        assert time.monotonic() - started < 3
    (event,) = left.events
    assert isinstance(event, StorageFailed)
    assert isinstance(event.error, StorageFailedError)
    assert "has not returned" in str(event.error)
    assert left.storage.calls == []
    gate.set()
    await until(lambda: left.served._server.calls._short == 0)
    await until(lambda: left.storage.calls == (["close"] if name == "close" else []))


@pytest.mark.real
async def test_the_exception_of_the_block_is_raised_on_a_hanging_disk() -> None:
    mine = KeyError("mine")
    with pytest.raises(KeyError) as caught:
        async with left_bookie(IMPATIENT) as left:
            gate = left.storage.hang("commit")
            left.asker.send(add(a_batch(1)))
            await left.has_begun("commit")
            raise mine
    assert caught.value is mine
    gate.set()
    await until(lambda: left.served._server.calls._short == 0)


async def test_abandoned_call_never_begins_if_it_had_not_begun() -> None:
    """Else it would be made after the storage was closed."""
    storage = SmallStorage(MemoryStorage(), is_instant=False)
    calls = StorageCalls(storage)
    calls._others.total_tokens = 1
    gate = storage.hang("compact")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(calls.call, storage.compact)
        await until(storage.begun["compact"].is_set)
        nursery.start_soon(calls.call, storage.scrub)
        await trio.sleep(0.05)
        assert calls._short == 2
        nursery.cancel_scope.cancel()
    assert calls._short == 1, "the compaction goes on"
    gate.set()
    assert await calls.close(5.0) is None
    await trio.sleep(0.05)
    assert storage.calls == ["minor compaction", "close"]


async def test_a_cancelled_call_never_begins_when_its_thread_is_late() -> None:
    storage = SmallStorage(MemoryStorage(), is_instant=False)
    calls = StorageCalls(storage)
    async with trio.open_nursery() as nursery:
        with calls._ended:  # this thread has it: the other one has been started, and can't begin
            scope = trio.CancelScope()
            nursery.start_soon(_call_in, scope, calls, storage)
            await trio.sleep(0.05)
            scope.cancel()
            await trio.sleep(0.05)
            assert calls._short == 0
    assert await calls.close(5.0) is None
    await trio.sleep(0.05)
    assert storage.calls == ["close"]


async def _call_in(scope: trio.CancelScope, calls: StorageCalls, storage: SmallStorage) -> None:
    with scope:
        await calls.call(storage.scrub)
        pytest.fail("it began")


async def test_storage_is_closed_when_it_could_not_be_served() -> None:
    storage = SmallStorage(MemoryStorage(), is_instant=False)
    metastore = FaultyMetastore(MemoryMetastore())
    metastore._choose = lambda _operation, _key: _unavailable()
    with pytest.raises(MetastoreError):
        async with serving(storage, metastore, WAYS, PATIENT, lambda _event: None):
            pytest.fail("it serves")
    assert storage.calls == ["close"]


def _unavailable() -> None:
    raise MetastoreError("failed on purpose")


@pytest.mark.real
async def test_bookie_start_can_be_left_when_the_disk_hangs() -> None:
    storage = SmallStorage(MemoryStorage(), is_instant=False)
    gate = storage.hang("free_bytes")
    events: list[Event] = []
    scope = trio.CancelScope()

    async def begin() -> None:
        with scope:
            async with serving(storage, MemoryMetastore(), WAYS, IMPATIENT, events.append):
                pytest.fail("it serves")

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(begin)
            await until(storage.begun["free_bytes"].is_set)
            scope.cancel()
        assert scope.cancelled_caught
    assert len(events) == 1
    gate.set()


async def test_error_of_closing_is_raised() -> None:
    class Failing(SmallStorage):
        def close(self) -> None:
            super().close()
            raise StorageIdentityError("somebody else took the directory")

    storage = Failing(MemoryStorage(), is_instant=False)
    with pytest.raises(StorageIdentityError):
        async with serving(storage, MemoryMetastore(), WAYS, PATIENT, lambda _event: None):
            pass
