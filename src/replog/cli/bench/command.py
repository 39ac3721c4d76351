"""`replog bench`: the command."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import attrs
import trio
import typer

from replog.cli.bench import disk
from replog.cli.bench.load import Ledgers, Load, Settings
from replog.cli.bench.samples import Samples
from replog.cli.connecting import Connection, Stop, client_from, run_gently, takes_connection
from replog.cli.figures import as_count, as_duration, parse_quorum_option
from replog.cli.output import AsJSON, add_row, as_size, console, new_table, print_json, print_table
from replog.config.structuring import parse_size_bytes
from replog.errors import ConfigError
from replog.protocol.batch import ENTRY_BYTES_MAX
from replog.protocol.quorum import Quorum
from replog.runtime.nursery import open_service_nursery

_SECONDS = 5.0
_DISK_SECONDS = 1.0
_IN_FLIGHT_BYTES_MAX = 2 << 30
_SHOW_EVERY_S = 0.25
_SHOWN_PER_SECOND = 4  # drawing takes CPU time from the load


@takes_connection
def bench(
    connection: Connection,
    entries: Annotated[int | None, typer.Option(min=1, help="How many entries, all ledgers together.")] = None,
    seconds: Annotated[
        float | None, typer.Option(min=0.1, max=86_400, help=f"How long. [{_SECONDS:g}, unless --entries is given]")
    ] = None,
    size: Annotated[str, typer.Option(metavar="SIZE", help="Bytes of an entry, as 100 or 64KiB.")] = "1KiB",
    in_flight: Annotated[
        int, typer.Option("--in-flight", min=1, max=10_000_000, help="Entries of each ledger that wait at a time.")
    ] = 1000,
    batch: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Entries in one call: above 1, calls are extend.")
    ] = 1,
    ledgers: Annotated[int, typer.Option(min=1, max=10_000, help="How many ledgers are written side by side.")] = 1,
    quorum: Annotated[
        str | None,
        typer.Option(metavar="E,W,A", help="Ensemble, write and ack quorum, as 3,3,2. Default: the client's."),
    ] = None,
    fdatasync: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Measure the disk of this directory alone before, to compare with."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the ledgers.")] = False,
    for_programs: AsJSON = False,
) -> None:
    """Load a cluster with appends, and print its throughput and latency as measured from here.

    It writes to ledgers of its own, and deletes them at the end. Ctrl-C ends it early: it prints what it has measured. Other
    clients use the same disks of the bookies."""
    settings = Settings(
        entries=entries,
        seconds=_SECONDS if entries is None and seconds is None else seconds,
        size_bytes=_size(size),
        in_flight=max(in_flight, batch),
        batch_entries=batch,
        ledgers=ledgers,
        quorum=parse_quorum_option(quorum),
    )
    if settings.in_flight * settings.ledgers * settings.size_bytes > _IN_FLIGHT_BYTES_MAX:
        raise ConfigError(
            f"{settings.in_flight} entries of {settings.size_bytes} bytes in flight for each of {ledgers} ledgers are more "
            f"than {as_size(_IN_FLIGHT_BYTES_MAX)} of memory: lower --in-flight, --batch, --size or --ledgers"
        )
    # The client's own budget would otherwise be what is measured. First in the list, so that one that was typed wins.
    budget = f"in_flight_bytes_max={max(64 << 20, 2 * settings.in_flight * settings.size_bytes)}"
    connection = attrs.evolve(connection, options=(budget, *connection.options))
    run_gently(_bench, connection, settings, fdatasync, keep, for_programs)


def _size(text: str) -> int:
    size_bytes = parse_size_bytes(text)
    if size_bytes is None or not 0 <= size_bytes <= ENTRY_BYTES_MAX:
        raise ConfigError(f"--size {text}: an entry has from 0 to {ENTRY_BYTES_MAX} bytes, written as 100 or 64KiB")
    return size_bytes


async def _bench(
    stop: Stop,
    connection: Connection,
    settings: Settings,
    fdatasync: Path | None,
    keep: bool,
    for_programs: bool,
) -> None:
    stop.is_gentle = True
    raw = None
    if fdatasync is not None:
        # Before the load, and never beside it: the disk is to be measured alone.
        raw = await stop.unless_asked(lambda: disk.measure(fdatasync, max(1, settings.size_bytes), _DISK_SECONDS))
    if stop.is_asked:
        return
    load = Load(settings)
    async with client_from(connection, quorum=settings.quorum, creates=True) as client:
        quorum = settings.quorum or client.default_quorum
        made = Ledgers(client, settings, keeps=keep)
        try:
            async with made.open() as writers, _shown(load, is_quiet=for_programs):
                await stop.unless_asked(lambda: load.run(writers))
        finally:
            # Even after an error: nobody else knows these ids, and the ledgers would fill the cluster.
            if made.left:
                ids = " ".join(map(str, made.left))
                print(
                    f"replog: these ledgers could not be deleted, delete them later: {ids} {made.problem}",
                    file=sys.stderr,
                )
    if not load.elapsed_s:
        return  # stopped before it began
    if for_programs:
        print_json(as_json(load, quorum, raw, made.ids if keep else []))
    else:
        _print(load, quorum, raw, made.ids if keep else [])


@asynccontextmanager
async def _shown(load: Load, *, is_quiet: bool) -> AsyncIterator[None]:
    """Show the progress if standard error is a terminal."""
    if is_quiet or sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn

    columns = SpinnerColumn(), TextColumn("{task.description}")
    with Progress(
        *columns, console=console(stderr=True), transient=True, refresh_per_second=_SHOWN_PER_SECOND
    ) as shown:
        task = shown.add_task("connecting", total=None)

        async def show() -> None:
            before, before_s = 0, time.monotonic()
            while True:
                await trio.sleep(_SHOW_EVERY_S)
                now, now_s = load.confirmed_entries, time.monotonic()
                rate = as_count((now - before) / (now_s - before_s))
                shown.update(task, description=f"{as_count(now)} entries confirmed, {rate}/s")
                before, before_s = now, now_s

        async with open_service_nursery() as nursery:
            nursery.start_soon(show)
            yield


# -- results ------------------------------------------------------------------------------------------------------


def as_json(load: Load, quorum: Quorum, raw: Samples | None, kept_ids: list[int]) -> dict[str, Any]:
    """What was measured, for programs."""
    settings, entries, elapsed_s = load.settings, load.confirmed_entries, load.elapsed_s
    return {
        "size_bytes": settings.size_bytes,
        "in_flight": settings.in_flight,
        "batch_entries": settings.batch_entries,
        "ledgers": settings.ledgers,
        "quorum": attrs.asdict(quorum),
        "entries": entries,
        "elapsed_s": elapsed_s,
        "entries_rate": entries / elapsed_s,
        "bytes_rate": entries * settings.size_bytes / elapsed_s,
        "latency": load.calls.to_json(),
        "cpu_s": load.cpu_s,
        "cpu_s_per_entry": load.cpu_s / entries if entries else None,
        "fdatasync": None if raw is None else raw.to_json(),
        "kept_ledgers": kept_ids,
    }


def _print(load: Load, quorum: Quorum, raw: Samples | None, kept_ids: list[int]) -> None:
    found = as_json(load, quorum, raw, kept_ids)
    settings, entries = load.settings, load.confirmed_entries
    plural = "" if settings.ledgers == 1 else "s"
    table = new_table("bench", f"{as_size(settings.size_bytes)} entries, {settings.ledgers} ledger{plural}")
    each = "" if settings.ledgers == 1 else " each"
    batch = f" in calls of {settings.batch_entries}" if settings.batch_entries > 1 else ""
    add_row(table, "in flight", f"{settings.in_flight}{each}{batch}")
    add_row(table, "quorum", f"{quorum.ensemble},{quorum.write},{quorum.ack}")
    add_row(table, "confirmed", f"{entries} entries in {load.elapsed_s:.2f} s")
    add_row(
        table, "throughput", f"{as_count(found['entries_rate'])} entries/s, {as_size(round(found['bytes_rate']))}/s"
    )
    add_row(table, "latency of a call", _quantiles(load.calls))
    add_row(table, "the slowest calls", _slowest(load.calls))
    if entries:
        share = load.cpu_s / load.elapsed_s
        add_row(table, "CPU of this process", f"{load.cpu_s / entries * 1e6:.2f} us an entry, {share:.0%} of a core")
    if raw is not None:
        add_row(table, "fdatasync alone", _quantiles(raw))
        add_row(table, "the slowest of these", _slowest(raw))
        one, other = load.calls.quantile(0.5), raw.quantile(0.5)
        if one is not None and other:
            add_row(table, "latency, in fdatasyncs", f"p50 {one / other:.1f}")
    if kept_ids:
        add_row(table, "kept ledgers", " ".join(map(str, kept_ids)))
    print_table(table)


def _quantiles(samples: Samples) -> str:
    if not samples.count:
        return "-"
    named = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
    return ", ".join(f"{name} {as_duration(samples.quantile(share))}" for name, share in named)


def _slowest(samples: Samples) -> str:
    if not samples.count:
        return "-"
    return f"p99.9 {as_duration(samples.quantile(0.999))}, longest {as_duration(samples.longest_s)}"
