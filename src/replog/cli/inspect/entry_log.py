"""`replog inspect entry-log`."""

from __future__ import annotations

import os
import sys

from replog.backends.files.inspecting import inspect_entry_logs
from replog.backends.inspection.reports import EntryLogReport, Problem, RecordReport
from replog.cli.inspect.common import JournalDir, PathArgument, as_json, end, files_place, tell
from replog.cli.inspect.journal import RECORD_COLUMNS, WithRecords, list_record
from replog.cli.output import (
    AsJSON,
    Listing,
    add_row,
    as_share,
    as_size,
    new_table,
    print_json,
    print_json_line,
    print_table,
    watched,
)

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
    logs: list[EntryLogReport] = []
    problems: list[Problem] = []
    listing = Listing(*RECORD_COLUMNS)
    is_quiet = for_programs or (with_records and sys.stdout.isatty())
    with watched("entry logs", place.log_bytes() if with_records else None, is_quiet=is_quiet) as progress:
        for each in inspect_entry_logs(place, with_records=with_records, progress=progress):
            if isinstance(each, RecordReport):
                list_record(listing, each, for_programs)
            elif isinstance(each, EntryLogReport):
                logs.append(each)
                problems += each.problems
                if for_programs and with_records:
                    print_json_line("file", _as_json(each))
            else:
                problems.append(each)
    if for_programs and with_records:
        print_json_line("summary", {"path": path, "problems": [as_json(each) for each in problems]})
    elif for_programs:
        # Problems of a file are printed with it, and only there.
        others = [each for each in problems if not any(each in log.problems for log in logs)]
        print_json({"path": path, "files": list(map(_as_json, logs)), "problems": [as_json(each) for each in others]})
    else:
        listing.end()
        _print_logs(logs)
        tell(list(dict.fromkeys(problems)))
    end(problems)


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
