"""What single calls of each metastore take: a lone change, a lone read, and changes of many clients at a time.

`PYTHONPATH=. python -m benchmarks.metastore.calls`: all that are here, one after the other, and medians of the rounds. ZooKeeper
and etcd run as one server, which syncs; `quorum` as three processes on the same disk, which all sync. Each client is a connection
of its own.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import trio

from benchmarks.figures import clock
from benchmarks.metastore.stores import KINDS, Kind, missing, served
from replog.abc import Metastore
from replog.registry import Registry

_LONE, _CLIENTS, _EACH = 200, 64, 40
_VALUE = bytes(100)


async def _durations_ms(call: Callable[[int], Awaitable[object]]) -> list[float]:
    found: list[float] = []
    for number in range(_LONE):
        began_s = clock()
        await call(number)
        found.append((clock() - began_s) * 1e3)
    return sorted(found)


async def _changes_per_s(clients: list[Metastore], prefix: str) -> float:
    async def create(client: Metastore, place: int) -> None:
        for number in range(_EACH):
            await client.create(f"{prefix}/c{place}-{number}", _VALUE)

    began_s = clock()
    async with trio.open_nursery() as nursery:
        for place, client in enumerate(clients):
            nursery.start_soon(create, client, place)
    return len(clients) * _EACH / (clock() - began_s)


async def measure_calls(url: str, prefix: str) -> dict[str, float]:
    async with AsyncExitStack() as stack:
        clients: list[Metastore] = []
        for _ in range(_CLIENTS):
            client = Registry().open_metastore(url)
            stack.push_async_callback(client.aclose)
            clients.append(client)
        one = clients[0]
        await one.create(f"{prefix}/first", b"")
        created = await _durations_ms(lambda number: one.create(f"{prefix}/k{number}", _VALUE))
        read = await _durations_ms(lambda number: one.get(f"{prefix}/k{number}"))
        return {
            "change p50 ms": created[len(created) // 2],
            "change p99 ms": created[len(created) * 99 // 100],
            "read p50 ms": read[len(read) // 2],
            f"changes/s of {_CLIENTS} clients": await _changes_per_s(clients, prefix),
        }


def measure(kind: Kind, directory: Path, rounds: int) -> dict[str, float]:
    """Medians of the rounds, each below keys of its own."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    with served(kind, directory) as url:
        for number in range(rounds):
            for what, value in trio.run(measure_calls, url, f"r{number}").items():
                found[what].append(value)
    return {what: statistics.median(values) for what, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as directory:
        for kind in KINDS:
            if kind.name in missing():
                print(f"{kind.name}: {missing()[kind.name]}")
                continue
            figures = measure(kind, Path(directory), rounds)
            print(f"{kind.name}: {', '.join(f'{what} {value:.2f}' for what, value in figures.items())}", flush=True)


if __name__ == "__main__":
    main()
