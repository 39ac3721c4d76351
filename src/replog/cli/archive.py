"""`replog archive`: the stores where closed segments of logs are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import attrs
import typer

from replog.cli.apps import App
from replog.cli.connecting import Connection, client_from, run, takes_connection
from replog.cli.figures import counted
from replog.cli.output import AsJSON, Listing, as_size, emit, print_json
from replog.records.archives import ArchiveRecord
from replog.repair.adopting import AdoptedCopies
from replog.repair.archive_objects import ArchiveReport, CollectedObjects

app = App(no_args_is_help=True, help="Look after archives: buckets or directories that keep closed segments of logs.")

Url = Annotated[
    str, typer.Argument(metavar="URL", help="Its store: s3://BUCKET/PREFIX, or file:/DIRECTORY that all clients see.")
]


@app.command()
@takes_connection
def add(connection: Connection, url: Url, for_programs: AsJSON = False) -> None:
    """Make an archive of a store, and put a cookie there. Adding again is harmless."""
    record = run(_add, connection, url)
    if for_programs:
        print_json({"archive_id": record.archive_id, "url": record.url})
    else:
        emit(f"archive {record.archive_id}: {record.url}\n")


async def _add(connection: Connection, url: str) -> ArchiveRecord:
    async with client_from(connection) as client:
        return await client.admin.add_archive(url)


@app.command("list")
@takes_connection
def list_archives(connection: Connection, for_programs: AsJSON = False) -> None:
    """List the archives of a cluster."""
    found = run(_list, connection)
    if for_programs:
        print_json({"archives": [{"archive_id": each.archive_id, "url": each.url} for each in found]})
    else:
        Listing.show((("archive", -16), ("url", -1)), ([each.archive_id, each.url] for each in found))


async def _list(connection: Connection) -> Sequence[ArchiveRecord]:
    async with client_from(connection) as client:
        return await client.admin.archives()


@app.command()
@takes_connection
def audit(connection: Connection, for_programs: AsJSON = False) -> None:
    """Read all that is archived, and compare it with the digests in the objects' names. Exit status 1 if something is missing
    or damaged; each is named. Needs no password."""
    report = run(_audit, connection)
    if for_programs:
        print_json(attrs.asdict(report))
    else:
        fragments, objects = counted(report.fragments, "fragment"), counted(report.objects, "object")
        emit(f"{fragments} in {objects}, {as_size(report.size_bytes)}\n")
        for each in report.problems:
            entries = f"entries {each.first_entry_id} to {each.last_entry_id}"
            emit(f"problem: ledger {each.ledger_id}, {entries}: {each.problem}\n")
    if report.problems:
        raise typer.Exit(1)


async def _audit(connection: Connection) -> ArchiveReport:
    async with client_from(connection) as client:
        return await client.admin.audit_archives()


@app.command()
@takes_connection
def adopt(connection: Connection, for_programs: AsJSON = False) -> None:
    """Have the records of closed segments name their archived copies again, after old metadata was restored. Each copy is read
    and checked. Exit status 1 if some could not be adopted; each is named."""
    found = run(_adopt, connection)
    if for_programs:
        print_json(attrs.asdict(found))
    else:
        emit(f"{counted(found.fragments, 'fragment')} adopted, {as_size(found.size_bytes)}\n")
        for each in found.problems:
            emit(f"problem: {each}\n")
    if found.problems:
        raise typer.Exit(1)


async def _adopt(connection: Connection) -> AdoptedCopies:
    async with client_from(connection) as client:
        return await client.admin.adopt_archives(password=connection.password())


@app.command()
@takes_connection
def collect(connection: Connection, for_programs: AsJSON = False) -> None:
    """Delete objects that no ledger names, and that are older than a day: of archivings that were killed, and of segments that
    were recalled or deleted."""
    found = run(_collect, connection)
    if for_programs:
        print_json(attrs.asdict(found))
    else:
        young = f"; {found.young} are younger than a day" if found.young else ""
        emit(f"{counted(found.objects, 'object')} deleted, {as_size(found.size_bytes)}{young}\n")


async def _collect(connection: Connection) -> CollectedObjects:
    async with client_from(connection) as client:
        return await client.admin.collect_archives()
