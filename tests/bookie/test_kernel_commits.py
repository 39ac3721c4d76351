"""Lone commits that the event loop writes and the kernel syncs: in order, told when durable, failing as others do (B1, B2)."""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from replog.backends.files.options import FilesOptions
from replog.backends.files.storage import open_storage
from replog.bookie import commits, kernel_commits
from replog.bookie.server import BookieServer
from replog.config.bookie import BookieTuning
from replog.errors import StorageFailedError
from replog.protocol.messages import AddRequest, Response, Status
from replog.runtime.event_loop import HostLoop, use_host_loop
from replog.runtime.kernel_sync import KernelSync
from replog.runtime.lent_thread import lent_thread
from replog.testing.disk import MemoryDisk
from replog.testing.storage_conformance import make_batch
from tests.bookie.test_server import Asker, add, fence
from tests.runtime.test_kernel_sync import PretendedKernel

OPTIONS = BookieTuning(close_timeout_s=30.0)


class TrioHost(HostLoop):
    """The trio run of the test as if it were the guest of another event loop."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.watched: dict[int, trio.CancelScope] = {}
        self._nursery = nursery
        self._token = trio.lowlevel.current_trio_token()

    def soon(self, call: Callable[[], object]) -> None:
        self._token.run_sync_soon(call)

    def soon_from_any_thread(self, call: Callable[..., object], /, *arguments: Any) -> None:
        self._token.run_sync_soon(call, *arguments)

    def watch(self, descriptor: int, call: Callable[[], object]) -> Callable[[], object]:
        scope = self.watched[descriptor] = trio.CancelScope()

        async def run() -> None:
            with scope:
                while True:
                    await trio.lowlevel.wait_readable(descriptor)
                    call()

        self._nursery.start_soon(run)
        return lambda: self.watched.pop(descriptor).cancel()


class HeldDisk(MemoryDisk):
    """Syncs that were begun end when they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.is_held = False
        self.begun: list[int] = []
        self._held: tuple[int, KernelSync] | None = None

    def begin_fdatasync(self, fd: int, sync: KernelSync) -> None:
        self.begun.append(threading.get_ident())
        if self.is_held:
            self._held = fd, sync
        else:
            super().begin_fdatasync(fd, sync)

    def let_go(self) -> None:
        assert self._held is not None
        (fd, sync), self._held, self.is_held = self._held, None, False
        super().begin_fdatasync(fd, sync)

    def fail_syncs(self) -> None:
        def fault(operation: str, path: str) -> None:
            if operation == "fdatasync" and "journal" in path:
                raise OSError(errno.EIO, "Input/output error", path)

        self.fault = fault


class Hosted:
    """A bookie whose event loop must not wait, on a disk in memory."""

    def __init__(self, disk: HeldDisk, server: BookieServer) -> None:
        self.disk = disk
        self.server = server
        self.asker = Asker(server)

    def send_lone(self, first: int, size_bytes: int = 100) -> int:
        return self.asker.send_waiting(lone(first, size_bytes))

    def send_followed(self, first: int) -> int:
        """Other bookies in this thread get the same entry next."""
        return self.asker.send_waiting(lone(first), is_followed=True)

    def send_followed_unseen(self, first: int) -> int:
        """The same as `send_followed`, but its sync ends a moment later, and the event loop has not looked yet."""
        self.disk.is_held = True
        request_id = self.send_followed(first)
        self.disk.let_go()
        return request_id

    async def until_answered(self, *request_ids: int) -> list[Status]:
        with trio.fail_after(60):
            while not all(each in self.asker.answers for each in request_ids):  # noqa: ASYNC110 - some come from a thread
                await trio.sleep(0.001)
        return [self.asker.answers[each].status for each in request_ids]

    async def ask_lone(self, first: int, size_bytes: int = 100) -> Status:
        return (await self.until_answered(self.send_lone(first, size_bytes)))[0]


def lone(first: int, size_bytes: int = 100) -> AddRequest:
    return add(make_batch(1, first, 1, size_bytes=size_bytes))


