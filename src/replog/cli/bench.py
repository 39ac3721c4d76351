"""`replog bench`: the throughput and the latency of appends to a cluster, measured where its client runs."""

from __future__ import annotations

import os
import sys
import time
from typing import Annotated

import attrs
import trio
import typer

from replog.api import Client
from replog.cli.connecting import Connection, Stop, client_from, run_gently, takes_connection
from replog.cli.figures import as_count, as_duration, parse_quorum_option
from replog.cli.output import AsJSON, add_row, as_size, new_table, print_json, print_table
from replog.client.ledger_writer import LedgerWriter
from replog.config.parsing import parse_size_bytes
from replog.errors import ConfigError, ReplogError
from replog.protocol.batch import ENTRY_BYTES_MAX
from replog.protocol.quorum import Quorum
from replog.runtime.latencies import LatencyHistogram

CUSTOM = {"made_by": "replog bench"}  # in its ledger's metadata, in case the ledger is left behind
_DELETE_TIMEOUT_S = 15.0
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}


@attrs.define
class Load:
    """Tasks that append to one ledger, each call after its last one is confirmed. The counters stay if it is cancelled."""

    size_bytes: int
    tasks: int
    batch_entries: int
    seconds: float
    entries: int = 0  # confirmed
    elapsed_s: float = 0.0
    calls: LatencyHistogram = attrs.field(factory=LatencyHistogram)  # from a call to its confirmation
    failure: ReplogError | None = None

    async def run(self, writer: LedgerWriter) -> None:
        """Append until the time is over. Raises the first error of the writer."""
        payload = os.urandom(self.size_bytes)  # random: some disks and file systems compress
        await writer.append(payload)  # connections are made, and bookies know the ledger
        began_s = time.perf_counter()
        try:
            async with trio.open_nursery() as nursery:
                for _ in range(self.tasks):
                    nursery.start_soon(
                        self._append,
                        writer,
                        [payload] * self.batch_entries,
                        began_s + self.seconds,
                        nursery.cancel_scope,
                    )
        finally:
            self.elapsed_s = time.perf_counter() - began_s
        if self.failure is not None:
            raise self.failure

    async def _append(self, writer: LedgerWriter, payloads: list[bytes], end_s: float, scope: trio.CancelScope) -> None:
        try:
            while (called_s := time.perf_counter()) < end_s:
                await (writer.append(payloads[0]) if self.batch_entries == 1 else writer.extend(payloads))
                self.calls.observe(time.perf_counter() - called_s)
                self.entries += len(payloads)
        except ReplogError as error:
            self.failure = self.failure or error  # later ones follow from the first
            scope.cancel()


@takes_connection
def bench(
    connection: Connection,
    seconds: Annotated[float, typer.Option(min=0.1, max=86_400, help="How long.")] = 5.0,
    size: Annotated[str, typer.Option(metavar="SIZE", help="Bytes of an entry, as 100 or 64KiB.")] = "1KiB",
    tasks: Annotated[int, typer.Option(min=1, max=10_000, help="Tasks that append at the same time.")] = 100,
    batch: Annotated[int, typer.Option(min=1, max=100_000, help="Entries of a call; above 1, it is extend.")] = 1,
    quorum: Annotated[
        str | None,
        typer.Option(metavar="E,W,A", help="Ensemble, write and ack quorum, as 3,3,2. Default: the client's."),
    ] = None,
    for_programs: AsJSON = False,
) -> None:
    """Append to a new ledger, and print the throughput and the latency as measured from here.

    The ledger is deleted at the end. Ctrl-C ends it early, and prints what was measured until then. The cluster's other
    clients get slower meanwhile."""
    size_bytes = parse_size_bytes(size)
    if size_bytes is None or not 0 <= size_bytes <= ENTRY_BYTES_MAX:
        raise ConfigError(f"--size {size}: an entry has from 0 to {ENTRY_BYTES_MAX} bytes, written as 100 or 64KiB")
    load = Load(size_bytes, tasks, batch, seconds)
    run_gently(_bench, connection, load, parse_quorum_option(quorum), for_programs)


async def _bench(stop: Stop, connection: Connection, load: Load, quorum: Quorum | None, for_programs: bool) -> None:
    stop.is_gentle = True
    # A ledger and not a log: a deleted log's name would stay in the metastore, for its positions.
    async with client_from(connection, quorum=quorum, creates=True) as client:
        used = quorum or client.default_quorum
        await run_in_new_ledger(stop, client, load)
    if not load.elapsed_s:
        return  # interrupted before the first entry was confirmed
    quantiles_s = {name: load.calls.quantile(share) for name, share in _QUANTILES.items()}
    rate = load.entries / load.elapsed_s
    if for_programs:
        facts = {"size_bytes": load.size_bytes, "tasks": load.tasks, "batch_entries": load.batch_entries}
        measured = {"entries": load.entries, "elapsed_s": load.elapsed_s, "entries_rate": rate}
        print_json({**facts, "quorum": attrs.asdict(used), **measured, "latency_s": quantiles_s})
        return
    table = new_table(
        "bench", f"{load.tasks} tasks, {as_size(load.size_bytes)} entries, {load.batch_entries} in a call"
    )
    add_row(table, "quorum", f"{used.ensemble},{used.write},{used.ack}")
    add_row(table, "confirmed", f"{load.entries} entries in {load.elapsed_s:.2f} s")
    add_row(table, "throughput", f"{as_count(rate)} entries/s, {as_size(round(rate * load.size_bytes))}/s")
    add_row(table, "latency of a call", ", ".join(f"{name} {as_duration(s) or '-'}" for name, s in quantiles_s.items()))
    print_table(table)


async def run_in_new_ledger(stop: Stop, client: Client, load: Load) -> None:
    """Run the load in a ledger that is deleted afterwards, whatever happens; says on standard error if it could not be."""
    ledger_id = None
    try:
        async with client.create_ledger(custom=CUSTOM) as writer:
            ledger_id = writer.ledger_id
            await stop.unless_asked(lambda: load.run(writer))
    finally:
        if ledger_id is not None:
            # Shielded: Ctrl-C is how a bench usually ends, and nobody else knows this id.
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _DELETE_TIMEOUT_S) as scope:
                try:
                    await client.delete_ledger(ledger_id)
                except ReplogError as error:
                    _tell_left(ledger_id, str(error))
            if scope.cancelled_caught:
                _tell_left(ledger_id, f"no answer in {_DELETE_TIMEOUT_S:g} s")


def _tell_left(ledger_id: int, problem: str) -> None:
    print(f"replog: ledger {ledger_id} of this bench could not be deleted, delete it later: {problem}", file=sys.stderr)
