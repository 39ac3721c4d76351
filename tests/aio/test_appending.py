"""Appends without a task of trio's: how they are confirmed, and what they raise when writer, run or loop end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import replog
from replog import aio
from replog.aio.call_soon import HostCallSoon
from replog.bookie import commits
from replog.bookie.commits import GroupCommit
from replog.bookie.groups import Committer, Group
from replog.errors import ClosedError
from replog.runtime.kernel_sync import KernelSync, open_kernel_sync
from tests.aio.kit import DEADLINE_S, under_asyncio
from tests.aio.test_open import run_script

APPENDS = 50


class Disk:
    """Where all commits of this test wait while it is stopped; and the threads that committed."""

    def __init__(self) -> None:
        self.threads: set[int] = set()
        self.waits = threading.Event()
        self._goes_on = threading.Event()
        self._goes_on.set()

    def stop(self) -> None:
        self.waits.clear()
        self._goes_on.clear()

    def go_on(self) -> None:
        self._goes_on.set()

    def commit(self) -> None:
        self.threads.add(threading.get_ident())
        self.waits.set()
        assert self._goes_on.wait(DEADLINE_S)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk, process = Disk(), Committer.process

    def commit(committer: Committer, works: list[Any]) -> Group:
        disk.commit()
        return process(committer, works)

    monkeypatch.setattr(Committer, "process", commit)
    yield disk
    disk.go_on()


def test_lone_appends_need_no_trio_turn_nor_commit_in_the_loop(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each turn of a guest that has to wait costs two changes of thread."""
    woken = [0]
    wake = HostCallSoon.turn_from_any_thread

    def counted(turns: HostCallSoon, function: Any) -> None:
        woken[0] += 1
        wake(turns, function)

    @under_asyncio
    async def append() -> None:
        async with aio.embed(tmp_path) as client, client.write_log("log") as log:
            await log.append(b"first")
            await asyncio.sleep(0.01)  # what the takeover left to be done
            woken[0], began_s = 0, time.monotonic()
            for _ in range(APPENDS):
                await log.append(b"one by one")
                await log.extend([b"some", b"more"])
                await log.push(b"pushed")
                await log.flush()
            # Timers take some 20 turns a second; without the short way each of the four calls took two.
            assert woken[0] < APPENDS + 40 * (time.monotonic() - began_s)

    monkeypatch.setattr(HostCallSoon, "turn_from_any_thread", counted)
    append()
    assert threading.get_ident() not in disk.threads


@under_asyncio
async def test_appends_go_on_in_order_while_a_log_rolls(tmp_path: Path) -> None:
    async with aio.embed(tmp_path) as client, client.write_log("log") as log:
        positions: list[replog.Position] = []
        counts = [0] * 10
        is_rolled = False

        async def append(task: int) -> None:
            is_last = False
            while not is_last:
                is_last = is_rolled
                positions.append(await log.append(b"%d %d" % (task, counts[task])))
                counts[task] += 1
                await log.flush()

        async def roll() -> None:
            nonlocal is_rolled
            for _ in range(3):
                await log.roll()
            is_rolled = True

        await asyncio.gather(*(append(task) for task in range(10)), roll())
        assert {1, 4} <= {position.segment for position in positions}
        async with client.read_log("log") as reader:
            found = [(record.position, record.data) async for record in reader]
    assert sorted(positions) == [position for position, _ in found]
    for task in range(10):
        own = [data for _, data in found if data.startswith(b"%d " % task)]
        assert own == [b"%d %d" % (task, number) for number in range(counts[task])]


@under_asyncio
async def test_a_cancelled_append_is_confirmed_and_delays_no_other(tmp_path: Path, disk: Disk) -> None:
    async with aio.embed(tmp_path) as client, client.write_log("log") as log:
        disk.stop()
        appends = [asyncio.ensure_future(log.append(b"%d" % number)) for number in range(4)]
        flush = asyncio.ensure_future(log.flush())
        await asyncio.to_thread(disk.waits.wait, DEADLINE_S)
        appends[0].cancel()
        appends[2].cancel()
        disk.go_on()
        # The answer of the commit and the cancellation may come in the same turn.
        told = await asyncio.gather(*appends, flush, return_exceptions=True)
        assert [type(each) for each in told[:3:2]] == [asyncio.CancelledError] * 2
        assert told[1::2] == [replog.Position(1, 1), replog.Position(1, 3)]
        async with client.read_log("log") as reader:
            assert [record.data async for record in reader] == [b"0", b"1", b"2", b"3"]


