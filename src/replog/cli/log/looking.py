"""`replog log list`, `show`, `trim`, `sweep` and `delete`."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import Annotated

import trio
import typer

from replog.api import Client
from replog.cli.connecting import Connection, client_from, concurrently, confirm, run, takes_connection
from replog.cli.figures import counted, parse_duration_s
from replog.cli.ledger.facts import LedgerFacts, facts_of, time_for_people, time_of
from replog.cli.output import AsJSON, Listing, as_size, emit, print_json, print_json_line
from replog.config.client import UNBOUNDED
from replog.errors import LedgerNotFoundError, LogNotFoundError, MetastoreUnavailableError
from replog.log.log_summaries import CursorLag, LogSummary
from replog.metrics.requirements import check_installed, parse_listen
from replog.protocol.model import LedgerState, LogMetadata, Position, Segment

Name = Annotated[str, typer.Argument(metavar="NAME", help="The log.")]
_Pages = Callable[[Client], AsyncGenerator[list[str], None]]

_PAGE_LOGS = 10_000  # a metastore without pages lists all for each

_LOG_COLUMNS = (
    ("log", -30),
    ("segments", 8),
    ("entries", 10),
    ("payloads", 10),
    ("archived", 10),
    ("begins at", -9),
    ("created", -20),
    ("last entry", -20),
    ("state", -11),
    ("slowest cursor", -30),
    ("droppable", 9),
    ("absent", 6),
    ("writer", -1),
)
_SEGMENT_COLUMNS = (
    ("segment", 8),
    ("ledger", 8),
    ("state", -11),
    ("entries", 10),
    ("payloads", 10),
    ("archived", 10),
    ("last", -12),
    ("created", -20),
    ("writer", -1),
)


# -- list ---------------------------------------------------------------------------------------------------------


@takes_connection
def list_logs(
    connection: Connection,
    long: Annotated[
        bool, typer.Option("--long", "-l", help="What each holds, who writes it, and its cursors.")
    ] = False,
    prefix: Annotated[str, typer.Option(help="Only those whose names begin so.")] = "",
    after: Annotated[str, typer.Option(metavar="NAME", help="Only those behind this name: the next page.")] = "",
    limit: Annotated[int | None, typer.Option(min=1, help="So many at most.")] = None,
    for_programs: AsJSON = False,
) -> None:
    """List the logs by their names, one per line.

    With --long a log costs a few reads, however long it is; other values are shown as unknown. No writer is disturbed."""
    run(
        _list_long if long else _list,
        connection,
        partial(_names, prefix=prefix, after=after, limit=limit),
        for_programs,
    )


async def _names(client: Client, prefix: str, after: str, limit: int | None) -> AsyncGenerator[list[str], None]:
    """The names in pages, so that the first are printed before all are read."""
    left = sys.maxsize if limit is None else limit
    while left and (names := await client.logs(prefix=prefix, after=after, limit=min(left, _PAGE_LOGS))):
        yield names
        left -= len(names)
        after = names[-1]


async def _list(connection: Connection, pages: _Pages, for_programs: bool) -> None:
    async with client_from(connection) as client, aclosing(pages(client)) as found:
        async for names in found:
            for name in names:
                if for_programs:
                    print_json_line("log", {"log": name})
                else:
                    emit(f"{name}\n")


async def _list_long(connection: Connection, pages: _Pages, for_programs: bool) -> None:
    async with client_from(connection) as client, aclosing(pages(client)) as found:
        names = [name async for page in found for name in page]
        listing = Listing(*_LOG_COLUMNS)
        password = connection.password()
        bookies = frozenset(each.bookie_id for each in await client.admin.bookies())
        async for _, summary in concurrently(lambda each: _summary(client, each, password), names):
            if summary is None:
                continue
            absent = summary.absent_bookies(bookies)
            if for_programs:
                print_json_line("log", {**summary_as_json(summary), "absent_bookies": absent})
            else:
                listing.add(_summary_for_people(summary, absent))


async def _summary(client: Client, name: str, password: bytes) -> LogSummary | None:
    try:
        return await client.log_summary(name, bounded=True, password=password)
    except LogNotFoundError:
        return None  # it was deleted after it was listed


def _summary_for_people(summary: LogSummary, absent_bookies: int | None) -> list[object]:
    metadata, slowest = summary.metadata, summary.slowest_cursor
    cursor = None
    if slowest is not None:
        left = summary.lags[slowest.name].entries
        cursor = f"{slowest.name}: {'unknown' if left is None else left} left"
    return [
        metadata.name,
        metadata.segment_count,
        summary.entries,
        None if summary.size_bytes is None else as_size(summary.size_bytes),
        None if summary.archived_bytes is None else as_size(summary.archived_bytes),
        str(Position(metadata.first_segment_number, 0)),
        time_for_people(metadata.created_at_ms),
        time_for_people(summary.last_sent_ms or 0),
        None if summary.state is None else summary.state.value,
        cursor,
        summary.droppable_segments,
        absent_bookies,
        summary.writer,
    ]


def summary_as_json(summary: LogSummary) -> dict[str, object]:
    slowest = summary.slowest_cursor
    return {
        **_head(summary.metadata),
        "entries": summary.entries,
        "size_bytes": summary.size_bytes,
        "archived_bytes": summary.archived_bytes,
        "end": None if summary.end is None else str(summary.end),
        "first_entry_at": time_of(summary.first_sent_ms or 0),
        "last_entry_at": time_of(summary.last_sent_ms or 0),
        "state": None if summary.state is None else summary.state.value,
        "writer": summary.writer,
        "cursors": [{"cursor": name, **lag_as_json(lag)} for name, lag in sorted(summary.lags.items())],
        "slowest_cursor": None if slowest is None else slowest.name,
        "droppable_segments": summary.droppable_segments,
        "problem": summary.problem,
    }


def lag_as_json(lag: CursorLag) -> dict[str, object]:
    """The rest of the log, for programs. None: unknown."""
    return {"lag_entries": lag.entries, "lag_bytes": lag.size_bytes, "lag_s": lag.age_s}


def _head(metadata: LogMetadata) -> dict[str, object]:
    return {
        "log": metadata.name,
        "created_at": time_of(metadata.created_at_ms),
        "segment_count": metadata.segment_count,
        "begins_at": str(Position(metadata.first_segment_number, 0)),
        "next_segment": metadata.next_segment_number,
        "ledgers": _kind(metadata),
    }


def _kind(metadata: LogMetadata) -> str:
    return UNBOUNDED if metadata.is_unbounded else "bounded"


# -- show ---------------------------------------------------------------------------------------------------------


@takes_connection
def show(
    connection: Connection,
    name: Name,
    sizes: Annotated[bool, typer.Option(help="How many bytes each segment has: one read for each.")] = True,
    for_programs: AsJSON = False,
) -> None:
    """Show a log: its segments, their ledgers, states, entries and bytes, and the writer of the last one.

    If a ledger is not closed, its bookies are asked up to where it is confirmed; nothing is fenced."""
    run(_show, connection, name, sizes, for_programs)


async def _show(connection: Connection, name: str, sizes: bool, for_programs: bool) -> None:
    async with client_from(connection) as client:
        metadata, found = await facts_of_segments(client, name, connection.password(), sizes=sizes)
    if for_programs:
        print_json({**_head(metadata), "segments": [_segment_as_json(*pair) for pair in found]})
    else:
        _print(metadata, found)


async def facts_of_segments(
    client: Client, name: str, password: bytes, *, sizes: bool
) -> tuple[LogMetadata, list[tuple[Segment, LedgerFacts | None]]]:
    """The record of a log, and the facts about each of its segments; None for one that was deleted. Raises
    `LogNotFoundError`, `MetastoreError`."""
    metadata = await client.log_metadata(name)
    # Bounded by the record: a segment that comes meanwhile would not fit the printed head.
    segments = await client.log_segments(name, end=metadata.next_segment_number)

    async def facts(segment: Segment) -> LedgerFacts | None:
        try:
            return await facts_of(client, segment.ledger_id, password, with_size=sizes)
        except LedgerNotFoundError:
            return None  # trimmed meanwhile, or deleted alone

    return metadata, [pair async for pair in concurrently(facts, segments)]


def _segment_as_json(segment: Segment, facts: LedgerFacts | None) -> dict[str, object]:
    return {
        "number": segment.number,
        "ledger_id": segment.ledger_id,
        "term": segment.term,
        "state": "missing" if facts is None else facts.metadata.state.value,
        "entries": None if facts is None else facts.entries,
        "last_position": _last_position(segment, facts),
        "size_bytes": None if facts is None else facts.size_bytes,
        "archived_bytes": None if facts is None else facts.archived_bytes,
        "created_at": time_of(segment.created_at_ms),
        "writer": None if facts is None else facts.metadata.custom.get("writer"),
        "problem": None if facts is None else facts.problem,
    }


def _last_position(segment: Segment, facts: LedgerFacts | None) -> str | None:
    if facts is None or facts.last_entry_id in (None, -1):
        return None
    return f"{segment.number}:{facts.last_entry_id}"


def _row(segment: Segment, facts: LedgerFacts | None) -> list[object]:
    return [
        segment.number,
        segment.ledger_id,
        "missing" if facts is None else facts.metadata.state.value,
        None if facts is None else facts.entries,
        None if facts is None else as_size(facts.size_bytes),
        None if facts is None else as_size(facts.archived_bytes),
        _last_position(segment, facts),
        time_for_people(segment.created_at_ms),
        None if facts is None else facts.metadata.custom.get("writer"),
    ]


def _print(metadata: LogMetadata, found: list[tuple[Segment, LedgerFacts | None]]) -> None:
    Listing.show(_SEGMENT_COLUMNS, (_row(segment, facts) for segment, facts in found))
    known = [facts for _, facts in found if facts is not None]
    entries = sum(facts.entries or 0 for facts in known)
    sizes = [facts.size_bytes for facts in known]
    total = "" if None in sizes else f", {as_size(sum(filter(None, sizes)))}"
    archived = sum(facts.archived_bytes or 0 for facts in known)
    total += f", {as_size(archived)} of them archived" if archived else ""
    problems = [facts.problem for facts in known if facts.problem is not None]
    # A ledger whose bookies did not answer counts as empty here.
    at_least = "at least " if any(facts.entries is None for facts in known) else ""
    count = "1 segment" if len(found) == 1 else f"{len(found)} segments"
    holds = f"{count}, {at_least}{entries} {'entry' if entries == 1 else 'entries'}{total}"
    emit(f"log {metadata.name}: {holds}; {_state(found)}\n")
    if metadata.is_unbounded:
        emit(f"its ledgers are unbounded; the last one is led in term {found[-1][0].term}\n")
    for problem in problems:
        emit(f"{problem}\n")


def _state(found: list[tuple[Segment, LedgerFacts | None]]) -> str:
    if not found or found[-1][1] is None:
        return "nobody writes to it"
    state = found[-1][1].metadata.state
    if state is LedgerState.CLOSED:
        return "closed: nobody writes to it"
    if state is LedgerState.IN_RECOVERY:
        return "being recovered, or the recovering process crashed"
    return "open: a writer uses it, or crashed"


# -- trim, sweep and delete ----------------------------------------------------------------------------------------------


@takes_connection
def trim(
    connection: Connection,
    name: Name,
    before: Annotated[str, typer.Option(metavar="POSITION", help="What is needed begins here: it looks like 17:42.")],
    ignore_cursors: Annotated[
        bool, typer.Option("--ignore-cursors", help="Drop even what a cursor has not committed.")
    ] = False,
    for_programs: AsJSON = False,
) -> None:
    """Drop the segments of a log that end before a position. The last segment always stays, and what a cursor still needs."""
    position = Position.parse(before)
    dropped, begins_at = run(_trim, connection, name, position, ignore_cursors)
    if for_programs:
        print_json({"log": name, "dropped_segments": dropped, "begins_at": str(begins_at)})
    else:
        emit(f"log {name}: {counted(dropped, 'segment')} dropped; it begins at {begins_at}\n")


async def _trim(connection: Connection, name: str, before: Position, ignore_cursors: bool) -> tuple[int, Position]:
    async with client_from(connection) as client:
        metadata = await client.log_metadata(name)
        begins_at = await client.trim_log(name, before=before, ignore_cursors=ignore_cursors)
    return max(0, begins_at.segment - metadata.first_segment_number), begins_at


@takes_connection
def sweep(
    connection: Connection,
    name: Name,
    grace: Annotated[
        str,
        typer.Option(metavar="DURATION", help="Jobs whose youngest ledger is older are given up: 90s, 15m, 12h, 2d."),
    ] = "1d",
    job: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Give this job up now, unless the log has it; leave others alone."),
    ] = None,
    for_programs: AsJSON = False,
) -> None:
    """Delete what jobs wrote for a log and never committed: repeated attempts, and jobs that were killed."""
    deleted = run(_sweep, connection, name, parse_duration_s(grace), job)
    if for_programs:
        print_json({"log": name, "deleted_ledgers": deleted})
    else:
        emit(f"log {name}: {counted(len(deleted), 'ledger')} deleted that it does not need\n")


async def _sweep(connection: Connection, name: str, grace_s: float, job: str | None) -> list[int]:
    async with client_from(connection) as client:
        return await client.jobs.sweep(name, grace_s=grace_s, job=job)


@takes_connection
def delete(
    connection: Connection,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
    for_programs: AsJSON = False,
) -> None:
    """Delete a log and all its entries permanently; its writer is fenced first."""
    confirm(f"Delete log {name} and all its entries permanently?", yes)
    run(_delete, connection, name)
    if for_programs:
        print_json({"log": name, "deleted": True})
    else:
        emit(f"log {name}: deleted\n")


async def _delete(connection: Connection, name: str) -> None:
    async with client_from(connection) as client:
        await client.delete_log(name, password=connection.password())


# -- measuring --------------------------------------------------------------------------------------------------------
#
# `replog log metrics`: what logs hold and how far cursors are behind, for Prometheus.


@takes_connection
def metrics(
    connection: Connection,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="The logs; without any, the first 200.")
    ] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve them at /metrics until a signal comes.")
    ] = None,
) -> None:
    """Print metrics of logs and cursors in Prometheus' format: leader, size, lag; or serve them with --listen.

    A log costs the metastore a few reads for each request; no writer is disturbed. One such process is enough for a
    cluster."""
    check_installed()
    if listen is not None:
        parse_listen(listen)
    run(_metrics, connection, tuple(names or ()), listen)


async def _metrics(connection: Connection, names: tuple[str, ...], listen: str | None) -> None:
    # Here: the other commands need no package of that extra.
    from prometheus_client import CollectorRegistry, generate_latest

    from replog.metrics import LogMetrics, serve_metrics

    async with client_from(connection) as client:
        found = LogMetrics(client, names, password=connection.password())
        if listen is not None:
            async with trio.open_nursery() as nursery:
                where = await nursery.start(partial(serve_metrics, logs=found), listen)
                print(f"replog: metrics of logs at http://{where}/metrics", file=sys.stderr)
            return
        for name in names:
            if name not in await client.logs(prefix=name, limit=1):
                raise LogNotFoundError(name, "there is no such log: replog log list says which there are")
        await found.look()
        if found.problem:
            raise MetastoreUnavailableError(found.problem)
        registry = CollectorRegistry()
        registry.register(found)
        emit(generate_latest(registry).decode())
