"""`replog bookkeeper`: ledgers, topics and bookies of a BookKeeper cluster, on the command line."""

from __future__ import annotations

import json
from typing import Annotated

import attrs
import typer

from replog.cli.apps import App
from replog.cli.connecting import run
from replog.cli.entries import Delimiter, LengthPrefixed, Null, Shown, as_text, shown
from replog.cli.ledger.facts import time_for_people, time_of
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
)
from replog.cli.streams import write_output
from replog.client.entries import EntryBatch
from replog.config import ledger_password
from replog.errors import ConfigError, EntryNotFoundError
from replog.protocol.model import LedgerMetadata
from replog_bookkeeper.digests import LedgerDigest
from replog_bookkeeper.layouts import LEDGER_ID_MAX
from replog_bookkeeper.metadata import LedgerRecord
from replog_bookkeeper.options import Metastore, PasswordFile, client_of
from replog_bookkeeper.pulsar.command import topics
from replog_bookkeeper.serving.command import serve

_BOOKIES = (("bookie", -24), ("state", -10), ("address", -24), ("tls", -3))

app = App(
    no_args_is_help=True,
    help="Look after ledgers of an Apache BookKeeper cluster, and its bookies; salvage topics of Pulsar.",
)
ledgers = App(no_args_is_help=True, help="Look after ledgers.")
app.add_typer(ledgers, name="ledger")
app.add_typer(topics, name="topic")
app.command("bookie")(serve)

Digest = Annotated[
    str, typer.Option(metavar="TYPE", help="Of a record so old that it names none: CRC32, HMAC, CRC32C or DUMMY.")
]
LedgerId = Annotated[int, typer.Argument(metavar="LEDGER_ID", min=0, max=LEDGER_ID_MAX)]


def _digest(name: str) -> LedgerDigest:
    try:
        return LedgerDigest[name.upper()]
    except KeyError:
        raise ConfigError(f"--digest {name}: one of {', '.join(LedgerDigest.__members__)}") from None


# -- ledgers ------------------------------------------------------------------------------------------------------


@ledgers.command("list")
def list_ledgers(metastore: Metastore = None, for_programs: AsJSON = False) -> None:
    """List the ledgers by their ids, one per line."""
    run(_list, metastore, for_programs)


async def _list(metastore: str | None, for_programs: bool) -> None:
    async with client_of(metastore) as client:
        for ledger_id in await client.ledgers():
            if for_programs:
                print_json_line("ledger", {"ledger_id": ledger_id})
            else:
                emit(f"{ledger_id}\n")


@ledgers.command()
def show(ledger_id: LedgerId, metastore: Metastore = None, for_programs: AsJSON = False) -> None:
    """Show the record of a ledger: its state, its end, its size, and the bookies that store it. No bookie is asked."""
    run(_show, metastore, ledger_id, for_programs)


async def _show(metastore: str | None, ledger_id: int, for_programs: bool) -> None:
    async with client_of(metastore) as client:
        record = await client.ledger_record(ledger_id)
    if for_programs:
        print_json(as_json(record))
    else:
        _print(record)


def as_json(record: LedgerRecord) -> dict[str, object]:
    """A ledger's record for programs."""
    metadata = record.metadata
    return {
        **_end_as_json(metadata),
        "quorum": attrs.asdict(metadata.quorum),
        "digest": None if record.digest is None else record.digest.name,
        "has_password": None if record.password is None else bool(record.password),
        "metadata_format": record.format,
        "created_at": time_of(metadata.created_at_ms),
        "custom": dict(metadata.custom),
        "fragments": [attrs.asdict(each, filter=lambda field, _: field.name != "term") for each in metadata.fragments],
    }


def _end_as_json(metadata: LedgerMetadata) -> dict[str, object]:
    return {
        "ledger_id": metadata.ledger_id,
        "state": metadata.state.value,
        "last_entry_id": metadata.last_entry_id,
        "size_bytes": None if metadata.contents is None else metadata.contents.size_bytes,
    }


