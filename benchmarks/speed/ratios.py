"""Same-run ratios: CPU time of an entry in replog, without disk and sockets, divided by that in the benchmarks' floor.

They see what counts don't: passes over the entries that are made in C. Both sides take turns, and of each the least counts,
which is what a machine that does nothing else would take.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import trio

from benchmarks import floor
from benchmarks.speed.setting import Figures, embedded

_TURNS = 40
_ENTRIES = 1000
_ENTRY_BYTES = 100

Sides = tuple[Callable[[], Awaitable[None]], Callable[[], None]]  # replog's, and the floor's


@attrs.frozen
class Ratio:
    """`open` gives two ways to pass the same entries once."""

    name: str
    what: str
    open: Callable[[Path], AbstractAsyncContextManager[Sides]]


def measure(ratio: Ratio, directory: Path) -> Figures:
    """How many times the floor's CPU time replog takes: `cpu`."""
    return trio.run(_measure, ratio, directory)


async def _measure(ratio: Ratio, directory: Path) -> Figures:
    async with ratio.open(directory) as (ours, floors):
        ours_ns, floors_ns = [], []
        for _ in range(_TURNS):
            started_ns = time.process_time_ns()
            await ours()
            between_ns = time.process_time_ns()
            floors()
            ours_ns.append(between_ns - started_ns)
            floors_ns.append(time.process_time_ns() - between_ns)
    return {"cpu": min(ours_ns) / min(floors_ns)}


@asynccontextmanager
async def _append(one_by_one: bool, directory: Path) -> AsyncIterator[Sides]:
    entries = [bytes(_ENTRY_BYTES) for _ in range(_ENTRIES)]
    async with embedded(directory, 3) as client, client.write_log("speed") as log:

        async def extend() -> None:
            await log.extend(entries)

        async def push() -> None:
            for data in entries:
                log.push_nowait(data)
            await log.flush()

        def floors_extend() -> None:
            floor._pack(0, entries)

        def floors_push() -> None:
            writer = floor._Writer([])
            for data in entries:
                writer.append(data)
            floor._pack(0, writer._pending)

        yield (push, floors_push) if one_by_one else (extend, floors_extend)


@asynccontextmanager
async def _scan(directory: Path) -> AsyncIterator[Sides]:
    batches = 10
    entries = [bytes(_ENTRY_BYTES) for _ in range(_ENTRIES)]
    frames = [floor._pack(number * _ENTRIES, entries) for number in range(batches)]
    async with embedded(directory, 1) as client:
        async with client.write_log("speed") as log:
            for _ in frames:
                await log.extend(entries)

        async def ours() -> None:
            async with client.read_log("speed") as reader:
                async for batch in reader.batches():
                    batch.payloads()

        def floors() -> None:
            for frame in frames:
                floor._unpack(frame)

        yield ours, floors


RATIOS = {
    each.name: each
    for each in (
        Ratio(
            "ratio-push", "CPU of push_nowait, 1000 x 100 B and flush, three bookies in memory", partial(_append, True)
        ),
        Ratio("ratio-extend", "CPU of extend of the same", partial(_append, False)),
        Ratio("ratio-scan", "CPU of scanning a closed log to bytes, batches of 1000 x 100 B", _scan),
    )
}
