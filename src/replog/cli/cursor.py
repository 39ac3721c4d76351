"""`replog cursor`: the durable places of readers in logs: list, show, move and delete them."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from replog.cli.apps import App
from replog.cli.connecting import Connection, client_from, confirm, run, takes_connection
from replog.cli.figures import as_duration
from replog.cli.ledger.facts import time_for_people, time_of
from replog.cli.log.looking import Name, lag_as_json
from replog.cli.output import AsJSON, Listing, as_size, emit, print_json
from replog.errors import CursorNotFoundError
from replog.log.log_summaries import CursorLag, LogSummary
from replog.protocol.cursors import CursorRecord
from replog.protocol.model import Position

app = App(no_args_is_help=True, help="Look after cursors: durable, named places of readers in a log.")

CursorName = Annotated[str, typer.Argument(metavar="CURSOR", help="The cursor.")]
_COLUMNS = (
    ("cursor", -30),
    ("begins at", -12),
    ("entries left", 12),
    ("payloads", 10),
    ("oldest", 8),
    ("term", 6),
    ("committed", -20),
    ("worker", -1),
)


@app.command("list")
@takes_connection
def list_cursors(connection: Connection, name: Name, for_programs: AsJSON = False) -> None:
    """List the cursors of a log: the first position that each has not committed, how much is left, and its last owner.

    The rest of the log is counted up to the last confirmed entry: entries, bytes, and how long ago the first of them
    was written."""
    found = run(_summary, connection, name)
    if for_programs:
        print_json({"log": name, "cursors": [_as_json(each, found.lags[each.name]) for each in found.cursors]})
    else:
        Listing.show(_COLUMNS, (_row(each, found.lags[each.name]) for each in found.cursors))
    _tell_problem(found)


def _row(cursor: CursorRecord, lag: CursorLag) -> list[object]:
    committed = time_for_people(cursor.committed_at_ms)
    return [cursor.name, cursor.begins_at, *lag_for_people(lag), cursor.term, committed, cursor.owner or None]


async def _summary(connection: Connection, name: str) -> LogSummary:
    async with client_from(connection) as client:
        return await client.log_summary(name, password=connection.password())


def lag_for_people(lag: CursorLag) -> tuple[str | None, str | None, str | None]:
    """Entries, bytes and age. None: unknown."""
    entries = None if lag.entries is None else str(lag.entries)
    return entries, None if lag.size_bytes is None else as_size(lag.size_bytes), as_duration(lag.age_s)


def _tell_problem(found: LogSummary) -> None:
    if found.problem is not None:
        print(f"replog: {found.problem}", file=sys.stderr)


@app.command()
@takes_connection
def show(connection: Connection, name: Name, cursor: CursorName, for_programs: AsJSON = False) -> None:
    """Show one cursor of a log, and how much of the log it has not committed."""
    summary = run(_summary, connection, name)
    found = next((each for each in summary.cursors if each.name == cursor), None)
    if found is None:
        known = ", ".join(each.name for each in summary.cursors) or "none"
        raise CursorNotFoundError(name, cursor, f"there is no such cursor: the log has {known}")
    if for_programs:
        print_json({"log": name, **_as_json(found, summary.lags[cursor])})
    else:
        emit(f"cursor {cursor} of log {name} begins at {found.begins_at}; term {found.term}\n")
        emit(f"last commit: {time_for_people(found.committed_at_ms) or 'none'}; worker: {found.owner or 'none'}\n")
        entries, size, age = (each or "unknown" for each in lag_for_people(summary.lags[cursor]))
        emit(f"entries left: {entries}; payloads: {size}; age of the first: {age}\n")
    _tell_problem(summary)


@app.command()
@takes_connection
def move(
    connection: Connection,
    name: Name,
    cursor: CursorName,
    to: Annotated[str, typer.Option(metavar="POSITION", help="The first position to read: it looks like 17:42.")],
    for_programs: AsJSON = False,
) -> None:
    """Move a cursor forward or back. A worker that has it loses it: nothing that it has not committed is ever committed."""
    moved = run(_move, connection, name, cursor, Position.parse(to))
    if for_programs:
        print_json({"log": name, **_place_as_json(moved)})
    else:
        emit(f"cursor {cursor} of log {name} begins at {moved.begins_at}\n")


async def _move(connection: Connection, name: str, cursor: str, to: Position) -> CursorRecord:
    async with client_from(connection) as client:
        return await client.cursors.move(name, cursor, to=to)


@app.command()
@takes_connection
def delete(
    connection: Connection,
    name: Name,
    cursor: CursorName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
    for_programs: AsJSON = False,
) -> None:
    """Delete a cursor: trims no longer wait for it. A worker that has it loses it."""
    confirm(f"Delete cursor {cursor} of log {name}? What it has not committed may be trimmed then.", yes)
    run(_delete, connection, name, cursor)
    if for_programs:
        print_json({"log": name, "cursor": cursor, "deleted": True})
    else:
        emit(f"cursor {cursor} of log {name}: deleted\n")


async def _delete(connection: Connection, name: str, cursor: str) -> None:
    async with client_from(connection) as client:
        await client.cursors.delete(name, cursor)


def _as_json(cursor: CursorRecord, lag: CursorLag) -> dict[str, object]:
    return {**_place_as_json(cursor), **lag_as_json(lag)}


def _place_as_json(cursor: CursorRecord) -> dict[str, object]:
    return {
        "cursor": cursor.name,
        "begins_at": str(cursor.begins_at),
        "term": cursor.term,
        "worker": cursor.owner,
        "committed_at": time_of(cursor.committed_at_ms),
    }
