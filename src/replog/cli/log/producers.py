"""`replog log producers`: the producers that a log remembers, and makes it forget."""

from __future__ import annotations

from typing import Annotated

import typer

from replog.cli.connecting import Connection, client_from, confirm, run, takes_connection
from replog.cli.figures import parse_duration_s
from replog.cli.ledger.facts import time_for_people, time_of
from replog.cli.log.looking import Name
from replog.cli.output import AsJSON, Listing, emit, print_json
from replog.protocol.producers import KnownProducer

_COLUMNS = (("producer", -40), ("last sequence", 13), ("last entry", -20))


@takes_connection
def producers(
    connection: Connection,
    name: Name,
    retire: Annotated[
        list[str] | None, typer.Option(metavar="PRODUCER", help="Forget this one; may be given several times.")
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Forget all that have been silent for longer: 90s, 15m, 12h, 2d."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
    for_programs: AsJSON = False,
) -> None:
    """List the producers that a log remembers from its closed segments, or retire some of them.

    An append that repeats an id of one that was retired appends the entry again."""
    if retire or older_than is not None:
        older_than_s = None if older_than is None else parse_duration_s(older_than)
        confirm(f"Retire producers of log {name}? An append that repeats an id of one is appended again.", yes)
        retired = run(_retire, connection, name, retire or [], older_than_s)
        if for_programs:
            print_json({"log": name, "retired": retired})
        else:
            count = "1 producer" if len(retired) == 1 else f"{len(retired) or 'no'} producers"
            emit(f"log {name}: {count} retired\n")
        return
    found = run(_producers, connection, name)
    if for_programs:
        print_json({"log": name, "producers": [_as_json(each) for each in found]})
        return
    listing = Listing(*_COLUMNS)
    for each in found:
        listing.add([each.name, each.ids[-1][0], time_for_people(each.last_ms)])
    listing.end()


def _as_json(producer: KnownProducer) -> dict[str, object]:
    return {
        "producer": producer.name,
        "last_sequence": producer.ids[-1][0],
        "last_entry_at": time_of(producer.last_ms),
    }


async def _producers(connection: Connection, name: str) -> list[KnownProducer]:
    async with client_from(connection) as client:
        return await client.log_producers(name)


async def _retire(connection: Connection, name: str, names: list[str], older_than_s: float | None) -> list[str]:
    async with client_from(connection) as client:
        return await client.retire_producers(name, names, older_than_s=older_than_s)
