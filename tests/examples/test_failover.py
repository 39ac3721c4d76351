"""The bank of examples/failover.py in real processes: leaders are killed, frozen and cut off, and the next one takes over."""

from __future__ import annotations

import itertools
import os
import random
import sys
import time
from functools import partial
from pathlib import Path
from subprocess import PIPE

import pytest
import trio

import replog
from tests.examples.bank import EXAMPLE, WITHIN_S, Bank, Command, Competitor, bank
from tests.forks import run
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
    leader.is_asked = True
    await found.confirms()
    assert in_doubt[0].position is not None, "a bookie had it, so the takeover found it"
    assert all(each.refusal for each in late)


async def freeze_idle(found: Bank) -> None:
    """The same while nothing is asked of it: it learns that it was deposed by reading along, and competes again."""
    leader = await found.leader()
    leader.is_asked = False
    await leader.has_answered()
    frozen_s = time.monotonic()
    leader.freeze()
    await found.leader(frozen_s)
    await found.confirms()
    leader.thaw()
    await leader.has_lost_the_lead(frozen_s)
    leader.is_asked = True


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


@pytest.mark.sized
async def test_standby_takes_over_when_the_leader_is_killed_or_stopped(tmp_path: Path, is_long: bool) -> None:
    async with bank(tmp_path, f"lmdb:{tmp_path / 'metadata'}?lease_s={LEASE_S}") as found:
        for name in NAMES:
            await found.add_competitor(name)
        await kill(found)
        if is_long:  # among all tests `replog demo` stops a leader
            await freeze(found)
            await freeze_idle(found)
            await kill(found)  # who was frozen is the only one left
        await found.judged()


@pytest.mark.needs_zookeeper
@pytest.mark.long(is_sampled=False)
async def test_leader_lost_by_zookeeper_is_fenced_by_its_bookies(
    tmp_path: Path, zookeeper: ZooKeeper, zookeeper_chroot: str
) -> None:
    metastore = zookeeper.url(zookeeper_chroot, lease_s=LEASE_S)
    async with bank(tmp_path, metastore, zookeeper.address) as found:
        for name in NAMES:
            await found.add_competitor(name)
        await cut_off(found)
        await freeze(found)
        await kill(found)  # who was cut off, or was frozen, is one of those left
        await found.judged()


@pytest.mark.needs_zookeeper
@pytest.mark.long(is_sampled=False)  # test_starting.py has them compete in one process
async def test_candidates_compete_when_started_before_the_cluster(tmp_path: Path, own_zookeeper: ZooKeeper) -> None:
    await own_zookeeper.stop()
    metastore = own_zookeeper.url("/bank", lease_s=LEASE_S, timeout_s=1)
    async with bank(tmp_path, metastore, is_empty=True) as found:
        for name in NAMES:
            await found.add_competitor(name)
        for competitor in found.competitors:
            await competitor.waits_for("not connected")
        await own_zookeeper.start()
        for competitor in found.competitors:
            await competitor.waits_for("NotEnoughBookies|bookies")
        await found.begin()
        for _ in NAMES:
            leader = await found.leader()
            await found.confirms()
            await leader.kill()
        assert all(competitor.terms for competitor in found.competitors)


@pytest.mark.needs_zookeeper
@pytest.mark.crash
@pytest.mark.long
async def test_leaders_and_zookeeper_fail_at_random(tmp_path: Path, own_zookeeper: ZooKeeper) -> None:
    """`REPLOG_FAILURES_S=600 make crash ARGS='-k zookeeper_fail_at_random'`."""
    chance = random.Random(SEED)
    names = (f"candidate-{number}" for number in itertools.count(1))
    ends_s = time.monotonic() + LENGTH_S
    metastore = own_zookeeper.url("/bank", lease_s=LEASE_S)
    async with bank(tmp_path, metastore, own_zookeeper.address) as found:
        for _ in NAMES:
            await found.add_competitor(next(names))
        while time.monotonic() < ends_s:
            match chance.choice(["cut off", "freeze", "freeze idle", "kill", "restart"]):
                case "cut off":
                    await cut_off(found)
                case "freeze":
                    await freeze(found)
                case "freeze idle":
                    await freeze_idle(found)
                case "kill":
                    await kill(found)
                    await found.add_competitor(next(names))
                case "restart":
                    await found.confirms()
                    await own_zookeeper.restart()
                    await found.confirms()
        await found.judged()


def test_wrong_command_line_prints_the_usage() -> None:
    for words in ([], ["lmdb:nowhere", "serve", "two words"]):
        done = run([sys.executable, str(EXAMPLE), *words])
        assert (done.returncode, done.stdout) == (1, "")
        assert "METASTORE serve NAME" in done.stderr


async def test_command_sent_twice_is_done_once(tmp_path: Path) -> None:
    options = replog.BookieOptions(listen=("tcp:127.0.0.1:0",))
    metastore = f"lmdb:{tmp_path / 'metadata'}"
    async with replog.embed(tmp_path, bookies=3, bookie_options=options, metastore=metastore) as client:
        async with client.write_log("bank") as log:
            await log.extend([b"", b"\xff", b"x", b"1 deposit a b", b"2 deposit a -5"])
        said = await say_when_leading(metastore, COMMANDS)
    assert [line for line in said if "what is" not in line] == ANSWERS
    assert len(said) == len(ANSWERS) + 1


COMMANDS = """\
3 deposit a 5
4 transfer a b 2
3 deposit a 5
5 transfer a b 4
lead deposit a 1
?
"""
ANSWERS = [
    "3 2:1 ok, a has 5",
    "4 2:2 ok, a has 3",
    "3 2:3 ok, a has 5",
    "5 2:4 refused",
    "lead 2:5 ok, a has 4",
]


async def say_when_leading(metastore: str, commands: str) -> list[str]:
    """What the example answers to this, as a candidate that ends then in peace."""
    words = [sys.executable, str(EXAMPLE), metastore, "serve", "teller"]
    async with trio.open_nursery() as nursery:
        process = await nursery.start(partial(trio.run_process, words, stdin=PIPE, stdout=PIPE))
        said = b""
        with trio.fail_after(WITHIN_S):
            while b"teller leads from 2:0\n" not in said:
                said += await process.stdout.receive_some()
            async with process.stdin:
                await process.stdin.send_all(commands.encode())
            async for data in process.stdout:
                said += data
    return said.decode().splitlines()[1:]
