"""What a storage knows of its ledgers: from the catalog, and from the journal files that a start would replay."""

from __future__ import annotations

import struct
from collections.abc import Callable

import attrs

from replog.backends.files.catalog import Catalog
from replog.backends.files.inspecting.journals import JournalWalk, WalkedFile
from replog.backends.files.inspecting.places import Place
from replog.backends.files.inspecting.reading import Progress, ignore_progress
from replog.backends.files.inspecting.records import batch_places
from replog.backends.files.inspecting.reports import JournalFileReport, LedgerUsage, Problem
from replog.backends.files.inspecting.scanning import ScannedRecord
from replog.backends.files.record import (
    LAST_OF_GROUP,
    RECORD_HEADER_BYTES,
    RecordType,
    unpack_drop,
    unpack_marks,
)
from replog.backends.ranges import LedgerRanges
from replog.errors import ConfigError
from replog.protocol.batch import HEADER
from replog.protocol.mutations import DELETED_TERM


@attrs.define
class KnownLedger:
    """The marks of a ledger; of its key only whether it has one."""

    fence_term: int = 0
    last_add_confirmed: int = -1
    last_entry_id: int = -1
    has_key: bool = False


@attrs.frozen
class BatchPlace:
    """Where a batch stands, and what it holds."""

    path: str
    offset: int
    size_bytes: int
    checksum: int
    ledger_id: int
    stamp: int
    first: int
    last: int
    stride: int
    last_add_confirmed: int


BatchSeen = Callable[[WalkedFile, BatchPlace], None]


def places_in(path: str, record: ScannedRecord) -> list[BatchPlace]:
    """The batches of an intact BATCH or RUN. The checksum is that of the record: of a RUN's batches nobody has one."""
    found = []
    start = record.offset + RECORD_HEADER_BYTES
    for at, size in batch_places(record.payload):
        _, _, _, _, _, count, stride, _, ledger_id, first, confirmed, stamp, _, _ = HEADER.unpack_from(
            record.payload, at
        )
        last = first + (count - 1) * stride
        checksum = record.header.payload_checksum
        found.append(BatchPlace(path, start + at, size, checksum, ledger_id, stamp, first, last, stride, confirmed))
    return found


@attrs.define
class Survey:
    """Made by `survey`. `journal` has the files that were read, with how much each ledger uses of them."""

    place: Place
    catalog: Catalog | None = None
    ledgers: dict[int, KnownLedger] = attrs.field(factory=dict)
    deleted: LedgerRanges = attrs.field(factory=LedgerRanges)
    journal: list[tuple[JournalFileReport, dict[int, LedgerUsage]]] = attrs.field(factory=list)
    problems: list[Problem] = attrs.field(factory=list)

    def start_from(self, catalog: Catalog) -> None:
        """Takes what the catalog says."""
        self.catalog = catalog
        for first, last in catalog.deleted:
            self.deleted.add(first, last)
        for ledger_id, marks in catalog.ledgers:
            has_key = marks.key is not None
            known = KnownLedger(marks.fence_term, marks.last_add_confirmed, marks.last_entry_id, has_key)
            self.ledgers[ledger_id] = known

    def ledger(self, ledger_id: int) -> KnownLedger | None:
        """The ledger, known from now on; None if it was deleted."""
        ledger = self.ledgers.get(ledger_id)
        if ledger is None and ledger_id not in self.deleted:
            ledger = self.ledgers[ledger_id] = KnownLedger()
        return ledger

    def marks_of(self, ledger_id: int) -> KnownLedger | None:
        """What is known of a ledger, or None if nothing is."""
        return KnownLedger(DELETED_TERM) if ledger_id in self.deleted else self.ledgers.get(ledger_id)

    def put(self, record: ScannedRecord) -> None:
        """Applies a record that is no BATCH."""
        kind = record.header.record_type
        if kind == RecordType.MARKS:
            ledger_id, key, fence_term, confirmed, _ = unpack_marks(record.payload)
            ledger = self.ledger(ledger_id)
            if ledger is not None:
                ledger.has_key = ledger.has_key or key is not None
                ledger.fence_term = max(ledger.fence_term, fence_term)
                ledger.last_add_confirmed = max(ledger.last_add_confirmed, confirmed)
        elif kind == RecordType.DROP:
            self.drop(unpack_drop(record.payload))

    def drop(self, ledger_id: int) -> None:
        """The ledger was deleted, for ever."""
        self.deleted.add(ledger_id)
        self.ledgers.pop(ledger_id, None)

    def put_batch(self, batch: BatchPlace) -> None:
        """Raises the marks of a batch's ledger."""
        ledger = self.ledgers.get(batch.ledger_id) or self.ledger(batch.ledger_id)
        if ledger is not None:
            ledger.last_add_confirmed = max(ledger.last_add_confirmed, batch.last_add_confirmed)
            ledger.last_entry_id = max(ledger.last_entry_id, batch.last)


def survey(place: Place, progress: Progress = ignore_progress, on_batch: BatchSeen | None = None) -> Survey:
    """Reads the catalog, and the journal from where it says; a storage without one: all of the journal.

    Records of a last group that isn't whole don't count. Raises `Unreadable` if a directory can't be read, `ConfigError`
    if the journal stands elsewhere."""
    if place.journal is None:
        raise ConfigError(f"{place.path}: its journal stands elsewhere; name it with --journal-dir")
    found = Survey(place)
    catalog = place.catalog()
    if isinstance(catalog, Problem):
        found.problems.append(catalog)
    elif catalog is not None:
        found.start_from(catalog)
    walk = JournalWalk(place, found.catalog, progress)
    for walked in walk.files(found.catalog.first_journal if found.catalog else 0):
        usage: dict[int, LedgerUsage] = {}
        _survey_file(found, walked, usage, on_batch)
        found.journal.append((walked.report, usage))
        found.problems += walked.report.problems
    found.problems += walk.problems
    return found


def _survey_file(found: Survey, walked: WalkedFile, usage: dict[int, LedgerUsage], on_batch: BatchSeen | None) -> None:
    group: list[ScannedRecord | BatchPlace] = []
    sequence = -1
    for record in walked.records():
        header = record.header
        if header.sequence != sequence:
            group.clear()
            sequence = header.sequence
        if record.is_intact:
            if header.record_type == RecordType.BATCH:
                group += places_in(walked.path, record)
            else:
                group.append(record._replace(payload=memoryview(bytes(record.payload))))
        if not header.flags & LAST_OF_GROUP:
            continue
        for each in group:
            if isinstance(each, BatchPlace):
                found.put_batch(each)
                add_usage(usage, each)
                if on_batch is not None:
                    on_batch(walked, each)
            else:
                _put_safely(found, walked, each)
        group.clear()


def _put_safely(found: Survey, walked: WalkedFile, record: ScannedRecord) -> None:
    try:
        found.put(record)
    except struct.error:
        reason = "its payload is too short for its type"
        found.problems.append(Problem(walked.path, record.offset, "damage", reason))


def add_usage(usage: dict[int, LedgerUsage], batch: BatchPlace) -> None:
    """Counts a batch for its ledger."""
    used = usage.get(batch.ledger_id)
    if used is None:
        used = usage[batch.ledger_id] = LedgerUsage(batch.ledger_id, 0, 0)
    used.batches += 1
    used.batch_bytes += batch.size_bytes
