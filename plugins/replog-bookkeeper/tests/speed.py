"""This client beside Java's, against the same three bookies; or with --bookies Java's client, against three bookies of Java's and
three of replog's. 1 KiB entries, 1000 in flight, in alternating runs; then lone entries.

python plugins/replog-bookkeeper/tests/speed.py --runs 5 --entries 50000
python plugins/replog-bookkeeper/tests/speed.py --bookies --runs 5 --entries 20000
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
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
_LONE = 300  # entries, one after the other


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
    parser.add_argument("--bookies", action="store_true", help="compare bookies, by Java's client")
    given = parser.parse_args()
    if given.bookies:
        compare_bookies(given.runs, given.entries)
    else:
        compare_clients(given.runs, given.entries)


def compare_clients(runs: int, entries: int) -> None:
    """This client and Java's, on Java's bookies."""
    with (
        tempfile.TemporaryDirectory(prefix="speed-") as directory,
        java_bookies.cluster(Path(directory), 3, is_optimized=True) as cluster,
    ):
        driver = Driver(cluster.java, cluster.uri, Path(directory) / "driver.log")
        driver("client", "java", "v3")
        ratios = []
        for number in range(runs + 1):
            (ledger_id,) = driver("create", "java", "own", 3, 3, 2, "CRC32C", "-")
            java_s = float(driver("bench", "own", entries, _SIZE_BYTES, _IN_FLIGHT)[0])
            driver("close", "own")
            python_s = trio.run(append, cluster, entries)
            read_s = trio.run(read, cluster, int(ledger_id))
            if number:  # the first one warms Java's compiler
                ratios.append(java_s / python_s)
                rates = f"java {entries / java_s:.0f}/s, python {entries / python_s:.0f}/s"
                print(f"{rates}, ratio {ratios[-1]:.2f}; python reads {entries / read_s:.0f}/s", flush=True)
        print(
            f"median ratio {statistics.median(ratios):.2f}; a lone append {1e3 * trio.run(lone, cluster, 500):.2f} ms"
        )
        driver.kill()


def compare_bookies(runs: int, entries: int) -> None:
    """Bookies of Java's and of replog's, by Java's client: each kind in a cluster of its own, which both run all the time."""
    with tempfile.TemporaryDirectory(prefix="speed-") as text, ExitStack() as stack:
        drivers: dict[str, Driver] = {}
        for kind, counts in (("java", (3, 0)), ("python", (0, 3))):
            directory = Path(text) / kind
            directory.mkdir()
            of_java, of_python = counts
            cluster = stack.enter_context(java_bookies.cluster(directory, of_java, is_optimized=True))
            cluster.start_python(of_python, ("files",))
            drivers[kind] = Driver(cluster.java, cluster.uri, directory / "driver.log")
            stack.callback(drivers[kind].kill)
            drivers[kind]("client", "java", "v3")
        ratios, lone_ms = [], {kind: list[float]() for kind in drivers}
        for number in range(runs + 1):
            rates = {kind: entries / bench(driver, entries, _IN_FLIGHT) for kind, driver in drivers.items()}
            for kind, driver in drivers.items():
                lone_ms[kind].append(1e3 * lone_of_java(driver))
            if number:  # the first one warms Java's compiler
                ratios.append(rates["python"] / rates["java"])
                print(
                    f"java's bookies {rates['java']:.0f}/s, replog's {rates['python']:.0f}/s, ratio {ratios[-1]:.2f}",
                    flush=True,
                )
        medians = {kind: statistics.median(found[1:]) for kind, found in lone_ms.items()}
        times = medians["python"] / medians["java"]
        print(f"median ratio {statistics.median(ratios):.2f}; the median of lone appends:", end=" ")
        print(f"{medians['java']:.2f} ms and {medians['python']:.2f} ms, {times:.2f} times")


def bench(driver: Driver, entries: int, in_flight: int) -> float:
    """Seconds for so many entries of a ledger of its own."""
    driver("create", "java", "own", 3, 3, 2, "CRC32C", "-")
    seconds = float(driver("bench", "own", entries, _SIZE_BYTES, in_flight)[0])
    driver("close", "own")
    return seconds


def lone_of_java(driver: Driver) -> float:
    """The median of the seconds that Java's client takes for a lone append."""
    driver("create", "java", "own", 3, 3, 2, "CRC32C", "-")
    seconds = float(driver("lone", "own", _LONE, _SIZE_BYTES)[0])
    driver("close", "own")
    return seconds


if __name__ == "__main__":
    main()
