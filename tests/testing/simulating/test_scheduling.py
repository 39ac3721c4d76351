"""Trio's order of tasks follows from the seed, and endless tasks are found."""

import trio

from replog.testing.simulating.scheduling import Livelock, run


async def order() -> list[int]:
    """In which order ready tasks ran, in several rounds."""
    seen: list[int] = []

    async def act(number: int) -> None:
        for _ in range(5):
            await trio.sleep(1)
            seen.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(act, number)
    return seen


def test_seed_decides_the_order_of_tasks() -> None:
    orders = [run(seed, order) for seed in range(8)]
    assert orders == [run(seed, order) for seed in range(8)]
    assert len({tuple(each) for each in orders}) == 8


def test_time_is_virtual() -> None:
    async def wait() -> float:
        await trio.sleep(80_000)
        return trio.current_time()

    assert run(1, wait) == 80_000


def test_endless_tasks_are_found() -> None:
    async def spin() -> bool:
        with trio.CancelScope() as scope:
            livelock = Livelock(scope, 3000)
            trio.lowlevel.add_instrument(livelock)
            await trio.sleep(1)
            while True:
                await trio.lowlevel.checkpoint()
        return livelock.is_found

    assert run(1, spin)
