"""What only bookies of their own are asked: many ledgers side by side, one append at a time next to the disk alone."""

from __future__ import annotations

import os

import trio

from benchmarks.figures import Figures, clock, percentiles
from benchmarks.loads import WARM_UP_SHARE
from benchmarks.remote.place import RemotePlace
from replog.config import ClientOptions
from replog.config.client import ClientTuning


def append_to_ledgers(place: RemotePlace, seconds: float, entry_bytes: int, ledgers: int) -> Figures:
    """So many ledgers of one client, each with one append in flight."""
    return trio.run(_append_to_ledgers, place, seconds, os.urandom(entry_bytes), ledgers)


async def _append_to_ledgers(place: RemotePlace, seconds: float, data: bytes, ledgers: int) -> Figures:
    durations: list[float] = []
    counting = False
    deadline = clock() + seconds * (1 + WARM_UP_SHARE)

    async def one(started: trio.Event, ready: list[int]) -> None:
        async with client.create_ledger() as writer:
            await writer.append(data)
            ready.append(writer.ledger_id)
            await started.wait()
            while clock() < deadline or not durations:
                began = clock()
                await writer.append(data)
                if counting:
                    durations.append(clock() - began)

    async with place.client(ClientOptions()) as client, trio.open_nursery() as nursery:
        started, ready = trio.Event(), list[int]()
        for _ in range(ledgers):
            nursery.start_soon(one, started, ready)
        while len(ready) < ledgers:  # noqa: ASYNC110 - nothing is measured yet
            await trio.sleep(0.01)
        deadline = clock() + seconds * (1 + WARM_UP_SHARE)
        started.set()
        await trio.sleep(seconds * WARM_UP_SHARE)
        meter, counting = place.meter(), True
        while clock() < deadline or not durations:  # noqa: ASYNC110 - the clock is what is waited for
            await trio.sleep(max(0.001, deadline - clock()))
        found = meter.figures(len(durations))
    return found | percentiles(durations)


def push_in_flight(place: RemotePlace, seconds: float, entry_bytes: int, in_flight: int) -> Figures:
    """Pushes; how many batches were in flight at most besides."""
    return trio.run(_push_in_flight, place, seconds, os.urandom(entry_bytes), in_flight)


async def _push_in_flight(place: RemotePlace, seconds: float, data: bytes, in_flight: int) -> Figures:
    budget = len(data) * in_flight
    options = ClientTuning(in_flight_bytes_max=budget, batch_bytes_max=min(1 << 20, budget))
    async with place.client(options) as client, client.create_ledger() as writer:
        pushed, depth, meter, deadline = 0, 0.0, place.meter(), clock() + seconds
        while not pushed or clock() < deadline:
            for _ in range(1000):
                try:
                    writer.push_nowait(data)
                except trio.WouldBlock:
                    depth = max(depth, writer.statistics()["batches_in_flight_max"])
                    await writer.push(data)
            pushed += 1000
        await writer.flush()
        depth = max(depth, writer.statistics()["batches_in_flight_max"])
        return meter.figures(pushed) | {"batches_in_flight_max": depth}
