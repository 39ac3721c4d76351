"""What an entry costs as one client has more and more ledgers open: the same number of entries for any number of ledgers.

Three loads. `one`: 1000 entries in flight to one ledger, and the others only are there. `turns`: one entry in flight, to each
ledger in its turn. `dealt`: 1000 entries are dealt out to the ledgers in turn, and when all are confirmed, the next 1000: with
a thousand ledgers each batch has a single entry, so that it costs what a batch costs.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import trio

import replog
from benchmarks.figures import Figures, clock, percentiles
from benchmarks.remote.place import Kind
from benchmarks.setting import Round, Setting
from benchmarks.shapes.loads import IN_FLIGHT, OPTIONS, ends
from benchmarks.shapes.places import AnyPlace, embedded

_ENTRY_BYTES = 100
_OPENED_AT_ONCE = 50
_TURNS_SHARE = 20  # entries of the other loads for one of `turns`
_READY_S = 600.0  # ten thousand ledgers on a slow disk


def measure_embedded(setting: Setting) -> Round:
    """Three bookies in this process."""
    with embedded(setting, 3) as place:
        return _measure(place, setting.scale.shapes_ledgers, setting.scale.shapes_entries)


def measure_remote(setting: Setting) -> Round:
    """Three bookie processes."""
    return _measure(setting.remote(Kind()), setting.scale.shapes_remote_ledgers, setting.scale.shapes_entries)


def _measure(place: AnyPlace, counts: Sequence[int], entries: int) -> Round:
    found: dict[str, Figures] = {}
    for count in counts:
        for load, figures in trio.run(_with_open, place, count, entries).items():
            found[f"{load} {count}"] = figures
    for load in ("one", "turns", "dealt"):
        found = ends(found, load, counts)
    return found


async def _with_open(place: AnyPlace, count: int, entries: int) -> dict[str, Figures]:
    async with place.client(OPTIONS) as client, open_ledgers(client, count) as writers:
        data = os.urandom(_ENTRY_BYTES)
        await _dealt(writers, data, max(count, IN_FLIGHT))  # so each has an entry
        return {
            "one": await _cost(place, entries, lambda: _dealt(writers[:1], data, entries)),
            "turns": await _in_turns(place, writers, data, max(1, entries // _TURNS_SHARE)),
            "dealt": await _cost(place, entries, lambda: _dealt(writers, data, entries)),
        }


@asynccontextmanager
async def open_ledgers(client: replog.Client, count: int) -> AsyncIterator[list[replog.LedgerWriter]]:
    """New ledgers, each with its writer; they are closed when this is left."""
    writers, opened, left = list[replog.LedgerWriter](), trio.Event(), trio.Event()
    some = trio.CapacityLimiter(_OPENED_AT_ONCE)

    async def hold() -> None:
        async with AsyncExitStack() as stack:
            async with some:
                writers.append(await stack.enter_async_context(client.create_ledger()))
            if len(writers) == count:
                opened.set()
            await left.wait()
            async with some:
                await stack.aclose()

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(hold)
        with trio.fail_after(_READY_S):
            await opened.wait()
        yield writers
        left.set()


async def _cost(place: AnyPlace, entries: int, load: Callable[[], Awaitable[None]]) -> Figures:
    meter = place.meter()
    await load()
    return meter.figures(entries)


async def _dealt(writers: Sequence[replog.LedgerWriter], data: bytes, entries: int) -> None:
    for begun in range(0, entries, IN_FLIGHT):
        numbers = range(begun, min(begun + IN_FLIGHT, entries))
        for number in numbers:
            writers[number % len(writers)].push_nowait(data)
        for number in numbers[: len(writers)]:
            await writers[number % len(writers)].flush()


async def _in_turns(place: AnyPlace, writers: Sequence[replog.LedgerWriter], data: bytes, entries: int) -> Figures:
    durations_s, meter = list[float](), place.meter()
    for number in range(entries):
        began_s = clock()
        await writers[number % len(writers)].append(data)
        durations_s.append(clock() - began_s)
    return meter.figures(entries) | percentiles(durations_s)
