"""`replog inspect` itself: its commands for files; that for a ledger has a file by itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Generic, TypeVar

import attrs
import typer

from replog.backends.files.inspecting import inspect_entry_logs, inspect_indexes, inspect_journal
from replog.backends.inspection.reports import (
    BatchReport,
    EntryLogReport,
    IndexedBatch,
    IndexReport,
    JournalFileReport,
    Problem,
    RecordReport,
)
from replog.cli.apps import App
from replog.cli.inspect.common import JournalDir, PathArgument, as_json, end, files_place, tell
from replog.cli.inspect.ledger import ledger
from replog.cli.output import (
    AsJSON,
    Listing,
    add_row,
    as_range,
    as_share,
    as_size,
    emit,
    new_table,
    print_json,
    print_json_line,
    print_table,
    watched,
)

# -- log files --------------------------------------------------------------------------------------------------------
#
# The shared part of `inspect journal` and `inspect entry-log`: files of a log, their records, and their faults.


WithRecords = Annotated[bool, typer.Option("--records", help="List each record; with --json as lines of JSON.")]
_RECORD_COLUMNS = (
    ("file", -20),
    ("offset", 12),
    ("bytes", 10),
    ("type", -10),
    ("group", 10),
    ("at", 5),
    ("ledger", 12),
    ("entries", -24),
    ("stamp", 6),
    ("checksum", -8),
    ("detail", -1),
)

File = TypeVar("File", JournalFileReport, EntryLogReport)


@attrs.define
class FilesReport(Generic[File]):
    """The findings of an inspection of a log's files. Records are shown as they come, for programs with the files
    between them; all else is shown at the end."""

    with_records: bool
    for_programs: bool
    file_as_json: Callable[[File], dict[str, object]] = as_json
    files: list[File] = attrs.field(factory=list)
    problems: list[Problem] = attrs.field(factory=list)

    @property
    def is_quiet(self) -> bool:
        """True if a progress bar would come between what is printed."""
        return self.for_programs or (self.with_records and sys.stdout.isatty())

    def take(self, found: Iterable[File | RecordReport | Problem]) -> None:
        """Takes all that the inspection finds."""
        listing = Listing(*_RECORD_COLUMNS)
        for each in found:
            if isinstance(each, Problem):
                self.problems.append(each)
            elif not isinstance(each, RecordReport):
                self.files.append(each)
                self.problems += each.problems
                if self.for_programs and self.with_records:
                    print_json_line("file", self.file_as_json(each))
            elif self.for_programs:
                print_json_line("record", as_json(each))
            else:
                _list_record(listing, each)
        if not self.for_programs:
            listing.end()

    def end(self, facts: Mapping[str, object], print_files: Callable[[list[File]], None]) -> None:
        """Shows the files and problems, and ends the command with status 1 if anything is damaged. `facts` are for programs."""
        if self.for_programs and self.with_records:
            print_json_line("summary", {**facts, "problems": [as_json(each) for each in self.problems]})
        elif self.for_programs:
            # Problems of a file are printed with it, and only there.
            others = [each for each in self.problems if not any(each in file.problems for file in self.files)]
            files = [self.file_as_json(each) for each in self.files]
            print_json({**facts, "files": files, "problems": [as_json(each) for each in others]})
        else:
            print_files(self.files)
            tell(list(dict.fromkeys(self.problems)))
        end(self.problems)


def _list_record(listing: Listing, record: RecordReport) -> None:
    """A record in a row, and the batches of a RUN in rows below it."""
    batches = record.batches
    alone = batches[0] if record.type == "BATCH" and batches else None
    ids = _ids(alone) if alone else f"{len(batches)} batches" if batches else None
    damaged = [problem for problem in (record.fault, *(batch.problem for batch in batches)) if problem]
    marks = record.marks
    detail = damaged[0] if damaged else record.detail
    if marks is not None:
        key = "has a key" if marks.has_key else "no key"
        detail = f"fence term {marks.fence_term}, last add confirmed {marks.last_add_confirmed}, {key}"
    listing.add(
        (
            record.path,
            record.offset,
            record.size_bytes,
            record.type,
            record.sequence,
            f"{record.position}{'.' if record.is_last_of_group else ''}",
            record.ledger_id,
            ids,
            batches[0].stamp if batches else None,
            "ok" if record.is_intact and not damaged else "BAD",
            detail,
        )
    )
    if alone is None:
        for batch in batches:
            check = "BAD" if batch.problem else "ok"
            place = (record.path, batch.offset, batch.size_bytes, "  batch", None, None, batch.ledger_id)
            listing.add((*place, _ids(batch), batch.stamp, check, batch.problem))


def _ids(batch: BatchReport) -> str:
    by = f" by {batch.stride}" if batch.stride > 1 else ""
    return f"{batch.first_entry_id}..{batch.last_entry_id}{by}"


# -- entry log --------------------------------------------------------------------------------------------------------
#
# `replog inspect entry-log`.


_LEDGERS_SHOWN = 10


def entry_log(
    path: PathArgument,
    with_records: WithRecords = False,
    journal_dir: JournalDir = None,
    for_programs: AsJSON = False,
) -> None:
    """Show entry logs and full journal files: how much of each is needed, and how much each ledger uses.

    Without --records the figures come from the indexes; a file is read only if its index is missing or damaged.
    """
    place = files_place(path, journal_dir)
    report = FilesReport(with_records, for_programs, _as_json)
    with watched("entry logs", place.log_bytes() if with_records else None, is_quiet=report.is_quiet) as progress:
        report.take(inspect_entry_logs(place, with_records=with_records, progress=progress))
    report.end({"path": path}, _print_logs)


def _as_json(log: EntryLogReport) -> dict[str, object]:
    return {**as_json(log), "live_share": log.live_share}


def _print_logs(logs: list[EntryLogReport]) -> None:
    table = new_table(
        "file", "kind", ">age", ">size", ">batches", ">in batches", ">live", "known by", "ledgers", "problems"
    )
    for log in logs:
        used = [
            f"{each.ledger_id}: {as_size(each.batch_bytes)}{' (deleted)' if each.is_deleted else ''}"
            for each in log.ledgers[:_LEDGERS_SHOWN]
        ]
        if len(log.ledgers) > _LEDGERS_SHOWN:
            used.append(f"{len(log.ledgers) - _LEDGERS_SHOWN} more")
        add_row(
            table,
            os.path.basename(log.path),
            log.kind,
            log.age,
            as_size(log.file_bytes),
            log.batches,
            as_size(log.batch_bytes),
            as_share(log.live_share),
            log.source,
            ", ".join(used),
            ", ".join(dict.fromkeys(problem.kind for problem in log.problems)),
        )
    print_table(table)


# -- journal ----------------------------------------------------------------------------------------------------------
#
# `replog inspect journal`.


def journal(
    path: PathArgument,
    first_number: Annotated[int, typer.Option("--from", metavar="N", min=0, help="Begin with this file.")] = 0,
    with_records: WithRecords = False,
    journal_dir: JournalDir = None,
    for_programs: AsJSON = False,
) -> None:
    """Read the journal's files in order and check every record.

    A torn tail is shown: a crash leaves one, and so does a group that is just being written. Damage makes the exit status 1.
    """
    place = files_place(path, journal_dir)
    report = FilesReport[JournalFileReport](with_records, for_programs)
    with watched("journal", place.journal_bytes(), is_quiet=report.is_quiet) as progress:
        report.take(inspect_journal(place, first_number=first_number, with_records=with_records, progress=progress))
    report.end({"path": path, "bookie_id": place.bookie_id, "version": place.version}, _print_files)


def _print_files(files: list[JournalFileReport]) -> None:
    headings = ("file", "state", ">used", ">size", ">groups", ">records", ">batches", "sequences", "epoch", "problems")
    table = new_table(*headings)
    for file in files:
        counts = (None, None, None, None) if file.state in ("spare", "gone", "unreadable") else _counts(file)
        add_row(
            table,
            file.path.rpartition("/")[2],
            file.state,
            counts[0],
            as_size(file.file_bytes),
            *counts[1:],
            as_range(file.first_sequence, file.last_sequence),
            file.epoch,
            ", ".join(dict.fromkeys(problem.kind for problem in file.problems)),
        )
    print_table(table)


def _counts(file: JournalFileReport) -> tuple[object, object, object, object]:
    return as_size(file.used_bytes), file.groups, file.records, file.batches


# -- index ------------------------------------------------------------------------------------------------------------
#
# `replog inspect index`.


_COLUMNS = (
    ("index", -20),
    ("ledger", 12),
    ("stamp", 6),
    ("first", 14),
    ("last", 14),
    ("stride", 6),
    ("offset", 12),
    ("bytes", 10),
    ("problem", -1),
)


def index(
    path: PathArgument,
    with_batches: Annotated[
        bool, typer.Option("--batches", help="List each batch and its place; with --json as lines of JSON.")
    ] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Compare with the log file, which is read.")] = False,
    journal_dir: JournalDir = None,
    for_programs: AsJSON = False,
) -> None:
    """Show index files: the places of the batches of each ledger. The checksums of all pages are verified."""
    place = files_place(path, journal_dir)
    found: list[IndexReport] = []
    listing = Listing(*_COLUMNS)
    is_quiet = for_programs or (with_batches and sys.stdout.isatty())
    with watched("indexes", None, is_quiet=is_quiet) as progress:
        for each in inspect_indexes(place, with_batches=with_batches, verify=verify, progress=progress):
            if isinstance(each, IndexReport):
                found.append(each)
                if for_programs and with_batches:
                    print_json_line("index", as_json(each))
            elif for_programs:
                print_json_line("batch", as_json(each))
            else:
                _list_batch(listing, each)
    problems = [problem for each in found for problem in each.problems]
    if for_programs and with_batches:
        print_json_line("summary", {"path": path, "problems": [as_json(each) for each in problems]})
    elif for_programs:
        print_json({"path": path, "indexes": [as_json(each) for each in found]})
    else:
        listing.end()
        for each in found:
            _print_index(each)
        tell(problems)
    end(problems)


def _list_batch(listing: Listing, batch: IndexedBatch) -> None:
    listing.add(
        (
            batch.path,
            batch.ledger_id,
            batch.stamp,
            batch.first_entry_id,
            batch.last_entry_id,
            batch.stride,
            batch.offset,
            batch.size_bytes,
            batch.problem,
        )
    )


def _print_index(report: IndexReport) -> None:
    name = os.path.basename(report.path)
    if report.number is None:
        emit(f"{name}: unreadable\n")
        return
    verified = "" if report.verified_batches is None else f", {report.verified_batches} of them stand there"
    emit(
        f"{name}: of {report.kind} {report.number}, which ends at {report.end_bytes}; {as_size(report.file_bytes)}, "
        f"{report.batches} batches{verified}, ledgers change {report.switches} times\n"
    )
    table = new_table(">ledger", ">stamp", ">entries", ">batches", ">in batches", ">page at", "page")
    for each in report.sections:
        add_row(
            table,
            each.ledger_id,
            each.stamp,
            as_range(each.first_entry_id, each.last_entry_id),
            each.batches,
            as_size(each.batch_bytes),
            each.page_offset,
            "ok" if each.is_intact else "BAD",
        )
    print_table(table)


# -- command ----------------------------------------------------------------------------------------------------------
#
# `replog inspect` itself: its commands.


app = App(
    no_args_is_help=True,
    help="Look into a bookie's directory, read-only, also while the bookie runs. Exit status 1: damage was found.",
)
app.command()(journal)
app.command("entry-log")(entry_log)
app.command()(index)
app.command()(ledger)
