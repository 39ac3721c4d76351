"""Inspecting a storage as a whole: its identity, the process that has it open, and how much it holds."""

from __future__ import annotations

import os
from collections import Counter

from replog.backends.directory import LOCK_FILE
from replog.backends.files.catalog import NAME as CATALOG
from replog.backends.files.inspecting.entry_logs import LogInspection, log_places
from replog.backends.files.inspecting.inspected_file import list_names, must_be_readable
from replog.backends.files.inspecting.places import Place
from replog.backends.files.inspecting.survey import Survey, begin_survey, survey
from replog.backends.files.spares import SPARE_PREFIX
from replog.backends.inspection.read_only import READ_ONLY, Progress, ignore_progress, is_locked, owner_of
from replog.backends.inspection.reports import StorageReport
from replog.errors import ConfigError


def inspect_storage(place: Place, progress: Progress = ignore_progress) -> StorageReport:
    """Everything about a storage. Reads the part of the journal that a start would replay.

    Raises `ConfigError` if this is not a storage's directory, `StorageFailedError` if it can't be read."""
    if place.root is None or place.version is None or place.bookie_id is None or place.file is not None:
        raise ConfigError(f"{place.path} is not a storage's directory: name the one with storage.json in it")
    lock = f"{place.root}/{LOCK_FILE}"
    known = place.root, "files", place.version, place.bookie_id
    report = StorageReport(*known, is_locked(lock), owner_of(lock), place.journal)
    place.vouching().describe(report)
    with must_be_readable():
        _measure_space(place, report)
        if place.journal is None:
            _describe_catalog(report, begin_survey(place))
        else:
            _count(place, report, survey(place, progress), progress)
    return report


def _measure_space(place: Place, report: StorageReport) -> None:
    assert place.root is not None
    report.free_bytes = READ_ONLY.free_bytes(place.root)
    report.catalog_bytes = _size(f"{place.root}/{CATALOG}")
    sizes: Counter[str] = Counter()
    for kind, directory in (("root", place.root), ("journal", place.journal), ("entry log", place.logs)):
        for name in list_names(directory) if directory is not None else ():
            of = "index" if name.endswith(".index") else "spare" if name.startswith(SPARE_PREFIX) else kind
            sizes[of] += _size(f"{directory}/{name}")
    report.total_bytes, report.index_bytes, report.entry_log_bytes = sizes.total(), sizes["index"], sizes["entry log"]
    if place.journal is not None:
        report.journal_bytes, report.spare_bytes = sizes["journal"], sizes["spare"]
        report.spare_files = len(place.spares())
        if os.path.exists(place.journal):
            report.journal_free_bytes = READ_ONLY.free_bytes(place.journal)


def _size(path: str) -> int:
    """The size of a file, 0 if it is gone; directories have none."""
    try:
        return os.stat(path).st_size if os.path.isfile(path) else 0
    except OSError:
        return 0


def _describe_catalog(report: StorageReport, known: Survey) -> None:
    """What is known without the journal."""
    report.problems += known.problems
    if known.catalog is not None:
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
