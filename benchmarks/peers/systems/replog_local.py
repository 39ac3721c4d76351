"""replog within one process: `embed` with one bookie, `append` of one entry or `extend` by several, one call at a time.

All options are the defaults, but that twelve journal files are kept for reuse, not six: a load has to run in files that were
used before, as a log does that is trimmed now and then, and one at full speed needs more of them between two trims.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import version
from pathlib import Path

import trio

import replog
from benchmarks.figures import Figures, Meter, clock, percentiles
from benchmarks.loads import recycled
from benchmarks.peers import local
from benchmarks.peers.pump import cpu_figures
from benchmarks.peers.system import Latencies, Load, NotMeasured, Promise
from benchmarks.peers.systems.replog import run
from replog.registry import Registry

LOG = "benchmark"
MIB = 1 << 20
_STORAGE = "files?spare_files=12"
_PATIENCE_S = 30.0  # for the reader to get the last entry


class ReplogLocalRunning:
    """A directory; each measurement opens it, as a program does that is started again."""

    process_ids = ()

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def append(self, load: Load) -> Figures:
        """As `Running.append`: one call after the other."""
        local.check_is_local(load)
        return run(self._append, load)

    def scan(self, entry_bytes: int, entries: int) -> Figures:
        """As `Running.scan`, by `batches()` to `bytes`."""
        return run(self._scan, entry_bytes, entries)

    def tail(self, entry_bytes: int, entries: int) -> Figures:
        """As `Running.tail`, but the reader is a task of the same trio run: no other process may open the directory."""
        return run(self._tail, entry_bytes, entries)

    def take_over(self, entry_bytes: int) -> Figures:
        """There is no form of it."""
        raise NotMeasured("on one node there is nobody who could take over")

    def restart(self) -> Figures:
        """As `LocalRunning.restart`; the start of trio, and the recovery of the log that was left open, are part of it."""
        return local.restart([__name__], self._directory)

    def warm_up(self, size_bytes: int) -> None:
        """So that the files for reuse exist."""
        run(self._warm_up, size_bytes)

    async def _append(self, load: Load) -> Figures:
        entries, latencies = local.different(load.entry_bytes, load.entries_per_call), Latencies()
        async with _cleared(self._directory) as client, client.write_log(LOG) as log:
            await _append_for(log, load.warm_up_s, entries, latencies)
            latencies.forget()
            meter = Meter()
            appended = await _append_for(log, load.seconds, entries, latencies)
            found = meter.figures(appended)
        return {"entries": float(appended), **cpu_figures(found), **latencies.figures()}

    async def _scan(self, entry_bytes: int, entries: int) -> Figures:
        async with _cleared(self._directory) as client:
            async with client.write_log(LOG) as log:
                for part in local.parts(entry_bytes, entries):
                    await log.extend(part)
            found, meter = 0, Meter()
            async with client.read_log(LOG) as reader:
                async for batch in reader.batches():
                    found += len(batch.payloads())
        if found != entries:
            raise NotMeasured(f"{entries} entries were appended, and {found} read")
        return cpu_figures(meter.figures(entries))

    async def _tail(self, entry_bytes: int, entries: int) -> Figures:
        data, called_s, seen_s = os.urandom(entry_bytes), list[float](), list[float]()

        async def follow(reader: replog.LogReader) -> None:
            async for batch in reader.batches():
                seen_s.extend([clock()] * len(batch.payloads()))
                if len(seen_s) > entries:
                    break

        async with (
            _cleared(self._directory) as client,
            client.write_log(LOG) as log,
            client.read_log(LOG, follow=True) as reader,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(follow, reader)
            for _ in range(entries + 1):
                called_s.append(clock())
                await log.append(data)
            nursery.cancel_scope.deadline = trio.current_time() + _PATIENCE_S
        if len(seen_s) != entries + 1:
            raise NotMeasured(f"the reader got {len(seen_s)} of {entries + 1} entries")
        took = [seen - called for seen, called in zip(seen_s, called_s, strict=True)]
        return percentiles(took[1:])

    async def _warm_up(self, size_bytes: int) -> None:
        data = [os.urandom(MIB)] * 16
        async with _cleared(self._directory) as client, client.write_log(LOG) as log:
            for _ in range(size_bytes // MIB // len(data)):
                await log.extend(data)


@asynccontextmanager
async def _cleared(directory: Path) -> AsyncIterator[replog.Client]:
    """The client of an empty directory, but for files that were used before."""
    async with replog.embed(directory / "log", storage=_STORAGE) as client:
        for name in await client.logs():
            await client.delete_log(name)
        await client.bookies[0].collect_garbage()
        await recycled(client)
        yield client


async def _append_for(log: replog.LogWriter, seconds: float, entries: list[bytes], latencies: Latencies) -> int:
    appended, count, deadline = 0, len(entries), clock() + seconds
    while not appended or clock() < deadline:
        latencies.sent(count)
        if count > 1:
            await log.extend(entries)
        else:
            await log.append(entries[0])
        latencies.confirmed(count)
        appended += count
    return appended


class ReplogLocal:
    """The system."""

    name = "replog-local"
    title = "replog, in process"
    is_replicated = False
    promise = Promise(
        copies=1,
        confirmed_by=1,
        is_synced=True,
        words="one bookie in this process (`embed`, its defaults; twelve journal files kept for reuse): fdatasync before an "
        "entry is confirmed",
    )
    warm_up_bytes = 12 * 64 * MIB

    def missing(self) -> str | None:
        """It is there."""
        return None

    def version(self) -> str:
        """Of replog."""
        return version("replog")

    @contextmanager
    def running(self, directory: Path) -> Iterator[ReplogLocalRunning]:
        """An empty log."""
        running = ReplogLocalRunning(directory)
        running.warm_up(self.warm_up_bytes)
        yield running


SYSTEM = ReplogLocal()


# -- the child that is killed, and the one that opens what it left ----------------------------------------------------


async def _write_until_killed(directory: Path) -> None:
    async with replog.embed(directory / "log", storage=_STORAGE) as client, client.write_log(LOG) as log:
        for entries in local.history():
            await log.extend(entries)
        print(local.WRITTEN, flush=True)
        while True:
            await log.append(entries[0])


async def _reopen(directory: Path) -> None:
    data = os.urandom(local.HISTORY_ENTRY_BYTES)
    async with replog.embed(directory / "log", storage=_STORAGE) as client, client.write_log(LOG) as log:
        await log.append(data)
        print(local.CONFIRMED, clock() - started_s, flush=True)
        await trio.sleep_forever()  # until our parent has read it, and ends us


if __name__ == "__main__":
    Registry()  # its modules are loaded then, as those of the others are
    started_s = clock()
    trio.run(_write_until_killed if sys.argv[1] == "write" else _reopen, Path(sys.argv[2]))
