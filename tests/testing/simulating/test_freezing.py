"""Frozen tasks take no step; who mends `freezing` after a change of trio finds here what must hold."""

import pytest
import trio

from replog.testing.simulating.freezing import Freezer, Tasks, subtasks
from replog.testing.simulating.scheduling import run


async def tick(seen: list[float], nursery: trio.Nursery | None = None) -> None:
    if nursery is not None:
        nursery.start_soon(tick, seen)
    while True:
        await trio.sleep(1)
        seen.append(trio.current_time())


@pytest.mark.parametrize("seed", range(5))
def test_a_frozen_task_and_its_children_take_no_step(seed: int) -> None:
    async def main() -> None:
        trio.lowlevel.add_instrument(Freezer())
        seen: list[float] = []
        others: list[float] = []
        async with trio.open_nursery() as nursery:
            tasks = Tasks()
            tasks.start(nursery, tick, seen, nursery)
            nursery.start_soon(tick, others)
            await trio.sleep(2.5)
            assert seen == [1, 1, 2, 2]
            tasks.freeze()
            await trio.sleep(5)
            assert seen == [1, 1, 2, 2]
            tasks.thaw()
            await trio.sleep(0.2)
            assert seen == [1, 1, 2, 2, 7.5, 7.5]
            nursery.cancel_scope.cancel()
        assert others == [1, 2, 3, 4, 5, 6, 7]

    run(seed, main)


def test_task_about_to_run_is_frozen_too() -> None:
    """Whatever the order in which trio has put the ready tasks."""

    async def main() -> list[str]:
        trio.lowlevel.add_instrument(Freezer())
        seen: list[str] = []
        ready = trio.Event()

        async def wait() -> None:
            await ready.wait()
            seen.append("ran")

        async with trio.open_nursery() as nursery:
            tasks = Tasks()
            tasks.start(nursery, wait)
            await trio.sleep(1)
            ready.set()
            tasks.freeze()
            await trio.sleep(1)
            assert seen == []
            tasks.freeze()
            tasks.thaw()
        return seen

    assert [run(seed, main) for seed in range(5)] == [["ran"]] * 5


def test_a_frozen_task_is_cancelled_when_it_thaws() -> None:
    async def main() -> list[str]:
        trio.lowlevel.add_instrument(Freezer())
        seen: list[str] = []

        async def wait() -> None:
            try:
                await trio.sleep_forever()
            finally:
                seen.append("unwound")

        async with trio.open_nursery() as nursery:
            tasks = Tasks()
            tasks.start(nursery, wait)
            await trio.sleep(1)
            tasks.freeze()
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
            assert seen == []
            tasks.thaw()
        return seen

    assert run(1, main) == ["unwound"]


def test_calls_from_outside_start_tasks_of_the_process() -> None:
    async def main() -> None:
        trio.lowlevel.add_instrument(Freezer())
        seen: list[float] = []
        async with trio.open_nursery() as nursery:
            tasks = Tasks()
            tasks.call(lambda: nursery.start_soon(tick, seen))
            await trio.sleep(1.5)
            tasks.freeze()
            await trio.sleep(5)
            assert seen == [1]
            tasks.thaw()
            nursery.cancel_scope.cancel()

    run(1, main)


def test_shields_can_be_removed() -> None:
    async def main() -> None:
        async def shielded() -> None:
            with trio.CancelScope(shield=True):
                await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            tasks = Tasks()
            tasks.start(nursery, shielded)
            await trio.sleep(1)
            assert len(list(subtasks(tasks.root))) == 1
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
            tasks.unshield()

    run(1, main)
