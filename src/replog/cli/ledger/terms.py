"""`replog ledger create`, `take-over`, `trim` and `raise-term`: unbounded ledgers. And `raise-ids`."""

from __future__ import annotations

from typing import Annotated

import typer

from replog.cli.connecting import Connection, client_from, run, takes_connection
from replog.cli.ledger.commands import LedgerId
from replog.cli.output import AsJSON, emit, print_json
from replog.errors import ConfigError


@takes_connection
def create(
    connection: Connection,
    unbounded: Annotated[
        bool, typer.Option("--unbounded", help="One that is taken over and goes on. Another kind is closed at once.")
    ] = False,
    durability: Annotated[
        str | None,
        typer.Option(help="`write-quorum`: rolls and takeovers of it wait for all copies. Otherwise as configured."),
    ] = None,
    for_programs: AsJSON = False,
) -> None:
    """Create an unbounded ledger without entries, and print its id."""
    run(_create, connection, unbounded, durability, for_programs)


async def _create(connection: Connection, unbounded: bool, durability: str | None, for_programs: bool) -> None:
    if not unbounded:
        raise ConfigError("a bounded ledger without its writer is of no use: create an unbounded one, by --unbounded")
    async with (
        client_from(connection) as client,
        client.create_ledger(password=connection.password(), unbounded=True, durability=durability) as writer,
    ):
        pass
    if for_programs:
        print_json({"ledger_id": writer.ledger_id, "term": writer.metadata.term})
    else:
        emit(f"{writer.ledger_id}\n")


@takes_connection
def take_over(
    connection: Connection,
    ledger_id: LedgerId,
    finish: Annotated[bool, typer.Option("--finish", help="Close it permanently.")] = False,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Even if confirmed entries may be gone with what bookies lost.")
    ] = False,
    for_programs: AsJSON = False,
) -> None:
    """Depose the writer of an unbounded ledger, recover what it left, and leave the ledger open."""
    run(_take_over, connection, ledger_id, finish, accept_loss, for_programs)


async def _take_over(
    connection: Connection, ledger_id: int, finish: bool, accept_loss: bool, for_programs: bool
) -> None:
    async with client_from(connection) as client:
        password = connection.password()
        async with client.take_over_ledger(ledger_id, password=password, accept_loss=accept_loss) as writer:
            if finish:
                await writer.finish()
    metadata, last = writer.metadata, writer.last_add_confirmed
    if for_programs:
        found = {"ledger_id": ledger_id, "term": metadata.term, "last_entry_id": last, "state": metadata.state.value}
        print_json(found)
    else:
        emit(f"ledger {ledger_id}: {metadata.state.value} in term {metadata.term}, behind entry {last}\n")


@takes_connection
def trim(
    connection: Connection,
    ledger_id: LedgerId,
    before: Annotated[
        int, typer.Option("--before", min=0, help="Drop the fragments that lie wholly before this entry.")
    ],
    for_programs: AsJSON = False,
) -> None:
    """Drop the first fragments of an unbounded ledger."""
    run(_trim, connection, ledger_id, before, for_programs)


async def _trim(connection: Connection, ledger_id: int, before: int, for_programs: bool) -> None:
    async with client_from(connection) as client:
        first = await client.trim_ledger(ledger_id, before=before)
    if for_programs:
        print_json({"ledger_id": ledger_id, "first_entry_id": first})
    else:
        emit(f"ledger {ledger_id}: begins at entry {first} now\n")


@takes_connection
def raise_term(connection: Connection, ledger_id: LedgerId, for_programs: AsJSON = False) -> None:
    """Raise the term of an unbounded ledger whose metadata was restored from an old back-up.

    Only if nothing newer of the metadata is left: what only that named is gone. The ledger can be taken over after that."""
    run(_raise_term, connection, ledger_id, for_programs)


async def _raise_term(connection: Connection, ledger_id: int, for_programs: bool) -> None:
    async with client_from(connection) as client:
        term = await client.raise_ledger_term(ledger_id, password=connection.password())
    if for_programs:
        print_json({"ledger_id": ledger_id, "term": term})
    else:
        emit(f"ledger {ledger_id}: its term is {term} now\n")


@takes_connection
def raise_ids(connection: Connection, for_programs: AsJSON = False) -> None:
    """Raise the next ledger id above every id that a bookie has ever seen, after metadata was restored from an old back-up.

    So no ledger gets the id of a lost one, of which bookies have entries."""
    run(_raise_ids, connection, for_programs)


async def _raise_ids(connection: Connection, for_programs: bool) -> None:
    async with client_from(connection) as client:
        next_ledger_id = await client.raise_ledger_ids()
    if for_programs:
        print_json({"next_ledger_id": next_ledger_id})
    else:
        emit(f"the next ledger gets id {next_ledger_id} or a higher one\n")
