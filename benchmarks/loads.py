"""What is asked of replog: appends to a log of embedded bookies with real files, and scans of a closed one.

Every measurement opens the same directory again, and deletes its log at the end. So all but the first write into journal
files that were used before, as a log does that is trimmed now and then.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

import attrs
import trio

import replog
from benchmarks.figures import Figures, Meter, clock
from replog.config import BookieOptions, ClientOptions
from replog.config.client import ClientTuning
from replog.log.log_writer import LogWriter

MIB = 1 << 20
LOG = "benchmark"
_SPARE_FILES = 12  # journal files of 64 MiB that each bookie keeps: what a second of appends needs
WARM_UP_SHARE = 0.2
_RECYCLE_TIMEOUT_S = 60.0
_SLICE_S = 0.1

Load = Callable[[LogWriter, float], Awaitable[int]]  # appends for so many seconds; returns how many entries


@attrs.frozen
class Place:
    """A directory with bookies. `storage_options` are further ones of their storage: "scrub_bytes_per_s=0"."""

    directory: Path
    bookies: int
    spare_files: int = _SPARE_FILES
    storage_options: str = ""

    def meter(self) -> Meter:
        """Time and CPU time from now on."""
        return Meter()

    @asynccontextmanager
    async def client(self, options: ClientOptions | None = None) -> AsyncIterator[replog.Client]:
        """A client with these bookies embedded; at the end nothing but spare files is left of what was written."""
        storage = f"files?spare_files={self.spare_files}&{self.storage_options}".rstrip("&")
        bookie_options = BookieOptions(storage=storage)
        async with replog.embed(
            self.directory, bookies=self.bookies, options=options, bookie_options=bookie_options
        ) as client:
            yield client
            if LOG in await client.logs():
                await client.delete_log(LOG)
                await recycled(client)

    def warm_up(self) -> None:
        """Writes as much as the spare files hold, so that all of them exist."""
        trio.run(warm_up, self, self.spare_files)


class AnyPlace(Protocol):
    """Where clients come from, and what they cost."""

    def meter(self) -> Meter:
        """Time and CPU time from now on."""

    def client(self, options: ClientOptions | None = None) -> AbstractAsyncContextManager[replog.Client]:
        """A client, of a place that is as it was found when the client is left."""


async def warm_up(place: AnyPlace, spare_files: int) -> None:
    """Writes so many journal files of 64 MiB in each bookie, and deletes what was written: the memory that the page cache
    has for them was never used before, and costs several times as much the first time."""
    data = [os.urandom(MIB)] * 16
    async with place.client() as client, client.write_log(LOG) as log:
        for _ in range(spare_files * 64 // len(data)):
            await log.extend(data)


async def recycled(client: replog.Client) -> None:
    """Until the bookies have dropped the deleted ledgers, and reuse their files."""
    with trio.fail_after(_RECYCLE_TIMEOUT_S):
        while any(bookie.statistics()["journal_files"] > 1 for bookie in client.bookies):  # noqa: ASYNC110
            await trio.sleep(0.05)
    await trio.sleep(0.2)  # files that are let go of are renamed in the background


# -- appending ------------------------------------------------------------------------------------------------------


Slices = list[tuple[list[float], list[float]]]  # durations of something else, and then of replog's calls


def append_beside(
    place: AnyPlace, seconds: float, entries: list[bytes], other: Callable[[float], list[float]]
) -> Slices:
    """One task appends one entry, or extends by several, and awaits that before the next call. In turns with something
    else on the same disk, a tenth of a second each, so that noise meets both; the last slice has only the other."""
    return trio.run(_append_beside, place, seconds, entries, other)


async def _append_beside(
    place: AnyPlace, seconds: float, entries: list[bytes], other: Callable[[float], list[float]]
) -> Slices:
    async with place.client() as client, client.write_log(LOG) as log:
        await _call_for(log, _SLICE_S, entries)
        slices = [
            (other(min(_SLICE_S, seconds)), await _call_for(log, min(_SLICE_S, seconds), entries))
            for _ in range(max(1, round(seconds / _SLICE_S)))
        ]
    return [*slices, (other(min(_SLICE_S, seconds)), [])]


async def _call_for(log: LogWriter, seconds: float, entries: list[bytes]) -> list[float]:
    durations: list[float] = []
    deadline = clock() + seconds
    while not durations or clock() < deadline:
        started = clock()
        if len(entries) > 1:
            await log.extend(entries)
        else:
            await log.append(entries[0])
        durations.append(clock() - started)
    return durations


def push(place: AnyPlace, seconds: float, entry_bytes: int, in_flight: int) -> Figures:
    """Pushes without waiting for anything but the byte budget, which is that of so many entries."""
    budget = entry_bytes * in_flight

    async def load(log: LogWriter, seconds: float) -> int:
        entries = [os.urandom(entry_bytes) for _ in range(1000)]
        pushed, deadline = 0, clock() + seconds
        while not pushed or clock() < deadline:
            for data in entries:
                try:
                    log.push_nowait(data)
                except trio.WouldBlock:
                    await log.push(data)
            pushed += len(entries)
        await log.flush()
        return pushed

    options = ClientTuning(in_flight_bytes_max=budget, batch_bytes_max=min(MIB, budget))
    return trio.run(_append, place, load, seconds, options)


def extend(place: AnyPlace, seconds: float, entry_bytes: int, entries_per_call: int, calls: int) -> Figures:
    """So many tasks call `extend` with so many entries, again and again."""

    async def one(log: LogWriter, seconds: float) -> int:
        appended, deadline = 0, clock() + seconds
        while not appended or clock() < deadline:
            appended += len(await log.extend(entries))
        return appended

    entries = [os.urandom(entry_bytes) for _ in range(entries_per_call)]
    return trio.run(_append, place, partial(_side_by_side, one, calls), seconds, None)


def append_from_tasks(place: AnyPlace, seconds: float, entry_bytes: int, tasks: int) -> Figures:
    """So many tasks, each of which awaits its appends one by one."""

    async def one(log: LogWriter, seconds: float) -> int:
        appended, deadline = 0, clock() + seconds
        while not appended or clock() < deadline:
            await log.append(data)
            appended += 1
        return appended

    data = os.urandom(entry_bytes)
    return trio.run(_append, place, partial(_side_by_side, one, tasks), seconds, None)


async def _side_by_side(one: Load, tasks: int, log: LogWriter, seconds: float) -> int:
    appended = 0

    async def run() -> None:
        nonlocal appended
        here = await one(log, seconds)
        appended += here

    async with trio.open_nursery() as nursery:
        for _ in range(tasks):
            nursery.start_soon(run)
    return appended


async def _append(place: AnyPlace, load: Load, seconds: float, options: ClientOptions | None) -> Figures:
    async with place.client(options) as client, client.write_log(LOG) as log:
        await load(log, seconds * WARM_UP_SHARE)
        meter = place.meter()
        return meter.figures(await load(log, seconds))


# -- scanning -------------------------------------------------------------------------------------------------------


def scan(place: AnyPlace, seconds: float, batch: Sequence[int]) -> dict[str, Figures]:
    """Reads a closed log of a million entries, in batches of entries of these sizes, in three ways."""
    return trio.run(_scan, place, seconds, batch)


async def _scan(place: AnyPlace, seconds: float, batch: Sequence[int]) -> dict[str, Figures]:
    batches = 1_000_000 // len(batch) if seconds >= 0.1 else 2
    entries = [os.urandom(entry_bytes) for entry_bytes in batch]
    async with place.client() as client:
        async with client.write_log(LOG) as log:
            for _ in range(batches):
                await log.extend(entries)
        found = {}
        for name, read in (("bytes", _read_bytes), ("arrow", _read_arrow), ("records", _read_records)):
            scanned, meter, deadline = 0, place.meter(), clock() + seconds
            while not scanned or clock() < deadline:
                async with client.read_log(LOG) as reader:
                    scanned += await read(reader)
            if scanned % (batches * len(batch)):
                raise ValueError("the scan did not find what was written")
            found[name] = meter.figures(scanned)
    return found


async def _read_bytes(reader: replog.LogReader) -> int:
    found = 0
    async for batch in reader.batches():
        found += len(batch.payloads())
    return found


async def _read_arrow(reader: replog.LogReader) -> int:
    found = 0
    async for batch in reader.batches():
        found += len(batch.to_arrow())
    return found


async def _read_records(reader: replog.LogReader) -> int:
    found = 0
    async for record in reader:
        found += len(record.data) > 0
    return found