@pytest.fixture(autouse=True)
def any_disk_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "_FAST_COMMIT_S", 60.0)  # however busy the machine is


@asynccontextmanager
async def hosted(
    monkeypatch: pytest.MonkeyPatch, options: BookieTuning = OPTIONS, *, is_guest: bool = True
) -> AsyncIterator[Hosted]:
    """A bookie that has committed once, in its thread."""
    monkeypatch.setattr(kernel_commits, "open_kernel_sync", lambda: KernelSync(PretendedKernel()))
    disk = HeldDisk()
    storage = open_storage("/st", FilesOptions(), disk=disk)
    async with trio.open_nursery() as nursery:
        host = TrioHost(nursery)
        if is_guest:
            use_host_loop(host)
        server = BookieServer(storage, options, lambda event: None)
        try:
            async with server.running():
                found = Hosted(disk, server)
                assert await found.ask_lone(0) is Status.OK
                assert disk.begun == []
                yield found
        finally:
            await server.calls.close(options.close_timeout_s)
            assert host.watched == {}


async def test_a_lone_add_needs_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hosted(monkeypatch) as bookie:
        for first in range(1, 5):
            assert await bookie.ask_lone(first) is Status.OK
        assert bookie.disk.begun == [threading.get_ident()] * 4
        assert bookie.server.statistics()["commits"] == 5


