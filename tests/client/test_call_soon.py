"""Calls that are made a turn later."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import trio
import trio.testing

from replog.runtime.event_loop import CallSoon, soon_from_any_thread, use_host_loop


async def test_a_call_is_made_when_the_caller_has_given_way_and_once(autojump_clock: trio.testing.MockClock) -> None:
    turns, called = CallSoon(), list[int]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.run)
        for number in range(3):
            turns.soon(lambda number=number: called.append(number))  # type: ignore[misc]
            assert called == list(range(number))
            await trio.testing.wait_all_tasks_blocked()
        assert called == [0, 1, 2]
        nursery.cancel_scope.cancel()


async def test_woken_tasks_run_before_a_call_after_woken(autojump_clock: trio.testing.MockClock) -> None:
    turns = CallSoon()

    for _ in range(20):  # in which order trio runs those who are ready is chance
        order: list[str] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turns.run)
            woken = trio.Event()

            async def wait(woken: trio.Event = woken, order: list[str] = order) -> None:
                await woken.wait()
                order.append("woken")

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            woken.set()
            turns.soon(lambda order=order: order.append("called"), after_woken=True)  # type: ignore[misc]
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert order == ["woken", "called"]


async def test_a_call_may_ask_for_the_next_one(autojump_clock: trio.testing.MockClock) -> None:
    turns, left = CallSoon(), [5]

    def call() -> None:
        left[0] -= 1
        if left[0]:
            turns.soon(call, after_woken=left[0] % 2 == 0)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.run)
        turns.soon(call)
        await trio.testing.wait_all_tasks_blocked()
        assert left == [0]
        nursery.cancel_scope.cancel()


class Host:
    """A loop that makes calls when it is told to."""

    def __init__(self) -> None:
        self.calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()

    def soon(self, call: Callable[[], object]) -> None:
        self.calls.append((call, ()))

    def soon_from_any_thread(self, call: Callable[..., object], /, *arguments: Any) -> None:
        self.calls.append((call, arguments))

    def watch(self, descriptor: int, call: Callable[[], object]) -> Callable[[], object]:
        raise AssertionError("turns watch nothing")


async def test_calls_of_a_guest_are_made_by_its_host(autojump_clock: trio.testing.MockClock) -> None:
    host, called = Host(), list[str]()
    use_host_loop(host)
    turns = CallSoon()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.run)
        turns.soon(lambda: called.append("first"))
        turns.soon(lambda: called.append("second"), after_woken=True)
        soon_from_any_thread()(called.append, "third")
        await trio.testing.wait_all_tasks_blocked()
        assert called == []
        for call, arguments in host.calls:
            call(*arguments)
        assert called == ["first", "second", "third"]
        nursery.cancel_scope.cancel()
