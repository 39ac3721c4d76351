"""Thousands of changes by several processes at once, through networks that lose answers: none is lost, none made twice (M1)."""

from __future__ import annotations

import json
import os
from contextlib import AsyncExitStack
from pathlib import Path

import attrs
import pytest
import trio

from replog.client.ledger_records import LedgerRecords
from replog.testing import serve_proxy
from tests.failures.processes import Process, starting, until
from tests.metastores.zookeeper.actors import Config, read_made
from tests.metastores.zookeeper.changes import Made, judge
from tests.metastores.zookeeper.opening import all_opened, opened
from tests.metastores.zookeeper.storms import storm
from tests.servers.zookeeper import ZooKeeper, url

pytestmark = [pytest.mark.needs_zookeeper, pytest.mark.slow]

PROCESSES = 3
DEADLINE_S = 240.0  # of a busy machine; a quiet one needs seconds
IDS = 800
OPTIONS = {"lease_s": 4}


def said(process: Process, word: str) -> int:
    """The last number that it said with this word."""
    return next((words[word] for words in reversed(process.said) if word in words), 0)


async def run_storm(
    zookeeper: ZooKeeper, chroot: str, directory: Path, *, changes: int, unanswered: int, seed: int
) -> list[Made]:
    """Processes change records, each through a storm of its own, until so many changes were made, and in each process so many of
    them were found written though their answers were lost."""
    configs = []
    async with AsyncExitStack() as stack:
        starter = await stack.enter_async_context(starting(directory))
        nursery = await stack.enter_async_context(trio.open_nursery())
        for number in range(PROCESSES):
            proxy = await stack.enter_async_context(serve_proxy(zookeeper.address, seed=seed))
            metastore = url(proxy.address, chroot, **OPTIONS)
            name = f"changer-{number}"
            configs.append(Config(metastore, name, str(directory / f"{name}.made"), seed=seed))
            words = json.dumps(attrs.asdict(configs[-1]))
            await starter.run(name, ["tests.metastores.zookeeper.actors", words])
            nursery.start_soon(storm, proxy, seed * PROCESSES + number)
        await until(
            lambda: (
                sum(said(process, "total") for process in starter.processes) >= changes
                and all(said(process, "written_unanswered") >= unanswered for process in starter.processes)
            ),
            DEADLINE_S,
            f"{changes} changes, {unanswered} of each process without an answer",
        )
        for process in starter.processes:
            await process.leave()
        nursery.cancel_scope.cancel()
    return [read_made(Path(config.made)) for config in configs]


async def judge_at(address: str, made: list[Made]) -> list[str]:
    async with opened(address) as metastore:
        with trio.fail_after(60):
            return await judge(metastore, made)


async def test_each_change_happens_once_when_answers_are_lost(
    zookeeper: ZooKeeper, zookeeper_chroot: str, tmp_path: Path
) -> None:
    made = await run_storm(zookeeper, zookeeper_chroot, tmp_path, changes=150, unanswered=2, seed=1)
    assert await judge_at(zookeeper.url(zookeeper_chroot), made) == []
    assert sum(each.conflicts for each in made) > 10, "they did not meet"


@pytest.mark.crash
@pytest.mark.long(is_sampled=False)
async def test_the_same_for_longer(zookeeper: ZooKeeper, zookeeper_chroot: str, tmp_path: Path) -> None:
    """`REPLOG_CAS_CHANGES=100000 make crash ARGS='-k for_longer'`"""
    changes = int(os.environ.get("REPLOG_CAS_CHANGES", "8000"))
    seed = int(os.environ.get("REPLOG_CAS_SEED", "2"))
    made = await run_storm(
        zookeeper, zookeeper_chroot, tmp_path, changes=changes, unanswered=max(3, changes // 500), seed=seed
    )
    assert await judge_at(zookeeper.url(zookeeper_chroot), made) == []


async def test_no_ledger_id_is_given_out_twice_though_answers_are_lost(
    zookeeper: ZooKeeper, zookeeper_chroot: str
) -> None:
    taken: list[int] = []

    async def take(records: LedgerRecords) -> None:
        while len(taken) < IDS:
            taken.append(await records.new_id())

    async with AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(serve_proxy(zookeeper.address)) for _ in range(PROCESSES)]
        urls = [url(proxy.address, zookeeper_chroot, **OPTIONS) for proxy in proxies]
        metastores = await stack.enter_async_context(all_opened(*urls))
        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as storms:
                for number, proxy in enumerate(proxies):
                    storms.start_soon(storm, proxy, number)
                async with trio.open_nursery() as takers:
                    for metastore in metastores:
                        for _ in range(4):
                            takers.start_soon(take, LedgerRecords(metastore, DEADLINE_S))
                storms.cancel_scope.cancel()
    assert len(set(taken)) == len(taken) >= IDS
