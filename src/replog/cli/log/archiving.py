"""`replog log archive` and `recall`: moving the closed segments of a log into an archive, and back."""

from __future__ import annotations

from typing import Annotated

import attrs
import typer

from replog.cli.connecting import Connection, client_from, run, takes_connection
from replog.cli.figures import counted
from replog.cli.log.looking import Name
from replog.cli.output import AsJSON, as_size, emit, print_json
from replog.repair.archiver import MovedEntries


@takes_connection
def archive(
    connection: Connection,
    name: Name,
    before: Annotated[
        str | None, typer.Option(metavar="POSITION", help="Only segments that end before it: it looks like 17:42.")
    ] = None,
    into: Annotated[
        str | None, typer.Option("--into", metavar="URL", help="The archive, if there are several.")
    ] = None,
    for_programs: AsJSON = False,
) -> None:
    """Move the closed segments of a log into an archive. Readers notice nothing; bookies drop their copies by themselves."""
    _show(run(_archive, connection, name, before, into), name, "archived", for_programs=for_programs)


async def _archive(connection: Connection, name: str, before: str | None, into: str | None) -> MovedEntries:
    async with client_from(connection) as client:
        return await client.admin.archive_log(name, before=before, archive=into, password=connection.password())


@takes_connection
def recall(connection: Connection, name: Name, for_programs: AsJSON = False) -> None:
    """Store the archived segments of a log on bookies again."""
    _show(run(_recall, connection, name), name, "recalled", for_programs=for_programs)


async def _recall(connection: Connection, name: str) -> MovedEntries:
    async with client_from(connection) as client:
        return await client.admin.recall_log(name, password=connection.password())


def _show(moved: MovedEntries, name: str, what: str, *, for_programs: bool) -> None:
    if for_programs:
        print_json({"log": name, **attrs.asdict(moved)})
    else:
        emit(f"log {name}: {counted(moved.fragments, 'fragment')} {what}, {as_size(moved.size_bytes)}\n")
