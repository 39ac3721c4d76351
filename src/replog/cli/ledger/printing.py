"""`replog ledger read`: print entries of a ledger on standard output."""

from __future__ import annotations

from typing import Annotated

import typer

from replog.cli.connecting import Connection, client_from, run, takes_connection
from replog.cli.entries import Delimiter, LengthPrefixed, Null, Shown, shown
from replog.cli.ledger.commands import LedgerId
from replog.cli.output import AsJSON, standard_output, watched
from replog.cli.streams import write_output
from replog.errors import ConfigError, EntryNotFoundError


@takes_connection
def read(
    connection: Connection,
    ledger_id: LedgerId,
    first: Annotated[int, typer.Option(metavar="ENTRY_ID", min=0, help="Begin at this entry.")] = 0,
    last: Annotated[
        int | None, typer.Option(metavar="ENTRY_ID", min=0, help="End with this one, which must be there.")
    ] = None,
    delimiter: Delimiter = None,
    null: Null = False,
    length_prefixed: LengthPrefixed = False,
    for_programs: AsJSON = False,
) -> None:
    """Write a ledger's entries to standard output, each followed by a newline, up to the last that is known to be confirmed.

    Fences nothing. --json writes a line for each: entry id, timestamp, size and data.
    """
    how = shown(delimiter, null, length_prefixed, for_programs=for_programs)
    if last is not None and last < first:
        raise ConfigError(f"--last {last} is before --first {first}")
    run(_read, connection, ledger_id, first, last, how)


async def _read(connection: Connection, ledger_id: int, first: int, last: int | None, how: Shown) -> None:
    is_quiet = standard_output().isatty()
    async with (
        client_from(connection) as client,
        client.open_ledger(ledger_id, first=first, password=connection.password()) as reader,
    ):
        if last is not None and last > reader.last_add_confirmed:
            problem = f"{reader.last_add_confirmed} is the last that may be read"
            raise EntryNotFoundError(ledger_id, last, problem)
        with watched(f"ledger {ledger_id}", None, is_quiet=is_quiet) as tell:
            async for batch in reader.batches():
                count = len(batch) if last is None else min(len(batch), last - batch.first_entry_id + 1)
                places = range(batch.first_entry_id, batch.first_entry_id + count)
                await write_output(how.encode("entry", "entry_id", places, batch, count))
                tell(batch.size_bytes)
                if last is not None and batch.last_entry_id >= last:
                    return
