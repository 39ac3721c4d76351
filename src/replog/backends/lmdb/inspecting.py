"""Looking into an LMDB storage from outside, on a stopped bookie or a running one: nothing stored is ever changed.

While a bookie runs, this reads as LMDB's readers do, with a place in the table of readers in lock.mdb: without it the pages
that are being read could be used again. Of a stopped one not even that file is touched. Transactions are short, so that
the bookie's environment does not grow for them; a batch that is deleted in between is reported as gone.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import lmdb

from replog.abc import Doubt
from replog.backends.durable_mark import DOUBT_FILE, MARK_FILE, unpack_doubt, unpack_mark
from replog.backends.files.inspecting.holes import Coverage
from replog.backends.files.inspecting.locks import is_locked, owner_of
from replog.backends.files.inspecting.places import read_format
from replog.backends.files.inspecting.records import described, report_batch
from replog.backends.files.inspecting.reports import BatchReport, EntryReport, LedgerReport, Problem, StorageReport
from replog.backends.files.inspecting.storages import free_bytes
from replog.backends.lmdb.directory import FORMAT_FILE, FORMAT_NAME, LOCK_FILE, identity_of
from replog.backends.lmdb.records import (
    BATCH,
    BATCH_KEY_BYTES,
    CHECKSUM_BYTES,
    DELETED,
    FORMAT_KEY,
    LEDGER,
    LEDGER_KEY_BYTES,
    VERSION,
    DamagedError,
    format_text,
    id_key,
    unpack_batch_key,
    unpack_id_key,
    unpack_marks,
    unpack_number,
    unseal,
    unseal_batch,
)
from replog.backends.ranges import LedgerRanges
from replog.errors import (
    EntryNotFoundError,
    RemoteProtocolError,
    StorageDamagedError,
    StorageFailedError,
    StorageIdentityError,
    StorageUncertainError,
)
from replog.protocol.batch import Batch, decode
from replog.protocol.mutations import DELETED_TERM
from replog.runtime.lmdb_file import DATA_FILE, DataFileDamagedError, check_data_file

_HOLES_MAX = 1000
_KEYS_AT_ONCE = 10_000  # in one transaction
_BYTES_AT_ONCE = 16 << 20
_ORDER = struct.Struct(">QQIq")  # first id, last id, stride, stamp: sorts as bytes

Progress = Callable[[int], None]


@contextmanager
def _opened(path: str) -> Iterator[tuple[lmdb.Environment, str]]:
    """The environment and the bookie's id. Raises `StorageIdentityError`, `StorageDamagedError`, `StorageFailedError`."""
    where = f"{path}/{FORMAT_FILE}"
    content = read_format(where)
    if content["format"] != FORMAT_NAME or content["version"] != VERSION:
        raise StorageIdentityError(
            f"{where} says {content['format']!r} version {content['version']!r}, this inspects {FORMAT_NAME!r} version "
            f"{VERSION}",
            "Nothing was touched: use the replog that wrote it, or a newer one",
        )
    data, bookie_id = f"{path}/{DATA_FILE}", str(content["bookie_id"])
    if not os.path.exists(data):
        raise StorageDamagedError(f"{data} is missing", "Recover this bookie's copies from the others")
    runs = is_locked(f"{path}/{LOCK_FILE}") is not False
    try:
        check_data_file(data)
        with lmdb.open(path, readonly=True, create=False, lock=runs, max_spare_txns=0, readahead=False) as environment:
            _check(environment, data, bookie_id)
            yield environment, bookie_id
    except DataFileDamagedError as error:
        raise StorageDamagedError(
            f"{data} is damaged {error}", "Recover this bookie's copies from the others"
        ) from error
    except (lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.CorruptedError, lmdb.PageNotFoundError) as error:
        raise StorageDamagedError(
            f"{data} can't be read: {error}", "Recover this bookie's copies from the others"
        ) from error
    except (lmdb.Error, OSError) as error:
        raise StorageFailedError(
            f"could not read {data}: {error}",
            "Run this as the user that owns it, and in another process than the one that has it open",
        ) from error


def _check(environment: lmdb.Environment, data: str, bookie_id: str) -> None:
    with environment.begin() as transaction:
        if transaction.get(FORMAT_KEY) != format_text(bookie_id):
            raise StorageIdentityError(f"{data} is not of {bookie_id}", "Nothing was touched: put the right file there")


def _keys(environment: lmdb.Environment, start: bytes, length: int) -> Iterator[tuple[bytes, int]]:
    """The keys that begin so and are so long, and the sizes of their values, in transactions of their own."""
    key = start
    is_over = False
    while not is_over:
        found: list[tuple[bytes, int]] = []
        with environment.begin(buffers=True) as transaction, transaction.cursor() as cursor:
            more = cursor.set_range(key)
            for _ in range(_KEYS_AT_ONCE):
                if not more or bytes(cursor.key()[: len(start)]) != start:
                    is_over = True
                    break
                key = bytes(cursor.key())
                if len(key) == length:
                    found.append((key, len(cursor.value())))
                more = cursor.next()
        yield from found
        key += b"\0"


