"""The server of a bookie: group commit, fences, conflicts, full and failed disks, bounds, long polls (B1, B2, B5, B7, R3, T3)."""

from __future__ import annotations

import itertools
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
import trio.lowlevel
import trio.testing

from replog.backends.memory import MemoryStorage
from replog.bookie import commits, server, space
from replog.bookie.server import BookieServer
from replog.config import BookieOptions
from replog.config.bookie import BookieTuning
from replog.errors import StorageFailedError, StorageFullError, StorageUncertainError
from replog.hookspecs import Event, StorageFailed
from replog.protocol import batch as batches
from replog.protocol.batch import ENTRY_BYTES_MAX, Batch
from replog.protocol.digest import Digest, DigestType, stored_ledger_key
from replog.protocol.messages import (
    AddRequest,
    FenceRequest,
    LedgerAwaited,
    ReadLastAddConfirmedRequest,
    ReadRequest,
    RecoveryReadRequest,
    Request,
    Response,
    Status,
    WatchRequest,
    WriteLastAddConfirmedRequest,
)
from replog.protocol.mutations import DELETED_TERM, PutBatch, SetMarks
from replog.runtime.lent_thread import Borrower, lent_thread
from tests.kit import FaultyStorage, until
from tests.protocol.bookies import proof_of

KEY = b"k" * 32
FULL = StorageFullError("no space", "make some")
OPTIONS = BookieOptions(storage="memory")


def a_batch(first: int = 0, count: int = 1, ledger_id: int = 1, payload: bytes = b"x", stamp: int = 1) -> Batch:
    return batches.build(
        Digest(DigestType.CRC32C, ledger_id, b""),
        ledger_id=ledger_id,
        first_entry_id=first,
        stride=1,
        payloads=[payload] * count,
        last_add_confirmed=first - 1,
        stamp=stamp,
        timestamp_ns=0,
        cumulative_length=0,
    )


class OtherBorrower(Borrower):
    """Borrows a thread, and does nothing in it."""

    def commit_here(self) -> None: ...

    def commit_beside(self) -> None: ...

    def look(self) -> None: ...


class Asker:
    """A client without a network: sends requests, and keeps the answers as they come."""

    def __init__(self, server: BookieServer) -> None:
        self.server = server
        self.answers: dict[int, Response] = {}
        self.order: list[int] = []
        self.awaited: list[int] = []  # ledgers for which a reader waits, as it was told unasked
        self._ids = itertools.count(1)
        self._reply = self._answered  # one object, as the contract says

    def send(self, *requests: Request) -> list[int]:
        """Hands requests over, all at once; returns their ids."""
        for request in requests:
            request.request_id = next(self._ids)
        self.server.handle(requests, self._reply)
        return [request.request_id for request in requests]

    def send_waiting(self, request: Request, *, is_followed: bool = False) -> int:
        """Hands one request over, and lends this thread meanwhile; to others, too, if it is followed by requests to them."""
        lent = lent_thread()

        def send() -> None:
            self.send(request)
            if is_followed:
                lent.borrow(OtherBorrower())

        lent.lend(send)
        return request.request_id

    def _answered(self, responses: Sequence[Response]) -> None:
        for response in responses:
            if isinstance(response, LedgerAwaited):
                self.awaited.append(response.ledger_id)
                continue
            assert response.request_id not in self.answers, "answered twice"
            self.answers[response.request_id] = response
            self.order.append(response.request_id)

    async def ask(self, request: Request) -> Response:
        """Sends one request, and waits for its answer."""
        (request_id,) = self.send(request)
        with trio.fail_after(5):
            while request_id not in self.answers:  # noqa: ASYNC110 - it comes from a thread
                await trio.sleep(0.001)
        return self.answers[request_id]


def add(batch: Batch, term: int = 1, *, recovery: bool = False, key: bytes = KEY) -> AddRequest:
    return AddRequest(0, batch.ledger_id, key, term, batch, recovery)


def fence(term: int = 2, ledger_id: int = 1, key: bytes = KEY) -> FenceRequest:
    return FenceRequest(0, ledger_id, key, term)


