"""`replog audit` and `replog repair`: which copies are missing, and making them again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import attrs
import typer

from replog.api import serve_repairs
from replog.cli.connecting import Connection, client_from, run, takes_connection
from replog.cli.figures import as_count, as_duration
from replog.cli.output import AsJSON, Listing, as_size, console, emit, flush, print_json
from replog.errors import ConfigError
from replog.repair.audit_report import AuditReport
from replog.repair.progress import RepairProgress, ReportProgress

# -- repair progress --------------------------------------------------------------------------------------------------
#
# How far an audit or repair is, as a bar on standard error, if that is a terminal.


_DOING = {"audit": "ledgers audited", "copy": "fragments filled", "move": "fragments moved"}


@contextmanager
def shown_progress(*, is_quiet: bool) -> Iterator[ReportProgress | None]:
    """The callback for a client's progress; None if there is no terminal."""
    if is_quiet or sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[facts]}"))
    with Progress(*columns, console=console(stderr=True), transient=True, refresh_per_second=4) as bar:
        task: list[TaskID] = []

        def show(progress: RepairProgress) -> None:
            if not task:
                task.append(bar.add_task("", facts=""))
            bar.update(
                task[0],
                description=_DOING[progress.stage],
                completed=progress.done,
                total=progress.total,
                facts=facts_of(progress),
            )

        yield show


def facts_of(progress: RepairProgress) -> str:
    """The text behind the bar: missing copies, copied ones and their rate, and the time left."""
    facts = []
    if progress.under_replicated:
        facts.append(f"{as_count(progress.under_replicated)} lack copies")
    if progress.copied_bytes:
        rate = as_size(round(progress.bytes_per_s))
        facts.append(f"{as_size(progress.copied_bytes)} copied, {rate}/s")
    if progress.left_s is not None:
        facts.append(f"{as_duration(progress.left_s)} left")
    return ", ".join(facts)


# -- repair -----------------------------------------------------------------------------------------------------------
#
# `replog audit` and `replog repair`: which copies are missing, and making them again.


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
_MISPLACED_SHOWN = 20  # fragments


Placement = Annotated[
    str,
    typer.Option(
        metavar="URL",
        help="The policy that says where copies belong, as zones:?at_least=2: what is elsewhere is found, and moved.",
    ),
]


@takes_connection
def audit(
    connection: Connection,
    placement: Placement = "random",
    notes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Keep here what has all its copies: the next audit with this file asks only about what changed.",
        ),
    ] = None,
    for_programs: AsJSON = False,
) -> None:
    """Ask all bookies what they hold, and list what lacks copies. Changes nothing.

    Exit status 1 if a fragment of a ledger lacks a copy, or is not where --placement wants it."""
    _end(run(_audit, connection, placement, notes, for_programs))


async def _audit(connection: Connection, placement: str, notes: Path | None, for_programs: bool) -> AuditReport:
    async with client_from(connection, placement=placement) as client:
        with shown_progress(is_quiet=for_programs) as progress:
            report = await client.admin.audit(notes=notes, progress=progress)
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
    placement: Placement = "random",
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
    pause: Annotated[
        bool, typer.Option("--pause", help="Only pause all repairs of this cluster, wherever they run.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Only let them go on.")] = False,
    for_programs: AsJSON = False,
) -> None:
    """Copy missing entries from bookies that have them, and replace bookies that were declared lost.

    Appends go on. A repair that was stopped is continued by the next one; several at once harm nothing. Exit status 1 if a
    fragment still lacks a copy, or is not where --placement wants it."""
    if pause or resume:
        if pause and resume:
            raise ConfigError("--pause and --resume: give one of them")
        run(_pause, connection, pause, for_programs)
    elif watch:
        run(_watch, connection, placement, list(lost or ()), accept_loss, every_s, away_s, for_programs)
    else:
        _end(run(_repair, connection, placement, list(lost or ()), accept_loss, for_programs))


async def _pause(connection: Connection, is_paused: bool, for_programs: bool) -> None:
    async with client_from(connection) as client:
        await (client.admin.pause_repairs() if is_paused else client.admin.resume_repairs())
    if for_programs:
        print_json({"paused": is_paused})
    else:
        emit("all repairs are paused\n" if is_paused else "repairs go on\n")


