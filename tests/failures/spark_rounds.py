"""Rounds of killing what Spark needs, while its jobs and a live app write to one log; and an independent count of all rows.

    python -m tests.failures.spark_rounds --rounds 50 --seed 1

Up to five rounds make a campaign, with a cluster of its own: three servers of ZooKeeper, four bookies, a master and two workers
of Spark with small heaps, and the app, all of them processes. With REPLOG_TEST_METASTORE=quorum the bookies
keep the metastore themselves. In each round a driver does some jobs (`spark_driver`), and two of these are killed and started
again: an executor, a worker, the driver, a bookie, the metastore's leader. The driver is started again until all of its jobs have
ended. A campaign ends with a count by `replog.blocking`, which `spark_counting` judges, with a sweep, and with another count.
Prints a line for each campaign, and ends with 1 if anything was wrong.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path
from typing import Any

import attrs
import trio

import replog.blocking
from replog.errors import LogNotFoundError, ReplogError
from replog.protocol.model import Position
from replog.testing import read_histories
from tests.failures.campaigns import run_campaigns
from tests.failures.cluster import Bookie, Cluster, cluster
from tests.failures.options import LOG, METASTORE
from tests.failures.processes import Process, until
from tests.failures.spark_counting import APP, Waited, violations, why_fenced
from tests.failures.spark_driver import Plan
from tests.servers.spark_cluster import SparkCluster, spark_cluster
from tests.servers.zookeeper import Ensemble, ensemble_blocking

CAMPAIGN_ROUNDS = 5
BOOKIES = 4
FAULTS = ("executor", "worker", "driver", "bookie", "metastore")
FAULTS_OF_ROUND = 2
DRIVERS_MAX = 10  # that a round may need
RUNS_S = 900.0  # a driver and its executors, on a busy machine
ENDS_S = 1800.0
EXECUTOR_S = 900.0
FAULT_AFTER_S_MAX = 8.0  # less than any round takes
DOWN_S_MAX = 3.0
LOOK_S = 0.1
MERGED_BYTES = (0, 256 << 10)


class Watch:
    """Looks at the log's record all the time, and notes how long commits wait for the app's answer."""

    def __init__(self, client: replog.Client) -> None:
        self.waits: list[Waited] = []
        self._client = client
        self._since_s: dict[str, float] = {}

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            try:
                requests = (await self._client.log_metadata(LOG)).requests
            except LogNotFoundError:
                requests = ()
            except ReplogError:  # the metastore's leader was killed: a request that waits then waits longer
                await trio.sleep(LOOK_S)
                continue
            self._see({request.token for request in requests}, time.monotonic())
            await trio.sleep(LOOK_S)

    def _see(self, tokens: set[str], now_s: float) -> None:
        for token in self._since_s.keys() - tokens:
            self.waits.append(Waited(self._since_s.pop(token), now_s))
        for token in tokens:
            self._since_s.setdefault(token, now_s)


@attrs.frozen
class Stage:
    """What a campaign runs in."""

    directory: Path
    zookeeper: Ensemble | None  # the bookies keep the metastore if there is none
    bookies: Cluster
    spark: SparkCluster
    app: Process


class Campaign:
    """Some rounds on one stage."""

    def __init__(self, seed: int, stage: Stage) -> None:
        self.counts: Counter[str] = Counter()
        self.row_counts: dict[str, int] = {}
        self.metastore_faults: list[tuple[float, float]] = []
        self._random = random.Random(seed)
        self._stage = stage
        self._deck: list[str] = []
        self._driver: Process | None = None
        self._is_over = False  # the jobs of this round have ended

    async def run(self, rounds: int) -> None:
        """Raises AssertionError if something does not come back, or the jobs of a round do not end."""
        for number in range(1, rounds + 1):
            self._is_over = False
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._fail)
                await self._drive(number)
                self._is_over = True

    # -- the driver -----------------------------------------------------------------------------------------------

    async def _drive(self, number: int) -> None:
        merged_bytes = self._random.choice(MERGED_BYTES)
        for attempt in range(1, DRIVERS_MAX + 1):
            place, metastore = str(self._stage.directory), self._stage.bookies.metastore
            plan = Plan(self._stage.spark.url, metastore, LOG, place, number, attempt, merged_bytes)
            if attempt == 1:
                plan.put_files()
                self.row_counts.update(plan.row_counts())
            words = ["tests.failures.spark_driver", json.dumps(attrs.asdict(plan))]
            self._driver = await self._stage.bookies.starter.run(f"driver-{number}.{attempt}", words)
            self.counts["drivers"] += 1
            if await self._is_done(self._driver):
                return
        raise AssertionError(f"round {number}: its jobs had not ended after {DRIVERS_MAX} drivers")

    async def _is_done(self, driver: Process) -> bool:
        await until(lambda: not driver.is_running, ENDS_S, f"{driver.name} ends")
        failed = [words for words in driver.said if "failed" in words]
        self.counts["failed jobs"] += len(failed)
        for words in failed:
            print(f"  {driver.name}: {words['failed']}: {words['error'][:300]!r}", flush=True)
        ended = _last(driver, "ended")
        return ended is not None and bool(ended["ended"])

    # -- faults ---------------------------------------------------------------------------------------------------

    async def _fail(self) -> None:
        """Kills what the next cards say, while the driver runs. What cannot be killed any more is the next round's."""
        kinds: dict[str, Callable[[], Awaitable[bool]]] = {
            "executor": self._kill_executor,
            "worker": self._kill_worker,
            "driver": self._kill_driver,
            "bookie": self._kill_bookie,
            "metastore": self._kill_metastore,
        }
        for _ in range(FAULTS_OF_ROUND):
            if not self._deck:
                self._deck = self._random.sample(FAULTS, len(FAULTS))
            after_s = self._random.random() * FAULT_AFTER_S_MAX
            await until(lambda: self._driver_runs() or self._is_over, RUNS_S, "a driver runs")
            await trio.sleep(after_s)
            if not self._driver_runs() or not await kinds[self._deck[-1]]():
                self.counts["faults that came too late"] += 1
                continue
            self.counts[f"{self._deck.pop()} killed"] += 1

    def _driver_runs(self) -> bool:
        driver = self._driver
        return driver is not None and driver.is_running and _last(driver, "runs") is not None

    # Each returns True if something was killed.

    async def _kill_executor(self) -> bool:
        workers = self._stage.spark.workers
        found: list[int] = []

        def is_found() -> bool:
            found[:] = [pid for worker in workers for pid in worker.executors()]
            return bool(found) or not self._driver_runs()

        await until(is_found, EXECUTOR_S, "an executor")
        if found:
            _kill(self._random.choice(found))
        return bool(found)

    async def _kill_worker(self) -> bool:
        await trio.to_thread.run_sync(self._random.choice(self._stage.spark.workers).restart)
        return True

    async def _kill_driver(self) -> bool:
        driver = self._driver
        words = None if driver is None else _last(driver, "runs")
        if driver is None or words is None:
            return False
        _kill(words["java"])
        await driver.kill()
        return True

    async def _kill_bookie(self) -> bool:
        await self._restart(self._random.choice(self._stage.bookies.bookies))
        return True

    async def _restart(self, bookie: Bookie) -> None:
        began_s = time.monotonic()
        await bookie.running.kill()
        await trio.sleep(self._random.random() * DOWN_S_MAX)
        await self._stage.bookies.start_bookie(bookie)
        if self._stage.zookeeper is None:  # it may have led the metastore
            self.metastore_faults.append((began_s, time.monotonic()))

    async def _kill_metastore(self) -> bool:
        if self._stage.zookeeper is None:
            await self._restart(await self._stage.bookies.metastore_leader())
            return True
        began_s = time.monotonic()
        (await self._stage.zookeeper.wait_leader()).kill()
        await trio.sleep(self._random.random() * DOWN_S_MAX)
        await trio.to_thread.run_sync(self._stage.zookeeper.heal_blocking)
        await self._stage.zookeeper.wait_leader()
        self.metastore_faults.append((began_s, time.monotonic()))
        return True


