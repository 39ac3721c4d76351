"""`replog inspect index`."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from replog.backends.files.inspecting import inspect_indexes
from replog.backends.inspection.reports import IndexedBatch, IndexReport
from replog.cli.inspect.common import JournalDir, PathArgument, as_json, end, files_place, tell
from replog.cli.output import (
    AsJSON,
    Listing,
    add_row,
    as_range,
    as_size,
    emit,
    new_table,
    print_json,
    print_json_line,
    print_table,
    watched,
)

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
