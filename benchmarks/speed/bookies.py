"""Cases: what a bookie does with the requests that a transport brings, and what its storage does."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio

from benchmarks.speed.setting import Case, Work
from replog.abc import Reply, Storage
from replog.bookie.server import BookieServer
from replog.config import BackendURL
from replog.config.bookie import BookieTuning
from replog.protocol.batch import Batch, build
from replog.protocol.digest import Digest, DigestType
from replog.protocol.messages import AddRequest, Response, Status
from replog.protocol.mutations import PutBatch
from replog.registry import Registry
from replog.runtime.lent_thread import lent_thread

STAMP = 1
KEY = bytes(32)
_ENTRY_BYTES = 100
_BATCH_ENTRIES = 10  # where the storage is alone


class Batches:
    """Makes the batches of ledgers, each with the next ids of its own."""

    def __init__(self, entries: int, entry_bytes: int) -> None:
        self._payloads = [bytes(entry_bytes)] * entries
        self._next_ids: dict[int, Callable[[], int]] = {}

    def next(self, ledger_id: int) -> Batch:
        """The next batch of this ledger."""
        count = len(self._payloads)
        next_id = self._next_ids.setdefault(ledger_id, itertools.count(0, count).__next__)
        first = next_id()
        return build(
            Digest(DigestType.CRC32C, ledger_id, b""),
            ledger_id=ledger_id,
            first_entry_id=first,
            stride=1,
            payloads=self._payloads,
            last_add_confirmed=first - 1,
            stamp=STAMP,
            timestamp_ns=0,
            cumulative_length=(first + count) * len(self._payloads[0]),
        )


class Requests:
    """Makes add requests with ids that are never used again."""

    def __init__(self, entries: int = 1, entry_bytes: int = _ENTRY_BYTES) -> None:
        self._batches = Batches(entries, entry_bytes)
        self._ids = itertools.count(1)

    def next(self, ledger_id: int) -> AddRequest:
        """The add of the next batch of this ledger."""
        return AddRequest(next(self._ids), ledger_id, KEY, 1, self._batches.next(ledger_id))


class Answers:
    """Takes a bookie's answers, and counts them."""

    def __init__(self) -> None:
        self.count = 0
        self.reply: Reply = self.take  # one object, as a connection has
        self._came = trio.Event()

    def take(self, responses: Sequence[Response]) -> None:
        """What the bookie calls. Raises AssertionError for a refusal."""
        for response in responses:
            assert response.status is Status.OK, response
        self.count += len(responses)
        self._came.set()

    async def wait(self, count: int) -> None:
        """Until there were so many. Does nothing where a commit was made in the caller's frame."""
        while self.count < count:
            self._came = trio.Event()
            await self._came.wait()


def open_storage(scheme: str, directory: Path) -> Storage:
    """A new storage."""
    place = str(directory / scheme) if scheme != "memory" else ""
    return Registry(load_installed=False).open_storage(BackendURL(scheme, place))


@asynccontextmanager
async def _server(scheme: str, directory: Path) -> AsyncIterator[BookieServer]:
    storage = open_storage(scheme, directory)
    try:
        server = BookieServer(storage, BookieTuning(commit_inline_when_idle=True), lambda event: None)
        async with server.running():
            yield server
    finally:
        storage.close()


@asynccontextmanager
async def _add(scheme: str, directory: Path) -> AsyncIterator[Work]:
    requests, answers, count, lent = Requests(), Answers(), 100, lent_thread()
    async with _server(scheme, directory) as server:

        async def run(prepared: list[AddRequest]) -> None:
            for request in prepared:
                expected = answers.count + 1
                lent.lend(lambda request=request: server.handle((request,), answers.reply))  # type: ignore[misc]
                await answers.wait(expected)

        def prepare() -> list[AddRequest]:
            return [requests.next(1) for _ in range(count)]

        yield Work(prepare, run, count)


@asynccontextmanager
async def _group(directory: Path) -> AsyncIterator[Work]:
    requests, answers, ledgers, rounds = Requests(), Answers(), 20, 5
    async with _server("memory", directory) as server:

        async def run(prepared: list[list[AddRequest]]) -> None:
            for group in prepared:
                expected = answers.count + len(group)
                server.handle(group, answers.reply)
                await answers.wait(expected)

        def prepare() -> list[list[AddRequest]]:
            return [[requests.next(ledger_id) for ledger_id in range(ledgers)] for _ in range(rounds)]

        yield Work(prepare, run, ledgers * rounds)


@asynccontextmanager
async def _commit(scheme: str, directory: Path) -> AsyncIterator[Work]:
    storage, batches, ledgers, rounds = open_storage(scheme, directory), Batches(_BATCH_ENTRIES, _ENTRY_BYTES), 20, 5
    try:

        async def run(prepared: list[list[PutBatch]]) -> None:
            for mutations in prepared:
                storage.commit(mutations)

        def prepare() -> list[list[PutBatch]]:
            return [[PutBatch(batches.next(ledger_id)) for ledger_id in range(ledgers)] for _ in range(rounds)]

        yield Work(prepare, run, ledgers * rounds * _BATCH_ENTRIES)
    finally:
        storage.close()


CASES = (
    Case("bookie-add-memory", "a bookie's add of one entry, storage in memory", partial(_add, "memory")),
    Case("bookie-add-files", "the same, storage files, committed in the event loop", partial(_add, "files")),
    Case("bookie-group", "20 adds for 20 ledgers that come together, storage in memory", _group),
    Case("commit-files", "the storage files alone: commits of 20 batches of 10 entries", partial(_commit, "files")),
)
