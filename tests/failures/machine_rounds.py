"""Rounds of kill, stop and cut over three members of a state machine, each a process; and an independent check of all they saw.

    python -m tests.failures.machine_rounds --rounds 2000 --seed 1

Twenty rounds make a campaign, with a cluster of its own. In each round one member, often the leader, is killed and started again,
stopped for up to four seconds (longer than the lease by which it leads), or cut off from the callers of the others; then every
member must go on. With REPLOG_TEST_METASTORE=quorum three bookies keep the metastore, and its leader is killed, too. A campaign
ends with a look at the lists, and `machine_history` judges. Prints a line for each campaign, and ends with 1 if anything was
wrong.
"""

from __future__ import annotations

import json
import math
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from subprocess import PIPE

import attrs
import trio

import replog
from replog.testing import TcpProxy, serve_proxy
from tests.failures.campaigns import run_campaigns
from tests.failures.cluster import Cluster, cluster
from tests.failures.machine_actor import CLIENT, NAME, Lists
from tests.failures.machine_history import Transaction, violations
from tests.failures.options import METASTORE
from tests.servers.processes import free_port

CAMPAIGN_ROUNDS = 20
MEMBERS = 3
LEASE_S = 1.0
STOPPED_S_MAX = 4.0
WITHIN_S = 120.0  # a member answers its callers again, on a busy machine
STEPS = 8  # of each member, in each round


@attrs.define
class Place:
    """Where a member runs: its address and its history stay when its process dies."""

    number: int
    port: int
    proxy: TcpProxy
    history: Path
    metastore: str
    process: trio.Process | None = None
    starts: int = 0
    did: int = 0
    runs: bool = False
    changed: trio.Event = attrs.field(factory=trio.Event)

    @property
    def running(self) -> trio.Process:
        assert self.process is not None
        return self.process

    async def start(self, nursery: trio.Nursery, seed: int, of_round: int) -> None:
        """Starts its process, and lets it call in this round."""
        self.starts, self.runs = self.starts + 1, False
        words = [sys.executable, "-m", "tests.failures.machine_actor", self.metastore, f"127.0.0.1:{self.port}"]
        words += [self.proxy.address, str(self.history), str(seed)]
        run = partial(trio.run_process, words, stdin=PIPE, stdout=PIPE, check=False)
        self.process = await nursery.start(run)
        nursery.start_soon(self._listen, self.process)
        await self.until(lambda: self.runs, "runs")
        await self.tell(of_round)

    async def _listen(self, process: trio.Process) -> None:
        assert process.stdout is not None
        async for data in process.stdout:
            if process is self.process:
                self.runs = self.runs or b"runs" in data
                self.did += data.count(b"did")
                self.changed.set()
                self.changed = trio.Event()

    async def tell(self, of_round: int) -> None:
        assert self.running.stdin is not None
        await self.running.stdin.send_all(b"%d\n" % of_round)

    async def until(self, condition: object, what: str) -> None:
        assert callable(condition)
        with trio.move_on_after(WITHIN_S) as scope:
            while not condition():
                assert self.running.returncode is None, f"member {self.number} ended by itself"
                await self.changed.wait()
        assert not scope.cancelled_caught, f"member {self.number}: not within {WITHIN_S} s: {what}"

    async def goes_on(self) -> None:
        """Waits until its callers did some more."""
        wanted = self.did + STEPS
        await self.until(lambda: self.did >= wanted, f"{STEPS} more calls")


class Campaign:
    """Some rounds with one cluster."""

    def __init__(self, seed: int, places: Sequence[Place], nursery: trio.Nursery, bookies: Cluster | None) -> None:
        self._random = random.Random(seed)
        self._seed = seed
        self._places = places
        self._bookies = bookies  # that keep the metastore
        self._nursery = nursery
        self.faults: Counter[str] = Counter()

    async def run(self, rounds: int) -> None:
        """Starts all, and lets one fail after the other."""
        for number in range(1, rounds + 1):
            for place in self._places:
                if place.process is None:
                    await place.start(self._nursery, self._next_seed(place), number)
                else:
                    await place.tell(number)
            await self._fail(self._random.choice(self._places), number)
            for place in self._places:
                await place.goes_on()

    def _next_seed(self, place: Place) -> int:
        return self._seed * 1000 + place.number * 100 + place.starts

    async def _fail(self, place: Place, of_round: int) -> None:
        fault = self._random.choice(("kill", "stop", "cut", *("metastore",) * (self._bookies is not None)))
        self.faults[fault] += 1
        await trio.sleep(self._random.random() * 0.5)
        if fault == "metastore":
            assert self._bookies is not None
            leader = await self._bookies.metastore_leader()
            await leader.running.kill()
            await trio.sleep(self._random.random() * STOPPED_S_MAX)
            await self._bookies.start_bookie(leader)
        elif fault == "kill":
            place.running.kill()
            await place.running.wait()
            await place.start(self._nursery, self._next_seed(place), of_round)
        elif fault == "stop":
            place.running.send_signal(signal.SIGSTOP)
            await trio.sleep(self._random.random() * STOPPED_S_MAX)
            place.running.send_signal(signal.SIGCONT)
        else:
            (place.proxy.cut if self._random.random() < 0.5 else place.proxy.swallow)()
            await trio.sleep(self._random.random() * STOPPED_S_MAX)
            place.proxy.reset()  # what was swallowed never arrives
            place.proxy.mend()


