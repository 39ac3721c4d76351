"""A trio run's time of day and randomness: the system's, unless it is given others."""

import random
import time

import trio

from replog.runtime.entropy import Entropy, current_entropy, use_entropy


async def test_it_is_the_systems() -> None:
    entropy = current_entropy()
    assert isinstance(entropy.random, random.SystemRandom)
    assert abs(entropy.time_ns() - time.time_ns()) < 60 * 10**9
    assert abs(entropy.time_ms() - time.time() * 1000) < 60_000
    assert len({entropy.token() for _ in range(100)}) == 100
    assert len(entropy.token()) == 32
    assert len(bytes.fromhex(entropy.token(8))) == 8


def test_another_source_can_be_set_and_ends_with_its_run() -> None:
    async def tokens() -> list[str]:
        use_entropy(Entropy(random.Random(7), lambda: 5_000_000))
        assert current_entropy().time_ms() == 5
        return [current_entropy().token() for _ in range(3)]

    async def is_the_systems() -> bool:
        return isinstance(current_entropy().random, random.SystemRandom)

    assert trio.run(tokens) == trio.run(tokens)
    assert trio.run(is_the_systems)
