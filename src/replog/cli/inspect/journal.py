"""`replog inspect journal`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from replog.backends.files.inspecting import inspect_journal
from replog.backends.inspection.reports import BatchReport, JournalFileReport, Problem, RecordReport
from replog.cli.inspect.common import JournalDir, PathArgument, as_json, end, files_place, tell
from replog.cli.output import (
    AsJSON,
    Listing,
    add_row,
    as_range,
    as_size,
    new_table,
    print_json,
    print_json_line,
    print_table,
    watched,
)

WithRecords = Annotated[bool, typer.Option("--records", help="List each record; with --json as lines of JSON.")]
RECORD_COLUMNS = (
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
    files: list[JournalFileReport] = []
    problems: list[Problem] = []
    listing = Listing(*RECORD_COLUMNS)
    is_quiet = for_programs or (with_records and sys.stdout.isatty())
    with watched("journal", place.journal_bytes(), is_quiet=is_quiet) as progress:
        for each in inspect_journal(place, first_number=first_number, with_records=with_records, progress=progress):
            if isinstance(each, RecordReport):
                list_record(listing, each, for_programs)
            elif isinstance(each, JournalFileReport):
                files.append(each)
                problems += each.problems
                if for_programs and with_records:
                    print_json_line("file", as_json(each))
            else:
                problems.append(each)
    everything = {"path": path, "bookie_id": place.bookie_id, "version": place.version}
    if for_programs and with_records:
        print_json_line("summary", {**everything, "problems": [as_json(each) for each in problems]})
    elif for_programs:
        others = [each for each in problems if not any(each in file.problems for file in files)]
        print_json({**everything, "files": [as_json(file) for file in files], "problems": [as_json(p) for p in others]})
    else:
        listing.end()
        _print_files(files)
        tell(list(dict.fromkeys(problems)))
    end(problems)


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


def list_record(listing: Listing, record: RecordReport, for_programs: bool) -> None:
    """A record in a row, and the batches of a RUN in rows below it; or all that as a line of JSON."""
    if for_programs:
        print_json_line("record", as_json(record))
        return
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
