"""A trio run's time of day and randomness: the system's, unless it is given others."""

import random
import time

import trio

from replog.runtime.chance import Chance, current_chance, use_chance


async def test_it_is_the_systems() -> None:
    chance = current_chance()
    assert isinstance(chance.random, random.SystemRandom)
    assert abs(chance.time_ns() - time.time_ns()) < 60 * 10**9
    assert abs(chance.time_ms() - time.time() * 1000) < 60_000
    assert len({chance.token() for _ in range(100)}) == 100
    assert len(chance.token()) == 32
    assert len(bytes.fromhex(chance.token(8))) == 8


def test_a_run_can_be_given_another_which_ends_with_it() -> None:
    async def tokens() -> list[str]:
        use_chance(Chance(random.Random(7), lambda: 5_000_000))
        assert current_chance().time_ms() == 5
        return [current_chance().token() for _ in range(3)]

    async def is_the_systems() -> bool:
        return isinstance(current_chance().random, random.SystemRandom)

    assert trio.run(tokens) == trio.run(tokens)
    assert trio.run(is_the_systems)
