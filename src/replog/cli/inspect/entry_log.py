"""`replog inspect entry-log`."""

from __future__ import annotations

import os

from replog.backends.files.inspecting import inspect_entry_logs
from replog.backends.inspection.reports import EntryLogReport
from replog.cli.inspect.common import JournalDir, PathArgument, as_json, files_place
from replog.cli.inspect.log_files import FilesReport, WithRecords
from replog.cli.output import (
    AsJSON,
    add_row,
    as_share,
    as_size,
    new_table,
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