def _last(process: Process, word: str) -> dict[str, Any] | None:
    return next((words for words in reversed(process.said) if word in words), None)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):  # it ended by itself a moment ago
        os.kill(pid, signal.SIGKILL)


# -- a campaign and its count -------------------------------------------------------------------------------------


def entries_of(metastore: str) -> list[tuple[Position, bytes]]:
    """All that the log has, by a client of its own, without trio. Blocks."""
    with replog.blocking.connect(metastore) as client, client.read_log(LOG) as reader:
        return [(record.position, bytes(record.data)) for record in reader]


async def campaign(directory: Path, seed: int, rounds: int) -> tuple[Counter[str], list[str]]:
    """Runs so many rounds in an empty directory; returns what was done, and what was wrong."""
    history = directory / f"{APP}.history"
    async with AsyncExitStack() as stack:
        servers = None
        if METASTORE != "quorum":
            servers = await trio.to_thread.run_sync(stack.enter_context, ensemble_blocking(directory))
        url = "" if servers is None else servers.url("/rounds")
        bookies = await stack.enter_async_context(cluster(directory, bookies=BOOKIES, metastore=url))
        metastore = bookies.metastore
        config = {"metastore": metastore, "history": str(history), "actor": APP, "pause_s": 0.05, "leads_again": True}
        app = await bookies.starter.run(APP, ["tests.failures.actors", "writer", json.dumps(config)])
        await app.says("serves", 60)
        with ExitStack() as of_spark:
            spark = await trio.to_thread.run_sync(of_spark.enter_context, spark_cluster(directory))
            running = Campaign(seed, Stage(directory, servers, bookies, spark, app))
            watch = Watch(bookies.client)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch.run)
                await running.run(rounds)
                nursery.cancel_scope.cancel()
            of_spark.close()
        await app.leave()
        counts, wrong = running.counts, _fences(app, watch, running)
        events = read_histories([history])
        entries = await trio.to_thread.run_sync(entries_of, metastore)
        wrong += violations(entries, events, running.row_counts)
        wrong += await _swept(bookies.client, metastore, entries)
    counts["entries"] = len(entries)
    counts["requests"] = len(watch.waits)
    counts["confirmed appends"] = sum(event.kind == "confirmed" for event in events)
    return counts, wrong


