"""What ledgers and logs cost in one metastore, at several sizes."""

from __future__ import annotations

import random
import statistics
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import attrs
import trio

import replog
from benchmarks.figures import Figures, clock
from benchmarks.metastore.filling import create_ledgers, create_log
from benchmarks.metastore.stores import Kind, served
from benchmarks.setting import NotMeasured
from replog.abc import SetMarks
from replog.backends import memory
from replog.bookie.garbage import collect_garbage
from replog.bookie.server import BookieServer
from replog.config import BookieOptions
from replog.config.bookie import BookieTuning
from replog.protocol.quorum import Quorum
from replog.records.paths import log_key_path
from replog.registry import Registry
from replog.testing import FaultyMetastore

FEW = 100  # ledgers of a bookie that has few of them
_TIMES_MIN, _ENOUGH_S = 5, 3.0  # each thing is done at least so often, and then no longer
_IDS_TAKEN_MAX = 1_000  # while the ledgers and logs of one size are measured
_ONE = Quorum(1, 1, 1)


@attrs.frozen
class Place:
    """A client of a bookie in memory, and the metastore that both use."""

    metastore: FaultyMetastore  # which counts, and does not fail
    client: replog.Client
    times: int  # that each thing is done

    async def middle_ms(self, call: Callable[[], Awaitable[object]]) -> float:
        """How long a call takes, in the middle."""
        durations_s: list[float] = []
        while len(durations_s) < self.times and (len(durations_s) < _TIMES_MIN or sum(durations_s) < _ENOUGH_S):
            began_s = clock()
            await call()
            durations_s.append(clock() - began_s)
        return statistics.median(durations_s) * 1e3

    async def calls(self, call: Callable[[], Awaitable[object]]) -> float:
        """How many calls of the metastore it takes."""
        self.metastore.calls.clear()
        await call()
        return float(len(self.metastore.calls))


@asynccontextmanager
async def place(url: str, times: int) -> AsyncIterator[Place]:
    """What is measured, in the metastore at this URL."""
    metastore = Registry().open_metastore(url)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(metastore.aclose)
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmarks-"))
        options = BookieTuning(storage="memory", garbage_collection_interval_s=1e6)
        await stack.enter_async_context(replog.embed(directory, metastore=metastore, bookie_options=options))
        counted = FaultyMetastore(metastore)  # what the client asks for, not the bookie
        client = await stack.enter_async_context(replog.connect(counted, quorum=_ONE))
        yield Place(counted, client, times)


# -- ledgers --------------------------------------------------------------------------------------------------------


def measure_ledgers(kind: Kind, directory: Path, counts: Sequence[int], times: int) -> dict[str, Figures]:
    """Of each of these numbers of ledgers, ascending."""
    with served(kind, directory) as url:
        return trio.run(_measure_ledgers, kind, url, counts, times)


async def _measure_ledgers(kind: Kind, url: str, counts: Sequence[int], times: int) -> dict[str, Figures]:
    found = {}
    first, total = 1, 0
    async with place(url, times) as here:
        for count in counts:
            added = range(first, first + count - total)
            began_s = clock()
            await create_ledgers(here.metastore, added)
            filled_us = (clock() - began_s) / len(added) * 1e6
            found[f"{kind.name} {count} ledgers"] = {"fill_us": filled_us, **await _ledgers_of(here, added)}
            total = count
            first = added.stop + _IDS_TAKEN_MAX  # after those that were taken meanwhile
    return found


async def _ledgers_of(here: Place, some: range) -> Figures:
    chosen = random.Random(7)

    async def create() -> None:
        async with here.client.create_ledger() as writer:
            made.append(writer.ledger_id)

    async def open_one() -> None:
        async with here.client.open_ledger(chosen.choice(some)):
            pass

    made: list[int] = []
    listed: list[int] = []

    async def list_all() -> None:
        listed[:] = await here.client.ledgers()

    create_ms = await here.middle_ms(create)
    for ledger_id in made:
        await here.client.delete_ledger(ledger_id)
    open_ms = await here.middle_ms(open_one)
    list_ms = await here.middle_ms(list_all)
    few = random.Random(7).sample(listed, min(FEW, len(listed)))
    return {
        "create_ms": create_ms,
        "open_ms": open_ms,
        "list_ms": list_ms,
        "list_us_each": list_ms / len(listed) * 1e3,
        **await _collection(here, listed, "all"),
        **await _collection(here, sorted(few), "few"),
    }


