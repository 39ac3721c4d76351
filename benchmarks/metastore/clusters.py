"""Metastores of three processes side by side: what changes and reads take, how long nothing can be changed after a leader is
killed, and what an idle cluster costs. `quorum:` beside ZooKeeper and etcd, each on the same disk.

    PYTHONPATH=. python -m benchmarks.metastore.clusters --rounds 3
    PYTHONPATH=. python -m benchmarks.metastore.clusters --kind quorum --keys 1000000     # with so many keys of 1 KB

Each server is killed and started again in turn, so one of them led: its gap is the longest. With `--keys` one member's disk is
wiped at the end, while changes go on: it gets a copy.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio

from benchmarks.figures import clock
from benchmarks.footprint import resident_bytes
from benchmarks.metastore.calls import measure_calls
from benchmarks.peers import programs
from replog.abc import Metastore
from replog.errors import MetastoreError
from replog.registry import Registry
from replog.runtime.nursery import for_each
from tests.servers import zookeeper
from tests.servers.processes import HOST, Server, free_port

_IDLE_S = 10.0
_SETTLE_S = 3.0  # after a server was started again
_KEY_BYTES, _AT_ONCE = 1024, 64
_COPIED_S = 300.0


@attrs.frozen
class Member:
    """A server that may be killed, and started again on its disk."""

    pid: Callable[[], int]
    kill: Callable[[], None]
    start: Callable[[], None]
    disk: Path | None = None


@contextmanager
def _quorum(directory: Path) -> Iterator[tuple[str, list[Member]]]:
    addresses = [f"{HOST}:{free_port()}" for _ in range(3)]
    command = [sys.executable, "-m", "replog.cli", "bookie", "--log-format", "json", "--peers", ",".join(addresses)]
    with ExitStack() as stack:
        members = []
        for number, address in enumerate(addresses):
            place = directory / f"m{number}"
            place.mkdir(parents=True)
            server = Server(f"m{number}", [*command, "--listen", address, "--data", str(place / "data")], place, {})
            stack.callback(server.kill)
            server.launch()
            disk = place / "data" / "metastore"
            members.append(Member(partial(getattr, server, "pid"), server.kill, server.launch, disk))
        yield f"quorum:{','.join(addresses)}/replog", members


@contextmanager
def _zookeeper(directory: Path) -> Iterator[tuple[str, list[Member]]]:
    settings = zookeeper.Settings(is_synced=True, heap_mb=512, tick_ms=2000)
    with zookeeper.ensemble_blocking(directory, settings) as ensemble:
        members = [Member(partial(getattr, each, "pid"), each.kill, each.launch) for each in ensemble.servers]
        yield ensemble.url("/replog"), members


@contextmanager
def _etcd(directory: Path) -> Iterator[tuple[str, list[Member]]]:
    sys.path.append(str(Path(__file__).parents[2] / "plugins" / "replog-etcd" / "tests"))
    from etcd_servers import start_etcd  # type: ignore[import-not-found]

    if newest := programs.find("etcd"):
        os.environ["PATH"] = f"{newest.parent}{os.pathsep}{os.environ['PATH']}"
    servers = start_etcd(directory, 3)
    try:
        members = [Member(partial(_pid_of, each), each.kill, each.launch) for each in servers]
        yield f"etcd://{','.join(each.address for each in servers)}/replog", members
    finally:
        for each in servers:
            each.kill()


def _pid_of(server: object) -> int:
    return int(server._child.pid)  # type: ignore[attr-defined]


KINDS = {"quorum": _quorum, "zookeeper": _zookeeper, "etcd": _etcd}


async def _measure(url: str, members: list[Member], number: int) -> dict[str, float]:
    metastore = Registry().open_metastore(url)
    try:
        await _until_changed(metastore, f"begin/{number}")
        found = await measure_calls(url, f"r{number}")
        found["memory MiB of one"] = statistics.mean(resident_bytes(each.pid()) for each in members) / (1 << 20)
        before_s = sum(map(_cpu_s, members))
        await trio.sleep(_IDLE_S)
        found["idle, % of a core each"] = (sum(map(_cpu_s, members)) - before_s) / _IDLE_S / len(members) * 100
        gaps_s = []
        for place, member in enumerate(members):
            gaps_s.append(await _gap_s(metastore, member, f"gap/{number}-{place}"))
        found["gap s, of the killed leader"] = max(gaps_s)
        return found
    finally:
        await metastore.aclose()


async def _gap_s(metastore: Metastore, member: Member, prefix: str) -> float:
    """How long nothing can be changed after it is killed."""
    member.kill()
    began_s = clock()
    await _until_changed(metastore, prefix)
    gap_s = clock() - began_s
    member.start()
    await trio.sleep(_SETTLE_S)
    return gap_s


async def _until_changed(metastore: Metastore, prefix: str) -> None:
    number = 0
    while True:
        try:
            await metastore.create(f"{prefix}-{number}", b"")
            return
        except MetastoreError:
            number += 1
            await trio.sleep(0.02)


def _cpu_s(member: Member) -> float:
    fields = Path(f"/proc/{member.pid()}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# -- many keys ----------------------------------------------------------------------------------------------------------


async def _fill(url: str, members: list[Member], keys: int) -> dict[str, float]:
    """A change among many keys; how long a member takes to start; and, with its disk wiped, to get a copy."""
    metastore, value = Registry().open_metastore(url), os.urandom(_KEY_BYTES)

    async def create(number: int) -> None:
        await metastore.create(f"keys/{number // 1000:04}/{number % 1000:03}", value)

    async def change_ms() -> float:
        times = []
        for _ in range(200):
            began_s = clock()
            await metastore.create(f"lone/{os.urandom(8).hex()}", b"")
            times.append((clock() - began_s) * 1e3)
        return statistics.median(times)

    try:
        await _until_changed(metastore, "begin/keys")
        await for_each(create, range(1000), _AT_ONCE)
        found = {"change ms among 1,000 keys": await change_ms()}
        await for_each(create, range(1000, keys), _AT_ONCE)
        found[f"change ms among {keys:,}"] = await change_ms()
        found["memory MiB of one"] = statistics.mean(resident_bytes(each.pid()) for each in members) / (1 << 20)
        found |= await _copy(metastore, members[-1], keys)
        return found
    finally:
        await metastore.aclose()


async def _copy(metastore: object, member: Member, keys: int) -> dict[str, float]:
    """Wipes a member's disk, and waits until it is a member again and has all."""
    from replog.metastores.quorum.metastore import QuorumMetastore

    assert isinstance(metastore, QuorumMetastore), "only a member's disk is wiped"
    assert member.disk is not None
    changes = 0

    async def change() -> None:
        nonlocal changes
        while True:
            await metastore.create(f"beside/{os.urandom(8).hex()}", b"")
            changes += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(change)
        began_s = clock()
        await trio.sleep(_SETTLE_S)
        alone_per_s = changes / (clock() - began_s)
        member.kill()
        shutil.rmtree(member.disk)
        member.start()
        began_s, changes = clock(), 0
        with trio.fail_after(_COPIED_S):
            while True:
                said = await metastore.status(5.0)
                known: list[dict[str, Any]] = next(
                    (each["members"] for each in said if each.get("role") == "leader"), []
                )
                # Of one that writes its copy still, the leader does not know yet that it has all this.
                are_all_in = {each["name"] for each in known} == {each.get("name") for each in said}
                if are_all_in and max((each["behind"] for each in known), default=1000) < 1000:
                    break
                await trio.sleep(0.1)
        took_s = clock() - began_s
        beside_per_s = changes / took_s
        nursery.cancel_scope.cancel()
    return {
        "copy MB/s": keys * _KEY_BYTES / 1e6 / took_s,
        "changes/s beside it": beside_per_s,
        "and before": alone_per_s,
    }


def main() -> None:
    """Runs what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--keys", type=int, default=0)
    words = parser.parse_args()
    for kind in words.kind or KINDS:
        rounds: defaultdict[str, list[float]] = defaultdict(list)
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory, KINDS[kind](Path(directory)) as (url, members):
            for number in range(words.rounds):
                for what, value in trio.run(_measure, url, members, number).items():
                    rounds[what].append(value)
            if words.keys:
                rounds |= {what: [value] for what, value in trio.run(_fill, url, members, words.keys).items()}
        figures = ", ".join(f"{what} {statistics.median(values):.2f}" for what, values in rounds.items())
        print(f"{kind}: {figures}", flush=True)


if __name__ == "__main__":
    main()