def _deleted(environment: lmdb.Environment, data: str, problems: list[Problem]) -> LedgerRanges:
    deleted = LedgerRanges()
    for key, _ in _keys(environment, DELETED, LEDGER_KEY_BYTES):
        with environment.begin() as transaction:
            value = transaction.get(key)
        if value is None:
            continue  # it became part of another range
        try:
            deleted.add(unpack_id_key(key), unpack_number(unseal(key, value)))
        except DamagedError:
            reason = f"the record of deleted ledgers from {unpack_id_key(key)} on doesn't match its checksum"
            problems.append(Problem(data, 0, "damage", reason))
    return deleted


# -- a ledger -----------------------------------------------------------------------------------------------------


def inspect_ledger(path: str, ledger_id: int, progress: Progress) -> LedgerInspection:
    """What the storage has of a ledger. Raises `StorageError`."""
    return LedgerInspection(path, ledger_id, progress)


class LedgerInspection:
    """A ledger whose batches are found: as that of the files storage. Where in its file a batch stands LMDB does not tell:
    all offsets are 0. About 100 bytes are kept for each batch."""

    def __init__(self, path: str, ledger_id: int, progress: Progress) -> None:
        self._path = path
        self._data = f"{path}/{DATA_FILE}"
        self._ledger_id = ledger_id
        self._progress = progress
        self._order: list[bytes] = []
        self.report = LedgerReport(ledger_id, is_known=False, is_deleted=False)
        with _opened(path) as (environment, _):
            self._find(environment)
        self._measure()

    def _find(self, environment: lmdb.Environment) -> None:
        report = self.report
        report.is_deleted = self._ledger_id in _deleted(environment, self._data, report.problems)
        key = id_key(LEDGER, self._ledger_id)
        with environment.begin() as transaction:
            value = transaction.get(key)
        if report.is_deleted:
            report.is_known, report.fence_term = True, DELETED_TERM
        elif value is not None:
            report.is_known = True
            try:
                marks = unpack_marks(unseal(key, value))
                report.fence_term, report.has_key = marks.fence_term, marks.key is not None
                report.last_add_confirmed, report.last_entry_id = marks.last_add_confirmed, marks.last_entry_id
            except DamagedError:
                report.problems.append(
                    Problem(self._data, 0, "damage", "the ledger's marks don't match their checksum")
                )
        for found, size in _keys(environment, id_key(BATCH, self._ledger_id), BATCH_KEY_BYTES):
            _, _, stamp, first, last, stride = unpack_batch_key(found)
            self._order.append(_ORDER.pack(first, last, stride, stamp))
            report.batch_bytes += size - CHECKSUM_BYTES
        self._order.sort()

    def _measure(self) -> None:
        report = self.report
        report.batches = report.copies = len(self._order)
        report.is_known = report.is_known or bool(self._order)
        coverage = Coverage({_ORDER.unpack(each)[2] or 1 for each in self._order})
        coverage.keep(_HOLES_MAX)
        for each in self._order:
            first, last, stride, _ = _ORDER.unpack(each)
            coverage.add(first, last, stride or 1)
        report.stripes, report.absent_stripes = coverage.stripes, list(coverage.absent())
        report.holes, report.hole_count = coverage.holes(), coverage.hole_count

    def batches(self) -> Iterator[BatchReport]:
        """Each batch in the order of first ids, read and checked."""
        for report, _ in self._read(self._order):
            yield report

    def entries(self) -> Iterator[EntryReport]:
        """The entries of all intact batches, in the order of the batches' first ids."""
        for report, batch in self._read(self._order):
            if batch is None or not report.is_current:
                continue
            try:
                payloads = batch.payloads()
            except RemoteProtocolError as error:
                self._note(report, "damage", str(error))
                continue
            for entry_id, payload in zip(batch.entry_ids, payloads, strict=True):
                yield EntryReport(report.ledger_id, entry_id, report.stamp, payload)

    def payload(self, entry_id: int, stamp: int | None = None) -> bytes:
        """The payload of one entry: of this stamp, or of the highest. Raises `EntryNotFoundError`, `StorageUncertainError`."""
        found = [
            each
            for each in self._order
            if (fields := _ORDER.unpack(each))[0] <= entry_id <= fields[1]
            and (entry_id - fields[0]) % (fields[2] or 1) == 0
            and stamp in (None, fields[3])
        ]
        if not found:
            raise EntryNotFoundError(self._ledger_id, entry_id, "no batch in this storage holds it")
        problem = ""
        for report, batch in self._read(sorted(found, key=lambda each: -_ORDER.unpack(each)[3])):
            if batch is not None:
                return batch.payloads()[batch.entry_ids.index(entry_id)]
            problem = report.problem
        raise StorageUncertainError(f"entry {entry_id} of ledger {self._ledger_id}: {problem}", "Ask another bookie")

    def close(self) -> None:
        """Nothing stays open."""

    def _read(self, order: list[bytes]) -> Iterator[tuple[BatchReport, Batch | None]]:
        self.report.damaged_batches = 0
        with _opened(self._path) as (environment, _):
            at = 0
            while at < len(order):
                found: list[tuple[BatchReport, Batch | None]] = []
                read_bytes = 0
                with environment.begin() as transaction:
                    while at < len(order) and read_bytes < _BYTES_AT_ONCE:
                        found.append(self._check(transaction, order[at]))
                        read_bytes += found[-1][0].size_bytes
                        at += 1
                self._progress(read_bytes)
                yield from found

    def _check(self, transaction: lmdb.Transaction, ordered: bytes) -> tuple[BatchReport, Batch | None]:
        first, last, stride, stamp = _ORDER.unpack(ordered)
        key = _batch_key(self._ledger_id, stamp, first, last, stride)
        entries = (last - first) // (stride or 1) + 1
        known = BatchReport(DATA_FILE, 0, 0, self._ledger_id, stamp, first, last, stride or 1, entries, -1, 0, "")
        known.is_current = not self.report.is_deleted
        value = transaction.get(key)
        if value is None:
            self._note(known, "gone", "it was deleted since its key was read")
            return known, None
        known.size_bytes = len(value) - CHECKSUM_BYTES
        try:
            batch = unseal_batch(key, value)
        except DamagedError:
            self._note(known, "damage", "it doesn't match its checksum")
            return known, None
        report = report_batch(DATA_FILE, 0, batch.data)
        report.is_current = known.is_current
        if not report.problem and (batch.ledger_id, batch.first_entry_id, batch.last_entry_id) != (
            self._ledger_id,
            first,
            last,
        ):
            report = described(DATA_FILE, 0, batch)
            report.problem = "another batch stands here"
        if report.problem:
            self._note(report, "damage", report.problem)
            return report, None
        return report, decode(batch.data)

    def _note(self, batch: BatchReport, kind: str, problem: str) -> None:
        batch.problem = problem
        self.report.damaged_batches += kind == "damage"
        ids = f"entries {batch.first_entry_id} to {batch.last_entry_id} of stamp {batch.stamp}: {problem}"
        self.report.problems.append(Problem(self._data, 0, kind, ids))