async def _collection(here: Place, ledger_ids: Sequence[int], name: str) -> Figures:
    """A pass of a bookie that has these ledgers, none of which was deleted: in milliseconds and calls of the metastore."""
    storage = memory.open_storage(f"benchmark-{name}")
    try:
        storage.commit([SetMarks(each, fence_term=1) for each in ledger_ids])
        server = BookieServer(storage, BookieOptions(storage="memory"), lambda _event: None)
        await server.guard.begin(here.metastore, after_restore=True)  # it holds what others wrote
        async with server.running():

            async def collect() -> None:
                if await collect_garbage(server, here.metastore):
                    raise NotMeasured("ledgers that exist were taken for garbage")

            passed_ms = await here.middle_ms(collect)
            calls = await here.calls(collect)
        return {f"collect_{name}_ms": passed_ms, f"collect_{name}_us_each": passed_ms / len(ledger_ids) * 1e3} | {
            f"collect_{name}_calls": calls
        }
    finally:
        storage.close()
        memory.forget(f"benchmark-{name}")


# -- logs -----------------------------------------------------------------------------------------------------------


def measure_logs(kind: Kind, directory: Path, lengths: Sequence[int], times: int) -> dict[str, Figures]:
    """Of logs with so many ledgers each."""
    with served(kind, directory) as url:
        return trio.run(_measure_logs, kind, url, lengths, times)


async def _measure_logs(kind: Kind, url: str, lengths: Sequence[int], times: int) -> dict[str, Figures]:
    found = {}
    first = 1
    async with place(url, times) as here:
        for length in lengths:
            name = f"log-of-{length}"
            ledger_ids = range(first, first + length)
            await create_ledgers(here.metastore, ledger_ids, name)
            await create_log(here.metastore, name, ledger_ids)
            found[f"{kind.name} {length} log"] = await _log_of(here, name)
            first = ledger_ids.stop + _IDS_TAKEN_MAX  # after those that were taken meanwhile
    return found


async def _log_of(here: Place, name: str) -> Figures:
    takeovers_ms, calls = [], []
    for _ in range(here.times):
        here.metastore.calls.clear()
        began_s = clock()
        async with here.client.write_log(name) as log:
            takeovers_ms.append((clock() - began_s) * 1e3)
            calls.append(len(here.metastore.calls))
    async with here.client.write_log(name) as log:
        return {
            "take_over_ms": statistics.median(takeovers_ms),
            "take_over_calls": float(statistics.median(calls)),
            **await _start_reading(here, name, log),
            **await _roll_and_trim(here, name, log),
            "list_ms": await here.middle_ms(here.client.logs),
        }


async def _start_reading(here: Place, name: str, log: replog.LogWriter) -> Figures:
    after, last = await log.append(b"one"), await log.append(b"another")

    async def read_one() -> None:
        async with here.client.read_log(name, after=after) as reader:
            async for record in reader:
                if record.position != last:
                    raise NotMeasured(f"record {record.position} was read instead of {last}")
                return

    return {"read_ms": await here.middle_ms(read_one), "read_calls": await here.calls(read_one)}


async def _roll_and_trim(here: Place, name: str, log: replog.LogWriter) -> Figures:
    head_bytes = []
    (first,) = await here.client.log_segments(name, end=2)
    numbers = iter(range(first.number + 1, first.number + 2 + here.times))

    async def trim_one() -> None:
        await here.client.trim_log(name, before=f"{next(numbers)}:0")
        head_bytes.append(len((await here.metastore.get(log_key_path(name))).value))

    roll_ms, roll_calls = await here.middle_ms(log.roll), await here.calls(log.roll)
    trim_ms, trim_calls = await here.middle_ms(trim_one), await here.calls(trim_one) - 1  # it looks at the record
    found = {"roll_ms": roll_ms, "roll_calls": roll_calls, "trim_ms": trim_ms, "trim_calls": trim_calls}
    return {**found, "head_bytes": float(max(head_bytes))}
