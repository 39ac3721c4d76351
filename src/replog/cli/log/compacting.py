"""`replog log compact`: writes the last value of each key into a new log."""

from __future__ import annotations

from typing import Annotated

import typer

from replog.cli.connecting import Connection, client_from, run, takes_connection
from replog.cli.output import AsJSON, emit, print_json
from replog.log.compacting import CompactedLog


@takes_connection
def compact(
    connection: Connection,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The log.")],
    into: Annotated[str, typer.Option("--into", metavar="NAME", help="The new log.")],
    for_programs: AsJSON = False,
) -> None:
    """Write the last value of each key of a log into a new log, which appears at once or not at all.

    Entries without a key are kept, tombstones are not. Disturbs no writer, and changes nothing in the log that is read."""
    done = run(_compact, connection, name, into)
    if for_programs:
        through = None if done.through is None else str(done.through)
        counts = {"read_entries": done.read_entries, "kept_entries": done.kept_entries, "keys": done.keys}
        print_json({"log": name, "into": into, **counts, "through": through})
    else:
        read = "1 entry" if done.read_entries == 1 else f"{done.read_entries} entries"
        behind = "" if done.through is None else f", up to {done.through}"
        emit(f"log {into}: {done.kept_entries} of {read} kept, of {done.keys} keys; log {name} was read{behind}\n")


async def _compact(connection: Connection, name: str, into: str) -> CompactedLog:
    async with client_from(connection) as client:
        return await client.compact_log(name, into=into, password=connection.password())
