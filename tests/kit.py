"""A cluster for tests: bookies that are served in this trio run, and whose network, disk and metastore fail on demand.

Nothing here waits for a disk or a thread, so tests run on trio's virtual clock (the fixture `autojump_clock`): timeouts of
many seconds pass at once, and what happens is the same each time.
"""

from __future__ import annotations

import copy
import itertools
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache

import pytest
import trio

import replog
from replog.abc import (
    Authenticator,
    Connection,
    Doubt,
    Marks,
    Metastore,
    Mutation,
    Reply,
    RequestHandler,
    ResponseReceiver,
    Sighting,
    Storage,
    StoredRange,
    Transport,
)
from replog.backends import memory
from replog.bookie.server import BookieServer
from replog.bookie.serving import ServedBookie, Way, serving
from replog.config import BookieOptions, ClientOptions, parse_labels
from replog.errors import StorageError
from replog.hookspecs import Event
from replog.metastores.memory import MemoryMetastore
from replog.protocol.batch import Batch
from replog.protocol.messages import AddRequest, LedgerAwaited, Request, Response, Status
from replog.protocol.quorum import Quorum
from replog.registry import Registry
from replog.runtime.faces import Face, Faces
from replog.runtime.nursery import open_service_nursery
from replog.testing import FaultyMetastore
from replog.testing.simulating.disks import damaged
from replog.transports.memory import MemoryTransport

_names = itertools.count(1)
ONE = Quorum(1, 1, 1)