def read(entry_id: int = 0, ledger_id: int = 1, key: bytes = KEY) -> ReadRequest:
    return ReadRequest(0, ledger_id, key, entry_id, 1, 1 << 20)


def poll(after: int = -1, wait_ms: int = 0, ledger_id: int = 1) -> ReadLastAddConfirmedRequest:
    return ReadLastAddConfirmedRequest(0, ledger_id, KEY, after, wait_ms)


class Served:
    """A server, its storage, who asks it, and what observers were told."""

    def __init__(self, storage: FaultyStorage, options: BookieOptions) -> None:
        self.storage = storage
        self.events: list[Event] = []
        self.server = BookieServer(storage, options, self.events.append)
        self.asker = Asker(self.server)
        self.ask = self.asker.ask


@asynccontextmanager
async def serving(
    options: BookieOptions = OPTIONS, *, is_instant: bool = False, storage: FaultyStorage | None = None
) -> AsyncIterator[Served]:
    served = Served(storage or FaultyStorage(MemoryStorage(), is_instant=is_instant), options)
    async with served.server.running():
        yield served


def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bookies look after their space every few milliseconds, and soon believe that there is some again."""
    monkeypatch.setattr(server, "_LOOK_S", 0.005)
    monkeypatch.setattr(space, "TRY_AGAIN_S", 0.05)


each_kind = pytest.mark.parametrize("is_instant", [True, False], ids=["instant", "threaded"])


# -- group commit ---------------------------------------------------------------------------------------------------


@each_kind
async def test_adds_arriving_together_are_committed_together(is_instant: bool) -> None:
    async with serving(is_instant=is_instant) as served:
        gate = threading.Event()
        if not is_instant:
            served.storage.gate = gate
        served.asker.send(add(a_batch(0)))
        await trio.sleep(0.01)
        served.asker.send(*[add(a_batch(first)) for first in range(1, 100)])
        gate.set()
        answer = await served.ask(add(a_batch(100)))
        assert answer.status is Status.OK
        assert served.asker.order == list(range(1, 102)), "answers come in the order of the requests"
        assert len(served.storage.commits) <= 3
        assert sum(isinstance(each, PutBatch) for commit in served.storage.commits for each in commit) == 101


async def test_a_commit_has_a_bound_in_bytes_but_always_takes_one() -> None:
    options = BookieTuning(storage="memory", commit_bytes_max=3000)
    async with serving(options) as served:
        served.storage.gate = threading.Event()
        served.asker.send(*[add(a_batch(first, payload=bytes(1000))) for first in range(10)])
        served.asker.send(add(a_batch(10, payload=bytes(100_000))))
        served.storage.gate.set()
        assert (await served.ask(add(a_batch(11)))).status is Status.OK
        sizes = [
            sum(len(each.batch.data) for each in commit if isinstance(each, PutBatch))
            for commit in served.storage.commits
        ]
        assert all(size <= 3000 or size > 100_000 for size in sizes)


async def test_one_thread_at_a_time_commits_even_inline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commits, "_FAST_COMMIT_S", 60.0)  # however busy the machine is
    options = BookieTuning(storage="memory", commit_inline_when_idle=True)

    class Watchful(FaultyStorage):
        inside = 0

        def commit(self, mutations: Sequence[object]) -> None:
            self.inside += 1
            assert self.inside == 1, "two threads commit at once"
            super().commit(mutations)  # type: ignore[arg-type]
            self.inside -= 1

    storage = Watchful(MemoryStorage(), is_instant=False)
    async with serving(options, storage=storage) as served, trio.open_nursery() as nursery:
        for first in range(3):
            await served.ask(add(a_batch(first)))
        storage.threads.clear()
        served.asker.send_waiting(add(a_batch(3)))
        assert storage.threads == {threading.current_thread()}
        storage.gate = gate = threading.Event()
        nursery.start_soon(served.server.drop, 7)  # waits in the commit thread
        await trio.sleep(0.01)
        served.asker.send_waiting(add(a_batch(4)))
        gate.set()


@each_kind
async def test_leaving_commits_accepted_adds_and_ends_the_thread(is_instant: bool) -> None:
    before = set(threading.enumerate())
    async with serving(is_instant=is_instant) as served:
        served.asker.send(*[add(a_batch(first)) for first in range(50)])
    assert served.storage.read(1, 49, 1, 1)
    left = [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("replog")]
    assert not left


@each_kind
async def test_an_exception_in_the_block_comes_out_as_it_is(is_instant: bool) -> None:
    with pytest.raises(ZeroDivisionError):
        async with serving(is_instant=is_instant):
            raise ZeroDivisionError


# -- fences ---------------------------------------------------------------------------------------------------------


@each_kind
async def test_fence_is_durable_before_any_dependent_answer(is_instant: bool) -> None:
    """R3: also the answers that there is no entry, or no ledger."""
    async with serving(is_instant=is_instant) as served:
        requests: list[Request] = [fence()]
        requests += [RecoveryReadRequest(0, ledger_id, KEY, 2, 5, 1) for ledger_id in (2, 3)]
        for number, request in enumerate(requests, 1):
            answer = await served.ask(request)
            assert answer.status is (Status.OK if number == 1 else Status.NO_ENTRY)
            marks = served.storage.marks(number)
            assert marks is not None
            assert (marks.fence_term, marks.key) == (2, stored_ledger_key(KEY))
        for ledger_id in (1, 2, 3):
            assert (await served.ask(add(a_batch(ledger_id=ledger_id)))).status is Status.FENCED
            assert (await served.ask(add(a_batch(ledger_id=ledger_id), 2, recovery=True))).status is Status.OK


async def test_no_answer_leaves_before_the_commit() -> None:
    async with serving() as served:
        served.storage.gate = threading.Event()
        served.asker.send(fence(), add(a_batch()), RecoveryReadRequest(0, 1, KEY, 2, 0, 1))
        await trio.sleep(0.05)
        assert not served.asker.answers
        served.storage.gate.set()
        await served.ask(fence())
        assert [served.asker.answers[each].status for each in (1, 2, 3)] == [Status.OK, Status.FENCED, Status.NO_ENTRY]


async def test_no_add_passes_a_fence_queued_when_the_disk_filled() -> None:
    """B2, R3: the machines are made anew after a failure, while what the old ones accepted still waits in the queue."""
    gates, begun = [threading.Event(), threading.Event()], [threading.Event(), threading.Event()]

    class FullOnce(FaultyStorage):
        """Has no room for a group, nor for its marks, nor for those of its first work."""

        def commit(self, mutations: Sequence[object]) -> None:
            turn = len(self.commits)
            if turn in (1, 4):
                begun[turn > 1].set()
                assert gates[turn > 1].wait(10)
            if 1 <= turn <= 3:
                self.commits.append([])
                raise FULL
            super().commit(mutations)  # type: ignore[arg-type]

    async with serving(storage=FullOnce(MemoryStorage(), is_instant=False)) as served:
        await served.ask(add(a_batch(0)))
        (doomed,) = served.asker.send(add(a_batch(1)))
        await until(begun[0].is_set)  # the commit thread is at it
        (fenced,) = served.asker.send(fence())
        gates[0].set()
        await until(lambda: fenced in served.asker.answers or begun[1].is_set())  # or it would commit the fence
        assert served.asker.answers[doomed].status is Status.READ_ONLY
        (late,) = served.asker.send(add(a_batch(2), recovery=True))
        gates[1].set()
        await served.ask(fence(ledger_id=2))
        statuses = [served.asker.answers[each].status for each in (fenced, late)]
        assert statuses == [Status.READ_ONLY, Status.OK], "an add passed a fence"
        assert served.storage.marks(1).fence_term == 1  # type: ignore[union-attr]


# -- identities and keys --------------------------------------------------------------------------------------------


@each_kind
async def test_other_bytes_for_an_identity_are_refused_and_not_stored(is_instant: bool) -> None:
    """T3."""
    async with serving(is_instant=is_instant) as served:
        first = a_batch(0, 10)
        assert (await served.ask(add(first))).status is Status.OK
        assert (await served.ask(add(first))).status is Status.OK  # a resend
        for other in (a_batch(0, 10, payload=b"y"), a_batch(5, 2), a_batch(9, 5), a_batch(0, 20)):
            answer = await served.ask(add(other))
            assert answer.status is Status.CONFLICT
            assert "other bytes" in answer.detail
        assert [batch.data for batch in served.storage.read(1, 0, 1, 1 << 20)] == [first.data]
        assert (await served.ask(add(a_batch(0, 10, payload=b"y", stamp=2), 2))).status is Status.OK  # another identity


@each_kind
async def test_a_wrong_key_neither_writes_fences_nor_reads(is_instant: bool) -> None:
    async with serving(is_instant=is_instant) as served:
        await served.ask(add(a_batch()))
        wrong = b"w" * 32
        for request in (
            add(a_batch(1), key=wrong),
            fence(key=wrong),
            read(key=wrong),
            RecoveryReadRequest(0, 1, wrong, 2, 0, 1),
            WriteLastAddConfirmedRequest(0, 1, wrong, 1, proof_of(0, ledger_id=1)),
            ReadLastAddConfirmedRequest(0, 1, wrong, -1, 0),
        ):
            assert (await served.ask(request)).status is Status.UNAUTHORIZED
        assert (await served.ask(add(a_batch(1)))).status is Status.OK


@each_kind
async def test_a_watch_shows_the_stored_key_instead_of_the_key(is_instant: bool) -> None:
    """M5, B7: a transport whose readers show no key vouches for the ledger by what the bookie stored for that."""
    async with serving(is_instant=is_instant) as served:
        await served.ask(add(a_batch()))
        assert (
            await served.ask(WriteLastAddConfirmedRequest(0, 1, KEY, 1, proof_of(0, ledger_id=1)))
        ).status is Status.OK
        stored = served.server.ledger(1).stored_key
        assert stored is not None
        found = await served.ask(WatchRequest(0, 1, b"", -1, 1000, stored_key=stored))
        assert (found.status, found.last_add_confirmed) == (Status.OK, 0)
        for wrong in (WatchRequest(0, 1, b"", -1, 0), WatchRequest(0, 1, b"", -1, 0, stored_key=bytes(32))):
            assert (await served.ask(wrong)).status is Status.UNAUTHORIZED
        assert (await served.ask(WatchRequest(0, 1, KEY, -1, 0))).status is Status.OK


async def test_a_damaged_copy_is_unknown_and_never_absent() -> None:
    async with serving() as served:
        await served.ask(add(a_batch()))
        served.storage.read_errors[1] = StorageUncertainError("a bad sector", "scrub")
        assert (await served.ask(read())).status is Status.UNKNOWN
        assert (await served.ask(RecoveryReadRequest(0, 1, KEY, 2, 0, 1))).status is Status.UNKNOWN
        assert (await served.ask(add(a_batch(), 2, recovery=True))).status is Status.UNKNOWN
        assert served.server.failure is None
        served.storage.read_errors.clear()
        assert (await served.ask(read())).status is Status.OK


# -- disks that fill up or fail -------------------------------------------------------------------------------------


@each_kind
async def test_a_full_disk_is_read_only_until_there_is_space(is_instant: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """B5. Of this disk nothing is known, so that only time and the next entry can tell."""
    look_often(monkeypatch)
    async with serving(is_instant=is_instant) as served:
        await served.ask(add(a_batch(0)))
        served.storage.commit_error = FULL
        for _ in range(3):
            answer = await served.ask(add(a_batch(1)))
            assert answer.status is Status.READ_ONLY
            assert "no space" in answer.detail
            assert served.server.is_read_only
            await until(lambda: not served.server.is_read_only)
        assert (await served.ask(read())).status is Status.OK
        assert (await served.ask(poll())).last_add_confirmed == -1
        served.storage.commit_error = None
        assert (await served.ask(add(a_batch(1)))).status is Status.OK
        assert not served.server.is_read_only
        assert [type(event) for event in served.events] == [StorageFailed] * 3


@each_kind
async def test_a_failed_storage_answers_unknown_permanently(is_instant: bool) -> None:
    """B1."""
    async with serving(is_instant=is_instant) as served:
        await served.ask(add(a_batch(0)))
        served.storage.commit_error = StorageFailedError("a sync failed", "restart the bookie")
        assert (await served.ask(add(a_batch(1)))).status is Status.UNKNOWN
        served.storage.commit_error = None
        for request in (add(a_batch(1)), fence(), RecoveryReadRequest(0, 1, KEY, 2, 0, 1)):
            answer = await served.ask(request)
            assert answer.status is Status.UNKNOWN
            assert "restart" in answer.detail
        with pytest.raises(StorageFailedError):
            await served.server.drop(1)
        assert len(served.storage.commits) == 1
        assert len(served.events) == 1


@each_kind
async def test_storage_fails_when_it_breaks_its_contract(is_instant: bool) -> None:
    """Else its thread would die, and everybody would wait."""
    async with serving(is_instant=is_instant) as served:
        served.storage.commit_error = OSError("bare")  # type: ignore[assignment]
        assert (await served.ask(add(a_batch(0)))).status is Status.UNKNOWN
        served.storage.commit_error = None
        assert (await served.ask(add(a_batch(0)))).status is Status.UNKNOWN
        assert isinstance(served.server.failure, StorageFailedError)


# -- bounds ---------------------------------------------------------------------------------------------------------


async def test_the_queue_has_a_bound_in_bytes() -> None:
    options = BookieOptions(storage="memory", queue_bytes_max=ENTRY_BYTES_MAX)
    async with serving(options) as served:
        served.storage.gate = threading.Event()
        mebibyte = bytes(1 << 20)
        ids = served.asker.send(*[add(a_batch(first, payload=mebibyte)) for first in range(20)])
        refused = [each for each in ids if each in served.asker.answers]
        assert {served.asker.answers[each].status for each in refused} == {Status.TOO_BUSY}
        assert len(refused) == 5
        served.storage.gate.set()
        await served.ask(fence(ledger_id=2))
        assert [served.asker.answers[each].status for each in ids[:15]] == [Status.OK] * 15
        assert (await served.ask(add(a_batch(20, payload=mebibyte)))).status is Status.OK
        assert served.server.statistics()["queued_bytes"] == 0


async def test_fences_are_taken_when_adds_fill_the_queue() -> None:
    """B9: whoever fills it, somebody else may fence, and tell a last add confirmed; recovery reads count what they find."""
    options = BookieOptions(storage="memory", queue_bytes_max=ENTRY_BYTES_MAX)
    async with serving(options) as served:
        served.storage.gate = threading.Event()
        ids = served.asker.send(*[add(a_batch(first, payload=bytes(1 << 20))) for first in range(20)])
        assert served.asker.answers[ids[-1]].status is Status.TOO_BUSY
        (fencing,) = served.asker.send(fence(ledger_id=2))
        (telling,) = served.asker.send(WriteLastAddConfirmedRequest(0, 3, KEY, 1, proof_of(1, ledger_id=3)))
        reads = served.asker.send(*[RecoveryReadRequest(0, 4, KEY, 2, 0, 1) for _ in range(100)])
        assert {served.asker.answers[each].status for each in reads[4:]} == {Status.TOO_BUSY}
        assert not {fencing, telling} & set(served.asker.answers)
        served.storage.gate.set()
        await served.ask(fence(ledger_id=2))
        assert served.asker.answers[fencing].status is served.asker.answers[telling].status is Status.OK
        assert served.server.statistics()["queued_bytes"] == 0


@pytest.mark.slow
async def test_machines_of_idle_ledgers_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_LEDGERS_MAX", 4096)
    async with serving(is_instant=True) as served:
        for ledger_id in range(1, 6000):
            served.asker.send(add(a_batch(ledger_id=ledger_id)))
            if ledger_id % 500 == 0:
                await trio.sleep(0.001)
        await trio.sleep(0.01)
        assert served.server.statistics()["ledgers_in_memory"] <= 4600
        assert (await served.ask(add(a_batch(payload=b"other")))).status is Status.CONFLICT


# -- long polls -----------------------------------------------------------------------------------------------------


async def test_a_long_poll_wakes_at_news_and_expires_without(autojump_clock: trio.testing.MockClock) -> None:
    async with serving(is_instant=True) as served:
        ask = served.ask
        assert (await ask(poll(wait_ms=0))).last_add_confirmed == -1
        started = trio.current_time()
        assert (await ask(poll(wait_ms=3000))).last_add_confirmed == -1
        assert 3 <= trio.current_time() - started < 3.1
        (waiting,) = served.asker.send(poll(wait_ms=20_000))
        (later,) = served.asker.send(poll(after=5, wait_ms=2000))
        await ask(add(a_batch(0)))
        assert waiting not in served.asker.answers
        await ask(add(a_batch(1)))  # carries that entry 0 is confirmed
        assert served.asker.answers[waiting].last_add_confirmed == 0
        await ask(WriteLastAddConfirmedRequest(0, 1, KEY, 1, proof_of(1, ledger_id=1)))
        assert (await ask(poll(after=0, wait_ms=5000))).last_add_confirmed == 1
        await trio.sleep(3)
        assert later in served.asker.answers
        assert served.server.statistics()["waiting_polls"] == 0


async def test_poll_waits_for_more_when_it_knows_the_news(autojump_clock: trio.testing.MockClock) -> None:
    """A bookie that lags behind has no news for who knows more than it."""
    async with serving(is_instant=True) as served:
        await served.ask(add(a_batch(0)))
        behind, ahead = served.asker.send(poll(wait_ms=9000), poll(after=1, wait_ms=9000))
        await served.ask(add(a_batch(1)))
        assert served.asker.answers[behind].last_add_confirmed == 0
        await served.ask(add(a_batch(2)))
        assert ahead not in served.asker.answers
        assert served.server.statistics()["waiting_polls"] == 1
        await served.ask(add(a_batch(3)))
        assert served.asker.answers[ahead].last_add_confirmed == 2
        assert served.server.statistics()["waiting_polls"] == 0


async def test_a_long_poll_is_bounded_by_the_bookie(autojump_clock: trio.testing.MockClock) -> None:
    options = BookieTuning(storage="memory", long_poll_max_s=1.0)
    async with serving(options, is_instant=True) as served:
        started = trio.current_time()
        await served.ask(poll(wait_ms=1_000_000))
        assert trio.current_time() - started < 1.1


async def test_answered_polls_are_forgotten_at_once(autojump_clock: trio.testing.MockClock) -> None:
    async with serving(is_instant=True) as served:
        for first in range(2000):
            served.asker.send(poll(after=first - 1, wait_ms=30_000))
            served.asker.send(add(a_batch(first)))
            await trio.lowlevel.checkpoint()
        assert served.server.statistics()["waiting_polls"] <= 1
        assert len(served.server._reads.polls._by_deadline) <= 1100


def poll_and_read(
    entry_id: int, after: int = -1, wait_ms: int = 0, bytes_max: int = 1 << 14
) -> ReadLastAddConfirmedRequest:
    return ReadLastAddConfirmedRequest(0, 1, KEY, after, wait_ms, entry_id, 1, bytes_max)


async def test_a_poll_brings_small_confirmed_batches_from_memory(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with serving(is_instant=True) as served:
        ask, send, answers = served.ask, served.asker.send, served.asker.answers
        zero, one, two, large = a_batch(0), a_batch(1), a_batch(2), a_batch(3, payload=bytes(1 << 14))
        waiting = send(*[poll_and_read(0, wait_ms=9000) for _ in range(3)])
        (old,) = send(poll(wait_ms=9000))
        await ask(add(zero))
        assert not answers.keys() & {*waiting, old}
        await ask(add(one))
        assert [answers[each].batches for each in waiting] == [(zero,)] * 3
        assert (answers[old].last_add_confirmed, answers[old].batches) == (0, ())
        answer = await ask(poll_and_read(1))
        assert (answer.last_add_confirmed, answer.batches) == (0, ())  # it is here, and not confirmed
        await ask(add(two))
        assert (await ask(poll_and_read(0))).batches == (zero, one)  # news at once, and nothing that is not confirmed
        (waiting_for_more,) = send(poll_and_read(2, after=1, wait_ms=9000))
        await ask(add(large))
        assert answers[waiting_for_more].batches == (two,)
        await ask(WriteLastAddConfirmedRequest(0, 1, KEY, 1, proof_of(3, ledger_id=1)))
        assert (await ask(poll_and_read(3))).batches == ()  # larger than was asked for
        assert (await ask(poll_and_read(2))).batches == (two,)
        assert (await ask(poll_and_read(3, bytes_max=1 << 15))).batches == (large,)
        assert (await ask(poll_and_read(0, bytes_max=-1))).batches == ()
        wrong_stamp = ReadLastAddConfirmedRequest(0, 1, KEY, -1, 0, 0, 2, 1 << 14)
        assert (await ask(wrong_stamp)).batches == ()
        (expiring,) = send(poll_and_read(2, after=3, wait_ms=1000))
        await trio.sleep(2)
        assert answers[expiring].batches == (two,)
        served.storage.read_errors[1] = StorageUncertainError("damaged")
        answer = await ask(poll_and_read(0))
        assert (answer.status, answer.last_add_confirmed, answer.batches) == (Status.OK, 3, ())


async def test_however_much_a_poll_asks_for_it_brings_little() -> None:
    async with serving(is_instant=True) as served:
        for first in range(10):
            await served.ask(add(a_batch(first, payload=bytes(20_000))))
        answer = await served.ask(poll_and_read(0, bytes_max=1 << 62))
        assert [each.first_entry_id for each in answer.batches] == [0, 1, 2]
        await served.ask(add(a_batch(10, payload=bytes(70_000))))
        await served.ask(WriteLastAddConfirmedRequest(0, 1, KEY, 1, proof_of(10, ledger_id=1)))
        assert (await served.ask(poll_and_read(10, bytes_max=1 << 62))).batches == ()


async def test_a_poll_waits_for_no_disk() -> None:
    async with serving(is_instant=False) as served:
        await served.ask(add(a_batch(0)))
        await served.ask(add(a_batch(1)))
        answer = await served.ask(poll_and_read(0))
        assert (answer.last_add_confirmed, answer.batches) == (0, ())


@each_kind
async def test_writer_learns_of_a_waiting_reader(is_instant: bool, patient_clock: trio.testing.MockClock) -> None:
    """W5."""
    options = BookieTuning(storage="memory", long_poll_max_s=0.2)
    async with serving(options, is_instant=is_instant) as served:
        ask, send, answers = served.ask, served.asker.send, served.asker.answers
        assert not (await ask(add(a_batch(0)))).awaited
        send(poll(after=0, wait_ms=9000))
        (other,) = send(poll(after=0, wait_ms=9000, ledger_id=2))
        assert (await ask(add(a_batch(1)))).awaited
        assert not (await ask(add(a_batch(2)))).awaited  # it was news
        assert (await ask(add(a_batch(0, ledger_id=2)))).awaited
        (expiring, last) = send(poll(after=1, wait_ms=9000), poll(after=1, wait_ms=9000))
        await until(lambda: {expiring, last, other} <= answers.keys())
        assert not (await ask(add(a_batch(3)))).awaited
        assert not (await ask(add(a_batch(1, ledger_id=2)))).awaited


@each_kind
async def test_writer_is_notified_once_when_a_poll_follows_the_answer(
    is_instant: bool, patient_clock: trio.testing.MockClock
) -> None:
    """W5: the answer to the last add could not tell, so a message of its own does. Only the writer's connection gets it."""
    async with serving(is_instant=is_instant) as served:
        ask, told, reader = served.ask, served.asker.awaited, Asker(served.server)
        await ask(add(a_batch(0)))
        assert told == []
        reader.send(poll(after=-1, wait_ms=9000))
        assert told == [1]
        reader.send(poll(after=-1, wait_ms=9000))
        assert told == [1]
        assert (await ask(add(a_batch(1)))).awaited is False  # its header answered both
        reader.send(poll(after=1, wait_ms=9000))  # it has heard elsewhere of all that is stored
        assert told == [1]
        reader.send(poll(after=0, wait_ms=9000))
        assert told == [1, 1]
        assert (await ask(add(a_batch(2)))).awaited
        reader.send(poll(after=1, wait_ms=9000))
        assert told == [1, 1]  # the answer told
        await ask(WriteLastAddConfirmedRequest(0, 1, KEY, 1, proof_of(2, ledger_id=1)))
        reader.send(poll(after=2, wait_ms=9000), poll(after=2, wait_ms=9000, ledger_id=2))
        assert told == [1, 1]
        assert reader.awaited == []


