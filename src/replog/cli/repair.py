"""`replog audit` and `replog repair`: which copies are missing, and making them again."""

from __future__ import annotations

from typing import Annotated

import attrs
import typer

from replog.api import serve_repairs
from replog.cli.connecting import Connection, client_from, run, takes_connection
from replog.cli.output import AsJSON, Listing, emit, flush, print_json
from replog.client.auditing import AuditReport

_COLUMNS = (
    ("ledger", 10),
    ("entries", 15),
    ("copies left", 11),
    ("bookie", -39),
    ("state", -8),
    ("lacks", -10),
    ("why", -1),
)
_AWAY_S = 600.0
_EVERY_S = 60.0


@takes_connection
def audit(connection: Connection, for_programs: AsJSON = False) -> None:
    """Ask all bookies what they hold, and list what lacks copies. Changes nothing.

    Exit status 1 if a fragment of a ledger lacks a copy."""
    _end(run(_audit, connection, for_programs))


async def _audit(connection: Connection, for_programs: bool) -> AuditReport:
    async with client_from(connection) as client:
        report = await client.audit()
    _show(report, for_programs)
    return report


@takes_connection
def repair(
    connection: Connection,
    lost: Annotated[
        list[str] | None, typer.Option("--lost", metavar="ID", help="Declare this bookie lost first, by its whole id.")
    ] = None,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Declare it lost although confirmed entries may be gone.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Go on: audit again and again, and repair.")] = False,
    every_s: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=0.1, help="With --watch: the pause between audits.")
    ] = _EVERY_S,
    away_s: Annotated[
        float,
        typer.Option(
            "--away", metavar="SECONDS", min=0, help="With --watch: replace a bookie that is away for so long."
        ),
    ] = _AWAY_S,
    for_programs: AsJSON = False,
) -> None:
    """Copy what bookies lack from those that have it, and replace bookies that were declared lost.

    Appends go on. A repair that was stopped is continued by the next one; several at once harm nothing. Exit status 1 if a
    fragment still lacks a copy."""
    if watch:
        run(_watch, connection, list(lost or ()), accept_loss, every_s, away_s, for_programs)
    else:
        _end(run(_repair, connection, list(lost or ()), accept_loss, for_programs))


async def _repair(connection: Connection, lost: list[str], accept_loss: bool, for_programs: bool) -> AuditReport:
    async with client_from(connection) as client:
        report = await client.repair(lost, accept_loss=accept_loss)
    _show(report, for_programs)
    return report


async def _watch(
    connection: Connection, lost: list[str], accept_loss: bool, every_s: float, away_s: float, for_programs: bool
) -> None:
    shown: list[AuditReport] = []

    def report(found: AuditReport) -> None:
        # Only what changed: it may run for weeks in a log.
        if shown != [found]:
            _show(found, for_programs)
            flush()
            shown[:] = [found]

    async with client_from(connection) as client:
        if lost:
            report(await client.repair(lost, accept_loss=accept_loss))
        await serve_repairs(client, away_after_s=away_s, interval_s=every_s, reported=report)


def _show(report: AuditReport, for_programs: bool) -> None:
    if for_programs:
        print_json({"under_replicated": report.under_replicated, **attrs.asdict(report)})
        return
    listing = Listing(*_COLUMNS)
    for fragment in report.lacking:
        span = f"{fragment.first_entry_id}-{fragment.last_entry_id}"
        for each in fragment.missing:
            some = ", ".join(f"{first}-{last}" for first, last in each.entries[:3])
            lacks = f"{some}, ..." if len(each.entries) > 3 else some
            why = each.problem or ("no bookie has some of it" if each.nowhere else None)
            listing.add([fragment.ledger_id, span, fragment.copies_left, each.bookie_id, each.state, lacks, why])
    listing.end()
    count = report.under_replicated
    verb = "lack" if count > 1 else "lacks"
    emit(f"{report.ledgers} ledgers, {report.fragments} fragments: {count or 'none'} {verb} copies\n")


def _end(report: AuditReport) -> None:
    if report.under_replicated:
        raise typer.Exit(1)
