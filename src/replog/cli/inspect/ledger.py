"""`replog inspect ledger`."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Annotated, Protocol

import attrs
import typer

from replog.backends.files.inspecting import inspect_ledger
from replog.backends.inspection.reports import BatchReport, EntryReport, LedgerReport
from replog.cli.ending import survive
from replog.cli.inspect.common import Directory, JournalDir, as_json, end, files_place, is_lmdb, tell
from replog.cli.output import (
    AsJSON,
    Listing,
    add_row,
    as_size,
    emit,
    emit_bytes,
    new_table,
    print_json_line,
    print_table,
    watched,
)
from replog.errors import ConfigError

_PREVIEW_BYTES = 64
_HOLES_SHOWN = 20
_COLUMNS = (
    ("first", 12),
    ("last", 12),
    ("stride", 6),
    ("entries", 7),
    ("stamp", 6),
    ("bytes", 10),
    ("file", -20),
    ("offset", 12),
    ("written", -20),
    ("counts", -6),
    ("checksum", -8),
    ("problem", -1),
)
_ENTRY_COLUMNS = (("entry", 12), ("stamp", 6), ("bytes", 10), ("as", -4), ("payload", -1))


def ledger(
    path: Directory,
    ledger_id: Annotated[int, typer.Argument(metavar="LEDGER_ID", min=0)],
    with_entries: Annotated[bool, typer.Option("--entries", help="List the entries, with the start of each.")] = False,
    raw: Annotated[
        int | None,
        typer.Option("--raw", metavar="ENTRY_ID", min=0, help="Write this entry's payload to standard output."),
    ] = None,
    stamp: Annotated[
        int | None, typer.Option(min=1, help="With --raw: the entry of this stamp, not of the highest.")
    ] = None,
    journal_dir: JournalDir = None,
    for_programs: AsJSON = False,
) -> None:
    """Show one ledger of a storage: its marks, all its batches, each read and checked, and the holes between them.

    A hole is a range of ids that no batch here holds. If entries stripe, or after a change of ensemble, other bookies have them.
    """
    if raw is not None and (with_entries or for_programs):
        raise ConfigError("--raw writes one payload and nothing else: leave --entries and --json out")
    if stamp is not None and raw is None:
        raise ConfigError("--stamp goes with --raw")
    how = Shown(with_entries, raw, stamp, for_programs)
    if is_lmdb(path, journal_dir):
        survive(path, lambda: _look_into_lmdb(path, ledger_id, how))
    else:
        place = files_place(path, journal_dir)
        _look(lambda progress: inspect_ledger(place, ledger_id, progress), how)


@attrs.frozen
class Shown:
    """Which part of a ledger to show, and how."""

    entries: bool
    raw: int | None
    stamp: int | None
    for_programs: bool


def _look_into_lmdb(path: str, ledger_id: int, how: Shown) -> None:
    from replog.backends.lmdb import inspecting

    _look(lambda progress: inspecting.inspect_ledger(path, ledger_id, progress), how)


def _look(find: Callable[[Callable[[int], None]], Inspection], how: Shown) -> None:
    is_quiet = how.for_programs or how.raw is not None or sys.stdout.isatty()
    with watched("ledger", None, is_quiet=is_quiet) as progress:
        inspection = find(progress)
        try:
            _show(inspection, how)
        finally:
            inspection.close()
    report = inspection.report
    end(report.problems)
    # After the report was printed: programs get their object in any case.
    if not report.is_known:
        raise typer.Exit(1)


class Inspection(Protocol):
    """An inspection of a ledger, of any storage."""

    @property
    def report(self) -> LedgerReport: ...
    def batches(self) -> Iterator[BatchReport]: ...
    def entries(self) -> Iterator[EntryReport]: ...
    def payload(self, entry_id: int, stamp: int | None = None) -> bytes: ...
    def close(self) -> None: ...


def _show(inspection: Inspection, how: Shown) -> None:
    for_programs = how.for_programs
    if how.raw is not None:
        emit_bytes(inspection.payload(how.raw, how.stamp))
        return
    if how.entries:
        entries = Listing(*_ENTRY_COLUMNS)
        for entry in inspection.entries():
            _list_entry(entries, entry, for_programs)
        entries.end()
    else:
        batches = Listing(*_COLUMNS)
        for batch in inspection.batches():
            _list_batch(batches, batch, for_programs)
        if not for_programs:
            batches.end()
    if for_programs:
        print_json_line("ledger", as_json(inspection.report))
    else:
        _print_ledger(inspection.report)


def _list_batch(listing: Listing, batch: BatchReport, for_programs: bool) -> None:
    if for_programs:
        print_json_line("batch", as_json(batch))
        return
    listing.add(
        (
            batch.first_entry_id,
            batch.last_entry_id,
            batch.stride,
            batch.entries,
            batch.stamp,
            batch.size_bytes,
            batch.path,
            batch.offset,
            as_time(batch.timestamp_ns),
            "yes" if batch.is_current else "no",
            "BAD" if batch.problem else "ok",
            batch.problem,
        )
    )


def as_time(timestamp_ns: int) -> str:
    """A writer's clock, for people. A wrong clock may have any value: then the number itself."""
    try:
        return datetime.fromtimestamp(timestamp_ns // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ns)


def _list_entry(listing: Listing, entry: EntryReport, for_programs: bool) -> None:
    encoding, text = preview(entry.payload)
    size = len(entry.payload)
    if for_programs:
        where = {"ledger_id": entry.ledger_id, "entry_id": entry.entry_id, "stamp": entry.stamp, "size_bytes": size}
        print_json_line("entry", {**where, "encoding": encoding, "preview": text, "is_whole": size <= _PREVIEW_BYTES})
    else:
        shown = repr(text)[1:-1] if encoding == "utf8" else text
        more = " ..." if size > _PREVIEW_BYTES else ""
        listing.add((entry.entry_id, entry.stamp, size, encoding, shown + more))


def preview(payload: bytes) -> tuple[str, str]:
    """The start of a payload: as "utf8" if it is text all of which can be shown, else as "hex"."""
    start = payload[:_PREVIEW_BYTES]
    try:
        # Incremental: the preview may end in the middle of a character, which is not a fault of a longer payload.
        text = codecs.getincrementaldecoder("utf-8")().decode(start, final=len(payload) <= _PREVIEW_BYTES)
    except UnicodeDecodeError:
        return "hex", start.hex()
    return ("utf8", text) if all(each.isprintable() or each in "\t\r\n" for each in text) else ("hex", start.hex())


def _print_ledger(report: LedgerReport) -> None:
    if not report.is_known:
        emit(f"ledger {report.ledger_id}: nothing is known of it here\n")
        tell(report.problems)
        return
    table = new_table("ledger", str(report.ledger_id))
    add_row(table, "deleted", "yes" if report.is_deleted else "no")
    add_row(table, "fence term", "deleted: fenced permanently" if report.is_deleted else report.fence_term)
    add_row(table, "last add confirmed", report.last_add_confirmed)
    add_row(table, "last entry", report.last_entry_id)
    add_row(table, "key", "present" if report.has_key else "none")
    add_row(table, "batches", report.batches)
    add_row(table, "older copies", report.copies - report.batches)
    add_row(table, "in batches", as_size(report.batch_bytes))
    add_row(table, "damaged batches", report.damaged_batches)
    if report.absent_stripes:
        absent = ", ".join(map(str, report.absent_stripes))
        add_row(table, "stripes elsewhere", f"{absent} of {report.stripes}")
    shown = [_hole(hole.first_entry_id, hole.last_entry_id, hole.stride) for hole in report.holes[:_HOLES_SHOWN]]
    if report.hole_count > len(shown):
        shown.append(f"{report.hole_count - len(shown)} more")
    add_row(table, "holes", ", ".join(shown) or "none")
    print_table(table)
    tell(report.problems)


def _hole(first: int, last: int, stride: int) -> str:
    by = f" by {stride}" if stride > 1 else ""
    return f"{first}" if first == last else f"{first}..{last}{by}"
