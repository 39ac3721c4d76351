"""`replog log transactions`: what a log remembers of commits, and makes it forget."""

from __future__ import annotations

from typing import Annotated

import typer

from replog.cli.connecting import Connection, client_from, confirm, run, takes_connection
from replog.cli.figures import parse_duration_s
from replog.cli.ledger.facts import time_for_people, time_of
from replog.cli.log.looking import Name
from replog.cli.output import AsJSON, Listing, emit, print_json
from replog.protocol.model import Transaction

_COLUMNS = (("transaction", -40), ("number", 12), ("of", -6), ("committed", -20))


@takes_connection
def transactions(
    connection: Connection,
    name: Name,
    retire: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Forget this one; may be given several times.")
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Forget all that were committed longer ago: 90s, 15m, 12h, 2d."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
    for_programs: AsJSON = False,
) -> None:
    """List the transactions of jobs and streams that a log remembers, or retire some of them.

    A job that repeats one that was retired writes its rows again."""
    if retire or older_than is not None:
        older_than_s = None if older_than is None else parse_duration_s(older_than)
        confirm(f"Retire transactions of log {name}? A job that repeats one writes its rows again.", yes)
        retired = run(_retire, connection, name, retire or [], older_than_s)
        if for_programs:
            print_json({"log": name, "retired": retired})
        else:
            count = "1 transaction" if len(retired) == 1 else f"{len(retired) or 'no'} transactions"
            emit(f"log {name}: {count} retired\n")
        return
    found = run(_transactions, connection, name)
    if for_programs:
        print_json({"log": name, "transactions": [_as_json(each) for each in found]})
        return
    listing = Listing(*_COLUMNS)
    for each in found:
        listing.add([each.transaction_id, each.number, _kind(each), time_for_people(each.committed_at_ms)])
    listing.end()


def _kind(transaction: Transaction) -> str:
    return "stream" if transaction.is_of_stream else "job"


def _as_json(transaction: Transaction) -> dict[str, object]:
    return {
        "id": transaction.transaction_id,
        "number": transaction.number,
        "of": _kind(transaction),
        "committed_at": time_of(transaction.committed_at_ms),
    }


async def _transactions(connection: Connection, name: str) -> tuple[Transaction, ...]:
    async with client_from(connection) as client:
        return (await client.log_metadata(name)).transactions


async def _retire(
    connection: Connection, name: str, transaction_ids: list[str], older_than_s: float | None
) -> list[str]:
    async with client_from(connection) as client:
        return await client.retire_transactions(name, transaction_ids, older_than_s=older_than_s)
