"""What appending, reading and taking over cost in logs of many segments, and in ledgers of many entries."""

from __future__ import annotations

import random
import statistics
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import trio

import replog
from benchmarks.figures import Figures, clock
from benchmarks.metastore.filling import create_ledgers, create_log
from benchmarks.setting import NotMeasured, Round, Setting
from benchmarks.shapes.loads import OPTIONS, append_each_way, ends, fill
from benchmarks.shapes.places import Embedded, embedded
from replog.errors import FencedError
from replog.registry import Registry

_ENTRY_BYTES = 10  # of the many: what is measured is their number
_IDS_TAKEN_MAX = 1_000  # while the log of one length is measured
_FILLED_MAX = 5_000_000  # entries, for the takeovers of one length
_READS = 20  # for each takeover that is measured

Filling = Callable[[replog.LogWriter], Awaitable[None]]


def segments(setting: Setting) -> Round:
    """Logs of so many segments; all but the last ones are empty."""
    lengths = setting.scale.shapes_segments
    with embedded(setting, 3) as place:
        return ends(trio.run(_segments, place, setting), "segments", lengths)


async def _segments(place: Embedded, setting: Setting) -> dict[str, Figures]:
    found = {}
    first = 1 << 20  # ids that no client has taken yet
    for length in setting.scale.shapes_segments:
        name, ledger_ids = f"log-of-{length}", range(first, first + length)
        await _create(place.directories[0] / "metadata", name, ledger_ids)
        async with place.client(OPTIONS) as client:
            found[f"segments {length}"] = await _measure(place, client, name, _few, setting.scale.shapes_times, setting)
        first = ledger_ids.stop + _IDS_TAKEN_MAX
    return found


async def _create(metadata: Path, name: str, ledger_ids: range) -> None:
    metastore = Registry().open_metastore(f"lmdb:{metadata}")
    try:
        await create_ledgers(metastore, ledger_ids, name)
        await create_log(metastore, name, ledger_ids)
    finally:
        await metastore.aclose()


async def _few(log: replog.LogWriter) -> None:
    await fill(log, _ENTRY_BYTES, 100)


def entries(setting: Setting) -> Round:
    """Logs whose last ledger has so many entries."""
    counts = setting.scale.shapes_ledger_entries
    with embedded(setting, 3) as place:
        return ends(trio.run(_entries, place, setting), "entries", counts)


async def _entries(place: Embedded, setting: Setting) -> dict[str, Figures]:
    found = {}
    for count in setting.scale.shapes_ledger_entries:

        async def fill_it(log: replog.LogWriter, count: int = count) -> None:
            await fill(log, _ENTRY_BYTES, count)

        times = max(1, min(setting.scale.shapes_times, _FILLED_MAX // count))
        async with place.client(OPTIONS) as client:
            found[f"entries {count}"] = await _measure(place, client, f"log-of-{count}", fill_it, times, setting)
    return found


async def _measure(
    place: Embedded, client: replog.Client, name: str, filling: Filling, times: int, setting: Setting
) -> Figures:
    """Each time somebody takes over who fills a ledger, and is taken over while he still leads; then the last one appends."""
    takeovers_ms, ends_ms, points_us = list[float](), list[float](), list[float]()
    for _ in range(times):
        with suppress(FencedError):  # the one that was taken over hears of it, at the latest when it leaves
            async with client.write_log(name) as old:
                await filling(old)
                ends_ms += await _start_at_the_end(client, name, old)
                points_us += await _read_points(client, old.ledger_id)
                began_s = clock()
                async with client.write_log(name) as new:
                    await new.append(b"first")
                    takeovers_ms.append((clock() - began_s) * 1e3)
    async with client.write_log(name) as log:
        await filling(log)
        appending = await append_each_way(place, log, setting.seconds)
    return appending | {
        "take_over_ms": statistics.median(takeovers_ms),
        "end_ms": statistics.median(ends_ms),
        "point_us": statistics.median(points_us),
    }


async def _start_at_the_end(client: replog.Client, name: str, log: replog.LogWriter) -> list[float]:
    """Opening a reader behind an entry, until it has the next one, which is the last."""
    after, last = await log.append(b"one"), await log.append(b"another")
    durations_ms = []
    for _ in range(_READS):
        began_s = clock()
        async with client.read_log(name, after=after) as reader:
            record = await reader.receive()
        durations_ms.append((clock() - began_s) * 1e3)
        if record.position != last:
            raise NotMeasured(f"record {record.position} was read instead of {last}")
    return durations_ms


async def _read_points(client: replog.Client, ledger_id: int) -> list[float]:
    """Reading one entry anywhere in a ledger, of which a reader is open."""
    durations_us, chosen = [], random.Random(7)
    async with client.open_ledger(ledger_id) as reader:
        last = await reader.refresh()
        for entry_id in (chosen.randrange(last - 1) for _ in range(_READS)):
            began_s = clock()
            (data,) = await reader.read(entry_id, entry_id)
            durations_us.append((clock() - began_s) * 1e6)
            if len(data) != _ENTRY_BYTES:
                raise NotMeasured(f"entry {entry_id} has {len(data)} bytes")
    return durations_us
