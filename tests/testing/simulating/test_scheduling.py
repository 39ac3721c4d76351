"""Trio's order of tasks follows from the seed; who mends this file after a change of trio finds here what must hold."""

import random

import pytest
import trio
from trio._core import _run

from replog.errors import LocalProtocolError
from replog.testing.simulating.scheduling import Livelock, run, seeded


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


def test_trio_still_has_its_switch() -> None:
    """If this fails, trio has changed: see replog.testing.simulating.scheduling."""
    assert isinstance(_run._ALLOW_DETERMINISTIC_SCHEDULING, bool)  # Hypothesis sets it, too
    assert isinstance(_run._r, random.Random)


def test_the_seed_says_in_which_order_tasks_run() -> None:
    orders = [run(seed, order) for seed in range(8)]
    assert orders == [run(seed, order) for seed in range(8)]
    assert len({tuple(each) for each in orders}) == 8


def test_nothing_stays_behind() -> None:
    state, switch = _run._r.getstate(), _run._ALLOW_DETERMINISTIC_SCHEDULING
    with seeded(3):
        assert getattr(_run, "_ALLOW_DETERMINISTIC_SCHEDULING")  # noqa: B009 - as mypy sees it, it never changes
    assert switch is _run._ALLOW_DETERMINISTIC_SCHEDULING
    assert _run._r.getstate() == state


@pytest.mark.parametrize("name", ["_r", "_ALLOW_DETERMINISTIC_SCHEDULING"])
def test_a_trio_without_it_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(_run, name)
    with pytest.raises(LocalProtocolError, match="no longer has"), seeded(1):
        pass


def test_time_is_virtual() -> None:
    async def wait() -> float:
        await trio.sleep(80_000)
        return trio.current_time()

    assert run(1, wait) == 80_000


def test_tasks_that_go_on_for_ever_are_found() -> None:
    async def spin() -> bool:
        with trio.CancelScope() as scope:
            livelock = Livelock(scope, 3000)
            trio.lowlevel.add_instrument(livelock)
            await trio.sleep(1)
            while True:
                await trio.lowlevel.checkpoint()
        return livelock.is_found

    assert run(1, spin)