async def _repair(
    connection: Connection, placement: str, lost: list[str], accept_loss: bool, for_programs: bool
) -> AuditReport:
    async with client_from(connection, placement=placement) as client:
        with shown_progress(is_quiet=for_programs) as progress:
            report = await client.admin.repair(lost, accept_loss=accept_loss, progress=progress)
    _show(report, for_programs)
    return report


async def _watch(
    connection: Connection,
    placement: str,
    lost: list[str],
    accept_loss: bool,
    every_s: float,
    away_s: float,
    for_programs: bool,
) -> None:
    shown: list[AuditReport] = []

    def report(found: AuditReport) -> None:
        # Only what changed: it may run for weeks in a log.
        if shown != [found]:
            _show(found, for_programs)
            flush()
            shown[:] = [found]

    async with client_from(connection, placement=placement) as client:
        if lost:
            report(await client.admin.repair(lost, accept_loss=accept_loss))
        await serve_repairs(client, away_after_s=away_s, interval_s=every_s, reported=report)


def _show(report: AuditReport, for_programs: bool) -> None:
    if for_programs:
        damaged = [attrs.asdict(each) for each in report.damaged]
        without = [{**attrs.asdict(each), "is_gone": each.is_gone} for each in report.without_copies]
        counts = {"under_replicated": report.under_replicated}
        print_json({**counts, "damaged": damaged, "without_copies": without, **attrs.asdict(report)})
        return
    listing = Listing(*_COLUMNS)
    for fragment in report.lacking:
        span = f"{fragment.first_entry_id}-{fragment.last_entry_id}"
        for each in fragment.missing:
            some = ", ".join(f"{first}-{last}" for first, last in each.entries[:3])
            lacks = f"{some}, ..." if len(each.entries) > 3 else some
            why = (
                each.problem or "; ".join(fragment.hindrances) or ("no bookie has some of it" if each.nowhere else None)
            )
            listing.add([fragment.ledger_id, span, fragment.copies_left, each.bookie_id, each.state, lacks, why])
    listing.end()
    for torn in report.damaged:
        some = ", ".join(f"{first}-{last}" for first, last in torn.entries[:3])
        more = ", ..." if len(torn.entries) > 3 else ""
        emit(f"ledger {torn.ledger_id}, entries {some}{more}: damaged on bookie {torn.bookie_id}\n")
    _show_entries(report)
    for misplaced in report.misplaced[:_MISPLACED_SHOWN]:
        span = f"{misplaced.first_entry_id}-{misplaced.last_entry_id}"
        emit(f"ledger {misplaced.ledger_id}, entries {span}: {misplaced.shortfall}\n")
    if len(report.misplaced) > _MISPLACED_SHOWN:
        emit(f"and {len(report.misplaced) - _MISPLACED_SHOWN} more\n")
    where = f", {len(report.misplaced)} in a wrong place" if report.misplaced else ""
    leaving = sum(bool(each.leaving) for each in report.idle)
    if leaving:
        where += f"; {leaving} name lost bookies, or some that drain, which store nothing of them"
    count = report.under_replicated
    verb = "lack" if count > 1 else "lacks"
    emit(f"{report.ledgers} ledgers, {report.fragments} fragments: {count or 'none'} {verb} copies{where}\n")


def _show_entries(report: AuditReport) -> None:
    """The entries that no bookie has, or that two copies have differently. All of them, however many: an operator must
    know the lost entries."""
    for entries in report.without_copies:
        span = f"{entries.first_entry_id}-{entries.last_entry_id}"
        if entries.stride > 1:
            span += f", every {({2: '2nd', 3: '3rd'}).get(entries.stride, f'{entries.stride}th')}"
        state = "gone: no bookie has a copy"
        if not entries.is_gone:
            silent = [each for each in entries.awaited if each not in entries.refusing]
            words = [f"{' and '.join(silent)} did not answer"] if silent else []
            words += [f"{' and '.join(entries.refusing)} refused to tell"] if entries.refusing else []
            state = f"no copy was found, and {', '.join(words)}"
        emit(f"ledger {entries.ledger_id}, entries {span}: {state}\n")
    for differing in report.differing:
        span = f"{differing.first_entry_id}-{differing.last_entry_id}"
        emit(f"ledger {differing.ledger_id}, entries {span}: bookies have different copies, and none was copied\n")


def _end(report: AuditReport) -> None:
    if report.under_replicated or report.misplaced:
        raise typer.Exit(1)