@under_asyncio
async def test_leaving_on_an_error_ends_unconfirmed_appends(tmp_path: Path, disk: Disk) -> None:
    async with aio.embed(tmp_path) as client:
        with pytest.raises(KeyError):
            async with client.write_log("log") as log:
                await log.append(b"confirmed")
                disk.stop()
                appends = [asyncio.ensure_future(verb) for verb in (log.append(b"x"), log.extend([b"y"]), log.flush())]
                await asyncio.to_thread(disk.waits.wait, DEADLINE_S)
                asyncio.get_running_loop().call_later(0.05, disk.go_on)  # closing the ledger waits for the disk, too
                raise KeyError
        for append in appends:
            assert append.done() or isinstance((await asyncio.gather(append, return_exceptions=True))[0], ClosedError)
        with pytest.raises(ClosedError):
            await log.append(b"late")
        with pytest.raises(ClosedError):
            await log.extend([])
        with pytest.raises(ClosedError):
            await log.flush()


def test_closing_the_loop_during_a_commit_ends_the_commit_thread(tmp_path: Path) -> None:
    script = """
        import asyncio, threading
        from pathlib import Path
        from replog import aio
        from replog.bookie.groups import Committer

        process, begun, goes_on = Committer.process, threading.Event(), threading.Event()

        def wait_and_process(committer, works):
            begun.set()
            assert goes_on.wait(60)
            return process(committer, works)

        async def append():
            log = await (await aio.embed(Path("wal")).open()).write_log("log").open()
            Committer.process = wait_and_process
            return asyncio.ensure_future(log.append(b"under way"))

        loop = asyncio.new_event_loop()
        appending = loop.run_until_complete(append())
        assert loop.run_until_complete(loop.run_in_executor(None, begun.wait, 60))
        (thread,) = [each for each in threading.enumerate() if each.name == "replog commit"]
        loop.close()
        goes_on.set()
        thread.join(60)
        assert not thread.is_alive() and not appending.done()
        """
    told = run_script(script, tmp_path, "-W", "always::ResourceWarning")
    assert "replog.aio: an event loop ended, and left open" in told
    assert "Exception in thread" not in told


def test_answer_error_ends_the_run_and_all_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    async def append() -> None:
        async with aio.embed(tmp_path) as client, client.write_log("log") as log:
            await log.append(b"one")
            with monkeypatch.context() as patch:
                patch.setattr(GroupCommit, "_answer", fail)
                with pytest.raises(ClosedError):
                    await log.append(b"two")

    with pytest.raises(ExceptionGroup) as raised:
        asyncio.run(append())
    assert raised.value.subgroup(ZeroDivisionError) is not None


def test_loops_of_several_threads_append_at_once(tmp_path: Path) -> None:
    failures: list[BaseException] = []

    def serve(number: int) -> None:
        async def append() -> None:
            async with aio.embed(tmp_path / str(number)) as client, client.write_log("log") as log:
                await asyncio.gather(*(log.append(b"%d" % each) for each in range(APPENDS)))
                async with client.read_log("log") as reader:
                    assert [record.data async for record in reader] == [b"%d" % each for each in range(APPENDS)]

        try:
            asyncio.run(append())
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert failures == []


@under_asyncio
async def test_lone_appends_are_synced_without_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = open_kernel_sync()
    if sync is None:
        pytest.skip("this kernel has no asynchronous I/O, or does not allow it")
    sync.close()
    monkeypatch.setattr(commits, "_FAST_COMMIT_S", 60.0)  # however busy the machine is
    began: list[int] = []
    begin = KernelSync.begin

    def begin_here(sync: KernelSync, fd: int) -> None:
        began.append(threading.get_ident())
        begin(sync, fd)

    monkeypatch.setattr(KernelSync, "begin", begin_here)
    async with aio.embed(tmp_path) as client, client.write_log("log") as log:
        for number in range(APPENDS):
            await log.append(b"%d" % number)
    assert set(began) == {threading.get_ident()}
    assert len(began) > APPENDS // 2
    async with aio.embed(tmp_path) as client, client.read_log("log") as reader:
        assert [record.data async for record in reader] == [b"%d" % number for number in range(APPENDS)]
