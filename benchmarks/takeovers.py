"""Measures takeovers of both kinds of logs: `python -m benchmarks.takeovers [--takeovers 50] [--growth 10000]`.

Bookies with storage in files, and a metastore in memory that counts, all in one process. Each leader appends an entry, and is
alive when the next one takes over, so that something has to be fenced and recovered. With a dead bookie: it was in the log's last
ensemble, and is not announced any more. `--growth` takes over so often, with storage in memory, weighs the metadata, and says
what the first and the last hundred of these takeovers cost.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import attrs
import trio

import replog
from replog.abc import Versioned
from replog.errors import FencedError
from replog.metastores.memory import MemoryMetastore

KINDS = ("bounded", "unbounded")
QUORUM = replog.Quorum(3, 3, 2)
COMPARED = 100  # takeovers at the beginning and at the end of a log that grows


class CountingMetastore(MemoryMetastore):
    """Counts calls, and can be weighed."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.sizes: dict[str, int] = {}  # by key: bytes of its value

    async def create(self, key: str, value: bytes) -> int:
        """As any metastore's."""
        self.calls += 1
        version = await super().create(key, value)
        self.sizes[key] = len(value)
        return version

    async def get(self, key: str) -> Versioned:
        """As any metastore's."""
        self.calls += 1
        return await super().get(key)

    async def put(self, key: str, value: bytes, expected: int) -> int:
        """As any metastore's."""
        self.calls += 1
        version = await super().put(key, value, expected)
        self.sizes[key] = len(value)
        return version

    async def delete(self, key: str, expected: int | None = None) -> None:
        """As any metastore's."""
        self.calls += 1
        await super().delete(key, expected)
        self.sizes.pop(key, None)

    async def children(self, key: str) -> list[str]:
        """As any metastore's."""
        self.calls += 1
        return await super().children(key)


@attrs.frozen
class Takeovers:
    """What some takeovers took, one by one: milliseconds, those of the processor, and calls of the metastore."""

    times_ms: tuple[float, ...]
    processor_ms: tuple[float, ...]  # of client, bookies and metastore, which are one process
    calls: tuple[int, ...]


async def take_over(client: replog.Client, metastore: CountingMetastore, kind: str, times: int) -> Takeovers:
    """Takes the log over so often. Each leader appends an entry, and lives on until the one after its successor leads."""
    times_ms, processor_ms, calls = [], [], []
    earlier: AsyncExitStack | None = None
    for number in range(times):
        stack = AsyncExitStack()
        before, started, used_s = metastore.calls, trio.current_time(), time.process_time()
        log = await stack.enter_async_context(
            client.write_log("log", quorum=QUORUM, options=replog.LogOptions(ledgers=kind))
        )
        times_ms.append(1000 * (trio.current_time() - started))
        processor_ms.append(1000 * (time.process_time() - used_s))
        calls.append(metastore.calls - before)
        await log.append(b"%d" % number)
        if earlier is not None:
            with suppress(FencedError):
                await earlier.aclose()
        earlier = stack
    if earlier is not None:
        await earlier.aclose()
    return Takeovers(tuple(times_ms), tuple(processor_ms), tuple(calls))


async def measure(
    kind: str, bookies: int, dead: int, times: int, directory: Path, storage: str
) -> tuple[CountingMetastore, Takeovers]:
    """Prints a line of the table."""
    metastore = CountingMetastore()
    directories = [directory / str(number) for number in range(bookies)]
    async with replog.embed(directories, metastore=metastore, storage=storage, quorum=QUORUM) as client:
        found = await take_over(client, metastore, kind, 3 if dead else times)
        last = (await client.log_metadata("log")).segments[-1]
        ensemble = (await client.ledger_metadata(last.ledger_id)).last_fragment.ensemble
        places = {each._server.bookie_id: place for each, place in zip(client.bookies, directories, strict=True)}
    if dead:
        places.pop(ensemble[0])
        async with replog.embed(list(places.values()), metastore=metastore, storage=storage, quorum=QUORUM) as client:
            found = await take_over(client, metastore, kind, times)
    times_ms = sorted(found.times_ms)
    middle, late = statistics.median(times_ms), times_ms[int(0.95 * len(times_ms))]
    print(
        f"| {kind} | {bookies} | {dead} | {middle:.1f} | {late:.1f} | {times_ms[0]:.1f} | {statistics.mean(found.calls):.1f} |",
        flush=True,
    )
    return metastore, found


def print_growth(kind: str, metastore: CountingMetastore, found: Takeovers) -> None:
    """Prints what the metastore keeps after many takeovers, and whether the last ones cost more than the first."""
    sizes = {key: size for key, size in metastore.sizes.items() if key.startswith(("ledgers/", "logs/"))}
    total, largest = sum(sizes.values()) / 1000, max(sizes.values())
    print(f"{kind}: {len(sizes)} records, {total:.0f} kB, the largest {largest} bytes", flush=True)
    for name, part in (("first", slice(COMPARED)), ("last", slice(-COMPARED, None))):
        processor_ms, calls = statistics.median(found.processor_ms[part]), statistics.mean(found.calls[part])
        print(f"{kind}: the {name} {COMPARED}: {processor_ms:.1f} ms of processor, {calls:.1f} calls", flush=True)


async def main(takeovers: int, growth: int) -> None:
    """Measures, and prints tables."""
    print("| ledgers | bookies | dead | median, ms | 95 of 100, ms | fastest, ms | calls of the metastore |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        for bookies in (3, 5):
            for dead in (0, 1):
                for kind in KINDS:
                    place = Path(directory) / f"{kind}-{bookies}-{dead}"
                    await measure(kind, bookies, dead, takeovers, place, "files")
        for kind in KINDS if growth else ():
            grown = await measure(kind, 3, 0, growth, Path(directory) / f"{kind}-growth", "memory")
            print_growth(kind, *grown)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--takeovers", type=int, default=50)
    parser.add_argument("--growth", type=int, default=0)
    options = parser.parse_args()
    trio.run(main, options.takeovers, options.growth)