@asynccontextmanager
async def _places(directory: Path, metastore: str) -> AsyncIterator[list[Place]]:
    async with trio.open_nursery() as nursery:
        found = []
        for number in range(MEMBERS):
            port = free_port()
            proxy = await nursery.start(_proxying, f"127.0.0.1:{port}")
            found.append(Place(number, port, proxy, directory / f"{number}.history", metastore))
        yield found
        nursery.cancel_scope.cancel()


async def _proxying(target: str, task_status: trio.TaskStatus[TcpProxy]) -> None:
    async with serve_proxy(target) as proxy:
        task_status.started(proxy)
        await trio.sleep_forever()


def read_history(path: Path) -> tuple[list[Transaction], list[str]]:
    """The transactions of one place, and what its callers found wrong themselves."""
    by_id: dict[str, dict[str, object]] = {}
    for line in path.read_text().splitlines():
        try:
            entry = json.loads(line) if line else None
        except ValueError:
            continue  # a process was killed while it wrote: the line before says what it asked for
        if entry is not None:
            by_id[entry["id"]] = by_id.get(entry["id"], {}) | entry
    wrong = [f"{name}: {entry['wrong']}" for name, entry in by_id.items() if "wrong" in entry]
    found = []
    for each in by_id.values():
        if "wrong" not in each:
            seen = each.get("seen")
            lists = None if seen is None else tuple(map(tuple, seen))  # type: ignore[call-overload]
            times = each["began_s"], each.get("ended_s", math.inf)
            found.append(Transaction(tuple(each["keys"]), each["value"], *times, lists))  # type: ignore[arg-type]
    return found, wrong


@asynccontextmanager
async def _bookies(directory: Path) -> AsyncIterator[tuple[replog.Client, str, Cluster | None]]:
    """Three bookies: in this process, with a metastore in a file, or in three processes that keep one."""
    if METASTORE == "quorum":
        async with cluster(directory, bookies=3, lease_s=LEASE_S) as found:
            async with replog.connect(found.metastore, options=CLIENT) as client:
                yield client, found.metastore, found
        return
    metastore = f"lmdb:{directory / 'metadata'}?lease_s={LEASE_S}"
    listen = replog.BookieOptions(listen=("tcp:127.0.0.1:0",))
    async with replog.embed(
        directory / "data", bookies=3, bookie_options=listen, metastore=metastore, options=CLIENT
    ) as client:
        yield client, metastore, None


async def campaign(directory: Path, seed: int, rounds: int) -> tuple[Counter[str], list[str]]:
    """Runs so many rounds in an empty directory; returns what was done, and what was wrong."""
    async with (
        _bookies(directory) as (client, metastore, bookies),
        _places(directory, metastore) as places,
        trio.open_nursery() as nursery,
    ):
        running = Campaign(seed, places, nursery, bookies)
        try:
            await running.run(rounds)
        finally:
            for place in places:
                if place.process is not None and place.process.returncode is None:
                    place.process.kill()
                    with trio.CancelScope(shield=True):
                        await place.process.wait()
        async with client.run_machine(NAME, Lists, listen=()) as machine:
            final = await machine.read(lambda state: {key: list(values) for key, values in state.lists.items()})
        nursery.cancel_scope.cancel()
    histories = [read_history(place.history) for place in places]
    transactions = [each for found, _ in histories for each in found]
    counts = running.faults
    counts["transactions"] = len(transactions)
    counts["unknown"] = sum(each.seen is None for each in transactions)
    return counts, [*(text for _, wrong in histories for text in wrong), *violations(transactions, final)]


if __name__ == "__main__":
    sys.exit(run_campaigns(campaign, "machine_rounds", __doc__, CAMPAIGN_ROUNDS))
