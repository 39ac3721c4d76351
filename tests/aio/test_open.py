"""Contexts that asyncio programs open without a block: for the life of their event loop, and what ends with it."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import trio

import replog
from replog import aio
from replog.aio.contexts import Opening
from replog.config.client import ClientTuning
from replog.errors import ClosedError, StorageInUseError, WrongEventLoopError
from tests.aio.kit import DEADLINE_S, under_asyncio
from tests.forks import run
from tests.kit import deafen_leaders

held: dict[str, Any] = {}  # as a module's globals are


async def records_of(directory: Path) -> list[bytes]:
    async with aio.embed(directory) as client, client.read_log("log") as reader:
        return [record.data async for record in reader]


async def recover(directory: Path) -> None:
    """As whoever writes next does after a crash: nobody closed the ledger."""
    async with aio.embed(directory) as client, client.write_log("log"):
        pass


def run_script(script: str, directory: Path, *options: str) -> str:
    """Runs it in a process of its own, which must end well; returns what it wrote to standard error."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", *options, "-c", textwrap.dedent(script)]
    done = run(command, cwd=directory, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    return str(done.stderr)


@under_asyncio
async def test_opened_object_outlives_its_task(tmp_path: Path) -> None:
    async def handle_a_request() -> aio.Client:
        return await aio.embed(tmp_path).open()

    client = await asyncio.create_task(handle_a_request())
    log = await client.write_log("log").open()
    gc.collect()
    assert await log.append(b"one") == replog.Position(1, 0)
    await log.aclose()
    await log.aclose()
    with pytest.raises(ClosedError):
        await log.append(b"late")
    async with client.read_log("log") as reader:
        assert [record.data async for record in reader] == [b"one"]
    await client.aclose()
    with pytest.raises(ClosedError):
        await client.logs()
    assert not trio.lowlevel.in_trio_run()


def test_unclosed_clients_are_left_alone_when_the_loop_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[str] = []
    leave = Opening.leave

    async def told(opening: Opening, error: BaseException | None = None) -> None:
        left.append(type(opening._given).__name__)
        await leave(opening, error)

    @under_asyncio
    async def serve() -> None:
        async def handle_a_request() -> None:
            held["client"] = await aio.embed(tmp_path).open()
            held["log"] = await held["client"].write_log("log").open()

        await asyncio.create_task(handle_a_request())
        gc.collect()
        await held["log"].append(b"confirmed")
        await held["log"].push(b"pushed")

    monkeypatch.setattr(Opening, "leave", told)
    serve()
    assert left == ["LogWriter", "Client"]
    assert not trio.lowlevel.in_trio_run()
    monkeypatch.undo()
    with pytest.raises(WrongEventLoopError):
        asyncio.run(held["log"].append(b"in another event loop"))
    assert asyncio.run(records_of(tmp_path)) == [b"confirmed", b"pushed"]


@under_asyncio
async def test_a_context_is_entered_once(tmp_path: Path) -> None:
    """What a second one gave was mixed up with the first, which nobody could leave any more."""
    context = aio.embed(tmp_path)
    client = await context.open()
    writing = client.write_log("log")
    log = await writing.open()
    for again in (context, writing):
        with pytest.raises(ClosedError, match="entered before"):
            await again.open()
    await log.append(b"x")
    await log.aclose()
    with pytest.raises(ClosedError, match="entered before"):
        async with writing:
            pass
    await client.aclose()
    async with aio.embed(tmp_path):
        busy = aio.embed(tmp_path)
        with pytest.raises(StorageInUseError):
            await busy.open()
    # One that could not be entered may be tried again.
    await (await busy.open()).aclose()


def test_a_failing_close_at_loop_end_leaves_no_other_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    complaints: list[Any] = []
    deafen_leaders(monkeypatch)

    async def serve() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["exception"]))
        # The old writer must not learn that it is deposed before it pushes, as it would when it publishes what is confirmed (W5).
        options = ClientTuning(explicit_last_add_confirmed_after_s=60.0)
        client = await aio.embed(tmp_path, options=options).open()
        old = await client.write_log("log").open()
        await old.append(b"old")
        async with client.write_log("log") as new:
            await new.append(b"new")
        old.push_nowait(b"in doubt")

    asyncio.run(serve())
    (fenced,) = complaints
    assert isinstance(fenced, replog.FencedError)
    assert asyncio.run(records_of(tmp_path)) == [b"old", b"new"]


