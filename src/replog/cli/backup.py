"""`replog backup`, `restore` and `verify`: logs in a directory or a bucket."""

from __future__ import annotations

from typing import Annotated

import attrs
import typer

from replog.backup.content import open_backup
from replog.backup.saving import BackupReport, check
from replog.cli.connecting import Connection, client_from, run, takes_connection
from replog.cli.figures import parse_quorum_option
from replog.cli.output import AsJSON, as_size, emit, print_json, watched
from replog.errors import BackupError, ConfigError
from replog.protocol.quorum import Quorum
from replog.registry import Registry

Directory = Annotated[str, typer.Argument(metavar="PLACE", help="The back-up: a directory, or s3://BUCKET/PREFIX.")]
Logs = Annotated[list[str] | None, typer.Option("--log", metavar="NAME", help="Only this log; also several times.")]


@takes_connection
def backup(connection: Connection, directory: Directory, logs: Logs = None, for_programs: AsJSON = False) -> None:
    """Save the closed segments of logs; writers go on. Again into the same directory: only new segments. Exit status 1
    if a log could not be saved; each is named."""
    _show(run(_save, connection, directory, logs, for_programs), for_programs=for_programs)


async def _save(connection: Connection, directory: str, logs: list[str] | None, is_quiet: bool) -> BackupReport:
    async with client_from(connection) as client:
        with watched("saved", None, is_quiet=is_quiet) as tell:
            return await client.admin.backup(directory, logs, password=connection.password(), progress=tell)


@takes_connection
def restore(
    connection: Connection,
    directory: Directory,
    logs: Logs = None,
    quorum: Annotated[
        str | None, typer.Option(metavar="E,W,A", help="The quorum of the restored ledgers: ensemble, write, ack.")
    ] = None,
    without_cursors: Annotated[
        bool, typer.Option("--without-cursors", help="Leave out how far the logs' cursors had come.")
    ] = False,
    for_programs: AsJSON = False,
) -> None:
    """Write the logs of a back-up into a cluster that does not have them. Positions and times stay as they were."""
    wanted = parse_quorum_option(quorum)
    restored = run(_restore, connection, directory, logs, wanted, not without_cursors, for_programs)
    _show(restored, for_programs=for_programs)


async def _restore(
    connection: Connection,
    directory: str,
    logs: list[str] | None,
    quorum: Quorum | None,
    cursors: bool,
    is_quiet: bool,
) -> BackupReport:
    # Before a directory is made for it.
    open_backup(directory, Registry()).existing_manifest()
    async with client_from(connection, creates=True) as client:
        with watched("restored", None, is_quiet=is_quiet) as tell:
            return await client.admin.restore(
                directory, logs, quorum=quorum, password=connection.password(), cursors=cursors, progress=tell
            )


def verify(directory: Directory, for_programs: AsJSON = False) -> None:
    """Read a back-up and check all of it. Exit status 1 if a file is damaged, or a state machine's log does not join its
    snapshot; each is named. Needs no cluster."""
    found = open_backup(directory, Registry())
    # Of the command line, and so status 2; below it, the same would be a failed back-up, status 1.
    try:
        is_there = found.exists()
    except BackupError as error:
        raise ConfigError(f"{directory}: cannot be looked into: {error}") from error
    if not is_there:
        raise ConfigError(f"{directory}: nothing is there, and so no back-up")
    sizes = [each.size_bytes for log in found.existing_manifest().logs.values() for each in log.segments]
    with watched("checked", sum(sizes), is_quiet=for_programs) as tell:
        report = check(found, tell)
    _show(report, for_programs=for_programs)


def _show(report: BackupReport, *, for_programs: bool) -> None:
    if for_programs:
        print_json(attrs.asdict(report))
    else:
        for each in report.logs:
            what = "no closed segment"
            if each.last_segment >= each.first_segment:
                what = f"segments {each.first_segment} to {each.last_segment}, {as_size(each.size_bytes)}"
            new = f", {each.new_segments} of them new" if each.new_segments else ""
            emit(f"{each.name}: {what}{new}\n")
        for problem in report.problems:
            emit(f"problem: {problem}\n")
    if report.problems:
        raise typer.Exit(1)
