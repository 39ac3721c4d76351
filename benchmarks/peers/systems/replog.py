"""replog: three `replog bookie` processes with their defaults, metadata in LMDB, and a client in the runner's process.

Appends go to a ledger, as BookKeeper's do, by `push_nowait` (one in flight: `append`, several for each call: `extend`); they
are counted, so that exactly as many are in flight as were asked for. `push_nowait` of a log costs the client 0.4 us more for
an entry, for its `Position`. Scanning, following and taking over are those of a log.

A leader is a client of its own, and no bookie: what is killed for a takeover is that client's process.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Protocol, TypeVar

import trio

import replog
from benchmarks.figures import Figures, Meter, clock, percentiles
from benchmarks.peers.children import environment, held_bytes
from benchmarks.peers.pump import cpu_figures
from benchmarks.peers.system import Latencies, Load, NotMeasured, Promise
from benchmarks.peers.systems.replog_children import CONFIRMED, FOLLOWING
from replog.config import ClientOptions
from replog.errors import MetastoreError, NotEnoughBookiesError, RecoveryUndecidedError
from tests.servers.processes import HOST, Server, ServerFailedError, free_port

BOOKIES = 3
LOG = "benchmark"
MIB = 1 << 20
_CHILDREN = "benchmarks.peers.systems.replog_children"
_PATIENCE_S = 60.0
_LEADING_S = 0.5  # that a leader appends, and another one waits for its turn
_DIFFERENT_BYTES = 4 * MIB  # of random entries, of which the load is made

_NOT_DONE = (replog.ReplogError, ServerFailedError, NotMeasured, trio.TooSlowError)

Result = TypeVar("Result")


class ReplogRunning:
    """Three bookies that run."""

    def __init__(self, bookies: Sequence[Server], metastore: str, directory: Path) -> None:
        self._bookies = bookies
        self._metastore = metastore
        self._directory = directory

    @property
    def process_ids(self) -> list[int]:
        """Of the bookies."""
        return [each.pid for each in self._bookies]

    def append(self, load: Load) -> Figures:
        """As `Running.append`; with several entries for each call, as many tasks extend as are in flight together."""
        return run(self._append, load)

    def scan(self, entry_bytes: int, entries: int) -> Figures:
        """As `Running.scan`, by `batches()` to `bytes`."""
        return run(self._scan, entry_bytes, entries)

    def tail(self, entry_bytes: int, entries: int) -> Figures:
        """As `Running.tail`; the reader is a process of its own."""
        return run(self._tail, entry_bytes, entries)

    def take_over(self, entry_bytes: int) -> Figures:
        """As `Running.take_over`: `lead_log`, that finds out by itself. LMDB's metastore tells at once that a process of this
        machine is dead; with ZooKeeper its session has to end first. `told_takeover_s`: `write_log`, by somebody who
        is told of the death."""
        return {
            "takeover_s": run(self._take_over, entry_bytes, True),
            "told_takeover_s": run(self._take_over, entry_bytes, False),
        }

    def restart(self) -> Figures:
        """As `Running.restart`; the log's leader is killed as well, so that it has to be taken over."""
        return run(self._restart)

    def warm_up(self, size_bytes: int) -> None:
        """Journal files that were used before are what a log has that is trimmed now and then."""
        run(self._warm_up, size_bytes)

    # -- appending --------------------------------------------------------------------------------------------------

    async def _append(self, load: Load) -> Figures:
        await self._clear()
        latencies = Latencies()
        in_flight_bytes = load.in_flight * load.entry_bytes
        room_bytes = max(2 * in_flight_bytes, ClientOptions().in_flight_bytes_max)  # what limits is the count
        options = ClientOptions(in_flight_bytes_max=room_bytes)
        pushes = load.entries_per_call == 1 and load.in_flight > 1
        async with replog.connect(self._metastore, options=options) as client, client.create_ledger() as writer:
            appending: Appending = _Pushing(writer, load, room_bytes) if pushes else _Calling(writer, load)
            await appending.run_for(load.warm_up_s, latencies)
            latencies.forget()
            meter = Meter(*self.process_ids)
            entries = await appending.run_for(load.seconds, latencies)
            found = meter.figures(entries)
            lowest = latencies.lowest_per_s()
            await writer.flush()
        return {"entries": float(entries), **cpu_figures(found), **lowest, **latencies.figures()}

    async def _clear(self) -> None:
        """Deletes what was written, and waits until the bookies have dropped it, and have their journal files for reuse."""
        async with replog.connect(self._metastore) as client:
            for name in await client.logs():
                await client.delete_log(name)
            for ledger_id in await client.ledgers():
                await client.delete_ledger(ledger_id)
            for bookie in await client.admin.bookies():
                await bookie.collect_garbage()
                with trio.fail_after(_PATIENCE_S):
                    while (await bookie.statistics()).numbers["journal_files"] > 1:  # noqa: ASYNC110 - no event tells it
                        await trio.sleep(0.02)

    async def _warm_up(self, size_bytes: int) -> None:
        data = [os.urandom(MIB)] * 16
        async with replog.connect(self._metastore) as client, client.write_log(LOG) as log:
            for _ in range(size_bytes // MIB // len(data)):
                await log.extend(data)
        await self._clear()

    # -- reading ----------------------------------------------------------------------------------------------------

    async def _scan(self, entry_bytes: int, entries: int) -> Figures:
        await self._clear()
        async with replog.connect(self._metastore) as client:
            async with client.write_log(LOG) as log:
                for data in itertools.islice(itertools.cycle(_different(entry_bytes)), entries):
                    await log.push(data)
            found, meter = 0, Meter(*self.process_ids)
            async with client.read_log(LOG) as reader:
                async for batch in reader.batches():
                    found += len(batch.payloads())
        if found != entries:
            raise NotMeasured(f"{entries} entries were appended, and {found} read")
        return cpu_figures(meter.figures(entries))

    async def _tail(self, entry_bytes: int, entries: int) -> Figures:
        await self._clear()
        data, called_s = os.urandom(entry_bytes), list[float]()
        async with replog.connect(self._metastore) as client, client.write_log(LOG) as log:
            with self._child("follow", entries) as follower:
                await log.append(data)
                await trio.to_thread.run_sync(follower.wait_until, lambda: FOLLOWING in follower.log(), FOLLOWING)
                for _ in range(entries):
                    called_s.append(clock())
                    await log.append(data)
                await trio.to_thread.run_sync(follower.wait_until, lambda: "]" in follower.log(), "it has seen all")
                seen_s = json.loads(follower.log_path.read_text(encoding="utf-8").splitlines()[-1])
        return percentiles([seen - called for seen, called in zip(seen_s, called_s, strict=True)])

    # -- dying ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _child(self, what: str, number: int) -> Iterator[Server]:
        command = [sys.executable, "-m", _CHILDREN, what, self._metastore, LOG, str(number)]
        child = Server(what, command, self._directory, environment())
        child.log_path.unlink(missing_ok=True)
        child.launch()
        try:
            yield child
        finally:
            child.kill()

    async def _take_over(self, entry_bytes: int, is_elected: bool) -> float:
        await self._clear()
        data, took = os.urandom(entry_bytes), list[float]()
        with self._child("lead", entry_bytes) as leader:
            await trio.to_thread.run_sync(leader.wait_until, lambda: CONFIRMED in leader.log(), "it leads")
            async with replog.connect(self._metastore) as client, trio.open_nursery() as nursery:
                lead = client.lead_log if is_elected else client.write_log
                killed, killed_s = trio.Event(), clock()

                async def stand_by() -> None:
                    if not is_elected:
                        await killed.wait()
                    async with lead(LOG) as log:
                        await log.append(data)
                        took.append(clock() - killed_s)

                nursery.start_soon(stand_by)
                await trio.sleep(_LEADING_S)
                if took:
                    raise NotMeasured("somebody else led the log before its leader was killed")
                killed_s = clock()
                leader.kill()
                killed.set()
            confirmed = int(leader.log().splitlines()[-1].removeprefix(CONFIRMED))
        await self._check(confirmed + 1)
        return took[0]

    async def _check(self, entries: int) -> None:
        """What was confirmed must be there."""
        found = 0
        async with replog.connect(self._metastore) as client, client.read_log(LOG) as reader:
            async for batch in reader.batches():
                found += len(batch)
        if found < entries:
            raise NotMeasured(f"{entries} entries were confirmed, and {found} are there")

    async def _restart(self) -> Figures:
        with self._child("lead", 1024) as leader:
            await trio.to_thread.run_sync(leader.wait_until, lambda: CONFIRMED in leader.log(), "it leads")
            for bookie in self._bookies:
                bookie.kill()
        held = held_bytes(self._directory)
        started_s = clock()
        for bookie in self._bookies:
            bookie.launch()
        async with replog.connect(self._metastore) as client:
            with trio.fail_after(_PATIENCE_S):
                while not await self._is_led_again(client):  # noqa: ASYNC110 - bookies that don't run yet tell nothing
                    await trio.sleep(0.01)
        return {"restart_s": clock() - started_s, "held_bytes": float(held)}

    async def _is_led_again(self, client: replog.Client) -> bool:
        if len(await client.admin.bookies()) < BOOKIES:
            return False  # who tries to reach one before it is there leaves it alone for a while
        try:
            async with client.write_log(LOG) as log:
                await log.append(os.urandom(1024))
        except (NotEnoughBookiesError, RecoveryUndecidedError, MetastoreError):
            return False
        return True


# -- keeping entries in flight ----------------------------------------------------------------------------------------


class Appending(Protocol):
    """A load on a ledger's writer."""

    async def run_for(self, seconds: float, latencies: Latencies) -> int:
        """Appends for so long. Returns how many entries were confirmed meanwhile."""


class _Pushing:
    """As many as are confirmed are pushed anew; between two calls of `run_for` as many stay in flight."""

    def __init__(self, writer: replog.LedgerWriter, load: Load, room_bytes: int) -> None:
        self._writer = writer
        self._in_flight = load.in_flight
        self._entries_max = load.entries_max
        # There is room for so much when at least one of those in flight is confirmed.
        self._until_one_is_confirmed_bytes = room_bytes - (load.in_flight - 1) * load.entry_bytes
        self._supply = itertools.cycle(_different(load.entry_bytes))

    async def run_for(self, seconds: float, latencies: Latencies) -> int:
        """As `Appending.run_for`."""
        writer, push = self._writer, self._writer.push_nowait
        confirmed_before = confirmed = writer.last_add_confirmed
        deadline, last = clock() + seconds, confirmed_before + self._entries_max
        while confirmed == confirmed_before or (confirmed < last and clock() < deadline):
            room = self._in_flight - (writer.last_add_pushed - confirmed)
            latencies.sent(room)
            for data in itertools.islice(self._supply, room):
                push(data)
            await writer._entries.wait_for_room(self._until_one_is_confirmed_bytes)
            latencies.confirmed(writer.last_add_confirmed - confirmed)
            confirmed = writer.last_add_confirmed
        return confirmed - confirmed_before


class _Calling:
    """`append`, or `extend` by several, from as many tasks as keep so many in flight together; each awaits its calls."""

    def __init__(self, writer: replog.LedgerWriter, load: Load) -> None:
        self._writer = writer
        self._tasks = max(1, load.in_flight // load.entries_per_call)
        self._entries = list(itertools.islice(itertools.cycle(_different(load.entry_bytes)), load.entries_per_call))

    async def run_for(self, seconds: float, latencies: Latencies) -> int:
        """As `Appending.run_for`."""
        before, deadline = self._writer.last_add_confirmed, clock() + seconds
        async with trio.open_nursery() as nursery:
            for _ in range(self._tasks):
                nursery.start_soon(self._call_until, deadline, latencies)
        return self._writer.last_add_confirmed - before

    async def _call_until(self, deadline: float, latencies: Latencies) -> None:
        writer, entries = self._writer, self._entries
        count, is_first = len(entries), True
        while is_first or clock() < deadline:
            is_first = False
            latencies.sent(count)  # confirmed in the order of the calls: they are those of one writer
            if count > 1:
                await writer.extend(entries)
            else:
                await writer.append(entries[0])
            latencies.confirmed(count)


def _different(entry_bytes: int) -> list[bytes]:
    return [os.urandom(entry_bytes) for _ in range(max(1, min(1000, _DIFFERENT_BYTES // entry_bytes)))]


def run(function: Callable[..., Awaitable[Result]], *arguments: object) -> Result:
    """In a trio run of its own. What replog could not do was not measured."""
    try:
        return trio.run(function, *arguments)
    except _NOT_DONE as error:
        raise NotMeasured(str(error) or type(error).__name__) from error
    except BaseExceptionGroup as errors:
        not_done, others = errors.split(_NOT_DONE)
        if not_done is None or others is not None:
            raise
        raise NotMeasured("; ".join(str(each) or type(each).__name__ for each in _leaves(not_done))) from errors


def _leaves(errors: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for each in errors.exceptions:
        if isinstance(each, BaseExceptionGroup):
            yield from _leaves(each)
        else:
            yield each


class Replog:
    """The system."""

    name = "replog"
    title = "replog"
    is_replicated = True
    promise = Promise(
        copies=3,
        confirmed_by=2,
        is_synced=True,
        words="three bookies with their defaults, ensemble and write quorum 3, ack quorum 2: fdatasync on two of them before an "
        "entry is confirmed, the third follows; metadata in LMDB; appends to one ledger",
    )
    warm_up_bytes = 384 * MIB  # as much as the journal files that a bookie keeps for reuse: 6 of 64 MiB

    def missing(self) -> str | None:
        """It is there."""
        return None

    def version(self) -> str:
        """Of replog."""
        return version("replog")

    @contextmanager
    def running(self, directory: Path) -> Iterator[ReplogRunning]:
        """Three bookies."""
        metastore = f"lmdb:{directory / 'metadata'}"
        bookies = [_bookie(directory, metastore, number) for number in range(BOOKIES)]
        with ExitStack() as stack:
            try:
                for bookie in bookies:
                    stack.callback(bookie.kill)
                    bookie.launch()
                for bookie in bookies:
                    bookie.wait_until(lambda bookie=bookie: "serving" in bookie.log(), "it serves")  # type: ignore[misc]
            except ServerFailedError as error:
                raise NotMeasured(str(error)) from error
            running = ReplogRunning(bookies, metastore, directory)
            running.warm_up(self.warm_up_bytes)
            yield running


SYSTEM = Replog()


def _bookie(directory: Path, metastore: str, number: int) -> Server:
    data = str(directory / f"bookie-{number}")
    command = [sys.executable, "-m", "replog.cli", "bookie", "--metastore", metastore]
    command += ["--data", data, "--listen", f"{HOST}:{free_port()}"]
    return Server(f"bookie-{number}", command, directory, environment())
