"""Clients of a metastore whose members crash and lose each other: all answers agree with one order (Q10, Q13)."""

from __future__ import annotations

import random
from pathlib import Path

import attrs
import pytest
import trio

from replog.errors import (
    KeyExistsError,
    KeyNotFoundError,
    MetastoreUnavailableError,
    MetastoreUncertainError,
    VersionConflictError,
)
from replog.metastores.quorum.metastore import QuorumMetastore
from tests.lanes.seeds import seeds
from tests.metastores.quorum.cluster import QuorumCluster, quorum_cluster

pytestmark = pytest.mark.real  # disks, threads and elections by real time

KEYS = ("a", "b", "c")
_TROUBLE_S = 4.0


@attrs.frozen
class Seen:
    """A version that a call saw or made, and when the call ran. A write of unknown outcome has no version."""

    key: str
    version: int | None
    is_write: bool
    value: bytes
    start: float
    end: float


class Caller:
    """One client that reads and writes at random, and notes what it was told."""

    def __init__(self, metastore: QuorumMetastore, chance: random.Random, name: str, seen: list[Seen]) -> None:
        self._metastore = metastore
        self._chance = chance
        self._name = name
        self._seen = seen
        self._number = 0
        self._known: dict[str, int] = {}

    async def run(self) -> None:
        while True:
            key = self._chance.choice(KEYS)
            with trio.move_on_after(60):
                await (self._write(key) if self._chance.random() < 0.6 else self._read(key))
            await trio.sleep(self._chance.uniform(0, 0.005))

    async def _read(self, key: str) -> None:
        start = trio.current_time()
        try:
            found = await self._metastore.get(key)
        except KeyNotFoundError:
            self._seen.append(Seen(key, 0, False, b"", start, trio.current_time()))
        except MetastoreUnavailableError:
            return
        else:
            self._known[key] = found.version
            self._seen.append(Seen(key, found.version, False, found.value, start, trio.current_time()))

    async def _write(self, key: str) -> None:
        self._number += 1
        value = f"{self._name}.{self._number}".encode()
        start = trio.current_time()
        try:
            if key in self._known:
                version = await self._metastore.put(key, value, self._known[key])
            else:
                version = await self._metastore.create(key, value)
        except (KeyExistsError, KeyNotFoundError):
            await self._read(key)
        except VersionConflictError:
            await self._read(key)
        except MetastoreUnavailableError:
            self._seen.append(Seen(key, -1, True, value, start, trio.current_time()))  # it was not written
        except MetastoreUncertainError:
            self._seen.append(Seen(key, None, True, value, start, trio.current_time()))
        else:
            self._known[key] = version
            self._seen.append(Seen(key, version, True, value, start, trio.current_time()))


async def trouble(cluster: QuorumCluster, names: list[str], chance: random.Random) -> None:
    """Crashes, restarts and cuts, one after the other; one member at most is down."""
    until_s = trio.current_time() + _TROUBLE_S
    while trio.current_time() < until_s:
        await trio.sleep(chance.uniform(0.05, 0.4))
        what = chance.choice(("crash", "crash leader", "cut", "cut one way", "heal"))
        if what.startswith("crash"):
            leading = [name for name, node in cluster.nodes().items() if node.member.leading is not None]
            name = chance.choice(leading if leading and what == "crash leader" else names)
            await cluster.stop(name)
            await trio.sleep(chance.uniform(0, 0.3))
            cluster.start(name)
        elif what == "heal":
            cluster.blocked = set()
        else:
            one = chance.choice(names)
            ways = {(one, other) for other in names if other != one}
            cluster.blocked = ways if what == "cut one way" else ways | {(other, one) for one, other in ways}
    cluster.blocked = set()


async def writes_go_on(seen: list[Seen]) -> None:
    """All members run and reach each other again: clients get somewhere, however slow the machine is."""
    before = written(seen)
    with trio.fail_after(60):
        while True:
            await trio.sleep(0.05)
            if written(seen) - before > 20:
                return


def written(seen: list[Seen]) -> int:
    return sum(each.is_write and each.version is not None and each.version > 0 for each in seen)


def judge(seen: list[Seen], last: dict[str, tuple[int, bytes]]) -> None:
    """Versions are unique and rise in real time; reads see written values; nothing that failed was written."""
    values: dict[tuple[str, int], bytes] = {}
    for each in seen:
        if each.version and each.version > 0 and each.value:
            assert values.setdefault((each.key, each.version), each.value) == each.value, "two values of one version"
    failed = {each.value for each in seen if each.version == -1}
    assert failed.isdisjoint(values.values()), "a change that was said not to be written is read"
    for key in KEYS:
        of_key = [each for each in seen if each.key == key and each.version is not None and each.version >= 0]
        known = sorted(of_key, key=lambda each: each.start)
        ended = sorted(known, key=lambda each: each.end)
        highest, place = -1, 0
        for each in known:
            while place < len(ended) and ended[place].end < each.start:
                highest = max(highest, ended[place].version or 0)
                place += 1
            assert each.version is not None
            assert each.version >= highest, f"{each} sees the past: {highest} was seen before it began"
        if key in last and highest >= 0:
            assert last[key][0] >= highest, "what was answered is lost"
            assert values.get((key, last[key][0]), last[key][1]) == last[key][1]


@pytest.mark.parametrize("seed", seeds(12, few=1))
@pytest.mark.parametrize("size", [3, 5])
async def test_answers_agree_with_one_order_while_members_crash(size: int, seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    seen: list[Seen] = []
    async with quorum_cluster(tmp_path, size) as cluster, cluster.client(2.0) as client, trio.open_nursery() as nursery:
        for number in range(6):
            caller = Caller(client, random.Random(seed * 100 + number), f"c{number}", seen)
            nursery.start_soon(caller.run)
        await trouble(cluster, list(cluster.places), chance)
        await writes_go_on(seen)
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True), trio.fail_after(60):
            last = {}
            for key in KEYS:
                try:
                    found = await client.get(key)
                except KeyNotFoundError:
                    continue
                last[key] = (found.version, found.value)
    judge(seen, last)
