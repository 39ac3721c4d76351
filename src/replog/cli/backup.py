"""`replog backup`, `restore` and `verify`: logs in a directory."""

from __future__ import annotations

import os
from typing import Annotated

import attrs
import typer

from replog.backup.directory import BackupDirectory
from replog.backup.saving import BackupReport, check
from replog.cli.connecting import Connection, client_from, run, takes_connection
from replog.cli.figures import parse_quorum_option
from replog.cli.output import AsJSON, as_size, emit, print_json
from replog.errors import ConfigError
from replog.protocol.quorum import Quorum

Directory = Annotated[str, typer.Argument(metavar="DIRECTORY", help="The directory of the back-up.")]
Logs = Annotated[list[str] | None, typer.Option("--log", metavar="NAME", help="Only this log; also several times.")]


@takes_connection
def backup(connection: Connection, directory: Directory, logs: Logs = None, for_programs: AsJSON = False) -> None:
    """Save the closed segments of logs; writers go on. Again into the same directory: only what is new."""
    _show(run(_save, connection, directory, logs), for_programs=for_programs)


async def _save(connection: Connection, directory: str, logs: list[str] | None) -> BackupReport:
    async with client_from(connection) as client:
        return await client.backup(directory, logs, password=connection.password())


@takes_connection
def restore(
    connection: Connection,
    directory: Directory,
    logs: Logs = None,
    quorum: Annotated[
        str | None, typer.Option(metavar="E,W,A", help="The quorum of the restored ledgers: ensemble, write, ack.")
    ] = None,
    for_programs: AsJSON = False,
) -> None:
    """Write the logs of a back-up into a cluster that does not have them. Positions and times stay as they were."""
    _show(run(_restore, connection, directory, logs, parse_quorum_option(quorum)), for_programs=for_programs)


async def _restore(
    connection: Connection, directory: str, logs: list[str] | None, quorum: Quorum | None
) -> BackupReport:
    # Before a directory is made for it.
    BackupDirectory(directory).existing_manifest()
    async with client_from(connection, creates=True) as client:
        return await client.restore(directory, logs, quorum=quorum, password=connection.password())


def verify(directory: Directory, for_programs: AsJSON = False) -> None:
    """Read a back-up and check all of it. Exit status 1 if a file is damaged; each is named. Needs no cluster."""
    # Of the command line, and so status 2; below it, the same would be a failed back-up, status 1.
    if not os.path.isdir(directory):
        raise ConfigError(f"{directory}: there is no such directory")
    report = check(directory)
    _show(report, for_programs=for_programs)
    if report.problems:
        raise typer.Exit(1)


def _show(report: BackupReport, *, for_programs: bool) -> None:
    if for_programs:
        print_json(attrs.asdict(report))
        return
    for each in report.logs:
        what = "no closed segment"
        if each.last_segment >= each.first_segment:
            what = f"segments {each.first_segment} to {each.last_segment}, {as_size(each.size_bytes)}"
        new = f", {each.new_segments} of them new" if each.new_segments else ""
        emit(f"{each.name}: {what}{new}\n")
    for problem in report.problems:
        emit(f"damaged: {problem}\n")
