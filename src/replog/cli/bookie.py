"""`replog bookie`: serve a bookie, make its storage, describe its storage."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from replog.abc import UNBOUNDED
from replog.backends.directory import FORMAT_FILE
from replog.cli.apps import App
from replog.cli.ending import survive
from replog.cli.inspect.common import Directory, JournalDir, as_json, end, files_place, is_lmdb, tell
from replog.cli.output import (
    AsJSON,
    add_row,
    as_share,
    as_size,
    emit,
    new_table,
    print_json,
    print_table,
    watched,
)
from replog.cli.serving.command import serve
from replog.config import BackendURL
from replog.errors import ConfigError
from replog.registry import Registry

if TYPE_CHECKING:
    from replog.backends.inspection.reports import StorageReport

app = App(invoke_without_command=True, callback=serve)

# A disk of its own for a bookie has this from the beginning, and is empty all the same.
_OF_A_FILE_SYSTEM = {"lost+found"}


@app.command("format")
def make(
    path: Annotated[str, typer.Argument(metavar="DIR", help="An empty directory, or one to be made.")],
    storage: Annotated[str, typer.Option(help="The kind of storage: files, lmdb, or a plugin's.")] = "files",
    journal_dir: Annotated[
        str | None,
        typer.Option(
            "--journal-dir", metavar="DIR", help="Keep the journal there, on a device of its own (files only)."
        ),
    ] = None,
    only_id: Annotated[bool, typer.Option("--bookie-id-only", help="Print the identity and nothing else.")] = False,
    for_programs: AsJSON = False,
) -> None:
    """Make a new storage, and print its identity, which never changes.

    Refuses a directory that has a storage or anything else: exit status 2, nothing changed."""
    path = os.path.abspath(path)
    journal_path = os.path.abspath(journal_dir) if journal_dir is not None else None
    # Both are judged before either is touched: a refusal leaves nothing behind.
    for each in (path, journal_path):
        if each is not None:
            _check_is_empty(each)
    if journal_path is not None and storage != "files":
        raise ConfigError(f"--journal-dir is for the storage files; {storage} has no journal of its own")
    options = {"journal_dir": journal_path} if journal_path is not None else {}
    made = Registry().open_storage(BackendURL(storage, path, options))
    try:
        bookie_id = made.bookie_id
    finally:
        made.close()
    if for_programs:
        print_json({"bookie_id": bookie_id, "storage": storage, "path": path, "journal_path": journal_path})
    elif only_id:
        emit(f"{bookie_id}\n")
    else:
        where = f", its journal in {journal_path}" if journal_path else ""
        emit(f"{bookie_id}: a new storage of kind {storage} in {path}{where}\n")


def _check_is_empty(path: str) -> None:
    try:
        names = sorted(set(os.listdir(path)) - _OF_A_FILE_SYSTEM)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name a directory that is empty, or can be made") from error
    if FORMAT_FILE in names:
        raise ConfigError(f"{path} has a storage already: `replog bookie info` says which; name another directory")
    if names:
        raise ConfigError(f"{path} is not empty: it has {', '.join(names[:3])}; name another directory")


@app.command()
def info(path: Directory, journal_dir: JournalDir = None, for_programs: AsJSON = False) -> None:
    """Describe a storage: its identity, the process that has it open, and its size. Read-only, even while its bookie runs."""
    if is_lmdb(path, journal_dir):
        # In a child: LMDB maps the file, and a damaged one kills the process that reads it.
        survive(path, lambda: _look_into_lmdb(path, for_programs))
    else:
        # Imported here: a bookie that serves starts faster without.
        from replog.backends.files.inspecting import inspect_storage

        place = files_place(path, journal_dir)
        _look(lambda progress: inspect_storage(place, progress), for_programs)


def _look_into_lmdb(path: str, for_programs: bool) -> None:
    from replog.backends.lmdb import inspecting

    _look(lambda progress: inspecting.inspect_storage(path, progress), for_programs)


def _look(find: Callable[[Callable[[int], None]], StorageReport], for_programs: bool) -> None:
    with watched("storage", None, is_quiet=for_programs) as progress:
        report = find(progress)
    if for_programs:
        print_json({**as_json(report), "live_share": report.live_share})
    else:
        _print_storage(report)
        tell(report.problems)
    end(report.problems)


def _print_storage(report: StorageReport) -> None:
    table = new_table("bookie", report.bookie_id)
    for name, value in _facts(report):
        if value is not None:
            add_row(table, name, value)
    print_table(table)


def _facts(report: StorageReport) -> list[tuple[str, Any]]:
    mark = None
    if report.catalog_generation is not None:
        mark = (
            f"catalog {report.catalog_generation}: replay from journal file {report.first_journal_to_replay}, "
            f"after group {report.catalog_sequence}"
        )
    journal = report.journal_path or "elsewhere: name it with --journal-dir to know more"
    return [
        ("storage", f"{report.storage}, version {report.version}"),
        ("directory", report.path),
        ("journal", journal if report.storage == "files" else None),
        ("open", _openness(report)),
        ("ledgers", report.ledgers),
        ("deleted ledgers", report.deleted_ledgers),
        ("batches", report.batches),
        ("in batches", as_size(report.batch_bytes)),
        ("live", as_share(report.live_share)),
        ("journal files", _files(report.journal_files, report.journal_bytes)),
        ("adopted of these", report.adopted_files),
        ("spare files", _files(report.spare_files, report.spare_bytes)),
        ("entry logs", _files(report.entry_logs, report.entry_log_bytes)),
        ("indexes", as_size(report.index_bytes)),
        ("last group", report.last_sequence),
        ("mark", mark),
        ("durable mark", f"group {report.durable_mark}" if report.storage == "files" else report.durable_mark),
        ("doubt", _doubt(report)),
        ("in all", as_size(report.total_bytes)),
        ("free on disk", as_size(report.free_bytes)),
        ("free for the journal", as_size(report.journal_free_bytes)),
    ]


def _doubt(report: StorageReport) -> str | None:
    if report.doubted_below is None:
        return None
    if not report.doubted_below:
        return "none"
    lost = f"; it knows that it lost something of those {_below(report.lost_below)}" if report.lost_below else ""
    return f"ledgers {_below(report.doubted_below)}{lost}: {'; '.join(report.doubt_reasons)}"


def _below(ledger_id: int | None) -> str:
    return "of any id" if ledger_id == UNBOUNDED else f"below {ledger_id}"


def _files(count: int | None, size_bytes: int | None) -> str | None:
    if count is None and size_bytes is None:
        return None
    return f"{count if count is not None else '?'}, {as_size(size_bytes)}"


def _openness(report: StorageReport) -> str:
    if report.is_open is None:
        return "not known: the system does not tell"
    return f"in process {report.pid or 'unknown'}" if report.is_open else "by nobody"
