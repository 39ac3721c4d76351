"""How much may be on the way at once."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from replog.metastores.zookeeper.budget import Budget


async def take(budget: Budget, size_bytes: int, admitted: list[int]) -> None:
    if await budget.acquire(1, size_bytes):
        admitted.append(size_bytes)


async def test_bytes_and_calls_are_bounded_and_admitted_in_order() -> None:
    budget, admitted = Budget(calls_max=3, bytes_max=100), list[int]()
    async with trio.open_nursery() as nursery:
        for size_bytes in (60, 50, 10, 10, 10):  # the small ones don't overtake the second
            nursery.start_soon(take, budget, size_bytes, admitted)
            await wait_all_tasks_blocked()
        assert admitted == [60]
        budget.release(1, 60)
        await wait_all_tasks_blocked()
        assert sorted(admitted) == [10, 10, 50, 60]  # three calls; trio runs those woken at once in any order
        budget.release(1, 10)
        await wait_all_tasks_blocked()
        assert sorted(admitted) == [10, 10, 10, 50, 60]


async def test_a_request_above_the_budget_goes_alone() -> None:
    budget, admitted = Budget(calls_max=3, bytes_max=100), list[int]()
    async with trio.open_nursery() as nursery:
        for size_bytes in (1, 1000):
            nursery.start_soon(take, budget, size_bytes, admitted)
            await wait_all_tasks_blocked()
        assert admitted == [1]
        budget.release(1, 1)
    assert admitted == [1, 1000]


@pytest.mark.parametrize("is_admitted", [False, True])
async def test_a_cancelled_waiter_takes_no_budget(is_admitted: bool) -> None:
    budget, admitted = Budget(calls_max=1, bytes_max=100), list[int]()
    assert await budget.acquire(1, 1)
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as inner:
                inner.start_soon(take, budget, 2, admitted)
                await wait_all_tasks_blocked()
                nursery.start_soon(take, budget, 3, admitted)
                await wait_all_tasks_blocked()
                scope.cancel()
                if is_admitted:
                    budget.release(1, 1)  # before the task hears that it was cancelled
        if not is_admitted:
            await wait_all_tasks_blocked()
            budget.release(1, 1)
    assert admitted[-1] == 3


async def test_closing_wakes_all_and_admits_no_call() -> None:
    budget, admitted = Budget(calls_max=1, bytes_max=100), list[int]()
    assert await budget.acquire(1, 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(take, budget, 2, admitted)
        await wait_all_tasks_blocked()
        budget.close()
    assert not await budget.acquire(1, 1)
    assert admitted == []
