"""This client beside Java's, against the same three bookies: 1 KiB entries, 1000 in flight, in alternating runs.

python plugins/replog-bookkeeper/tests/speed.py --runs 5 --entries 50000
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import trio

if __name__ == "__main__":  # pytest has done this otherwise
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[3])]

import java_bookies
from java_bookies import Cluster, Driver

import replog
import replog_bookkeeper

_SIZE_BYTES = 1024
_IN_FLIGHT = 1000


async def append(cluster: Cluster, entries: int) -> float:
    """Seconds for so many entries, with so many in flight as `_IN_FLIGHT`."""
    options = replog.ClientOptions(in_flight_bytes_max=_IN_FLIGHT * _SIZE_BYTES)
    data = bytes(_SIZE_BYTES)
    async with replog_bookkeeper.connect(cluster.uri, options=options) as client, client.create_ledger() as writer:
        began_s = time.perf_counter()
        for _ in range(entries):
            try:
                writer.push_nowait(data)
            except trio.WouldBlock:
                await writer.push(data)
        await writer.flush()
        return time.perf_counter() - began_s


async def read(cluster: Cluster, ledger_id: int) -> float:
    """Seconds for reading all of a ledger."""
    async with replog_bookkeeper.connect(cluster.uri) as client, client.open_ledger(ledger_id) as reader:
        began_s = time.perf_counter()
        async for _ in reader.batches():
            pass
        return time.perf_counter() - began_s


async def lone(cluster: Cluster, entries: int) -> float:
    """The median of the seconds that a lone append takes."""
    data, found = bytes(_SIZE_BYTES), []
    async with replog_bookkeeper.connect(cluster.uri) as client, client.create_ledger() as writer:
        for _ in range(entries):
            began_s = time.perf_counter()
            await writer.append(data)
            found.append(time.perf_counter() - began_s)
    return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--entries", type=int, default=50_000)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="speed-") as directory,
        java_bookies.cluster(Path(directory), 3, is_optimized=True) as cluster,
    ):
        driver = Driver(cluster.java, cluster.uri, Path(directory) / "driver.log")
        driver("client", "java", "v3")
        ratios = []
        for number in range(given.runs + 1):
            (ledger_id,) = driver("create", "java", "own", 3, 3, 2, "CRC32C", "-")
            java_s = float(driver("bench", "own", given.entries, _SIZE_BYTES, _IN_FLIGHT)[0])
            driver("close", "own")
            python_s = trio.run(append, cluster, given.entries)
            read_s = trio.run(read, cluster, int(ledger_id))
            if number:  # the first one warms Java's compiler
                ratios.append(java_s / python_s)
                rates = f"java {given.entries / java_s:.0f}/s, python {given.entries / python_s:.0f}/s"
                print(f"{rates}, ratio {ratios[-1]:.2f}; python reads {given.entries / read_s:.0f}/s", flush=True)
        print(
            f"median ratio {statistics.median(ratios):.2f}; a lone append {1e3 * trio.run(lone, cluster, 500):.2f} ms"
        )
        driver.kill()


if __name__ == "__main__":
    main()