@under_asyncio
async def test_closing_in_a_block_or_twice_at_once_leaves_once(tmp_path: Path) -> None:
    async with aio.embed(tmp_path) as client:
        async with client.write_log("log") as log:
            await log.push(b"pushed")
            await asyncio.gather(log.aclose(), log.aclose())
            with pytest.raises(ClosedError):
                await log.append(b"late")
        async with client.read_log("log") as reader:
            assert [record.data async for record in reader] == [b"pushed"]


@under_asyncio
async def test_failed_opening_without_a_block_keeps_nothing(tmp_path: Path) -> None:
    with pytest.raises(replog.ConfigError):
        await aio.connect("nonsense:").open()
    client = await aio.embed(tmp_path).open()
    with pytest.raises(replog.errors.LogNotFoundError):
        await client.read_log("nothing").open()
    await client.aclose()
    assert not trio.lowlevel.in_trio_run()


FORGETTING = """
    import asyncio
    from replog import aio

    async def main():
        global log
        client = await aio.embed("wal").open()
        log = await client.write_log("log").open()
        await log.append(b"confirmed")

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
"""


@pytest.mark.parametrize("end", ["", "loop.close()", "loop.close(); asyncio.run(asyncio.sleep(0.5))"])
def test_forgotten_clients_are_reported_and_hang_nothing(tmp_path: Path, end: str) -> None:
    said = run_script(textwrap.dedent(FORGETTING) + end, tmp_path, "-W", "always::ResourceWarning")
    (warning,) = [line for line in said.splitlines() if "ResourceWarning: replog.aio" in line]
    assert "LogWriter" in warning
    assert "Client" in warning
    assert "Traceback" not in said
    asyncio.run(recover(tmp_path / "wal"))
    assert asyncio.run(records_of(tmp_path / "wal")) == [b"confirmed"]


FORKING = """
    import asyncio, os, sys
    import pytest
    import replog, replog.blocking
    from replog import aio

    def child():
        hooks = "post_fork hook, uWSGI's @postfork or Celery's worker_process_init"
        waiting = [
            lambda: log.append(b"child"), lambda: log.push(b"child"), lambda: log.extend([b"child"]), log.flush, log.roll,
            reader.receive, reader.receive_batch, client.logs, lambda: client.write_log("log").open(),
            lambda: client.read_log("log").__aenter__(), lambda: aio.embed("other").open(),
        ]
        for verb in waiting:
            with pytest.raises(replog.errors.ForkedError, match=hooks):
                asyncio.new_event_loop().run_until_complete(verb())
        for verb in [lambda: log.push_nowait(b"child"), log.statistics, lambda: log.last_add_confirmed, client.statistics,
                     reader.receive_batch_nowait]:
            with pytest.raises(replog.errors.ForkedError, match=hooks):
                verb()
        asyncio.new_event_loop().run_until_complete(log.aclose())
        with replog.blocking.embed(f"other-{os.getpid()}") as own, own.write_log("log") as own_log:
            own_log.append(b"child")

    async def main():
        global client, log, reader
        client = await aio.embed("wal").open()
        log = await client.write_log("log").open()
        await log.append(b"one")
        reader = await client.read_log("log", follow=True).open()
        await reader.receive()
        pid = os.fork()
        if pid == 0:
            try:
                child()
            except BaseException as error:
                print(repr(error), file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        await log.append(b"two")

    asyncio.run(main())
"""


def test_use_in_a_fork_raises_at_once_and_leaving_is_harmless(tmp_path: Path) -> None:
    assert run_script(FORKING, tmp_path) == ""
    assert asyncio.run(records_of(tmp_path / "wal")) == [b"one", b"two"]


@under_asyncio
async def test_a_fork_by_another_thread_opens_a_client_of_its_own(tmp_path: Path) -> None:
    """The child has no thread but that one, so an event loop of its own works there."""

    def fork() -> int:
        pid = os.fork()
        if pid == 0:
            asyncio.run(write(tmp_path / "other"))
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    async def write(directory: Path) -> None:
        async with aio.embed(directory) as own, own.write_log("log") as log:
            await log.append(b"child")

    async with aio.embed(tmp_path / "wal") as client, client.write_log("log") as log:
        await log.append(b"parent")
        assert await asyncio.to_thread(fork) == 0
    assert await records_of(tmp_path / "other") == [b"child"]
