"""The README's fail-over as real processes: leaders are killed, frozen and cut off, and the next one takes over each time."""

from __future__ import annotations

import time
from pathlib import Path

from tests.examples.bank import Bank, Competitor, bank

COMMANDS = 40  # under each leader
LATE = 5  # asked of a deposed leader before it wakes


async def three(found: Bank) -> Competitor:
    """Three competitors, of which this one leads."""
    began_s = time.monotonic()
    for name in "abc":
        await found.add_competitor(name)
    return await found.next_leader(began_s)


async def kill(found: Bank, leader: Competitor) -> Competitor:
    """The leader dies in the middle of its work; returns who has taken over."""
    await found.confirms(leader, COMMANDS)
    killed_s = time.monotonic()
    await leader.kill()
    successor = await found.next_leader(killed_s)
    await found.confirms(successor, COMMANDS)
    return successor


async def freeze(found: Bank, leader: Competitor) -> Competitor:
    """The leader is stopped, deposed, and wakes: it does nothing more, says so, and competes again."""
    frozen_s = time.monotonic()
    leader.freeze()
    successor = await found.next_leader(frozen_s)
    await found.confirms(successor, COMMANDS)
    late = [await leader.ask() for _ in range(LATE)]
    leader.thaw()
    await leader.says_deposed()
    await found.confirms(successor, COMMANDS)
    assert all(each.refusal for each in late)
    return successor


async def test_the_next_takes_over_from_a_leader_that_is_killed_or_frozen(tmp_path: Path) -> None:
    async with bank(tmp_path, f"lmdb:{tmp_path / 'metadata'}?lease_s=1.0") as found:
        leader = await three(found)
        leader = await kill(found, leader)
        leader = await freeze(found, leader)
        await kill(found, leader)  # who was frozen is the only one left
        await found.judged()
