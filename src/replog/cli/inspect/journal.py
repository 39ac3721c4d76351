"""`replog inspect journal`."""

from __future__ import annotations

from typing import Annotated

import typer

from replog.backends.files.inspecting import inspect_journal
from replog.backends.inspection.reports import JournalFileReport
from replog.cli.inspect.common import JournalDir, PathArgument, files_place
from replog.cli.inspect.log_files import FilesReport, WithRecords
from replog.cli.output import (
    AsJSON,
    add_row,
    as_range,
    as_size,
    new_table,
    print_table,
    watched,
)


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
