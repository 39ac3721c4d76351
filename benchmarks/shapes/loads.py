"""What shapes are asked for: many entries in flight, one in flight, and a scan of a closed ledger."""

from __future__ import annotations

import os
from collections.abc import Sequence

import trio

import replog
from benchmarks.figures import Figures, clock, percentiles
from benchmarks.loads import WARM_UP_SHARE
from benchmarks.setting import NotMeasured
from benchmarks.shapes.places import AnyPlace
from replog.config.client import ClientTuning
from replog.protocol.quorum import Quorum

KIB = 1 << 10
IN_FLIGHT = 1000
_ENTRIES_PER_CALL = 1000
OPTIONS = ClientTuning(in_flight_bytes_max=IN_FLIGHT * KIB, batch_bytes_max=IN_FLIGHT * KIB, roll_bytes=None)

Writer = replog.LedgerWriter | replog.LogWriter


async def append_each_way(place: AnyPlace, writer: Writer, seconds: float) -> Figures:
    """1 KiB: as many entries as the byte budget of `OPTIONS` has room for in flight, then one in flight."""
    data = os.urandom(KIB)
    await push_for(writer, data, seconds * WARM_UP_SHARE)
    meter = place.meter()
    pushing = meter.figures(await push_for(writer, data, seconds))
    durations_s, meter = list[float](), place.meter()
    deadline = clock() + seconds
    while not durations_s or clock() < deadline:
        began_s = clock()
        await writer.append(data)
        durations_s.append(clock() - began_s)
    alone = meter.figures(len(durations_s))
    return {
        "entries_per_s": pushing["entries_per_s"],
        "push_cpu_us": pushing["total_cpu_us"],
        "append_us": percentiles(durations_s)["p50_us"],
        "append_cpu_us": alone["total_cpu_us"],
    }


async def push_for(writer: Writer, data: bytes, seconds: float) -> int:
    """Pushes for so long, waiting for nothing but the byte budget; returns how many entries, all confirmed."""
    pushed, deadline = 0, clock() + seconds
    while not pushed or clock() < deadline:
        for _ in range(IN_FLIGHT):
            try:
                writer.push_nowait(data)
            except trio.WouldBlock:
                await writer.push(data)
        pushed += IN_FLIGHT
    await writer.flush()
    return pushed


async def fill(writer: Writer, entry_bytes: int, entries: int) -> None:
    """Appends so many entries, in large batches."""
    data = [os.urandom(entry_bytes) for _ in range(min(entries, _ENTRIES_PER_CALL))]
    for begun in range(0, entries, len(data)):
        await writer.extend(data[: entries - begun])


async def scan(place: AnyPlace, client: replog.Client, quorum: Quorum, entries: int, seconds: float) -> Figures:
    """Reads a closed ledger of so many entries of 100 B to `bytes`, again and again for so long."""
    async with client.create_ledger(quorum=quorum) as writer:
        await fill(writer, 100, entries)
    scanned, meter, deadline = 0, place.meter(), clock() + seconds
    while not scanned or clock() < deadline:
        found = await _scan(client, writer.ledger_id)
        if found != entries:
            raise NotMeasured(f"{entries} entries were appended, and {found} read")
        scanned += found
    figures = meter.figures(scanned)
    return {"scanned_per_s": figures["entries_per_s"], "scan_cpu_us": figures["total_cpu_us"]}


async def _scan(client: replog.Client, ledger_id: int) -> int:
    found = 0
    async with client.open_ledger(ledger_id) as reader:
        async for batch in reader.batches():
            found += len(batch.payloads())
    return found


def ends(found: dict[str, Figures], name: str, sizes: Sequence[int]) -> dict[str, Figures]:
    """The same figures, and those of the smallest and of the largest size once more, to be compared whatever the sizes are.
    Sizes ascend; the figures of one are called by its name and it."""
    return found | {f"{name} least": found[f"{name} {sizes[0]}"], f"{name} most": found[f"{name} {sizes[-1]}"]}
