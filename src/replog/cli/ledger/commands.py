"""`replog ledger list`, `show`, `read`, `recover` and `delete`."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from replog.api import Client
from replog.cli.connecting import Connection, client_from, concurrently, confirm, run, takes_connection
from replog.cli.entries import Delimiter, LengthPrefixed, Null, Shown, shown
from replog.cli.ledger.facts import LedgerFacts, as_json, facts_of, has_password, time_for_people
from replog.cli.output import (
    AsJSON,
    Listing,
    add_row,
    as_size,
    emit,
    new_table,
    print_json,
    print_json_line,
    print_table,
    standard_output,
    watched,
)
from replog.cli.streams import write_output
from replog.errors import ConfigError, EntryNotFoundError, LedgerNotFoundError, LogNotFoundError
from replog.protocol.model import LedgerMetadata, LedgerState
from replog.records.paths import LEDGER_ID_MAX

LedgerId = Annotated[int, typer.Argument(metavar="LEDGER_ID", min=0, max=LEDGER_ID_MAX)]

_COLUMNS = (
    ("ledger", 10),
    ("state", -11),
    ("entries", 10),
    ("quorum", -7),
    ("fragments", 9),
    ("created", -20),
    ("log", -1),
)


class State(enum.Enum):
    """The values of `ledger list --state`."""

    OPEN = "open"
    IN_RECOVERY = "in-recovery"
    CLOSED = "closed"


# -- list ---------------------------------------------------------------------------------------------------------


@takes_connection
def list_ledgers(
    connection: Connection,
    state: Annotated[State | None, typer.Option(help="Only those in this state.")] = None,
    long: Annotated[bool, typer.Option("--long", "-l", help="More of each than its id.")] = False,
    for_programs: AsJSON = False,
) -> None:
    """List the ledgers by their ids, one per line."""
    run(_list, connection, state, long, for_programs)


async def _list(connection: Connection, state: State | None, long: bool, for_programs: bool) -> None:
    async with client_from(connection) as client:
        ids = await client.ledgers()
        if state is None and not long:
            for ledger_id in ids:
                if for_programs:
                    print_json_line("ledger", {"ledger_id": ledger_id})
                else:
                    emit(f"{ledger_id}\n")
            return
        listing = Listing(*_COLUMNS)
        async for ledger_id, metadata in concurrently(lambda each: _metadata(client, each), ids):
            if metadata is None or (state is not None and metadata.state is not LedgerState[state.name]):
                continue
            if for_programs:
                print_json_line("ledger", _listed(metadata))
            elif long:
                listing.add(_row(metadata))
            else:
                emit(f"{ledger_id}\n")


async def _metadata(client: Client, ledger_id: int) -> LedgerMetadata | None:
    try:
        return await client.ledger_metadata(ledger_id)
    except LedgerNotFoundError:
        return None  # it was deleted after it was listed


def _listed(metadata: LedgerMetadata) -> dict[str, object]:
    """The facts in the record of a ledger, without asking its bookies."""
    found = as_json(LedgerFacts(metadata, metadata.last_entry_id))
    return {name: value for name, value in found.items() if name not in ("size_bytes", "writers", "problem")}


def _row(metadata: LedgerMetadata) -> list[object]:
    quorum, last = metadata.quorum, metadata.last_entry_id
    return [
        metadata.ledger_id,
        metadata.state.value,
        None if last is None else last + 1,
        f"{quorum.ensemble},{quorum.write},{quorum.ack}",
        len(metadata.fragments),
        time_for_people(metadata.created_at_ms),
        metadata.custom.get("log"),
    ]


# -- show ---------------------------------------------------------------------------------------------------------


@takes_connection
def show(connection: Connection, ledger_id: LedgerId, for_programs: AsJSON = False) -> None:
    """Show the known facts about a ledger: its state, its end, its size, and the bookies that store it.

    If it is not closed, its bookies are asked up to where it is confirmed; nothing is fenced."""
    run(_show, connection, ledger_id, for_programs)


async def _show(connection: Connection, ledger_id: int, for_programs: bool) -> None:
    async with client_from(connection) as client:
        _print(await facts_of(client, ledger_id, connection.password(), with_size=True), for_programs)


def _print(facts: LedgerFacts, for_programs: bool) -> None:
    if for_programs:
        print_json(as_json(facts))
        return
    metadata = facts.metadata
    quorum = metadata.quorum
    last = facts.last_entry_id
    table = new_table("ledger", str(metadata.ledger_id))
    add_row(table, "state", metadata.state.value)
    add_row(table, "entries", facts.entries)
    add_row(
        table, "last entry" if metadata.last_entry_id is not None else "confirmed up to", None if last == -1 else last
    )
    add_row(table, "payloads", as_size(facts.size_bytes))
    add_row(table, "quorum", f"ensemble {quorum.ensemble}, write {quorum.write}, ack {quorum.ack}")
    add_row(table, "durability", metadata.durability.value)
    add_row(table, "digest", metadata.digest_type.name.lower().replace("_", "-"))
    add_row(table, "password", "yes" if has_password(metadata) else "none")
    add_row(table, "created", time_for_people(metadata.created_at_ms))
    for name, value in metadata.custom.items():
        add_row(table, f"custom: {name}", value)
    if metadata.is_unbounded:
        add_row(table, "term", f"{metadata.term}, opened in {metadata.open_term}")
        add_row(table, "trimmed before", metadata.trim_to)
        add_row(table, "claimed by", metadata.owner)
        for each in facts.written:
            entries = f"entries {each.first_entry_id} to {each.last_entry_id}"
            add_row(table, f"written in term {each.term}", ", ".join(filter(None, (entries, as_size(each.size_bytes)))))
    for fragment in metadata.fragments:
        by = f" (term {fragment.term})" if metadata.is_unbounded else ""
        where = f"archived as {fragment.archive}" if fragment.archive else ", ".join(fragment.ensemble)
        add_row(table, f"from entry {fragment.first_entry_id}{by}", where)
    for gap in metadata.gaps:
        end: int | str = "the last" if gap.last_entry_id is None else gap.last_entry_id
        bookie_id = metadata.fragment_of(gap.first_entry_id).ensemble[gap.index]
        add_row(table, f"entries {gap.first_entry_id} to {end}", f"may be lacking at {bookie_id}, which was away")
    if facts.problem is not None:
        add_row(table, "problem", facts.problem)
    print_table(table)


# -- recover and delete -------------------------------------------------------------------------------------------


@takes_connection
def recover(
    connection: Connection,
    ledger_id: LedgerId,
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Close it although confirmed entries may be gone with what bookies lost."),
    ] = False,
    for_programs: AsJSON = False,
) -> None:
    """Fence a ledger's writer, find its last entry, and close it there. A closed ledger is not changed."""
    run(_recover, connection, ledger_id, accept_loss, for_programs)


