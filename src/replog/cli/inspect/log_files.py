"""What `inspect journal` and `inspect entry-log` share: files of a log, their records, and what is wrong with them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Generic, TypeVar

import attrs
import typer

from replog.backends.inspection.reports import BatchReport, EntryLogReport, JournalFileReport, Problem, RecordReport
from replog.cli.inspect.common import as_json, end, tell
from replog.cli.output import Listing, print_json, print_json_line

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
    """What an inspection of a log's files finds. Records are shown as they come, for programs with the files between them; all
    else is shown at the end."""

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
