"""`replog cursor`: the durable places of readers in logs: list, show, move and delete them."""

from __future__ import annotations

from typing import Annotated

import typer

from replog.cli.apps import App
from replog.cli.connecting import Connection, client_from, confirm, run, takes_connection
from replog.cli.ledger.facts import time_for_people, time_of
from replog.cli.log.looking import Name
from replog.cli.output import AsJSON, Listing, emit, print_json
from replog.errors import CursorNotFoundError
from replog.protocol.cursors import CursorRecord
from replog.protocol.model import Position

app = App(no_args_is_help=True, help="Look after cursors: durable, named places of readers in a log.")

CursorName = Annotated[str, typer.Argument(metavar="CURSOR", help="The cursor.")]
_COLUMNS = (("cursor", -30), ("begins at", -12), ("term", 6), ("committed", -20), ("worker", -1))


@app.command("list")
@takes_connection
def list_cursors(connection: Connection, name: Name, for_programs: AsJSON = False) -> None:
    """List the cursors of a log: the first position that each has not committed, and who acquired it last."""
    found = run(_list, connection, name)
    if for_programs:
        print_json({"log": name, "cursors": [_as_json(each) for each in found]})
        return
    listing = Listing(*_COLUMNS)
    for each in found:
        committed = time_for_people(each.committed_at_ms)
        listing.add([each.name, each.begins_at, each.term, committed, each.owner or None])
    listing.end()


async def _list(connection: Connection, name: str) -> list[CursorRecord]:
    async with client_from(connection) as client:
        return await client.cursors(name)


@app.command()
@takes_connection
def show(connection: Connection, name: Name, cursor: CursorName, for_programs: AsJSON = False) -> None:
    """Show one cursor of a log."""
    found = next((each for each in run(_list, connection, name) if each.name == cursor), None)
    if found is None:
        raise CursorNotFoundError(name, cursor, "there is no such cursor")
    if for_programs:
        print_json({"log": name, **_as_json(found)})
        return
    emit(f"cursor {cursor} of log {name} begins at {found.begins_at}; term {found.term}\n")
    emit(f"last commit: {time_for_people(found.committed_at_ms) or 'none'}; worker: {found.owner or 'none'}\n")


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
        print_json({"log": name, **_as_json(moved)})
    else:
        emit(f"cursor {cursor} of log {name} begins at {moved.begins_at}\n")


async def _move(connection: Connection, name: str, cursor: str, to: Position) -> CursorRecord:
    async with client_from(connection) as client:
        return await client.move_cursor(name, cursor, to=to)


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
        await client.delete_cursor(name, cursor)


def _as_json(cursor: CursorRecord) -> dict[str, object]:
    return {
        "cursor": cursor.name,
        "begins_at": str(cursor.begins_at),
        "term": cursor.term,
        "worker": cursor.owner,
        "committed_at": time_of(cursor.committed_at_ms),
    }