def _fences(app: Process, watch: Watch, running: Campaign) -> list[str]:
    """Counts why the app was deposed; returns what may not have been."""
    wrong, served_s = [], 0.0
    for words in app.said:
        if "serves" in words:
            served_s = words["at_s"]
        elif "fenced" in words:
            reason = why_fenced(words["at_s"], served_s, watch.waits, running.metastore_faults)
            running.counts[f"fenced: {reason or 'for no reason'}"] += 1
            if not reason:
                wrong.append(f"{words['fenced']} was deposed though no commit had waited for it: {words['error']}")
        elif "failed" in words:
            running.counts["other errors of the app"] += 1
    return wrong


async def _swept(client: replog.Client, metastore: str, entries: list[tuple[Position, bytes]]) -> list[str]:
    """Deletes what killed attempts left; returns what is wrong then."""
    await client.jobs.sweep(LOG, grace_s=0.0)
    listed = {segment.ledger_id for segment in await client.log_segments(LOG)}
    left = [await client.ledger_metadata(each) for each in await client.ledgers() if each not in listed]
    of_jobs = [each for each in left if "job" in each.custom]
    wrong = [f"ledger {each.ledger_id} of a job is in no log, and a sweep has left it" for each in of_jobs]
    again = await trio.to_thread.run_sync(entries_of, metastore)
    return (
        wrong if again == entries else [*wrong, f"the log has {len(again)} entries after a sweep, not {len(entries)}"]
    )


if __name__ == "__main__":
    sys.exit(run_campaigns(campaign, "spark_rounds", __doc__, CAMPAIGN_ROUNDS))
