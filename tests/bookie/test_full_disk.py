"""Requests at a bookie whose disk runs full: what is refused, what goes on, and what is durable (B1, B5, R3, T1)."""

from __future__ import annotations

import threading

import pytest
import trio

from replog.backends.memory import MemoryStorage
from replog.config import BookieOptions
from replog.errors import StorageFailedError
from replog.hookspecs import StorageFailed
from replog.protocol.messages import RecoveryReadRequest, Request, Status, WriteLastAddConfirmedRequest
from replog.protocol.mutations import DELETED_TERM
from tests.bookie.disks import SmallStorage
from tests.bookie.test_server import KEY, Served, a_batch, add, each_kind, fence, look_often, read, serving
from tests.kit import until
from tests.protocol.bookies import proof_of

OPTIONS = BookieOptions(storage="memory", read_only_below_bytes=10_000)


def small(left_bytes: int | None, *, is_instant: bool = False) -> SmallStorage:
    return SmallStorage(MemoryStorage(), left_bytes, is_instant=is_instant)


def large(first: int, size_bytes: int, ledger_id: int = 1, stamp: int = 1) -> Request:
    return add(a_batch(first, ledger_id=ledger_id, payload=bytes(size_bytes), stamp=stamp), stamp)


# -- a disk that says that it will be full soon -----------------------------------------------------------------------