async def test_a_writer_learns_of_an_earlier_poll_by_the_answer() -> None:
    """W5: an add that waits for the disk is answered soon: nothing else needs to be said."""
    async with serving() as served:
        await served.ask(add(a_batch(0)))
        served.storage.gate = threading.Event()
        (second,) = served.asker.send(add(a_batch(1)))
        served.asker.send(poll(after=0, wait_ms=9000))
        served.storage.gate.set()
        await until(lambda: second in served.asker.answers)
        assert served.asker.answers[second].awaited
        assert served.asker.awaited == []


# -- dropping -------------------------------------------------------------------------------------------------------


@each_kind
async def test_a_dropped_ledger_stays_fenced(is_instant: bool) -> None:
    """L5: a writer that wakes up after its ledger was trimmed away finds it fenced, also after a restart."""
    storage = FaultyStorage(MemoryStorage(), is_instant=is_instant)
    async with serving(storage=storage) as served:
        await served.ask(add(a_batch(0)))
        await served.server.drop(1)
        assert storage.ledger_ids() == []
        answer = await served.ask(add(a_batch(1)))
        assert (answer.status, answer.fence_term) == (Status.FENCED, DELETED_TERM)
        assert (await served.ask(read())).status is Status.NO_ENTRY
    async with serving(storage=storage) as served:
        assert (await served.ask(add(a_batch(1)))).status is Status.FENCED
        assert storage.ledger_ids() == []


