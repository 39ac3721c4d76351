"""What a storage knows of its ledgers: from the catalog, and from the journal files that a start would replay.

The storage's own index takes marks and deletions; of batches only what they say of their ledgers is kept.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import attrs

from replog.backends.files.catalog import Catalog
from replog.backends.files.index import Index
from replog.backends.files.inspecting.journals import JournalWalk, WalkedFile
from replog.backends.files.inspecting.places import Place
from replog.backends.files.record import RecordType
from replog.backends.files.scanning import FoundBatch, ScannedRecord
from replog.backends.inspection.read_only import Progress, ignore_progress
from replog.backends.inspection.reports import JournalFileReport, LedgerUsage, Problem
from replog.backends.ranges import LedgerRanges
from replog.errors import ConfigError
from replog.protocol.mutations import DELETED_TERM, Marks

BatchSeen = Callable[[WalkedFile, FoundBatch], None]


@attrs.define
class Survey:
    """Made by `survey`. `journal` has the files that were read, with how much each ledger uses of them."""

    place: Place
    catalog: Catalog | None = None
    index: Index = attrs.field(factory=Index)
    journal: list[tuple[JournalFileReport, dict[int, LedgerUsage]]] = attrs.field(factory=list)
    problems: list[Problem] = attrs.field(factory=list)

    @property
    def deleted(self) -> LedgerRanges:
        """The ledgers that were deleted."""
        return self.index.deleted

    def marks_of(self, ledger_id: int) -> Marks | None:
        """What is known of a ledger, or None if nothing is."""
        ledger = self.index.ledgers.get(ledger_id)
        if ledger is not None:
            return ledger.marks()
        return Marks(fence_term=DELETED_TERM) if ledger_id in self.deleted else None


def begin_survey(place: Place) -> Survey:
    """Reads only the catalog. Raises `Unreadable`."""
    found = Survey(place)
    catalog = place.catalog()
    if isinstance(catalog, Problem):
        found.problems.append(catalog)
    elif catalog is not None:
        found.catalog = catalog
        found.index.put_catalog(catalog.deleted, catalog.ledgers)
    return found


def survey(place: Place, progress: Progress = ignore_progress, on_batch: BatchSeen | None = None) -> Survey:
    """Reads the catalog, and the journal from where it says; a storage without one: all of the journal.

    Records of a last group that isn't whole don't count. Raises `Unreadable` if a directory can't be read, `ConfigError`
    if the journal is in another directory."""
    if place.journal is None:
        raise ConfigError(f"{place.path}: its journal is in another directory; name that with --journal-dir")
    # The catalog is read first: a bookie that runs writes it only when what it says is durable.
    found = begin_survey(place)
    walk = JournalWalk(place, found.catalog, progress)
    for walked in walk.files(found.catalog.first_journal if found.catalog else 0):
        usage: dict[int, LedgerUsage] = {}
        _survey_file(found, walked, usage, on_batch)
        found.journal.append((walked.report, usage))
        found.problems += walked.report.problems
    found.problems += walk.problems
    return found


def _survey_file(found: Survey, walked: WalkedFile, usage: dict[int, LedgerUsage], on_batch: BatchSeen | None) -> None:
    # The records of a group wait for its last one: until then nobody was told of any of them.
    group: list[ScannedRecord | FoundBatch] = []
    sequence = -1
    for record in walked.records():
        header = record.header
        if header.sequence != sequence:
            group.clear()
            sequence = header.sequence
        if record.is_intact:
            if header.record_type == RecordType.BATCH:
                group += walked.log.batches_of(record)
            else:
                group.append(record._replace(payload=memoryview(bytes(record.payload))))
        if not record.is_last_of_group:
            continue
        for each in group:
            if isinstance(each, ScannedRecord):
                _put_record(found, walked, each)
                continue
            ledger = found.index.ledger(each.ledger_id)
            if ledger is not None:
                ledger.note_batch(each.last, each.last_add_confirmed)
            add_usage(usage, each)
            if on_batch is not None:
                on_batch(walked, each)
        group.clear()


def _put_record(found: Survey, walked: WalkedFile, record: ScannedRecord) -> None:
    try:
        found.index.put_record(record.header.record_type, record.payload)
    except struct.error:
        reason = "its payload is too short for its type"
        found.problems.append(Problem(walked.path, record.offset, "damage", reason))


def add_usage(usage: dict[int, LedgerUsage], batch: FoundBatch) -> None:
    """Counts a batch for its ledger."""
    used = usage.get(batch.ledger_id)
    if used is None:
        used = usage[batch.ledger_id] = LedgerUsage(batch.ledger_id, 0, 0)
    used.batches += 1
    used.batch_bytes += batch.location.size
