"""The conformance suite of bookie loops: what takes the requests of a bookie's clients, makes them durable, and answers."""

from __future__ import annotations

import itertools
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import trio

from replog.abc import BookieLoop, Storage
from replog.backends.memory import MemoryStorage
from replog.config import BookieOptions
from replog.errors import StorageError, StorageFailedError, StorageFullError
from replog.hookspecs import Event
from replog.protocol.batch import ENTRY_BYTES_MAX, Batch, build, decode
from replog.protocol.digest import Digest, DigestType
from replog.protocol.messages import (
    AddRequest,
    FenceRequest,
    ReadLastAddConfirmedRequest,
    ReadRequest,
    RecoveryReadRequest,
    Request,
    Response,
    Status,
)
from replog.protocol.mutations import DELETED_TERM, Mutation, PutBatch
from replog.testing.promises import plain_assertions, promise, soon

MakeLoop = Callable[[Storage, BookieOptions, Callable[[Event], None]], BookieLoop]

_LEDGER, _KEY = 7, bytes(range(32))
_LOOKS = 10  # turns of the event loop in which an answer would come that comes too early
_MANY = 50


async def check_bookie_loop(make_loop: MakeLoop) -> None:
    """Check a bookie's loop; raise `AssertionError` with the first promise of `replog.abc.BookieLoop` that it breaks.

    `BookieServer` itself is a `make_loop`. Uses a thread that waits as a disk does, and needs real time; needs no pytest."""
    for is_instant, checks in ((True, _CHECKS), (False, (*_CHECKS, *_CHECKS_OF_WAITING))):
        for check in checks:
            with plain_assertions(), soon("the exam ends"):
                await check(_Bench(make_loop, _Disk(is_instant=is_instant)))