async def _recover(connection: Connection, ledger_id: int, accept_loss: bool, for_programs: bool) -> None:
    async with client_from(connection) as client:
        metadata = await client.recover_ledger(ledger_id, password=connection.password(), accept_loss=accept_loss)
    if for_programs:
        print_json(_listed(metadata))
    elif metadata.last_entry_id == -1:
        emit(f"ledger {ledger_id}: closed, and empty\n")
    else:
        emit(f"ledger {ledger_id}: closed, its last entry is {metadata.last_entry_id}\n")


@takes_connection
def delete(
    connection: Connection,
    ledger_id: LedgerId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Even if a log is made of it: the log cannot be read then.")
    ] = False,
    for_programs: AsJSON = False,
) -> None:
    """Delete a ledger permanently. Bookies drop its entries later."""
    confirm(f"Delete ledger {ledger_id} and all its entries permanently?", yes)
    run(_delete, connection, ledger_id, force)
    if for_programs:
        print_json({"ledger_id": ledger_id, "deleted": True})
    else:
        emit(f"ledger {ledger_id}: deleted\n")


async def _delete(connection: Connection, ledger_id: int, force: bool) -> None:
    async with client_from(connection) as client:
        metadata = await client.ledger_metadata(ledger_id)
        name = metadata.custom.get("log")
        # What the record's custom metadata says is a hint: only the log's own list decides.
        if name is not None and not force and await _is_part_of(client, ledger_id, name):
            raise ConfigError(
                f"ledger {ledger_id} is part of log {name!r}, which cannot be read without it: trim or delete the log "
                "(`replog log`), or use --force"
            )
        await client.delete_ledger(ledger_id)


async def _is_part_of(client: Client, ledger_id: int, name: str) -> bool:
    try:
        segments = await client.log_segments(name)
    except (LogNotFoundError, ConfigError):
        # Deleted, or a custom field of the user's own, whose value cannot be the name of a log.
        return False
    return any(segment.ledger_id == ledger_id for segment in segments)


# -- read ---------------------------------------------------------------------------------------------------------


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


# -- terms ------------------------------------------------------------------------------------------------------------
#
# `replog ledger create`, `take-over`, `trim` and `raise-term`: unbounded ledgers. And `raise-ids`.


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
        term = await client.admin.raise_ledger_term(ledger_id, password=connection.password())
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
        next_ledger_id = await client.admin.raise_ledger_ids()
    if for_programs:
        print_json({"next_ledger_id": next_ledger_id})
    else:
        emit(f"the next ledger gets id {next_ledger_id} or a higher one\n")
