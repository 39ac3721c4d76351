"""Threads in lockstep: they run one at a time, on virtual time, and whoever waits is woken."""

import threading
import time

import pytest
import trio

from replog.errors import LocalProtocolError
from replog.testing.simulating import lockstep as module
from replog.testing.simulating.lockstep import lockstep
from replog.testing.simulating.scheduling import run


def test_a_thread_sleeps_on_virtual_time() -> None:
    async def main() -> None:
        async with lockstep() as threads:
            done: list[float] = []
            wakes = threads.wakes()

            def loop() -> None:
                while wakes.get():
                    threads.sleep(1000)
                    done.append(threads.clock_s())

            thread = threads.start("loop", loop)
            wakes.put(True)
            wakes.put(True)
            await trio.sleep(500)
            assert done == []
            assert thread.is_alive()
            wakes.put(False)
            await threads.run(thread.join, 5000)
            assert done == [1000, 2000]
            assert not thread.is_alive()
            assert trio.current_time() == 2000
        assert threads.left == []

    before = set(threading.enumerate())  # trio's threads among them end whenever they had nothing to do for a while
    began_s = time.monotonic()
    run(1, main)
    assert time.monotonic() - began_s < 60
    assert set(threading.enumerate()) <= before


def test_joining_has_a_timeout() -> None:
    async def main() -> None:
        async with lockstep() as threads:
            thread = threads.start("slow", lambda: threads.sleep(100))
            await threads.run(thread.join, 10)
            assert trio.current_time() == 10
            assert thread.is_alive()
            await threads.run(thread.join)
            assert trio.current_time() == 100

    run(1, main)


def test_a_condition_is_met_by_another_thread_or_by_trio() -> None:
    async def main() -> None:
        async with lockstep() as threads:
            condition = threads.condition()
            ready: list[str] = []

            def wait(count: int) -> float:
                with condition:
                    assert condition.wait_for(lambda: len(ready) >= count, 50)
                return threads.clock_s()

            def prepare() -> None:
                threads.sleep(7)
                with condition:
                    ready.append("thread")
                    condition.notify_all()

            threads.start("preparing", prepare)
            assert await threads.run(wait, 1) == 7
            with trio.move_on_after(3):
                await threads.run(wait, 2, abandon_on_cancel=True)
            with condition:
                ready.append("trio")
                condition.notify_all()
            assert await threads.run(wait, 2) == 10
            with condition:
                pass
            assert await threads.run(lambda: condition.wait_for(lambda: False, 2)) is False
            assert trio.current_time() == 12

    run(1, main)


def test_a_call_gives_its_result_or_its_error_and_its_place() -> None:
    async def main() -> None:
        async with lockstep() as threads:
            limiter = trio.CapacityLimiter(1)
            assert await threads.run(lambda: 7, limiter=limiter) == 7
            with pytest.raises(ZeroDivisionError):
                await threads.run(lambda: 1 // 0, limiter=limiter)
            with trio.move_on_after(1):
                await threads.run(threads.sleep, 5, abandon_on_cancel=True, limiter=limiter)
            assert trio.current_time() == 1
            assert limiter.borrowed_tokens == 1
            await threads.run(lambda: None, limiter=limiter)  # only when the one that was given up has ended
            assert trio.current_time() == 5

    run(1, main)


def test_unabandonable_call_is_awaited() -> None:
    async def main() -> None:
        async with lockstep() as threads:
            with trio.move_on_after(1):
                await threads.run(threads.sleep, 5)
            assert trio.current_time() == 5

    run(1, main)


def test_error_of_a_thread_ends_the_run() -> None:
    async def main() -> None:
        async with lockstep() as threads:
            threads.start("broken", lambda: 1 // 0)
            await trio.sleep(1)

    with pytest.raises(ExceptionGroup) as caught:
        run(1, main)
    assert caught.group_contains(ZeroDivisionError)


def test_permanently_waiting_thread_is_named_and_ended() -> None:
    async def main() -> list[str]:
        async with lockstep() as threads:
            threads.start("waiting for nothing", threads.wakes().get)
            await trio.sleep(1)
        return threads.left

    before = set(threading.enumerate())
    assert run(1, main) == ["waiting for nothing"]
    assert set(threading.enumerate()) <= before


def test_a_wait_for_something_real_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REAL_TIME_MAX_S", 0.05)
    real = threading.Event()

    async def main() -> None:
        async with lockstep() as threads:
            threads.start("stuck", lambda: real.wait(60))
            await trio.sleep(1)

    with pytest.raises(ExceptionGroup) as caught:
        run(1, main)
    real.set()
    assert caught.group_contains(LocalProtocolError, match="'stuck' waits for something")


def test_the_thread_of_trio_cannot_wait() -> None:
    async def main() -> None:
        async with lockstep() as threads:
            threads.sleep(5)  # passes at once
            assert trio.current_time() == 0
            with pytest.raises(LocalProtocolError):
                threads.wakes().get()

    run(1, main)
