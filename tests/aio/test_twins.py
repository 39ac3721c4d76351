"""Every test of `replog.blocking` has its twin here; those twins that have no other place."""

from __future__ import annotations

import ast
import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import traceback
from pathlib import Path

import pytest
import trio
import trio.testing

import replog
from replog import aio
from replog.aio.host import Host
from replog.errors import ClosedError
from tests.aio.kit import DEADLINE_S, under_asyncio
from tests.aio.test_open import records_of, recover, run_script
from tests.forks import Forked

TESTS = Path(__file__).parents[1]
# What has another name, since tasks are not threads and a cancellation is no interruption.
TWINS = {
    "test_a_follower_can_be_interrupted_and_reads_on": "test_a_follower_can_be_cancelled_and_reads_on",
    "test_a_fork_opens_a_client_of_its_own_in_another_directory": "test_a_fork_by_another_thread_opens_a_client_of_its_own",
    "test_a_fork_while_threads_append_hangs_neither_process": "test_a_fork_while_tasks_append_hangs_neither_process",
    "test_commands_of_many_threads_are_applied_once": "test_commands_of_many_tasks_are_applied_once",
    # The loop's own thread applies commands, so nobody else changes the state while a task looks at it.
    "test_local_state_is_a_copy": "test_local_state_changes_only_while_the_task_waits",
    "test_leaving_the_client_ends_the_calls_of_other_threads": "test_leaving_the_client_ends_the_calls_of_other_tasks",
    "test_repairs_are_served_until_the_client_is_left": "test_repairs_are_served_until_cancelled",
    "test_many_threads_append_at_once_and_share_batches": "test_many_tasks_append_at_once_and_share_batches",
    # The interpreter runs no code of an async generator that it collects at its end.
    "test_nothing_is_reported_of_objects_collected_at_shutdown": (
        "test_unclosed_clients_are_left_alone_when_the_loop_ends"
    ),
    "test_position_and_commit_cover_only_returned_entries": ("test_cursor_commit_covers_only_returned_entries"),
    "test_reading_crosses_the_threads_once_for_many_entries": "test_reading_waits_seldom_for_many_entries",
    "test_the_client_goes_on_after_an_interrupted_wait_to_lead": (
        "test_waiting_to_lead_can_be_cancelled_and_the_client_goes_on"
    ),
    "test_opened_object_outlives_its_thread": "test_opened_object_outlives_its_task",
    "test_failed_opening_gives_the_reason_and_leaves_no_thread": "test_run_ends_with_the_reason_when_opening_fails",
    "test_unclosed_clients_are_left_alone_when_the_process_ends": (
        "test_unclosed_clients_are_left_alone_when_the_loop_ends"
    ),
    "test_the_client_is_usable_after_an_interrupt_before_a_block": (
        "test_a_client_is_usable_after_a_block_cancelled_at_its_start"
    ),
}


OF_THREADS = "test_calls.py"  # how threads reach the trio thread: tasks of asyncio are in it


def names_in(folder: str) -> set[str]:
    paths = [path for path in (TESTS / folder).glob("test_*.py") if path.name != OF_THREADS]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in paths]
    functions = [
        node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return {node.name for node in functions if node.name.startswith("test_")}


def test_every_test_of_blocking_has_its_twin() -> None:
    theirs, ours = names_in("blocking"), names_in("aio")
    assert len(theirs) > 30
    assert sorted(name for name in theirs if TWINS.get(name, name) not in ours) == []
    assert sorted(TWINS.keys() - theirs) == [], "these are not there any more"


# -- errors ---------------------------------------------------------------------------------------------------------


@under_asyncio
async def test_an_error_keeps_its_class_and_shows_the_caller(tmp_path: Path) -> None:
    async with aio.embed(tmp_path) as client:
        with pytest.raises(replog.errors.LogNotFoundError) as caught:
            await client.trim_log("nothing", before="1:0")
        frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert "test_an_error_keeps_its_class_and_shows_the_caller" in frames
        assert "trim_log" in frames
        with pytest.raises(replog.ConfigError):
            await client.create_ledger(quorum=replog.Quorum(1, 2, 1)).open()


@under_asyncio
async def test_a_call_with_tasks_of_its_own_is_ended_like_any_other(tmp_path: Path) -> None:
    running = asyncio.Event()

    async def sleepers() -> None:
        async with trio.open_nursery() as nursery:  # when cancelled, it raises a group
            for _ in range(2):
                nursery.start_soon(trio.sleep_forever)
            await trio.testing.wait_all_tasks_blocked(0.01)
            running.set()

    async with aio.embed(tmp_path) as client:
        host: Host = vars(client)["_way"]
        calling = asyncio.ensure_future(host.call(sleepers))
        await running.wait()
    with pytest.raises(ClosedError):
        await calling


@under_asyncio
async def test_a_client_is_usable_after_a_block_cancelled_at_its_start(tmp_path: Path) -> None:
    async with aio.embed(tmp_path) as client:
        for turns in range(8):
            opening = asyncio.ensure_future(client.write_log("log").open())
            for _ in range(turns):
                await asyncio.sleep(0)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError) as raised:
                await opening
            assert not hasattr(raised.value, "__notes__")
        async with client.write_log("log") as log:
            assert (await log.append(b"as ever")).entry == 0