class _Disk(MemoryStorage):
    """A storage whose commits wait for a gate, and fail if a check says so."""

    def __init__(self, *, is_instant: bool) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.error: StorageError | None = None
        self.takes_entries = True
        self.commits = 0
        self._is_instant = is_instant

    @property
    def is_instant(self) -> bool:
        return self._is_instant

    def read_nowait(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        if not self._is_instant:
            raise trio.WouldBlock
        return self.read(ledger_id, entry_id, stamp, bytes_max)

    def commit(self, mutations: Sequence[Mutation]) -> None:
        self.commits += 1
        if not self.gate.wait(60):
            raise AssertionError("a check forgot to open the gate")
        if self.error is not None:
            raise self.error
        if not self.takes_entries and any(isinstance(each, PutBatch) for each in mutations):
            raise StorageFullError("no space", "make some")
        super().commit(mutations)


class _Bench:
    """A loop on a disk, and one client of it that keeps all answers in their order."""

    def __init__(self, make_loop: MakeLoop, disk: _Disk) -> None:
        self.disk = disk
        self._make_loop = make_loop
        self._ids = itertools.count(1)

    @asynccontextmanager
    async def serving(self, options: BookieOptions | None = None) -> AsyncIterator[None]:
        """Serves the disk; again, if it was served before."""
        self.answers: dict[int, Response] = {}
        self._is_repeated = False
        self._came = trio.Event()
        self._reply = self._answered  # one object, as a connection has it
        self.loop = self._make_loop(self.disk, options or BookieOptions(storage="memory"), lambda _event: None)
        async with self.loop.running():
            try:
                yield
            finally:
                self.disk.gate.set()

    def send(self, *requests: Request) -> list[int]:
        """Hands requests over, all at once; returns their ids."""
        for request in requests:
            request.request_id = next(self._ids)
        self.loop.handle(requests, self._reply)
        return [request.request_id for request in requests]

    def _answered(self, responses: Sequence[Response]) -> None:
        for response in responses:
            # Noted, and told where a check waits: here an error would be the loop's.
            self._is_repeated |= response.request_id in self.answers
            self.answers[response.request_id] = response
        self._came.set()
        self._came = trio.Event()

    async def wait(self, request_ids: Sequence[int], contract: str = "every request is answered") -> list[Response]:
        with soon(contract):
            while not all(each in self.answers for each in request_ids):
                await self._came.wait()
        promise(not self._is_repeated, "each request is answered once")
        return [self.answers[each] for each in request_ids]

    async def ask(self, request: Request) -> Response:
        return (await self.wait(self.send(request)))[0]

    async def nothing_comes(self, contract: str) -> None:
        """Nothing more is answered as long as the gate is closed."""
        known = len(self.answers)
        for _ in range(_LOOKS):
            await trio.sleep(0.001)
        promise(len(self.answers) == known, contract)


def _batch(first: int, payload: bytes = b"x", *, confirmed: int | None = None, stamp: int = 1) -> Batch:
    return build(
        Digest(DigestType.CRC32C, _LEDGER, b""),
        ledger_id=_LEDGER,
        first_entry_id=first,
        stride=1,
        payloads=[payload],
        last_add_confirmed=first - 1 if confirmed is None else confirmed,
        stamp=stamp,
        timestamp_ns=1,
        cumulative_length=first + 1,
    )


def _add(first: int, payload: bytes = b"x", *, key: bytes = _KEY, batch: Batch | None = None) -> AddRequest:
    return AddRequest(0, _LEDGER, key, 1, batch or _batch(first, payload))


def _recovery_add(first: int, term: int) -> AddRequest:
    return AddRequest(0, _LEDGER, _KEY, term, _batch(first), recovery=True)


def _fence(term: int) -> FenceRequest:
    return FenceRequest(0, _LEDGER, _KEY, term)


def _read(entry_id: int, *, key: bytes = _KEY) -> ReadRequest:
    return ReadRequest(0, _LEDGER, key, entry_id, 1, 1 << 20)


# -- with every storage ---------------------------------------------------------------------------------------------


async def _check_adds_are_stored(bench: _Bench) -> None:
    async with bench.serving():
        answers = await bench.wait(bench.send(*(_add(number) for number in range(_MANY))))
        promise(all(each.status is Status.OK for each in answers), "an add that was stored is acknowledged")
        for number in range(_MANY):
            found = bench.disk.read(_LEDGER, number, 1, 1)
            promise(found and found[0].data == _batch(number).data, "what is acknowledged is stored as it came (B1)")
        found_by_read = (await bench.ask(_read(3))).batches
        promise(found_by_read and found_by_read[0].data == _batch(3).data, "what is stored can be read")
        figures = bench.loop.statistics()
        are_empty = not figures["queued_bytes"] and not figures["queued_requests"]
        promise(are_empty, "nothing is counted as queued when all is answered")


async def _check_a_fence_orders(bench: _Bench) -> None:
    async with bench.serving():
        look_up = RecoveryReadRequest(0, _LEDGER, _KEY, 2, 0, 1)
        added, fenced, found, late = bench.send(_add(0), _fence(2), look_up, _add(1))
        answers = await bench.wait([added, fenced, found, late])
        promise(answers[0].status is Status.OK, "an add before a fence is stored")
        promise(answers[1].status is Status.OK, "a fence of a higher term is taken (T1)")
        batches = answers[2].batches
        promise(batches and batches[0].data == _batch(0).data, "a recovery read finds what was accepted before it (B2)")
        is_fenced = answers[3].status is Status.FENCED and answers[3].fence_term == 2
        promise(is_fenced, "an add behind a fence is refused, with the fence's term (R3)")
        promise(not bench.disk.read(_LEDGER, 1, 1, 1), "what is refused is not stored")
        promise(
            list(bench.answers)[:2] == [added, fenced], "answers of a ledger come in the order of its requests (B2)"
        )
        promise(
            (await bench.ask(_recovery_add(1, 2))).status is Status.OK, "a recovery's add passes its own fence (T1)"
        )
    async with bench.serving():
        promise((await bench.ask(_add(2))).status is Status.FENCED, "a fence is there after a restart (R3)")


async def _check_identities(bench: _Bench) -> None:
    async with bench.serving():
        await bench.ask(_add(0, b"one"))
        promise((await bench.ask(_add(0, b"one"))).status is Status.OK, "the same bytes again are acknowledged (T3)")
        other = await bench.ask(_add(0, b"two"))
        promise(other.status is Status.CONFLICT, "other bytes for what is stored are refused (T3)")
        promise(bench.disk.read(_LEDGER, 0, 1, 1)[0].data == _batch(0, b"one").data, "nothing is stored over (T3)")
        damaged = bytearray(_batch(1).data)
        damaged[-1] ^= 1
        answer = await bench.ask(_add(1, batch=decode(bytes(damaged))))
        promise(answer.status is Status.BAD_REQUEST, "a damaged batch is refused")
        promise(not bench.disk.read(_LEDGER, 1, 1, 1), "a damaged batch is not stored")


async def _check_keys(bench: _Bench) -> None:
    async with bench.serving():
        await bench.ask(_add(0))
        for request in (_add(1, key=bytes(32)), _read(0, key=bytes(32)), FenceRequest(0, _LEDGER, bytes(32), 2)):
            answer = await bench.ask(request)
            promise(answer.status is Status.UNAUTHORIZED, "the first key is the ledger's, and others are refused (B7)")
        promise((await bench.ask(_add(1))).status is Status.OK, "what a stranger sent has changed nothing (B7)")


async def _check_a_full_disk(bench: _Bench) -> None:
    async with bench.serving():
        await bench.ask(_add(0))
        bench.disk.takes_entries = False
        promise((await bench.ask(_add(1))).status is Status.READ_ONLY, "without space new entries are refused (B5)")
        promise((await bench.ask(_fence(2))).status is Status.OK, "without space fences go on (B5)")
        promise(bool((await bench.ask(_read(0))).batches), "without space reads go on (B5)")
        promise((await bench.ask(_add(1))).status is Status.FENCED, "a deposed writer learns of it, space or not (L5)")


async def _check_a_failed_disk(bench: _Bench) -> None:
    async with bench.serving():
        await bench.ask(_add(0))
        bench.disk.error = StorageFailedError("the sync failed")
        answers = await bench.wait(bench.send(_add(1), _add(2)))
        all_unknown = all(each.status is Status.UNKNOWN for each in answers)
        promise(all_unknown, "what a failed commit had is neither acknowledged nor denied (B1)")
        bench.disk.error, commits = None, bench.disk.commits
        promise((await bench.ask(_add(1))).status is Status.UNKNOWN, "a bookie whose storage failed takes nothing (B1)")
        promise((await bench.ask(_fence(2))).status is Status.UNKNOWN, "nor a fence (B1)")
        promise(bench.disk.commits == commits, "a storage that failed is asked nothing more (B1)")


async def _check_its_own_account(bench: _Bench) -> None:
    async with bench.serving():
        await bench.ask(_add(0))
        await bench.loop.fence(_LEDGER, 5)
        answer = await bench.ask(_add(1))
        is_fenced = answer.status is Status.FENCED and answer.fence_term == 5
        promise(is_fenced, "`fence` fences as a client does (B8)")
        await bench.loop.drop(_LEDGER)
        promise(_LEDGER not in bench.disk.ledger_ids(), "`drop` has dropped the ledger when it returns (B6)")
        answer = await bench.ask(_recovery_add(1, 6))
        is_gone = answer.status is Status.FENCED and answer.fence_term == DELETED_TERM
        promise(is_gone, "a ledger that was dropped stays fenced for everybody (L5)")


async def _check_followers(bench: _Bench) -> None:
    async with bench.serving():
        await bench.ask(_add(0))
        (waiting,) = bench.send(ReadLastAddConfirmedRequest(0, _LEDGER, _KEY, -1, 60_000))
        await bench.nothing_comes("a long poll waits while there is nothing new (D1)")
        added = await bench.ask(_add(1, batch=_batch(1, confirmed=-1)))
        promise(added.awaited, "a writer is told that a reader waits (W5)")
        await bench.ask(_add(2, batch=_batch(2, confirmed=0)))
        answer = (await bench.wait([waiting], "an add whose header confirms something ends a long poll (D1)"))[0]
        promise(answer.last_add_confirmed == 0, "a long poll is told what the header confirms (D1)")


# -- with a storage that waits ----------------------------------------------------------------------------------------


async def _check_durable_first(bench: _Bench) -> None:
    async with bench.serving():
        bench.disk.gate.clear()
        added = bench.send(_add(0))
        await bench.nothing_comes("an add is not acknowledged before it is durable (B1)")
        fenced, refused = bench.send(_fence(2), _add(1))
        await bench.nothing_comes("a refusal does not leave before the fence that it depends on is durable (R3)")
        bench.disk.gate.set()
        await bench.wait([*added, fenced, refused])


async def _check_commits_are_shared(bench: _Bench) -> None:
    async with bench.serving():
        await bench.ask(_add(0))
        bench.disk.gate.clear()
        commits, sent = bench.disk.commits, bench.send(_add(1))
        while bench.disk.commits == commits:  # noqa: ASYNC110 - it comes from a thread
            await trio.sleep(0.001)
        for number in range(2, _MANY):
            sent += bench.send(_add(number))
        bench.disk.gate.set()
        await bench.wait(sent)
        promise(bench.disk.commits - commits == 2, "what arrives during a commit shares the next one")


async def _check_its_bound(bench: _Bench) -> None:
    async with bench.serving(BookieOptions(storage="memory", queue_bytes_max=ENTRY_BYTES_MAX)):
        bench.disk.gate.clear()
        sent = [bench.send(_add(number, bytes(ENTRY_BYTES_MAX // 4)))[0] for number in range(5)]
        answers = await bench.wait(sent[-1:], "what has no room is refused at once")
        promise(answers[0].status is Status.TOO_BUSY, "the queue is bounded")
        promise(bench.loop.statistics()["queued_requests"] >= 1, "what waits for the disk is counted")
        bench.disk.gate.set()
        promise((await bench.wait(sent[:1]))[0].status is Status.OK, "what had room is stored")


async def _check_leaving(bench: _Bench) -> None:
    async with bench.serving():
        bench.disk.gate.clear()
        sent = bench.send(*(_add(number) for number in range(_MANY)))
    is_all = all(each in bench.answers and bench.answers[each].status is Status.OK for each in sent)
    promise(is_all, "on leaving, what was taken is made durable and answered")
    promise(bool(bench.disk.read(_LEDGER, _MANY - 1, 1, 1)), "the storage stays open")


_CHECKS = (
    _check_adds_are_stored,
    _check_a_fence_orders,
    _check_identities,
    _check_keys,
    _check_a_full_disk,
    _check_a_failed_disk,
    _check_its_own_account,
    _check_followers,
)
_CHECKS_OF_WAITING = (_check_durable_first, _check_commits_are_shared, _check_its_bound, _check_leaving)