@each_kind
async def test_only_new_entries_are_refused_below_the_bound(is_instant: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """B5."""
    look_often(monkeypatch)
    storage = small(30_000, is_instant=is_instant)
    async with serving(OPTIONS, storage=storage) as served:
        for ledger_id in (1, 2):
            assert (await served.ask(add(a_batch(0, ledger_id=ledger_id)))).status is Status.OK
        storage.left_bytes = 9_999
        await until(lambda: served.server.is_read_only)
        commits = len(storage.commits)
        (refused,) = served.asker.send(add(a_batch(1)))
        assert served.asker.answers[refused].status is Status.READ_ONLY, "it waited for something"
        assert "9999 bytes are free" in served.asker.answers[refused].detail
        assert len(storage.commits) == commits
        for request in (
            WriteLastAddConfirmedRequest(0, 1, KEY, 1, proof_of(0, ledger_id=1)),
            fence(),
            add(a_batch(1), 2, recovery=True),
            RecoveryReadRequest(0, 1, KEY, 2, 1, 1),
            read(1),
        ):
            assert (await served.ask(request)).status is Status.OK
        await served.server.drop(2)
        assert storage.marks(2).fence_term == DELETED_TERM  # type: ignore[union-attr]
        assert served.server.is_read_only, "a commit that succeeds says nothing of the space for new entries"
        (event,) = served.events
        assert isinstance(event, StorageFailed)
        await until(lambda: served.server.statistics()["free_bytes"] < 9_999)  # once it has looked again


@each_kind
async def test_it_takes_new_entries_again_above_the_upper_bound(
    is_instant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_often(monkeypatch)
    storage = small(0, is_instant=is_instant)
    async with serving(OPTIONS, storage=storage) as served:
        assert served.server.is_read_only, "it knows before the first request"
        storage.left_bytes = 19_999
        await trio.sleep(0.05)
        assert (await served.ask(add(a_batch(0)))).status is Status.READ_ONLY
        storage.left_bytes = 20_000
        await until(lambda: not served.server.is_read_only)
        assert (await served.ask(add(a_batch(0)))).status is Status.OK


async def test_a_failed_look_at_the_disk_stops_the_bookie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look_often(monkeypatch)
    threads = set()

    class Failing(SmallStorage):
        error: Exception | None = None

        def free_bytes(self) -> int | None:
            threads.add(threading.current_thread())
            if self.error is not None:
                raise self.error
            return super().free_bytes()

    storage = Failing(MemoryStorage(), 1 << 30, is_instant=False)
    async with serving(OPTIONS, storage=storage) as served:
        await until(lambda: len(threads) > 0)
        assert threading.current_thread() not in threads
        storage.error = OSError("bare")
        await until(lambda: served.server.failure is not None)
        assert isinstance(served.server.failure, StorageFailedError)
        assert served.server.is_read_only
        assert (await served.ask(add(a_batch(0), recovery=True))).status is Status.UNKNOWN


@each_kind
async def test_a_failed_storage_stays_read_only_despite_free_space(
    is_instant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_often(monkeypatch)
    storage = small(1 << 30, is_instant=is_instant)
    async with serving(OPTIONS, storage=storage) as served:
        storage.commit_error = StorageFailedError("a sync failed", "restart the bookie")
        assert (await served.ask(add(a_batch(0)))).status is Status.UNKNOWN
        storage.commit_error = None
        await trio.sleep(0.1)
        assert served.server.is_read_only
        assert (await served.ask(add(a_batch(0)))).status is Status.UNKNOWN


async def test_failing_full_bookie_reports_both(monkeypatch: pytest.MonkeyPatch) -> None:
    look_often(monkeypatch)
    storage = small(100)
    async with serving(OPTIONS, storage=storage) as served:
        storage.commit_error = StorageFailedError("a sync failed", "restart the bookie")
        await served.ask(fence())
        assert [type(event.error).__name__ for event in served.events if isinstance(event, StorageFailed)] == [
            "StorageFullError",
            "StorageFailedError",
        ]


async def test_a_deposed_writer_gets_fenced_from_a_full_bookie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """L5: else it would look for another bookie until its deadline. And R3: not before the fence is durable."""
    look_often(monkeypatch)
    storage = small(30_000)
    async with serving(OPTIONS, storage=storage) as served:
        await served.ask(add(a_batch(0)))
        storage.left_bytes = 9_999
        await until(lambda: served.server.is_read_only)
        gate = storage.hang("commit")
        ids = served.asker.send(fence(), add(a_batch(1)), add(a_batch(1), key=b"w" * 32))
        await until(storage.begun["commit"].is_set)
        assert not served.asker.answers.keys() & set(ids), "answered before the fence was durable"
        gate.set()
        await until(lambda: set(ids) <= served.asker.answers.keys())
        assert [served.asker.answers[each].status for each in ids] == [Status.OK, Status.FENCED, Status.UNAUTHORIZED]


# -- a commit that finds no space ---------------------------------------------------------------------------------------


def surprising(left_bytes: int) -> SmallStorage:
    """A disk that does not tell how much is left."""
    storage = small(left_bytes)
    storage.tells_space = False
    return storage


async def send_in_one_group(served: Served, *requests: Request) -> list[Status]:
    """Hands requests over while a commit is under way, so that they are committed together; returns their answers."""
    storage = served.storage
    assert isinstance(storage, SmallStorage)
    gate = storage.hang("commit")
    blocking = served.asker.send(fence(ledger_id=99))
    with trio.fail_after(5):
        await trio.to_thread.run_sync(storage.begun["commit"].wait, 5)
    ids = served.asker.send(*requests)
    del storage.gates["commit"]
    gate.set()
    await until(lambda: all(each in served.asker.answers for each in blocking + ids))
    return [served.asker.answers[each].status for each in ids]


async def test_recovery_adds_are_accepted_beside_refused_entries() -> None:
    """B5: one group of new adds, recovery adds, fences, recovery reads and explicit last add confirmed; only the new go."""
    async with serving(storage=surprising(5_000)) as served:
        assert (await served.ask(add(a_batch(0, ledger_id=4)))).status is Status.OK
        answers = await send_in_one_group(
            served,
            large(0, 4_000),
            fence(ledger_id=2),
            add(a_batch(0, ledger_id=3), 2, recovery=True),
            RecoveryReadRequest(0, 4, KEY, 2, 0, 1),
            large(1, 4_000),
            WriteLastAddConfirmedRequest(0, 5, KEY, 1, proof_of(7, ledger_id=5)),
            fence(ledger_id=1),
        )
        ok, refused = Status.OK, Status.READ_ONLY
        assert answers == [refused, ok, ok, ok, refused, ok, ok]
        marks = {ledger_id: served.storage.marks(ledger_id) for ledger_id in (1, 2, 3, 4, 5)}
        assert {ledger_id: found.fence_term for ledger_id, found in marks.items() if found} == {
            1: 2,
            2: 2,
            3: 2,
            4: 2,
            5: 1,
        }
        assert served.storage.read(3, 0, 1, 1)
        assert served.storage.read(1, 0, 1, 1) == []
        assert served.server.is_read_only
        assert len(served.events) == 1


async def test_copies_fit_alone_when_all_together_are_too_large() -> None:
    """B5: a fence, and above all a dropped ledger, which makes space, are not lost to a recovery add beside them."""
    async with serving(storage=surprising(3_000)) as served, trio.open_nursery() as nursery:
        assert (await served.ask(add(a_batch(0, ledger_id=7)))).status is Status.OK
        assert isinstance(served.storage, SmallStorage)
        too_large = add(a_batch(0, payload=bytes(4_000)), 2, recovery=True)
        gate = served.storage.hang("commit")
        served.asker.send(fence(ledger_id=99))
        await trio.to_thread.run_sync(served.storage.begun["commit"].wait, 5)
        ids = served.asker.send(fence(ledger_id=2), too_large, fence(), add(a_batch(9, ledger_id=3), 2, recovery=True))
        nursery.start_soon(served.server.drop, 7)
        await trio.sleep(0.02)
        gate.set()
        await until(lambda: all(each in served.asker.answers for each in ids))
        await until(lambda: "drop 7" in served.storage.calls)  # type: ignore[attr-defined]
        statuses = [served.asker.answers[each].status for each in ids]
        assert statuses == [Status.OK, Status.READ_ONLY, Status.OK, Status.OK]
        assert served.storage.read(3, 9, 1, 1)


async def test_an_answered_fence_is_durable_when_its_add_is_refused() -> None:
    """R3, T1: the add of term 5 finds no space, and behind it in the same group one of term 4 learns that it is fenced."""
    storage = surprising(3_000)
    async with serving(storage=storage) as served:
        answers = await send_in_one_group(served, large(0, 4_000, stamp=5), add(a_batch(0, stamp=4), 4, recovery=True))
        assert answers == [Status.READ_ONLY, Status.FENCED]
    async with serving(storage=small_again(storage)) as served:
        assert (await served.ask(add(a_batch(0, stamp=4), 4, recovery=True))).status is Status.FENCED


def small_again(storage: SmallStorage) -> SmallStorage:
    """The disk after a restart, with more space."""
    return SmallStorage(storage.inner, 1 << 30, is_instant=False)


async def test_key_of_refused_adds_is_kept() -> None:
    """B7: an add behind them in the same group is told that the key is another one's: so it must be after a restart."""
    storage = surprising(3_000)
    foreign = add(a_batch(0), key=b"f" * 32)
    async with serving(storage=storage) as served:
        answers = await send_in_one_group(served, large(0, 4_000), large(1, 4_000), foreign)
        assert answers == [Status.READ_ONLY, Status.READ_ONLY, Status.UNAUTHORIZED]
    async with serving(storage=small_again(storage)) as served:
        assert (await served.ask(add(a_batch(0), key=b"f" * 32))).status is Status.UNAUTHORIZED
        assert (await served.ask(add(a_batch(0)))).status is Status.OK


async def test_the_last_add_confirmed_of_a_refused_batch_is_kept() -> None:
    """A fence behind it tells it, and must be able to tell it again after a restart."""
    storage = surprising(3_000)
    async with serving(storage=storage) as served:
        assert await send_in_one_group(served, large(5, 4_000), fence()) == [Status.READ_ONLY, Status.OK]
        assert (await served.ask(fence())).last_add_confirmed == 4
        assert storage.marks(1).last_add_confirmed == 4  # type: ignore[union-attr]
        assert storage.marks(1).last_entry_id == -1  # type: ignore[union-attr]


async def test_all_later_requests_are_refused_when_marks_find_no_space() -> None:
    """R3: nobody learns of a fence that is not durable; the machines are made anew."""
    storage = surprising(100)
    async with serving(storage=storage) as served:  # room for the fence of ledger 99, and for nothing else
        answers = await send_in_one_group(
            served, large(0, 200, stamp=5), add(a_batch(0, stamp=4), 4, recovery=True), fence(ledger_id=2)
        )
        assert answers == [Status.READ_ONLY] * 3
        assert storage.marks(1) is None
        storage.left_bytes = None
        answer = await served.ask(add(a_batch(0, stamp=4), 4, recovery=True))
        assert answer.status is Status.OK, "it was told to be fenced by a fence that never was"


async def test_adds_durable_before_the_disk_filled_are_acknowledged() -> None:
    """One by one: the first fence still fits, the second does not."""
    storage = surprising(64 * 2)
    async with serving(storage=storage) as served:
        assert await send_in_one_group(served, fence(ledger_id=2), fence(ledger_id=3)) == [Status.OK, Status.READ_ONLY]
        assert storage.marks(2) is not None
        assert storage.marks(3) is None


async def test_a_resend_of_stored_entries_is_confirmed_on_a_full_disk() -> None:
    """T3: it needs no space."""
    storage = surprising(3_000)
    async with serving(storage=storage) as served:
        assert (await served.ask(add(a_batch(0)))).status is Status.OK
        answers = await send_in_one_group(served, add(a_batch(0)), large(1, 4_000), add(a_batch(0)))
        assert answers == [Status.OK, Status.READ_ONLY, Status.OK]


async def test_a_new_entry_costs_one_more_commit_without_space() -> None:
    storage = surprising(3_000)
    async with serving(storage=storage) as served:
        answers = await send_in_one_group(served, *[large(first, 1_000) for first in range(50)])
        assert set(answers) == {Status.READ_ONLY}
        assert len(storage.commits) <= 2  # the blocking fence's, and that of the marks
