"""`replog log retain` and `compact`: what a log keeps."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from replog.cli.connecting import Connection, client_from, run, takes_connection
from replog.cli.figures import counted, parse_duration_s
from replog.cli.output import AsJSON, emit, print_json
from replog.config.structuring import parse_size_bytes
from replog.errors import ConfigError
from replog.log.compacting import CompactedLog
from replog.log.retention import Retention
from replog.protocol.model import Position

# -- retain -------------------------------------------------------------------------------------------------------


@takes_connection
def retain(
    connection: Connection,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The log.")],
    age: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Drop segments that ended longer ago: 90s, 15m, 12h, 7d.")
    ] = None,
    size: Annotated[
        str | None,
        typer.Option("--bytes", metavar="SIZE", help="Drop segments behind which there is so much: 500MB, 10GiB."),
    ] = None,
    committed: Annotated[
        bool, typer.Option("--committed", help="Drop segments that every cursor has committed, if there are cursors.")
    ] = False,
    for_programs: AsJSON = False,
) -> None:
    """Drop the oldest segments of a log: by age, by bytes, or once cursors have committed them.

    In doubt a segment stays, and all behind it; so do the last one, and what a cursor needs. Then that cursor is named, and the
    exit status is 1."""
    if age is None and size is None and not committed:
        raise ConfigError("nothing says what to keep: give --age, --bytes or --committed; nothing was dropped")
    kept = Retention(
        age=None if age is None else timedelta(seconds=parse_duration_s(age)),
        size_bytes=None if size is None else _size_bytes(size),
        committed=committed,
    )
    dropped, begins_at = run(_retain, connection, name, kept)
    if for_programs:
        print_json({"log": name, "dropped_segments": dropped, "begins_at": str(begins_at)})
    else:
        emit(f"log {name}: {counted(dropped, 'segment')} dropped; it begins at {begins_at}\n")


async def _retain(connection: Connection, name: str, kept: Retention) -> tuple[int, Position]:
    async with client_from(connection) as client:
        metadata = await client.log_metadata(name)
        begins_at = await client.retain_log(name, age=kept.age, size_bytes=kept.size_bytes, committed=kept.committed)
    return max(0, begins_at.segment - metadata.first_segment_number), begins_at


def _size_bytes(text: str) -> int:
    size_bytes = parse_size_bytes(text)
    if size_bytes is None:
        raise ConfigError(f"--bytes {text}: write a size as 1000000, 500MB or 10GiB; nothing was dropped")
    return size_bytes


# -- compact ------------------------------------------------------------------------------------------------------


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
        read = counted(done.read_entries, "entry", "entries")
        behind = "" if done.through is None else f", up to {done.through}"
        emit(f"log {into}: {done.kept_entries} of {read} kept, of {done.keys} keys; log {name} was read{behind}\n")


async def _compact(connection: Connection, name: str, into: str) -> CompactedLog:
    async with client_from(connection) as client:
        return await client.compact_log(name, into=into, password=connection.password())