async def test_add_accepted_around_a_drop_never_outlives_it() -> None:
    async with serving() as served, trio.open_nursery() as nursery:
        await served.ask(add(a_batch(0)))
        served.storage.gate = threading.Event()
        before = served.asker.send(add(a_batch(1)))
        nursery.start_soon(served.server.drop, 1)
        await trio.sleep(0.01)
        after = served.asker.send(
            add(a_batch(2)), fence(), WriteLastAddConfirmedRequest(0, 1, KEY, 1, proof_of(1, ledger_id=1))
        )
        served.storage.gate.set()
        await served.ask(fence(ledger_id=2))
        assert served.asker.answers[before[0]].status is Status.OK
        assert {served.asker.answers[each].status for each in after} == {Status.FENCED}
        assert served.storage.ledger_ids() == [2]


async def test_drop_reports_full_space_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    look_often(monkeypatch)
    async with serving() as served:
        await served.ask(add(a_batch(0)))
        served.storage.commit_error = FULL
        with pytest.raises(StorageFullError):
            await served.server.drop(1)
        served.storage.commit_error = None
        await until(lambda: not served.server.is_read_only)
        assert (await served.ask(add(a_batch(1)))).status is Status.OK
        assert any(isinstance(each, SetMarks) for commit in served.storage.commits for each in commit)


async def test_adds_of_two_connections_share_commits() -> None:
    """An inline commit is one for each connection: where several take turns, the thread gathers for all of them."""
    options = BookieTuning(storage="memory", commit_inline_when_idle=True)
    storage = FaultyStorage(MemoryStorage(), is_instant=False)
    async with serving(options, storage=storage) as served:
        other = Asker(served.server)
        for first in range(4):
            await served.ask(add(a_batch(first)))
        storage.threads.clear()
        for first in range(4, 8):
            asker = (other, served.asker)[first % 2]
            request_id = asker.send_waiting(add(a_batch(first)))
            await until(lambda: request_id in asker.answers)  # noqa: B023 - it is awaited here
        assert threading.current_thread() not in storage.threads


async def test_answers_for_one_connection_come_together() -> None:
    storage = FaultyStorage(MemoryStorage(), is_instant=False)
    async with serving(storage=storage) as served:
        told: list[int] = []
        server = served.server
        server.handle([add(a_batch(each)) for each in range(5)], lambda responses: told.append(len(responses)))
        with trio.fail_after(5):
            while sum(told) < 5:  # noqa: ASYNC110
                await trio.sleep(0.001)
        assert len(told) < 5
