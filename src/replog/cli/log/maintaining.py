"""`replog log retain` and `compact`: what a log keeps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Annotated

import typer

from replog.cli.connecting import Connection, client_from, confirm, run, takes_connection
from replog.cli.figures import counted, parse_duration_s
from replog.cli.ledger.facts import time_for_people, time_of
from replog.cli.log.looking import Name
from replog.cli.output import AsJSON, Listing, emit, print_json
from replog.config.parsing import parse_size_bytes
from replog.errors import ConfigError
from replog.log.key_compaction import CompactedLog
from replog.log.log_options import Retention
from replog.protocol.model import Position, Transaction
from replog.protocol.producers import KnownProducer

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


# -- retiring ---------------------------------------------------------------------------------------------------------
#
# `replog log transactions` and `producers`: what a log remembers, and is made to forget.


_Forget = Callable[[Connection, str, list[str], float | None], Awaitable[list[str]]]


def _retire(
    connection: Connection,
    name: str,
    forget: _Forget,
    names: list[str] | None,
    older_than: str | None,
    for_programs: bool,
    what: str,
) -> None:
    """Makes the log forget these and older ones; names them."""
    older_than_s = None if older_than is None else parse_duration_s(older_than)
    retired = run(forget, connection, name, names or [], older_than_s)
    if for_programs:
        print_json({"log": name, "retired": retired})
    else:
        emit(f"log {name}: {counted(len(retired), what)} retired\n")


# -- transactions -------------------------------------------------------------------------------------------------

_TRANSACTION_COLUMNS = (("transaction", -40), ("number", 12), ("of", -6), ("committed", -20))


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
        confirm(f"Retire transactions of log {name}? A job that repeats one writes its rows again.", yes)
        _retire(connection, name, _forget_transactions, retire, older_than, for_programs, "transaction")
        return
    found = run(_transactions, connection, name)
    if for_programs:
        print_json({"log": name, "transactions": [_transaction_as_json(each) for each in found]})
        return
    Listing.show(
        _TRANSACTION_COLUMNS,
        ([each.transaction_id, each.number, _kind(each), time_for_people(each.committed_at_ms)] for each in found),
    )


def _kind(transaction: Transaction) -> str:
    return "stream" if transaction.is_of_stream else "job"


def _transaction_as_json(transaction: Transaction) -> dict[str, object]:
    return {
        "id": transaction.transaction_id,
        "number": transaction.number,
        "of": _kind(transaction),
        "committed_at": time_of(transaction.committed_at_ms),
    }


async def _transactions(connection: Connection, name: str) -> tuple[Transaction, ...]:
    async with client_from(connection) as client:
        return (await client.log_metadata(name)).transactions


async def _forget_transactions(
    connection: Connection, name: str, transaction_ids: list[str], older_than_s: float | None
) -> list[str]:
    async with client_from(connection) as client:
        return await client.jobs.retire_transactions(name, transaction_ids, older_than_s=older_than_s)


# -- producers ----------------------------------------------------------------------------------------------------

_PRODUCER_COLUMNS = (("producer", -40), ("last sequence", 13), ("last entry", -20))


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
        confirm(f"Retire producers of log {name}? An append that repeats an id of one is appended again.", yes)
        _retire(connection, name, _forget_producers, retire, older_than, for_programs, "producer")
        return
    found = run(_producers, connection, name)
    if for_programs:
        print_json({"log": name, "producers": [_producer_as_json(each) for each in found]})
        return
    Listing.show(_PRODUCER_COLUMNS, ([each.name, each.ids[-1][0], time_for_people(each.last_ms)] for each in found))


def _producer_as_json(producer: KnownProducer) -> dict[str, object]:
    return {
        "producer": producer.name,
        "last_sequence": producer.ids[-1][0],
        "last_entry_at": time_of(producer.last_ms),
    }


async def _producers(connection: Connection, name: str) -> list[KnownProducer]:
    async with client_from(connection) as client:
        return await client.jobs.producers(name)


async def _forget_producers(
    connection: Connection, name: str, names: list[str], older_than_s: float | None
) -> list[str]:
    async with client_from(connection) as client:
        return await client.jobs.retire_producers(name, names, older_than_s=older_than_s)