def _print(record: LedgerRecord) -> None:
    metadata, quorum = record.metadata, record.metadata.quorum
    last = metadata.last_entry_id
    table = new_table("ledger", str(metadata.ledger_id))
    add_row(table, "state", metadata.state.value)
    add_row(table, "last entry", "none" if last == -1 else last)
    add_row(table, "payloads", None if metadata.contents is None else as_size(metadata.contents.size_bytes))
    add_row(table, "quorum", f"ensemble {quorum.ensemble}, write {quorum.write}, ack {quorum.ack}")
    add_row(table, "digest", None if record.digest is None else record.digest.name)
    add_row(table, "password", None if record.password is None else "yes" if record.password else "none")
    add_row(table, "created", time_for_people(metadata.created_at_ms))
    add_row(table, "metadata format", record.format)
    for name, value in metadata.custom.items():
        add_row(table, f"custom: {name}", value.encode(errors="surrogateescape").decode(errors="backslashreplace"))
    for fragment in metadata.fragments:
        add_row(table, f"from entry {fragment.first_entry_id}", ", ".join(fragment.ensemble))
    print_table(table)


@ledgers.command()
def read(
    ledger_id: LedgerId,
    metastore: Metastore = None,
    password_file: PasswordFile = None,
    digest: Digest = LedgerDigest.CRC32.name,
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

    Fences nothing: a writer of it goes on. --json writes a line for each: entry id, size and data."""
    how = shown(delimiter, null, length_prefixed, for_programs=for_programs)
    if last is not None and last < first:
        raise ConfigError(f"--last {last} is before --first {first}")
    password = ledger_password(password_file, "--password-file")
    run(_read, metastore, ledger_id, password, _digest(digest), first, last, how)


async def _read(
    metastore: str | None,
    ledger_id: int,
    password: bytes,
    digest: LedgerDigest,
    first: int,
    last: int | None,
    how: Shown,
) -> None:
    async with (
        client_of(metastore) as client,
        client.open_ledger(ledger_id, password=password, digest=digest, first=first) as reader,
    ):
        if last is not None and last > reader.last_add_confirmed:
            problem = f"{reader.last_add_confirmed} is the last that may be read"
            raise EntryNotFoundError(ledger_id, last, problem)
        async for batch in reader.batches():
            count = len(batch) if last is None else min(len(batch), last - batch.first_entry_id + 1)
            await write_output(_lines(batch, count) if how.for_programs else how.encode("entry", "", (), batch, count))
            if last is not None and batch.last_entry_id >= last:
                return


def _lines(batch: EntryBatch, count: int) -> bytes:
    """A line of JSON for each entry, with its bytes as text if they are UTF-8, else as base64. It has no time: BookKeeper keeps
    none."""
    lines = []
    for entry_id, data in enumerate(batch.payloads()[:count], batch.first_entry_id):
        fields: dict[str, object] = {"kind": "entry", "entry_id": entry_id, "size_bytes": len(data)}
        fields["data"], fields["data_base64"] = as_text(data)
        lines.append(json.dumps(fields).encode() + b"\n")
    return b"".join(lines)


@ledgers.command()
def recover(
    ledger_id: LedgerId,
    metastore: Metastore = None,
    password_file: PasswordFile = None,
    digest: Digest = LedgerDigest.CRC32.name,
    for_programs: AsJSON = False,
) -> None:
    """Fence a ledger's writer, find its last entry, and close it there. A closed ledger is not changed."""
    password = ledger_password(password_file, "--password-file")
    run(_recover, metastore, ledger_id, password, _digest(digest), for_programs)


async def _recover(
    metastore: str | None, ledger_id: int, password: bytes, digest: LedgerDigest, for_programs: bool
) -> None:
    async with client_of(metastore) as client:
        metadata = await client.recover_ledger(ledger_id, password=password, digest=digest)
    if for_programs:
        print_json(_end_as_json(metadata))
    elif metadata.last_entry_id == -1:
        emit(f"ledger {ledger_id}: closed, and empty\n")
    else:
        emit(f"ledger {ledger_id}: closed, its last entry is {metadata.last_entry_id}\n")


# -- bookies ------------------------------------------------------------------------------------------------------


@app.command()
def bookies(metastore: Metastore = None, for_programs: AsJSON = False) -> None:
    """List the bookies: those that are registered, and those that are away and have a cookie."""
    run(_bookies, metastore, for_programs)


async def _bookies(metastore: str | None, for_programs: bool) -> None:
    async with client_of(metastore) as client:
        found = await client.bookies()
    if for_programs:
        for each in found:
            print_json_line("bookie", attrs.asdict(each))
        return
    states = ("away" if each.address is None else "read-only" if each.is_read_only else "writable" for each in found)
    rows = (
        (each.bookie_id, state, each.address, "yes" if each.takes_tls else "no")
        for each, state in zip(found, states, strict=True)
    )
    Listing.show(_BOOKIES, rows)
