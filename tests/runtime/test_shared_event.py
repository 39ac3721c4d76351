"""An event for many tasks: each that waits is woken once, and none that has gone."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from replog.runtime.shared_event import SharedEvent


async def test_all_waiters_are_woken() -> None:
    event = SharedEvent()
    woken: list[int] = []

    async def wait(number: int) -> None:
        await event.wait()
        woken.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(1000):
            nursery.start_soon(wait, number)
        await trio.testing.wait_all_tasks_blocked()
        assert not event.is_set()
        event.set()
        event.set()
        assert not woken
    assert sorted(woken) == list(range(1000))


async def test_set_event_makes_no_task_wait() -> None:
    event = SharedEvent()
    event.set()
    assert event.is_set()
    with trio.testing.assert_checkpoints():
        await event.wait()
    with trio.CancelScope() as scope:
        scope.cancel()
        await event.wait()
    assert scope.cancelled_caught


async def test_cancelled_waiter_is_not_woken(autojump_clock: trio.testing.MockClock) -> None:
    """It waits for something else, maybe for the same event again: each wait ends once."""
    event, other = SharedEvent(), trio.Event()
    told: list[str] = []

    async def elsewhere() -> None:
        with trio.move_on_after(1):
            await event.wait()
        await other.wait()
        told.append("elsewhere")

    async def again() -> None:
        for _ in range(3):
            with trio.move_on_after(0.5):
                await event.wait()
        await event.wait()
        told.append("again")
        await trio.sleep(1)
        told.append("slept")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(elsewhere)
        nursery.start_soon(again)
        await trio.sleep(5)
        event.set()
        await trio.testing.wait_all_tasks_blocked()
        assert told == ["again"]
        await trio.sleep(2)
        assert told == ["again", "slept"]
        other.set()
    assert told == ["again", "slept", "elsewhere"]


async def test_wait_may_be_cancelled_before_it_begins() -> None:
    event = SharedEvent()
    with trio.CancelScope() as scope:
        scope.cancel()
        await event.wait()
        pytest.fail("it returned")
    assert scope.cancelled_caught
    event.set()
    await event.wait()