async def test_adds_during_a_sync_form_the_next_group(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hosted(monkeypatch) as bookie:
        bookie.disk.is_held = True
        ids = [bookie.send_lone(first) for first in range(1, 5)]
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert bookie.asker.order == [1], "nothing is durable yet"
        bookie.disk.let_go()
        assert await bookie.until_answered(*ids) == [Status.OK] * 4
        assert bookie.asker.order == [1, *ids]
        assert len(bookie.disk.begun) == 1
        assert bookie.server.statistics()["commits"] == 3
        assert await bookie.ask_lone(5) is Status.OK
        assert len(bookie.disk.begun) == 2


async def test_failed_sync_fails_all_accepted_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    """B1: the storage stops, and what builds on what failed fails with it."""
    async with hosted(monkeypatch) as bookie:
        bookie.disk.is_held = True
        ids = [bookie.send_lone(first) for first in range(1, 4)]
        bookie.disk.fail_syncs()
        bookie.disk.let_go()
        assert await bookie.until_answered(*ids) == [Status.UNKNOWN] * 3
        assert "could not sync" in bookie.asker.answers[ids[0]].detail
        assert isinstance(bookie.server.failure, StorageFailedError)
        assert await bookie.ask_lone(4) is Status.UNKNOWN
        left = bookie.disk.after_power_loss(random.Random(1))
    storage = open_storage("/st", FilesOptions(), disk=left)
    assert storage.read(1, 0, 1, 1 << 20), "what was confirmed is there"
    assert storage.doubt().doubted_below == 0
    storage.close()


async def test_leaving_waits_for_the_sync_and_the_gathered_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    ids: list[int] = []
    async with trio.open_nursery() as nursery, hosted(monkeypatch) as bookie:
        bookie.disk.is_held = True
        ids += [bookie.send_lone(first) for first in range(1, 4)]

        async def let_go() -> None:
            await trio.sleep(0.05)
            assert bookie.asker.order == [1]
            bookie.disk.let_go()

        nursery.start_soon(let_go)
    assert [bookie.asker.answers[each].status for each in ids] == [Status.OK] * 3
    assert bookie.asker.order == [1, *ids]


async def test_endless_sync_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hosted(monkeypatch, BookieTuning(close_timeout_s=0.1)) as bookie:
        bookie.disk.is_held = True
        request_id = bookie.send_lone(1)
    assert request_id not in bookie.asker.answers
    problem = await bookie.server.calls.close(0.1)
    assert problem is not None
    assert "has not returned, and it was not closed" in str(problem)
    bookie.disk.let_go()
    assert await bookie.server.calls.close(60.0) is None


async def test_commit_goes_to_the_thread_when_it_may_wait_or_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hosted(monkeypatch) as bookie:
        assert await bookie.ask_lone(1, kernel_commits._BYTES_MAX) is Status.OK
        ids = bookie.asker.send(add(make_batch(1, 2, 1)))
        ids += bookie.asker.send(fence(2))
        assert await bookie.until_answered(*ids) == [Status.OK, Status.OK]
        assert bookie.disk.begun == []


async def test_a_slow_disk_gets_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hosted(monkeypatch) as bookie:
        monkeypatch.setattr(commits, "_FAST_COMMIT_S", 0.0)
        assert await bookie.ask_lone(1) is Status.OK
        assert bookie.disk.begun == []


async def test_refusing_kernel_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hosted(monkeypatch) as bookie:
        refusing = KernelSync(PretendedKernel())
        refusing.is_refused = True
        monkeypatch.setattr(kernel_commits, "open_kernel_sync", lambda: refusing)
        assert await bookie.ask_lone(1) is Status.OK
        assert bookie.disk.begun == []


async def test_a_full_disk_refuses_as_in_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """B5: nothing happened, and the thread finds out what there is space for."""
    async with hosted(monkeypatch) as bookie:
        failing: list[int] = [errno.ENOSPC] * 2

        def fault(operation: str, path: str) -> None:
            if operation == "pwritev" and "journal" in path and failing:
                raise OSError(failing.pop(), "No space left on device", path)

        bookie.disk.fault = fault
        assert await bookie.ask_lone(1) is Status.READ_ONLY
        assert failing == []


async def test_there_is_none_without_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hosted(monkeypatch) as bookie:
        monkeypatch.setattr(kernel_commits, "open_kernel_sync", lambda: None)
        assert await bookie.ask_lone(1) is Status.OK
        monkeypatch.setattr(kernel_commits, "open_kernel_sync", lambda: pytest.fail("it was asked twice"))
        assert await bookie.ask_lone(2) is Status.OK
        assert bookie.disk.begun == []


# -- where trio has its thread for itself, and other bookies get the entry next ------------------------------------------


INLINE = BookieTuning(close_timeout_s=30.0, commit_inline_when_idle=True)


async def test_followed_commit_is_left_to_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hosted(monkeypatch, INLINE, is_guest=False) as bookie:
        assert await bookie.ask_lone(1) is Status.OK
        assert bookie.disk.begun == [], "nothing else is asked next: it is committed at once"
        bookie.disk.is_held = True
        request_id = bookie.send_followed(2)
        assert bookie.disk.begun == [threading.get_ident()]
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert request_id not in bookie.asker.answers, "it is not durable yet (B1)"
        bookie.disk.let_go()
        assert await bookie.until_answered(request_id) == [Status.OK]


async def test_lone_commits_use_the_kernel_when_threads_must_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hosted(monkeypatch, is_guest=False) as bookie:
        assert await bookie.ask_lone(1) is Status.OK
        assert await bookie.until_answered(bookie.send_followed(2)) == [Status.OK]
        assert len(bookie.disk.begun) == 2


async def test_commit_gets_a_thread_when_none_is_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pushing caller goes on meanwhile, and its thread must not wait."""
    async with hosted(monkeypatch, INLINE, is_guest=False) as bookie:
        assert await bookie.until_answered(*bookie.asker.send(lone(1))) == [Status.OK]
        assert bookie.disk.begun == []


async def test_the_last_bookie_looks_at_those_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """No event loop turns meanwhile. A sync that is still under way is seen by the event loop."""
    async with hosted(monkeypatch, INLINE, is_guest=False) as one, hosted(monkeypatch, INLINE, is_guest=False) as two:
        first, last = lone(1), lone(1)

        def send() -> None:
            one.asker.send(first)
            two.asker.send(last)

        lent_thread().lend(send)
        assert one.asker.answers[first.request_id].status is Status.OK
        assert two.asker.answers[last.request_id].status is Status.OK
        assert (len(one.disk.begun), len(two.disk.begun)) == (1, 0), "the last one commits in the thread"
        one.disk.is_held = True
        first, last = lone(2), lone(2)
        lent_thread().lend(send)
        assert two.asker.answers[last.request_id].status is Status.OK
        assert first.request_id not in one.asker.answers
        one.disk.let_go()
        assert await one.until_answered(first.request_id) == [Status.OK]


async def test_next_add_finds_the_previous_one_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """B2: that is answered first. A task that appends in a loop may let no event loop look in between."""
    async with hosted(monkeypatch, INLINE, is_guest=False) as bookie:
        for first in range(1, 5):
            bookie.send_followed_unseen(first)
        assert bookie.asker.order == [1, 2, 3, 4]
        request_id = bookie.send_lone(5)
        assert bookie.asker.order == [1, 2, 3, 4, 5, request_id]
        assert len(bookie.disk.begun) == 4
        assert bookie.server.statistics()["commits"] == 6


async def test_gathered_adds_continue_after_a_held_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hosted(monkeypatch, INLINE, is_guest=False) as bookie:
        bookie.disk.is_held = True
        ids = [bookie.send_followed(1), bookie.send_followed(2), bookie.send_lone(3)]
        assert bookie.asker.order == [1]
        bookie.disk.let_go()
        ids.append(bookie.send_followed(4))
        assert await bookie.until_answered(*ids) == [Status.OK] * 4
        assert bookie.asker.order == [1, *ids]


async def test_a_failed_sync_is_found_by_the_next_add(monkeypatch: pytest.MonkeyPatch) -> None:
    """B1: that fails, too, as it was accepted upon what is not durable."""
    async with hosted(monkeypatch, INLINE, is_guest=False) as bookie:
        bookie.disk.is_held = True
        ids = [bookie.send_followed(1)]
        bookie.disk.fail_syncs()
        bookie.disk.let_go()
        ids.append(bookie.send_followed(2))
        assert await bookie.until_answered(*ids) == [Status.UNKNOWN] * 2
        assert isinstance(bookie.server.failure, StorageFailedError)


async def test_copies_in_the_queue_are_not_overtaken(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hosted(monkeypatch, INLINE, is_guest=False) as bookie:
        bookie.disk.is_held = True
        ids = [bookie.send_followed(1)]
        bookie.server._commits.queue.is_parted = True
        bookie.disk.let_go()
        ids.append(bookie.send_followed(2))
        assert ids[0] not in bookie.asker.answers, "the event loop does it"
        assert await bookie.until_answered(*ids) == [Status.OK] * 2
        assert bookie.asker.order == [1, *ids]


async def test_add_during_a_sync_is_left_to_the_kernel_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hosted(monkeypatch, INLINE, is_guest=False) as bookie:
        bookie.disk.is_held = True
        ids = [bookie.send_followed(1), bookie.send_lone(2)]
        bookie.disk.let_go()
        assert await bookie.until_answered(*ids) == [Status.OK] * 2
        assert bookie.asker.order == [1, *ids]
        assert bookie.disk.begun == [threading.get_ident()] * 2


class Pursuing(Asker):
    """Sends the next add within the call that brings an answer, as a client does that has more to append."""

    def __init__(self, server: BookieServer) -> None:
        super().__init__(server)
        self.following: list[AddRequest] = []
        self.sent: list[int] = []

    def _answered(self, responses: Sequence[Response]) -> None:
        super()._answered(responses)
        if self.following:
            self.sent.append(self.send_waiting(self.following.pop(0)))


async def test_answer_may_start_the_commit_of_gathered_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    """B2: then nothing is left to commit, and nothing is lost."""
    async with hosted(monkeypatch, INLINE, is_guest=False) as bookie:
        bookie.asker = asker = Pursuing(bookie.server)
        assert await bookie.ask_lone(1) is Status.OK
        bookie.disk.is_held = True
        ids = [bookie.send_followed(first) for first in (2, 3)]
        asker.following.append(lone(4))
        bookie.disk.let_go()
        assert await bookie.until_answered(*ids) == [Status.OK] * 2
        assert await bookie.until_answered(*asker.sent) == [Status.OK]
        assert asker.order[1:] == [*ids, *asker.sent]
        assert await bookie.ask_lone(5) is Status.OK
