"""How long a log has no writer: from SIGKILL for the process that leads it, until the next one's first entry is confirmed.

Three bookie processes, and a leader that is a process of its own. The next writer is told of the death at once (`write_log`):
how soon it is noticed is a matter of the metastore. All that was confirmed must be there afterwards.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

import replog
from benchmarks.figures import Figures, clock
from benchmarks.peers.children import environment
from benchmarks.remote.place import Kind, RemotePlace
from benchmarks.setting import NotMeasured, Round, Setting
from benchmarks.shapes.leader import CONFIRMED, ENTRY_BYTES, LEADS
from benchmarks.shapes.loads import ends
from tests.servers.processes import Server, ServerFailedError

_LOG = "benchmark"
_LEADER = "benchmarks.shapes.leader"
_APPENDING_S = 0.2  # until the leader is killed: so that as much is in flight as may be


def against_in_flight(setting: Setting) -> Round:
    """With so many bytes in flight when the leader dies, in a ledger that is short: 1 KiB is one entry."""
    sizes = setting.scale.shapes_in_flight_bytes
    found = {f"in flight {each}": _middle(setting, ENTRY_BYTES, each) for each in sizes}
    return ends(found, "in flight", sizes)


def against_length(setting: Setting) -> Round:
    """With one entry in flight, in a ledger of so many bytes."""
    sizes = setting.scale.shapes_ledger_bytes
    return ends({f"length {each}": _middle(setting, each, ENTRY_BYTES) for each in sizes}, "length", sizes)


def _middle(setting: Setting, ledger_bytes: int, in_flight_bytes: int) -> Figures:
    place = setting.remote(Kind())
    try:
        took_ms = [
            trio.run(_take_over, place, ledger_bytes, in_flight_bytes) for _ in range(setting.scale.shapes_times)
        ]
    except ServerFailedError as error:
        raise NotMeasured(str(error)) from error
    return {"take_over_ms": statistics.median(took_ms)}


async def _take_over(place: RemotePlace, ledger_bytes: int, in_flight_bytes: int) -> float:
    async with place.client() as client:
        with _leader(place, ledger_bytes, in_flight_bytes) as leader:
            await trio.to_thread.run_sync(leader.wait_until, lambda: LEADS in leader.log(), "it leads")
            await trio.sleep(_APPENDING_S)
            leader.kill()
            began_s = clock()
            async with client.write_log(_LOG) as log:
                await log.append(b"first")
                took_ms = (clock() - began_s) * 1e3
            said = leader.log().splitlines()
        confirmed = max(int(line.removeprefix(CONFIRMED)) for line in said if line.startswith(CONFIRMED))
        await _check(client, confirmed + 1)
    return took_ms


@contextmanager
def _leader(place: RemotePlace, ledger_bytes: int, in_flight_bytes: int) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as directory:
        arguments = [place.metastore, _LOG, str(ledger_bytes), str(in_flight_bytes)]
        server = Server("leader", [sys.executable, "-m", _LEADER, *arguments], Path(directory), environment())
        server.launch()
        try:
            yield server
        finally:
            server.kill()


async def _check(client: replog.Client, entries: int) -> None:
    found = 0
    async with client.read_log(_LOG) as reader:
        async for batch in reader.batches():
            found += len(batch)
    if found < entries:
        raise NotMeasured(f"{entries} entries were confirmed, and {found} are there")