# -- reading --------------------------------------------------------------------------------------------------------


@under_asyncio
async def test_following_with_a_timeout_goes_on_where_it_was(tmp_path: Path) -> None:
    async with aio.embed(tmp_path) as client, client.write_log("log") as log:
        async with client.read_log("log", follow=True) as reader:
            found: list[replog.Record] = []
            for number in range(3):
                position = await log.append(b"%d" % number)
                while not found or found[-1].position < position:  # more than one round on a slow machine
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(0.2):
                            async for record in reader:
                                found.append(record)
            await log.roll()
            await log.append(b"3")
            assert (await reader.receive()).data == b"3"
    assert [record.data for record in found] == [b"0", b"1", b"2"]


@under_asyncio
async def test_batches_keep_their_order_with_any_verb(tmp_path: Path) -> None:
    async with aio.embed(tmp_path) as client:
        async with client.write_log("log") as log:
            for number in range(20):
                await log.append(b"%d" % number)
        async with client.read_log("log") as reader:
            first = await reader.receive_batch()
            assert first is not None
            second = reader.receive_batch_nowait()
            assert second.first_position == replog.Position(1, first.last_position.entry + 1)
            assert reader.position == second.last_position
            rest = [record.data async for record in reader]
    assert [*first.payloads(), *second.payloads(), *rest] == [b"%d" % number for number in range(20)]


# -- programs -------------------------------------------------------------------------------------------------------


def test_program_ends_without_leaving_its_block(tmp_path: Path) -> None:
    script = """
        import asyncio
        from replog import aio

        async def main():
            global contexts
            contexts = [aio.embed("wal")]
            client = await contexts[0].__aenter__()
            contexts.append(client.write_log("log"))
            await (await contexts[1].__aenter__()).append(b"confirmed")

        asyncio.run(main())
    """
    assert run_script(script, tmp_path) == ""
    asyncio.run(recover(tmp_path / "wal"))
    assert asyncio.run(records_of(tmp_path / "wal")) == [b"confirmed"]


def test_an_interrupted_program_ends_with_everything_closed(tmp_path: Path) -> None:
    script = """
        import asyncio
        from replog import aio

        async def main():
            async with aio.embed("wal") as client, client.write_log("log") as log:
                print(await log.append(b"confirmed"), flush=True)
                async with client.read_log("log", follow=True) as reader:
                    async for record in reader:
                        pass

        asyncio.run(main())
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with Forked(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "1:0\n"
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=DEADLINE_S)
    assert program.returncode == -signal.SIGINT
    assert errors.strip().endswith("KeyboardInterrupt")
    assert asyncio.run(records_of(tmp_path / "wal")) == [b"confirmed"]


# -- forking --------------------------------------------------------------------------------------------------------


def test_a_fork_does_not_keep_the_directory_of_a_dead_parent(tmp_path: Path) -> None:
    script = """
        import asyncio, os, signal
        from replog import aio

        async def parent():
            async with aio.embed("wal") as client, client.write_log("log") as log:
                await log.append(b"confirmed")
                if os.fork() == 0:
                    os.write(told, b"%d\\n" % os.getpid())
                    signal.pause()
                os.kill(os.getpid(), signal.SIGKILL)

        async def read():
            async with aio.embed("wal") as client, client.write_log("log"), client.read_log("log") as reader:
                assert [record.data async for record in reader] == [b"confirmed"]

        gone, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            asyncio.run(parent())
        orphan = int(os.read(gone, 100))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        try:
            asyncio.run(read())
        finally:
            os.kill(orphan, signal.SIGKILL)
    """
    assert run_script(script, tmp_path) == ""


@under_asyncio
async def test_a_fork_while_tasks_append_hangs_neither_process(tmp_path: Path) -> None:
    """Children are forked by another thread, as `multiprocessing` in `asyncio.to_thread` does."""

    async def write(directory: Path) -> None:
        async with aio.embed(directory) as own, own.write_log("log") as own_log:
            await own_log.append(b"child")

    def in_child() -> int:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                with pytest.raises(replog.errors.ForkedError):
                    log.push_nowait(b"child")
                asyncio.run(write(tmp_path / f"other-{os.getpid()}"))
                status = 0
            finally:
                os._exit(status)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    async def append() -> None:
        while not is_done:
            await log.append(b"parent")

    is_done = False
    async with aio.embed(tmp_path / "wal") as client:
        async with client.write_log("log") as log:
            tasks = [asyncio.ensure_future(append()) for _ in range(4)]
            assert [await asyncio.to_thread(in_child) for _ in range(5)] == [0] * 5
            is_done = True
            await asyncio.gather(*tasks)
            last = log.last_add_confirmed
        async with client.read_log("log") as reader:
            records = [record async for record in reader]
        assert records[-1].position == last
        assert {record.data for record in records} == {b"parent"}
