"""Readers of one ledger ask different bookies, and which ones follows from the run's randomness."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import trio
import trio.testing

import replog
from replog.protocol.messages import ReadRequest
from replog.runtime.entropy import Entropy, use_entropy
from tests.kit import Cluster, cluster

READERS = 60


async def reads_by_bookie(world: Cluster) -> list[int]:
    """How many reads each bookie got from so many fresh readers of one ledger, which read it from the beginning."""
    async with world.client() as client:
        async with client.create_ledger(quorum=replog.Quorum(3, 3, 2)) as writer:
            await writer.append(b"entry")
        for bookie in world.bookies:
            bookie.wire.seen.clear()
        for _ in range(READERS):
            async with client.open_ledger(writer.ledger_id) as reader:
                assert [entry.data async for entry in reader] == [b"entry"]
    counts = Counter({bookie.bookie_id: 0 for bookie in world.bookies})
    for bookie in world.bookies:
        counts[bookie.bookie_id] += sum(isinstance(each, ReadRequest) for each in bookie.wire.seen)
    return sorted(counts.values())


async def test_fresh_readers_of_one_ledger_ask_all_its_bookies(autojump_clock: trio.testing.MockClock) -> None:
    use_entropy(Entropy(random.Random(3)))
    async with cluster() as world:
        counts = await reads_by_bookie(world)
    assert sum(counts) >= READERS
    assert counts[0] >= READERS / 6
    assert counts[-1] <= READERS / 2


@pytest.mark.parametrize("seed", [1, 2])
def test_readers_choice_of_bookies_follows_from_the_seed(seed: int) -> None:
    async def run() -> list[int]:
        use_entropy(Entropy(random.Random(seed), lambda: 1_763_500_000_000_000_000))
        async with cluster() as world:
            return await reads_by_bookie(world)

    assert trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0)) == trio.run(
        run, clock=trio.testing.MockClock(autojump_threshold=0)
    )
