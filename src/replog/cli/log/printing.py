"""`replog log read` and `replog log tail`: print entries of a log on standard output."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated

import trio
import typer

from replog.api import Client
from replog.cli.connecting import Connection, client_from, run, takes_connection
from replog.cli.entries import Delimiter, LengthPrefixed, Null, Shown, shown
from replog.cli.figures import parse_since
from replog.cli.ledger.facts import last_entry_of
from replog.cli.output import AsJSON, standard_output, watched
from replog.cli.streams import wait_output_closed, write_output
from replog.errors import LedgerNotFoundError, LogNotFoundError, ReplogError
from replog.log.log_reader import LogReader
from replog.log.record_batches import RecordBatch
from replog.protocol.model import Position, Segment
from replog.runtime.nursery import open_service_nursery

_GATHERED_BYTES = 256 << 10  # batches that are here already are written at once, up to so much

Name = Annotated[str, typer.Argument(metavar="NAME", help="The log.")]
WithPositions = Annotated[bool, typer.Option("--positions", help="Write each entry's position and a tab before it.")]
WithKeys = Annotated[bool, typer.Option("--keys", help="Write each entry's key and a tab before it.")]


@takes_connection
def read(
    connection: Connection,
    name: Name,
    after: Annotated[
        str | None, typer.Option(metavar="POSITION", help="Begin after this one, which looks like 17:42.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Begin so long ago (90s, 2h, 7d), or then (2026-11-23T08:00:00Z)."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="At most so many entries.")] = None,
    delimiter: Delimiter = None,
    null: Null = False,
    length_prefixed: LengthPrefixed = False,
    positions: WithPositions = False,
    keys: WithKeys = False,
    for_programs: AsJSON = False,
) -> None:
    """Write a log's entries to standard output, each followed by a newline, up to the last that is known to be confirmed.

    With --since some earlier entries may come, and none is left out. Disturbs no writer.

    --json writes a line for each: position, timestamp, size and data; its key, headers and id, if it has any.
    """
    how = shown(delimiter, null, length_prefixed, positions=positions, keys=keys, for_programs=for_programs)
    start = None if after is None else Position.parse(after)
    time = None if since is None else parse_since(since)
    run(_read, connection, name, start, time, limit, how)


async def _read(
    connection: Connection,
    name: str,
    after: Position | None,
    since: datetime | timedelta | None,
    limit: int | None,
    how: Shown,
) -> None:
    async with (
        client_from(connection) as client,
        client.read_log(name, after=after, since=since, password=connection.password()) as reader,
    ):
        await copy(reader, limit, how)


@takes_connection
def tail(
    connection: Connection,
    name: Name,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="The last so many entries.")] = 10,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with those that come, across takeovers, until stopped.")
    ] = False,
    follow_name: Annotated[
        bool,
        typer.Option("-F", help="As -f; wait for the log, if it does not exist yet or any more."),
    ] = False,
    delimiter: Delimiter = None,
    null: Null = False,
    length_prefixed: LengthPrefixed = False,
    positions: WithPositions = False,
    keys: WithKeys = False,
    for_programs: AsJSON = False,
) -> None:
    """Write the last entries of a log, and with -f all entries that come after them, until stopped."""
    how = shown(delimiter, null, length_prefixed, positions=positions, keys=keys, for_programs=for_programs)
    run(_tail, connection, name, lines, follow, follow_name, how)


async def _tail(connection: Connection, name: str, count: int, follow: bool, follow_name: bool, how: Shown) -> None:
    password = connection.password()
    async with client_from(connection) as client:
        if not (follow or follow_name):
            after = await tail_start(client, name, count, password)
            async with client.read_log(name, after=after, password=password) as reader:
                await copy(reader, count, how)
            return
        async with open_service_nursery() as nursery:
            # `tail -f | head` must end even if no entry ever comes: only a write would show that the output is not read.
            nursery.start_soon(wait_output_closed)
            while True:
                try:
                    after = await tail_start(client, name, count, password)
                    async with client.read_log(name, after=after, follow=True, password=password) as reader:
                        await copy(reader, None, how)
                except LogNotFoundError as error:
                    if not follow_name:
                        raise
                    print(f"replog: {error.log_name}: does not exist: waiting for it", file=sys.stderr)
                    await _wait_for(client, name)
                    count = sys.maxsize  # the log is new: write all of it


async def _wait_for(client: Client, name: str) -> None:
    """Wait until the log exists."""
    async with client.read_log(name, follow=True):
        pass


async def tail_start(client: Client, name: str, count: int, password: bytes) -> Position | None:
    """The position after which a log has so many entries, as far as is known; None if it has no more in all.

    Asks for the ends of as many ledgers as needed, and reads no entry."""
    segments: Sequence[Segment] = (await client.log_metadata(name)).segments
    while segments:
        for segment in reversed(segments):
            try:
                last = await last_entry_of(client, segment.ledger_id, password)
            except LedgerNotFoundError:
                return None  # trimmed meanwhile: it begins after this one
            if count <= last + 1:
                return Position(segment.number, last - count)  # -1: before the first entry
            count -= last + 1
        end = segments[0].number
        segments = await client.log_segments(name, first=end - len(segments), end=end) if end > 1 else ()
    return None


async def copy(reader: LogReader, limit: int | None, how: Shown) -> None:
    """Write what the reader returns, at most so many records, as soon as it is there.

    Raises as the reader does, after everything before was written; `OutputClosed`, `StreamError`."""
    left = sys.maxsize if limit is None else limit
    with watched(f"log {reader.name}", None, is_quiet=standard_output().isatty() or limit is not None) as tell:
        while left > 0:
            batch = await reader.receive_batch()
            if batch is None:
                return
            pieces: list[bytes] = []
            gathered_bytes = 0
            failure: ReplogError | None = None
            while batch is not None and left > 0:
                pieces.append(_encoded(how, batch, left))
                left -= len(batch)
                gathered_bytes += batch.size_bytes
                batch = None
                if gathered_bytes < _GATHERED_BYTES:
                    try:
                        batch = reader.receive_batch_nowait()
                    except trio.WouldBlock:
                        break
                    except ReplogError as error:
                        failure = error
            await write_output(b"".join(pieces))
            tell(gathered_bytes)
            if failure is not None:
                raise failure


def _encoded(how: Shown, batch: RecordBatch, count: int) -> bytes:
    segment, first = batch.first_position
    count = min(count, len(batch))
    places = [f"{segment}:{entry}" for entry in range(first, first + count)] if how.needs_places else ()
    return how.encode("record", "position", places, batch, count)