def _batch_key(ledger_id: int, stamp: int, first: int, last: int, stride: int) -> bytes:
    return struct.pack(">cqqQQI", BATCH, ledger_id, stamp, first, last, stride)


# -- a storage ----------------------------------------------------------------------------------------------------


def inspect_storage(path: str, progress: Progress) -> StorageReport:
    """All there is to know of a storage, without reading its batches. Raises `StorageError`."""
    path = os.path.normpath(path)
    lock_path = f"{path}/{LOCK_FILE}"
    with _opened(path) as (environment, bookie_id):
        report = StorageReport(path, "lmdb", VERSION, bookie_id, is_locked(lock_path), owner_of(lock_path), None)
        _describe_vouching(path, report)
        deleted = _deleted(environment, f"{path}/{DATA_FILE}", report.problems)
        report.ledgers = sum(1 for _ in _keys(environment, LEDGER, LEDGER_KEY_BYTES))
        report.deleted_ledgers = sum(last - first + 1 for first, last in deleted)
        report.batches = report.batch_bytes = report.live_bytes = 0
        for key, size in _keys(environment, BATCH, BATCH_KEY_BYTES):
            size -= CHECKSUM_BYTES
            report.batches += 1
            report.batch_bytes += size
            report.live_bytes += 0 if unpack_batch_key(key)[1] in deleted else size
            progress(BATCH_KEY_BYTES)
    report.total_bytes = sum(each.stat().st_size for each in os.scandir(path) if each.is_file())
    report.free_bytes = free_bytes(path)
    return report


def _describe_vouching(path: str, report: StorageReport) -> None:
    """How far the storage was durable, and what it can't vouch for (B8)."""
    identity = identity_of(report.bookie_id)
    mark, doubt = (_read(f"{path}/{name}", report.problems) for name in (MARK_FILE, DOUBT_FILE))
    slot = None if mark is None else unpack_mark(mark)
    record = None if doubt is None else unpack_doubt(doubt)
    for name, found in ((MARK_FILE, slot), (DOUBT_FILE, record)):
        if found is None or found.identity != identity:
            words = "it is missing, damaged or another bookie's: at its next start the storage doubts all ledgers"
            report.problems.append(Problem(f"{path}/{name}", 0, "damage", words))
    report.durable_mark = None if slot is None else slot.position
    said = Doubt() if record is None else record.doubt
    report.doubted_below = max(said.doubted_below, 0 if slot is None else slot.doubted_below)
    report.lost_below = max(said.lost_below, 0 if slot is None else slot.lost_below)
    report.doubt_reasons = list(said.reasons)


def _read(path: str, problems: list[Problem]) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        problems.append(Problem(path, 0, "damage", f"it can't be read: {error}"))
        return None
