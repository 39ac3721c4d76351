"""Clients and bookies that have nothing between them but TCP: slow bookies, bookies that restart, clients that are left."""

from __future__ import annotations

import gc
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

import replog
from replog.abc import Authenticator, RequestHandler, Storage
from replog.backends import memory
from replog.bookie.serving import ServedBookie, Way, open_storage, serving
from replog.config import BackendURL, BookieOptions, ClientOptions
from replog.config.bookie import BookieTuning
from replog.config.client import ClientTuning
from replog.errors import StorageFailedError
from replog.metastores.memory import MemoryMetastore
from replog.protocol.quorum import Quorum
from replog.registry import Registry
from replog.runtime.nursery import open_service_nursery
from replog.transports.tcp import TcpOptions, TcpTransport
from replog.transports.tcp.options import TcpTuning
from tests.kit import FaultyStorage, Wire, read_ledger

THREE = Quorum(3, 3, 2)


class RemoteBookie:
    """A bookie that can be reached by TCP only; before its server stands a wire that can be slow."""

    def __init__(self, name: str, metastore: MemoryMetastore, nursery: trio.Nursery) -> None:
        self.name = name
        self.wire = Wire()
        self.bookie_id = ""
        self.endpoints: list[str] = []
        self.storage: FaultyStorage
        self._metastore = metastore
        self._nursery = nursery
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    async def start(self) -> None:
        await self._nursery.start(self._run)

    async def _run(self, task_status: trio.TaskStatus[None]) -> None:
        storage = self.storage = FaultyStorage(memory.open_storage(self.name))
        self.bookie_id = storage.bookie_id
        transport = WiredTcp(self.wire)
        options = BookieOptions(storage="memory")
        self._ended = trio.Event()
        with trio.CancelScope() as self._scope:
            ways = [Way("tcp", transport, "127.0.0.1:0")]
            async with serving(storage, self._metastore, ways, options, lambda _event: None) as served:
                self._note(served)
                task_status.started()
                await trio.sleep_forever()
        self._ended.set()

    def _note(self, served: ServedBookie) -> None:
        self.endpoints += [endpoint.address for endpoint in served.endpoints]

    async def stop(self) -> None:
        self._scope.cancel()
        await self._ended.wait()


