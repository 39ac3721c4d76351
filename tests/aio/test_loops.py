"""What is essential, in asyncio's own event loop and in uvloop's; and what a timeout leaves behind in both."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import trio

import replog
from replog import aio
from replog.errors import ClosedError
from tests.aio import test_aio, test_appending, test_open
from tests.aio.kit import run_under

NewLoop = Callable[[], asyncio.AbstractEventLoop]
FOLLOWERS = 50
ESSENTIAL = [
    test_aio.test_a_log_is_written_read_rolled_trimmed_and_deleted,
    test_aio.test_a_ledger_is_written_read_recovered_and_deleted,
    test_aio.test_leaving_confirms_pushed_entries_and_ends_everything,
    test_aio.test_many_tasks_append_at_once_and_share_batches,
    test_aio.test_a_cancelled_append_leaves_the_writer_usable,
    test_aio.test_a_follower_can_be_cancelled_and_reads_on,
    test_aio.test_waiting_to_lead_can_be_cancelled_and_the_client_goes_on,
    test_aio.test_a_cancelled_call_has_ended_before_its_caller_goes_on,
    test_aio.test_task_cancelled_in_a_block_leaves_the_block,
    test_aio.test_leaving_the_client_ends_the_calls_of_other_tasks,
    test_aio.test_reading_waits_seldom_for_many_entries,
    test_appending.test_appends_go_on_in_order_while_a_log_rolls,
    test_appending.test_lone_appends_are_synced_without_a_thread,
    test_open.test_opened_object_outlives_its_task,
]


@pytest.fixture(params=["asyncio", "uvloop"])
def new_loop(request: pytest.FixtureRequest) -> NewLoop:
    if request.param == "asyncio":
        return asyncio.new_event_loop
    uvloop = pytest.importorskip("uvloop", reason="pip install uvloop, or 'replog[test]'")
    found: NewLoop = uvloop.new_event_loop
    return found


@pytest.mark.parametrize("test", ESSENTIAL, ids=lambda each: each.__name__.removeprefix("test_"))
def test_essential_calls_work_in_uvloop(
    test: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uvloop = pytest.importorskip("uvloop", reason="pip install uvloop, or 'replog[test]'")
    body: Callable[..., Coroutine[Any, Any, None]] = inspect.unwrap(test)
    known: dict[str, object] = {"tmp_path": tmp_path, "monkeypatch": monkeypatch}
    run_under(uvloop.new_event_loop, lambda: body(**{name: known[name] for name in inspect.signature(body).parameters}))


def test_open_objects_are_left_when_any_loop_ends(tmp_path: Path, new_loop: NewLoop) -> None:
    async def serve() -> None:
        log = await (await aio.embed(tmp_path).open()).write_log("log").open()
        await log.push(b"pushed")

    async def read() -> None:
        async with aio.embed(tmp_path) as client, client.read_log("log") as reader:
            assert [record.data async for record in reader] == [b"pushed"]

    run_under(new_loop, serve)
    assert not trio.lowlevel.in_trio_run()
    run_under(new_loop, read)


def test_followers_need_no_threads(tmp_path: Path, new_loop: NewLoop) -> None:
    async def follow_often() -> None:
        async with aio.embed(tmp_path) as client, client.write_log("log") as log:
            await log.append(b"one")
            before = threading.active_count()
            readers = [await client.read_log("log", follow=True).open() for _ in range(FOLLOWERS)]
            for reader in readers:
                assert (await reader.receive()).data == b"one"
            waiting = [asyncio.ensure_future(reader.receive()) for reader in readers]
            await asyncio.sleep(0.05)
            # trio's own helper threads come and go, a few at most.
            assert threading.active_count() < before + 5
            await log.append(b"two")
            assert {record.data for record in await asyncio.gather(*waiting)} == {b"two"}
            for reader in readers:
                await reader.aclose()

    run_under(new_loop, follow_often)


# -- timeouts -------------------------------------------------------------------------------------------------------


def test_writer_continues_after_an_append_timed_out(tmp_path: Path, new_loop: NewLoop) -> None:
    """A cancelled append has an unknown outcome (W4); order and the writer stay as they are."""

    async def append() -> None:
        async with aio.embed(tmp_path) as client:
            async with client.write_log("log") as log:
                timed_out = 0
                for number in range(30):
                    try:
                        async with asyncio.timeout(0 if number % 3 else None):
                            await log.append(b"%02d" % number)
                    except TimeoutError:
                        timed_out += 1
                assert timed_out > 0
                assert await log.append(b"last") == log.last_add_confirmed
            async with client.read_log("log") as reader:
                found = [record.data async for record in reader]
        assert found == sorted(found)
        assert {b"%02d" % number for number in range(0, 30, 3)} | {b"last"} <= set(found)

    run_under(new_loop, append)


def test_read_loses_nothing_when_it_times_out(tmp_path: Path, new_loop: NewLoop) -> None:
    async def read() -> None:
        async with aio.embed(tmp_path) as client, client.write_log("log") as log:
            async with client.read_log("log", follow=True) as reader:
                found: list[bytes] = []
                for number in range(20):
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(0.002):
                            while True:
                                found.append((await reader.receive()).data)
                    await log.append(b"%d" % number)
                while len(found) < 20:
                    found.append((await reader.receive()).data)
            assert found == [b"%d" % number for number in range(20)]

    run_under(new_loop, read)


def test_candidate_leads_nothing_when_its_turn_times_out(tmp_path: Path, new_loop: NewLoop) -> None:
    async def lead() -> None:
        async with aio.embed(tmp_path) as client, client.lead_log("log") as log:
            for timeout_s in (0.0, 0.001, 0.05):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(timeout_s):
                        await client.lead_log("log").open()
            assert await log.append(b"still leads") == log.last_add_confirmed
            await log.aclose()
            async with asyncio.timeout(20), client.lead_log("log") as next_log:
                await next_log.append(b"those that timed out stand in nobody's way")
            with pytest.raises(ClosedError):
                await log.append(b"late")

    run_under(new_loop, lead)


def test_takeover_writes_nothing_when_it_times_out(tmp_path: Path, new_loop: NewLoop) -> None:
    """If `write_log` is cancelled, the last writer may be fenced."""

    async def take_over() -> None:
        async with aio.embed(tmp_path) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.001), client.write_log("log"):
                    await asyncio.sleep(60)
            async with client.write_log("log") as log:
                assert await log.append(b"one") == log.last_add_confirmed
            async with client.read_log("log") as reader:
                assert [record.data async for record in reader] == [b"one"]
            assert isinstance(await client.log_metadata("log"), replog.LogMetadata)

    run_under(new_loop, take_over)
