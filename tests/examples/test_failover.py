"""The README's fail-over as real processes: leaders are killed, frozen and cut off, and the next one takes over each time."""

from __future__ import annotations

import itertools
import os
import random
import time
from pathlib import Path

import pytest

from tests.examples.bank import Bank, Command, Competitor, bank
from tests.servers.zookeeper import ZooKeeper

pytestmark = pytest.mark.slow

NAMES = "abc"
AT_ONCE = 5
LEASE_S = 2.0  # of sessions too
LENGTH_S = float(os.environ.get("REPLOG_FAILURES_S", "10"))
SEED = int(os.environ.get("REPLOG_FAILURES_SEED", "1"))


async def kill(found: Bank) -> None:
    """The leader dies in the middle of its work, and another one takes over."""
    await found.confirms()
    killed_s = time.monotonic()
    await (await found.leader()).kill()
    await found.leader(killed_s)
    await found.confirms()


async def freeze(found: Bank) -> None:
    """The leader is stopped, deposed, and wakes: what it had sent is done, nothing that it sends then; and it says so."""
    leader = await found.leader()
    in_doubt = await send_unanswered(found, leader)
    frozen_s = time.monotonic()
    leader.freeze()
    for bookie in found.bookies:
        bookie.wake()
    await found.leader(frozen_s)
    await found.confirms()
    late = [await leader.ask() for _ in range(AT_ONCE)]
    leader.thaw()
    await leader.has_lost_the_lead(frozen_s)
    await leader.has_answered()
    await found.confirms()
    assert in_doubt[0].position is not None, "a bookie had it, so the takeover found it"
    assert all(each.refusal for each in late)


async def send_unanswered(found: Bank, leader: Competitor) -> list[Command]:
    """Commands that the leader has sent to bookies that do not answer for now."""
    leader.is_asked = False
    await leader.has_answered()
    for bookie in found.bookies:
        bookie.stop()
    sent = [await leader.ask() for _ in range(AT_ONCE)]
    await leader.has_sent()
    return sent


async def cut_off(found: Bank) -> None:
    """The leader does not reach the metastore, but all bookies: it goes on until another one is elected, which fences it; and
    when it reaches the metastore again, it knows the fate of all that it was asked for."""
    leader = await found.leader()
    cut_s = time.monotonic()
    assert leader.proxy is not None
    leader.proxy.cut()
    await found.confirms()
    successor = await found.leader(cut_s)
    assert leader.confirmed(cut_s) > 0
    assert successor is not leader
    await leader.has_lost_the_lead(cut_s)
    await found.confirms()
    leader.proxy.mend()
    await leader.has_answered()


async def test_the_next_takes_over_from_a_leader_that_is_killed_or_frozen(tmp_path: Path) -> None:
    async with bank(tmp_path, f"lmdb:{tmp_path / 'metadata'}?lease_s={LEASE_S}") as found:
        for name in NAMES:
            await found.add_competitor(name)
        await kill(found)
        await freeze(found)
        await kill(found)  # who was frozen is the only one left
        await found.judged()


@pytest.mark.needs_zookeeper
async def test_a_leader_that_zookeeper_has_lost_is_fenced_though_it_reaches_every_bookie(
    tmp_path: Path, zookeeper: ZooKeeper, zookeeper_chroot: str
) -> None:
    metastore = zookeeper.url(zookeeper_chroot, session_timeout_s=LEASE_S)
    async with bank(tmp_path, metastore, zookeeper.address) as found:
        for name in NAMES:
            await found.add_competitor(name)
        await cut_off(found)
        await freeze(found)
        await kill(found)  # who was cut off, or was frozen, is one of those left
        await found.judged()


@pytest.mark.needs_zookeeper
@pytest.mark.crash
async def test_leaders_and_zookeeper_fail_at_random(tmp_path: Path, own_zookeeper: ZooKeeper) -> None:
    """`REPLOG_FAILURES_S=600 make crash ARGS='-k zookeeper_fail_at_random'`."""
    chance = random.Random(SEED)
    names = (f"candidate-{number}" for number in itertools.count(1))
    ends_s = time.monotonic() + LENGTH_S
    metastore = own_zookeeper.url("/bank", session_timeout_s=LEASE_S)
    async with bank(tmp_path, metastore, own_zookeeper.address) as found:
        for _ in NAMES:
            await found.add_competitor(next(names))
        while time.monotonic() < ends_s:
            match chance.choice(["cut off", "freeze", "kill", "restart"]):
                case "cut off":
                    await cut_off(found)
                case "freeze":
                    await freeze(found)
                case "kill":
                    await kill(found)
                    await found.add_competitor(next(names))
                case "restart":
                    await found.confirms()
                    await own_zookeeper.restart()
                    await found.confirms()
        await found.judged()