class FaultyStorage(Storage):
    """Passes everything on to `inner`, unless told to fail."""

    def __init__(self, inner: Storage, *, is_instant: bool = True) -> None:
        self.inner = inner
        self.commit_error: StorageError | None = None
        self.read_errors: dict[int, StorageError] = {}  # by ledger
        self.damaged: set[int] = set()  # ledgers whose batches are read with a flipped bit
        self.gate: threading.Event | None = None  # commits wait for it, in the commit thread
        self.commits: list[list[Mutation]] = []
        self.threads: set[threading.Thread] = set()  # that committed
        self.doubts: Doubt | None = None  # instead of the inner one's
        self._is_instant = is_instant

    @property
    def bookie_id(self) -> str:
        return self.inner.bookie_id

    @property
    def is_instant(self) -> bool:
        return self._is_instant

    def commit(self, mutations: Sequence[Mutation]) -> None:
        self.threads.add(threading.current_thread())
        if self.gate is not None:
            assert self.gate.wait(60), "a test forgot to open the gate"
        if self.commit_error is not None:
            raise self.commit_error
        self.commits.append(list(mutations))
        self.inner.commit(mutations)

    def read(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        if ledger_id in self.read_errors:
            raise self.read_errors[ledger_id]
        found = self.inner.read(ledger_id, entry_id, stamp, bytes_max)
        return [damaged(batch) for batch in found] if ledger_id in self.damaged else found

    def read_nowait(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        if not self._is_instant:
            raise trio.WouldBlock
        return self.read(ledger_id, entry_id, stamp, bytes_max)

    def marks(self, ledger_id: int) -> Marks | None:
        return self.inner.marks(ledger_id)

    def ledger_ids(self) -> list[int]:
        return self.inner.ledger_ids()

    def ranges(self, ledger_id: int) -> Sequence[StoredRange]:
        return self.inner.ranges(ledger_id)

    def close(self) -> None:
        self.inner.close()

    def doubt(self) -> Doubt:
        return self.doubts or self.inner.doubt()

    def bound_doubt(self, below_ledger_id: int) -> None:
        if self.doubts is None:
            self.inner.bound_doubt(below_ledger_id)
            return
        self.doubts = self.doubts.bounded(below_ledger_id)

    def settle_doubt(self, found: Doubt, left: Doubt) -> None:
        if self.doubts == found:
            self.doubts = left

    def sighting(self) -> Sighting:
        return self.inner.sighting()

    def keep_sighting(self, sighting: Sighting) -> None:
        self.inner.keep_sighting(sighting)

    def statistics(self) -> Mapping[str, float]:
        return self.inner.statistics()


class Wire:
    """The network before one bookie."""

    def __init__(self) -> None:
        self.is_deaf = False  # requests are lost
        self.is_mute = False  # requests are done, and their answers lost
        self.is_held = False  # requests wait for `release`
        self.holds: Callable[[Request], bool] = lambda _request: False  # from this one on, requests wait for `release`
        self.delay_s = 0.0  # of each request
        self.lose_answer: Callable[[Request], bool] = lambda _request: False
        self.refuse: Callable[[Request], Status | None] = lambda _request: None
        self.alter: Callable[[Request, Response], Response] = lambda _request, response: (
            response
        )  # it lies, or is damaged
        self.seen: list[Request] = []
        self._handler: RequestHandler | None = None
        self._waiting: deque[tuple[float, Sequence[Request], Reply]] = deque()
        self._arrived = trio.Event()

    def handle(self, requests: Sequence[Request], reply: Reply) -> None:
        self.seen += requests
        if self.is_deaf:
            return
        self.is_held = self.is_held or any(map(self.holds, requests))
        if self.is_held or self.delay_s or self._waiting:
            self._waiting.append((trio.current_time() + self.delay_s, requests, reply))
            self._arrived.set()
        else:
            self._pass_on(requests, reply)

    def _pass_on(self, requests: Sequence[Request], reply: Reply) -> None:
        if self._handler is None:
            return
        by_id = {request.request_id: request for request in requests}

        def answer(responses: Sequence[Response]) -> None:
            kept = [
                each if isinstance(each, LedgerAwaited) else self.alter(by_id[each.request_id], each)
                for each in responses
                if isinstance(each, LedgerAwaited) or not self.lose_answer(by_id[each.request_id])
            ]
            if kept and not self.is_mute:
                reply(kept)

        for request in requests:
            refusal = self.refuse(request)
            if refusal is not None:
                answer([Response(request.request_id, refusal)])
            else:
                self._handler.handle([request], answer)

    def release(self) -> None:
        """Lets go what was held, in its order."""
        self.is_held, self.holds = False, lambda _request: False
        self._arrived.set()

    def forget(self) -> None:
        """Loses what was held, and holds nothing more."""
        self._waiting.clear()
        self.is_held = False

    async def run(self, handler: RequestHandler) -> None:
        """Delivers what is delayed, in its order, until cancelled."""
        self._handler = handler
        try:
            while True:
                while self._waiting and not self.is_held:
                    due, requests, reply = self._waiting[0]
                    await trio.sleep_until(due)
                    self._waiting.popleft()
                    self._pass_on(requests, reply)
                self._arrived = trio.Event()
                await self._arrived.wait()
        finally:
            self._handler = None
            self._waiting.clear()


class WiredTransport(Transport):
    """The memory transport, with a wire before the bookie."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def connect(
        self,
        address: str,
        receiver: ResponseReceiver,
        nursery: trio.Nursery,
        *,
        bookie_id: str = "",
        authenticator: Authenticator | None = None,
    ) -> Connection:
        return await MemoryTransport().connect(address, receiver, nursery)

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
            async with MemoryTransport().listen(address, self._wire) as listening:
                yield listening


class Bookie:
    """One bookie: its disk survives `kill`, and comes back with `start`."""

    def __init__(self, cluster: Cluster, options: BookieOptions, *, is_instant: bool = True) -> None:
        self.name = f"test-{next(_names)}"
        self.wire = Wire()
        inner = memory.open_storage(self.name)
        inner._content.bookie_id = f"bookie-{len(cluster.bookies):02}"  # the same in each run
        self.storage = FaultyStorage(inner, is_instant=is_instant)
        self.bookie_id = self.storage.bookie_id
        self.served: ServedBookie | None = None
        self._is_open = True
        self._cluster = cluster
        self._options = options
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    @property
    def server(self) -> BookieServer:
        assert self.served is not None, "it does not run"
        return self.served._server

    async def start(self) -> None:
        """Serves it."""
        if not self._is_open:
            self.storage.inner = memory.open_storage(self.name)
            self._is_open = True
        await self._cluster.nursery.start(self._serve)

    async def _serve(self, task_status: trio.TaskStatus[None]) -> None:
        self._ended = trio.Event()
        try:
            with trio.CancelScope() as self._scope:
                transport = WiredTransport(self.wire)
                observe = self._cluster.registry.observe
                metastore = self._cluster.metastore
                ways = [Way("memory", transport, self.storage.bookie_id)]
                labels = parse_labels(self._options.labels)
                async with serving(self.storage, metastore, ways, self._options, observe, labels=labels) as self.served:
                    task_status.started()
                    await trio.sleep_forever()
        finally:
            self.storage.close()
            self.served, self._is_open = None, False
            self._ended.set()

    async def kill(self) -> None:
        """Ends it at once: connections are cut, what was not durable is gone."""
        self._scope.cancel()
        await self._ended.wait()

    def adds(self, ledger_id: int) -> list[AddRequest]:
        """The adds for this ledger that came in."""
        return [each for each in self.wire.seen if isinstance(each, AddRequest) and each.ledger_id == ledger_id]


class DeafMetastore(FaultyMetastore):
    """Tells nobody that a key has changed: a leader that is deposed hears it from bookies alone."""

    async def wait_changed(self, key: str, version: int | None) -> None:
        """Never returns."""
        await trio.sleep_forever()


class Cluster:
    """Some bookies, a metastore, and what observers were told."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.metastore = FaultyMetastore(MemoryMetastore())
        self.events: list[Event] = []
        self.registry = _observed_by(self.events.append)
        self.bookies: list[Bookie] = []

    async def add_bookie(self, options: BookieOptions | None = None, *, is_instant: bool = True) -> Bookie:
        bookie = Bookie(self, options or BookieOptions(storage="memory"), is_instant=is_instant)
        self.bookies.append(bookie)
        await bookie.start()
        return bookie

    def client(
        self,
        options: ClientOptions | None = None,
        quorum: Quorum | None = None,
        metastore: Metastore | None = None,
        placement: str = "random",
    ) -> AbstractAsyncContextManager[replog.Client]:
        return replog.connect(
            metastore or self.metastore, options=options, quorum=quorum, placement=placement, registry=self.registry
        )

    def deaf_client(self, options: ClientOptions | None = None) -> AbstractAsyncContextManager[replog.Client]:
        """A client whose leaders are deposed without hearing it from the metastore."""
        return self.client(options, metastore=DeafMetastore(self.metastore))

    def named(self, bookie_ids: Collection[str]) -> list[Bookie]:
        """The bookies with these ids, in their order."""
        by_id = {bookie.bookie_id: bookie for bookie in self.bookies}
        return [by_id[bookie_id] for bookie_id in bookie_ids]

    def spare(self, bookie_ids: Collection[str]) -> list[Bookie]:
        """The other ones."""
        return [bookie for bookie in self.bookies if bookie.bookie_id not in bookie_ids]

    def told(self, kind: type[Event]) -> list[Event]:
        """The events of this kind, in order."""
        return [event for event in self.events if isinstance(event, kind)]


@cache
def _builtin_plugins() -> Registry:
    return Registry(load_installed=False)


def _observed_by(observe: Callable[[Event], None]) -> Registry:
    """The built-in plugins, and one observer. To load them for each cluster took a tenth of the time of most tests here."""
    registry = copy.copy(_builtin_plugins())
    registry._observers, registry._batch_observers = {"test": observe}, {}
    return registry


@asynccontextmanager
async def cluster(
    bookies: int = 3, bookie_options: BookieOptions | None = None, *, is_instant: bool = True
) -> AsyncIterator[Cluster]:
    """A cluster of so many bookies."""
    async with open_service_nursery() as nursery:
        made = Cluster(nursery)
        try:
            for _ in range(bookies):
                await made.add_bookie(bookie_options, is_instant=is_instant)
            yield made
        finally:
            for bookie in made.bookies:
                memory.forget(bookie.name)


class Turns:
    """Counts the turns that a task gets which is always ready. Use it as a task: `nursery.start_soon(turns.count)`."""

    def __init__(self) -> None:
        self.counted = 0

    async def count(self) -> None:
        while True:
            self.counted += 1
            await trio.lowlevel.checkpoint()


def deafen_leaders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has leaders be deposed without hearing it from the metastore: they answer no committers either."""

    async def answer_nobody(*_: object) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr("replog.log.log_writer.answer_committers", answer_nobody)


async def settle() -> None:
    """Lets everything that is ready to run do so."""
    await trio.testing.wait_all_tasks_blocked()


def own_faces(kind: Faces) -> dict[type, type[Face]]:
    """The faces of replog's own classes, by these: packages that other tests load may have more."""
    return {source: face for source, face in kind._face_of.items() if source.__module__.startswith("replog.")}


async def until(condition: Callable[[], bool], within_s: float = 5.0) -> None:
    """Waits until the condition is true, looking every few milliseconds."""
    with trio.fail_after(within_s):
        while not condition():  # noqa: ASYNC110 - what it looks at has no event
            await trio.sleep(0.005)


async def read_ledger(client: replog.Client, ledger_id: int, password: bytes = b"") -> list[bytes]:
    """What a ledger holds, as far as is known."""
    async with client.open_ledger(ledger_id, password=password) as reader:
        return [entry.data async for entry in reader]


async def read_log(client: replog.Client, name: str = "log") -> list[bytes]:
    """What a log holds, as far as is known."""
    async with client.read_log(name) as reader:
        return [record.data async for record in reader]