class WiredTcp(TcpTransport):
    """TCP, with a wire before the bookie."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(TcpTuning(drain_timeout_s=1.0))
        self._wire = wire

    @asynccontextmanager
    async def listen(
        self,
        address: str,
        handler: RequestHandler,
        *,
        bookie_id: str = "",
        authenticator: Authenticator | None = None,
    ) -> AsyncIterator[str]:
        async with open_service_nursery() as nursery:
            nursery.start_soon(self._wire.run, handler)
            async with super().listen(address, self._wire, bookie_id=bookie_id) as listening:
                yield listening


class Cluster:
    def __init__(self) -> None:
        self.metastore = MemoryMetastore()
        self.bookies: list[RemoteBookie] = []


@asynccontextmanager
async def remote_cluster(name: str) -> AsyncIterator[Cluster]:
    made = Cluster()
    async with open_service_nursery() as nursery:
        try:
            for number in range(3):
                bookie = RemoteBookie(f"{name}-{number}", made.metastore, nursery)
                made.bookies.append(bookie)
                await bookie.start()
            yield made
            for bookie in made.bookies:
                await bookie.stop()
        finally:
            for bookie in made.bookies:
                memory.forget(bookie.name)


async def test_a_slow_bookie_does_not_slow_down_readers(patient_clock: trio.testing.MockClock) -> None:
    """D2: after `speculative_read_after_s` the next bookie is asked as well, and then preferred."""
    options = ClientTuning(speculative_read_after_s=0.5, read_timeout_s=20.0, add_timeout_s=10.0)
    async with remote_cluster("slow") as world:
        async with replog.connect(world.metastore, options=options, quorum=THREE) as client:
            async with client.create_ledger() as writer:
                await writer.extend([bytes([number]) * 1000 for number in range(50)])
        for slow in world.bookies:
            slow.wire.delay_s = 15.0
            async with replog.connect(world.metastore, options=options, quorum=THREE) as client:
                begin_s = trio.current_time()
                assert len(await read_ledger(client, writer.ledger_id)) == 50
                assert trio.current_time() - begin_s < 2
            slow.wire.delay_s = 0.0
            await trio.sleep(15.0)  # what it was asked has passed its wire: it is not slow for the next reader


async def test_bookie_is_found_again_when_it_restarts_at_another_port(patient_clock: trio.testing.MockClock) -> None:
    async with remote_cluster("restarting") as world:
        options = ClientOptions(add_timeout_s=2.0)
        async with replog.connect(world.metastore, options=options, quorum=Quorum(3, 3, 3)) as client:
            async with client.create_ledger() as writer:
                await writer.extend([b"x"] * 10)
            for bookie in world.bookies:
                await bookie.stop()
                await bookie.start()
                assert len(set(bookie.endpoints)) == len(bookie.endpoints)
            assert len(await read_ledger(client, writer.ledger_id)) == 10
            with trio.fail_after(60):
                while True:
                    try:
                        async with client.create_ledger() as writer:
                            await writer.append(b"y")
                        break
                    except replog.errors.NotEnoughBookiesError:
                        await trio.sleep(1)


async def test_failed_disks_are_reported_over_tcp_with_their_cause(patient_clock: trio.testing.MockClock) -> None:
    """B10: two of three: no ack quorum is left, and nobody waits for a deadline to learn it."""
    broken = StorageFailedError("could not sync /disk/journal-7: [Errno 5] Input/output error (EIO)", "Replace it")
    async with remote_cluster("failing") as world:
        options = ClientOptions(add_timeout_s=60.0, add_quorum_timeout_s=60.0)
        async with replog.connect(world.metastore, options=options, quorum=THREE) as client:
            with pytest.raises(replog.errors.NotEnoughBookiesError, match="EIO") as failed:
                async with client.create_ledger() as writer:
                    await writer.append(b"0")
                    world.bookies[0].storage.commit_error = broken
                    await writer.append(b"1")
                    began_s = trio.current_time()
                    world.bookies[2].storage.commit_error = broken
                    await writer.append(b"2")
            assert trio.current_time() - began_s < 1
            assert failed.value.__cause__ is not None
            root = failed.value.__cause__.__cause__ or failed.value.__cause__
            assert isinstance(root, StorageFailedError)
            assert str(broken) in str(root)


async def test_exited_clients_and_bookies_leave_no_sockets(patient_clock: trio.testing.MockClock) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        async with remote_cluster("left") as world:
            async with replog.connect(world.metastore, quorum=THREE) as client, client.create_ledger() as writer:
                await writer.append(b"x")
            with trio.move_on_after(0.0):  # cancelled while connecting
                async with replog.connect(world.metastore, quorum=THREE) as client:
                    await read_ledger(client, writer.ledger_id)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def bytes_below(directory: Path) -> int:
    return sum(each.stat().st_size for each in directory.rglob("*") if each.is_file())


@pytest.mark.real
async def test_space_of_trimmed_segments_is_freed_during_appends(tmp_path: Path) -> None:
    """B6: bookies elsewhere are told of deleted ledgers. None of them looks for garbage by itself in this time."""
    metastore, journal_file_bytes = MemoryMetastore(), 1 << 20
    options = BookieTuning(garbage_collection_interval_s=1e9)
    clients = ClientOptions(roll_bytes=journal_file_bytes)
    storages: list[Storage] = []
    async with AsyncExitStack() as stack:
        for number in range(3):
            url = BackendURL.parse(f"files:{tmp_path / str(number)}?journal_file_bytes={journal_file_bytes}")
            storages.append(await open_storage(Registry(load_installed=False), url))
            ways = [Way("tcp", TcpTransport(TcpOptions()), "127.0.0.1:0")]
            await stack.enter_async_context(serving(storages[-1], metastore, ways, options, lambda _event: None))
        client = await stack.enter_async_context(replog.connect(metastore, options=clients, quorum=THREE))
        log = await stack.enter_async_context(client.write_log("log"))
        used_mib: list[int] = []
        positions: Sequence[replog.Position] = ()
        for _ in range(8):
            for _ in range(6):
                positions = await log.extend([os.urandom(1 << 16)] * 16)
            await client.trim_log("log", before=positions[-1])
            await trio.sleep(0.4)
            used_mib.append(bytes_below(tmp_path) >> 20)
        # Each turn writes 18 MiB, and files that are kept for reuse are some more.
        assert used_mib[-1] <= used_mib[2] + 18, used_mib
        assert all(each.statistics()["journal_recycled_files"] >= 10 for each in storages)
