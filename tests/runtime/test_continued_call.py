"""Calls that go on when their callers stop waiting."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from replog.errors import ConfigError
from replog.runtime.continued_call import ContinuedCall

STEPS, STEP_S = 4, 1.0
SHORT_S = STEP_S / 2


@asynccontextmanager
async def counted(fails: bool = False) -> AsyncIterator[tuple[ContinuedCall[int], list[int]]]:
    """A call of several steps, which returns how many calls have begun; and the numbers of those that began."""
    begun: list[int] = []

    async def call() -> int:
        begun.append(len(begun) + 1)
        number = begun[-1]
        for _ in range(STEPS):
            await trio.sleep(STEP_S)
        if fails:
            raise ConfigError("no")
        return number

    async with trio.open_nursery() as nursery:
        yield ContinuedCall(nursery, call), begun
        nursery.cancel_scope.cancel()


async def in_time(call: Callable[[], Awaitable[int]], seconds: float) -> int | None:
    with trio.move_on_after(seconds):
        return await call()
    return None


async def test_callers_with_short_deadlines_get_the_result_once(autojump_clock: trio.testing.MockClock) -> None:
    async with counted() as (call, begun):
        found = [await in_time(call, SHORT_S) for _ in range(2 * STEPS + 2)]
        assert [each for each in found if each is not None] == [2]
        assert begun[:2] == [1, 2]
        assert await in_time(call, 100.0) == len(begun)


async def test_call_in_the_background_raises_once(autojump_clock: trio.testing.MockClock) -> None:
    async with counted(fails=True) as (call, begun):
        for _ in range(3):
            assert await in_time(call, SHORT_S) is None
        with pytest.raises(ConfigError):
            await call()
        assert begun == [1, 2]
        assert not call.goes_on


@pytest.mark.parametrize("was_cut", [False, True])
async def test_second_task_is_refused_while_one_waits(autojump_clock: trio.testing.MockClock, was_cut: bool) -> None:
    async with counted() as (call, begun):
        if was_cut:
            assert await in_time(call, SHORT_S) is None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await trio.sleep(SHORT_S)
            with pytest.raises(trio.BusyResourceError):
                await call()
            with pytest.raises(trio.WouldBlock):
                call.take_nowait()
        assert len(begun) == 1 + was_cut


async def test_call_with_a_nursery_of_its_own_goes_on(autojump_clock: trio.testing.MockClock) -> None:
    """What ends it is a group of cancellations, then."""
    ended = 0

    async def wait() -> None:
        nonlocal ended
        async with trio.open_nursery() as inner:
            for _ in range(2):
                inner.start_soon(trio.sleep, STEP_S)
        ended += 1

    async with trio.open_nursery() as nursery:
        call = ContinuedCall(nursery, wait)
        for _ in range(4):
            with trio.move_on_after(SHORT_S):
                await call()
    assert ended == 1


async def test_call_fails_at_once_when_its_nursery_is_left(autojump_clock: trio.testing.MockClock) -> None:
    async with counted() as (call, _):
        assert await in_time(call, SHORT_S) is None
    for _ in range(2):
        with pytest.raises(trio.ClosedResourceError):
            await call()


async def test_result_is_taken_without_waiting(autojump_clock: trio.testing.MockClock) -> None:
    async with counted() as (call, begun):
        for _ in range(2):
            assert await in_time(call, SHORT_S) is None
        with pytest.raises(trio.WouldBlock):
            call.take_nowait()
        await trio.sleep(STEPS * STEP_S)
        assert call.take_nowait() == 2
        with pytest.raises(trio.WouldBlock):
            call.take_nowait()
        assert begun == [1, 2]


async def test_ended_call_raises_for_its_waiters(autojump_clock: trio.testing.MockClock) -> None:
    async with counted() as (call, begun):
        for _ in range(2):
            assert await in_time(call, SHORT_S) is None
        call.end()
        with pytest.raises(trio.ClosedResourceError):
            await call()
        assert begun == [1, 2]
