"""Inspecting a storage as a whole: its identity, the process that has it open, and how much it holds."""

from __future__ import annotations

import os

from replog.backends.files.catalog import NAME as CATALOG
from replog.backends.files.inspecting.entry_logs import LogInspection, log_places
from replog.backends.files.inspecting.inspected_file import Unreadable, list_names
from replog.backends.files.inspecting.places import Place
from replog.backends.files.inspecting.survey import Survey, survey
from replog.backends.files.spares import SPARE_PREFIX
from replog.backends.inspection.locks import is_locked, owner_of
from replog.backends.inspection.read_only import READ_ONLY, Progress, ignore_progress
from replog.backends.inspection.reports import Problem, StorageReport
from replog.errors import ConfigError, StorageFailedError


def inspect_storage(place: Place, progress: Progress = ignore_progress) -> StorageReport:
    """Everything about a storage. Reads the part of the journal that a start would replay.

    Raises `ConfigError` if this is not a storage's directory, `StorageFailedError` if it can't be read."""
    if place.root is None or place.version is None or place.bookie_id is None or place.file is not None:
        raise ConfigError(f"{place.path} is not a storage's directory: name the one with storage.json in it")
    lock_path = f"{place.root}/lock"
    report = StorageReport(
        place.root, "files", place.version, place.bookie_id, is_locked(lock_path), owner_of(lock_path), place.journal
    )
    place.vouching().describe(report)
    try:
        _measure_space(place, report)
        if place.journal is None:
            _describe_catalog(place, report)
        else:
            _count(place, report, survey(place, progress), progress)
    except Unreadable as error:
        raise StorageFailedError(f"{error.path}: {error.reason}", "Run this as the user that owns it") from error
    return report


def _measure_space(place: Place, report: StorageReport) -> None:
    assert place.root is not None
    report.free_bytes = READ_ONLY.free_bytes(place.root)
    root_bytes = sum(_size(f"{place.root}/{name}") for name in list_names(place.root))
    report.total_bytes = root_bytes
    report.catalog_bytes = _size(f"{place.root}/{CATALOG}")
    report.index_bytes = 0
    for directory in (place.journal, place.logs):
        if directory is None:
            continue
        for name in list_names(directory):
            size = _size(f"{directory}/{name}")
            report.total_bytes += size
            if name.endswith(".index"):
                report.index_bytes = (report.index_bytes or 0) + size
            elif name.startswith(SPARE_PREFIX):
                report.spare_bytes = (report.spare_bytes or 0) + size
            elif directory == place.journal:
                report.journal_bytes = (report.journal_bytes or 0) + size
            else:
                report.entry_log_bytes = (report.entry_log_bytes or 0) + size
    if place.logs is not None:
        report.entry_log_bytes = report.entry_log_bytes or 0
    if place.journal is not None:
        report.journal_bytes, report.spare_bytes = report.journal_bytes or 0, report.spare_bytes or 0
        report.spare_files = len(place.spares())
        if os.path.exists(place.journal):
            report.journal_free_bytes = READ_ONLY.free_bytes(place.journal)


def _size(path: str) -> int:
    """The size of a file, 0 if it is gone; directories have none."""
    try:
        return os.stat(path).st_size if os.path.isfile(path) else 0
    except OSError:
        return 0


def _describe_catalog(place: Place, report: StorageReport) -> None:
    """What is known without the journal."""
    catalog = place.catalog()
    if isinstance(catalog, Problem):
        report.problems.append(catalog)
        return
    if catalog is not None:
        known = Survey(place)
        known.start_from(catalog)
        _describe_marks(report, known)


def _describe_marks(report: StorageReport, known: Survey) -> None:
    catalog = known.catalog
    report.ledgers = len(known.index.ledgers)
    report.deleted_ledgers = sum(last - first + 1 for first, last in known.deleted)
    if catalog is not None:
        report.catalog_generation = catalog.generation
        report.first_journal_to_replay, report.catalog_sequence = catalog.first_journal, catalog.sequence
        report.adopted_files = sum(file.is_journal for file in catalog.files)
        report.entry_logs = len(catalog.files) - report.adopted_files


def _count(place: Place, report: StorageReport, known: Survey, progress: Progress) -> None:
    _describe_marks(report, known)
    report.problems += known.problems
    report.journal_files = len(place.journal_files())
    report.batches = report.batch_bytes = report.live_bytes = 0
    usages = []
    for file, usage in known.journal:
        report.last_sequence = file.last_sequence if file.last_sequence is not None else report.last_sequence
        usages += list(usage.values())
    for log in log_places(place, known.catalog):
        if log.age is None:
            continue
        inspection = LogInspection(log, place.identity, known.deleted, progress)
        if not inspection.read_index():
            for _ in inspection.scan(False):
                pass
        report.problems += inspection.report.problems
        usages += inspection.report.ledgers
    for used in usages:
        report.batches += used.batches
        report.batch_bytes += used.batch_bytes
        report.live_bytes += 0 if used.ledger_id in known.deleted else used.batch_bytes
