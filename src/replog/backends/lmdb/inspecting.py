"""Looking into an LMDB storage from outside, on a stopped bookie or a running one: nothing stored is ever changed.

While a bookie runs, this reads as LMDB's readers do, with a place in the table of readers in lock.mdb: without it the pages
that are being read could be used again. Of a stopped one not even that file is touched. Transactions are short, so that
the bookie's environment does not grow for them; a batch that is deleted in between is reported as gone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import lmdb

from replog.backends.directory import FORMAT_FILE, LOCK_FILE, identity_of
from replog.backends.disk import named_errors
from replog.backends.inspection.ledgers import IDENTITY, Copy, LedgerInspection
from replog.backends.inspection.read_only import READ_ONLY, Progress, is_locked, owner_of
from replog.backends.inspection.reports import BatchReport, LedgerReport, Problem, StorageReport, read_vouching
from replog.backends.lmdb.directory import read_bookie_id
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
from replog.errors import StorageDamagedError, StorageFailedError, StorageIdentityError
from replog.protocol.mutations import DELETED_TERM
from replog.runtime.disk_errors import exists
from replog.runtime.lmdb_file import DATA_FILE, DataFileDamagedError, check_data_file

_KEYS_AT_ONCE = 10_000  # in one transaction
_BYTES_AT_ONCE = 16 << 20


@contextmanager
def _opened(path: str) -> Iterator[tuple[lmdb.Environment, str]]:
    """The environment and the bookie's id. Raises `StorageIdentityError`, `StorageDamagedError`, `StorageFailedError`."""
    bookie_id = read_bookie_id(READ_ONLY, path, "")
    if bookie_id is None:
        raise StorageIdentityError(
            f"{path} holds no storage of replog: it has no {FORMAT_FILE}",
            "Nothing was touched: name the right directory",
        )
    data = f"{path}/{DATA_FILE}"
    with named_errors(f"look for {data}"):
        is_there = exists(data)
    if not is_there:
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


def _begin(environment: lmdb.Environment, *, buffers: bool = False) -> Any:
    """Begins a transaction; first takes over the size of the map if a running bookie has made it larger."""
    while True:
        try:
            return environment.begin(buffers=True) if buffers else environment.begin()
        except lmdb.MapResizedError:
            environment.set_mapsize(0)


def _check(environment: lmdb.Environment, data: str, bookie_id: str) -> None:
    with _begin(environment) as transaction:
        if transaction.get(FORMAT_KEY) != format_text(bookie_id):
            raise StorageIdentityError(f"{data} is not of {bookie_id}", "Nothing was touched: put the right file there")


def _keys(environment: lmdb.Environment, start: bytes, length: int) -> Iterator[tuple[bytes, int]]:
    """The keys that begin so and are so long, and the sizes of their values, in transactions of their own."""
    key = start
    is_over = False
    while not is_over:
        found: list[tuple[bytes, int]] = []
        with _begin(environment, buffers=True) as transaction, transaction.cursor() as cursor:
            more = cursor.set_range(key)
            # A transaction that stays open keeps every page that a running bookie frees since: its file would grow.
            for _ in range(_KEYS_AT_ONCE):
                if not more or bytes(cursor.key()[: len(start)]) != start:
                    is_over = True
                    break
                key = bytes(cursor.key())
                if len(key) == length:
                    found.append((key, len(cursor.value())))
                more = cursor.next()
        yield from found
        # The least key above the last one.
        key += b"\0"


def _deleted(environment: lmdb.Environment, data: str, problems: list[Problem]) -> LedgerRanges:
    deleted = LedgerRanges()
    for key, _ in _keys(environment, DELETED, LEDGER_KEY_BYTES):
        with _begin(environment) as transaction:
            value = transaction.get(key)
        if value is None:
            # A bookie that runs joins ranges: the ids of this one are in another record now.
            continue
        try:
            deleted.add(unpack_id_key(key), unpack_number(unseal(key, value)))
        except DamagedError:
            reason = f"the record of deleted ledgers from {unpack_id_key(key)} on doesn't match its checksum"
            problems.append(Problem(data, 0, "damage", reason))
    return deleted


# -- a ledger -----------------------------------------------------------------------------------------------------


def inspect_ledger(path: str, ledger_id: int, progress: Progress) -> LedgerInspection:
    """The storage's content of a ledger. Raises `StorageError`."""
    data = f"{path}/{DATA_FILE}"
    report = LedgerReport(ledger_id, is_known=False, is_deleted=False)
    keys: list[bytes] = []
    sizes: dict[bytes, int] = {}
    with _opened(path) as (environment, _):
        report.is_deleted = ledger_id in _deleted(environment, data, report.problems)
        if report.is_deleted:
            report.is_known, report.fence_term = True, DELETED_TERM
        else:
            _describe_marks(environment, data, report)
        for found, size in _keys(environment, id_key(BATCH, ledger_id), BATCH_KEY_BYTES):
            _, _, stamp, first, last, stride = unpack_batch_key(found)
            key = IDENTITY.pack(first, last, stride or 1, stamp) + found
            keys.append(key)
            sizes[key] = size - CHECKSUM_BYTES
    return LedgerInspection(report, keys, _Records(path, sizes, progress))


def _describe_marks(environment: lmdb.Environment, data: str, report: LedgerReport) -> None:
    key = id_key(LEDGER, report.ledger_id)
    with _begin(environment) as transaction:
        value = transaction.get(key)
    if value is None:
        return
    report.is_known = True
    try:
        marks = unpack_marks(unseal(key, value))
    except DamagedError:
        report.problems.append(Problem(data, 0, "damage", "the ledger's marks don't match their checksum"))
        return
    report.fence_term, report.has_key = marks.fence_term, marks.key is not None
    report.last_add_confirmed, report.last_entry_id = marks.last_add_confirmed, marks.last_entry_id


class _Records:
    """Reads batches by their keys. LMDB does not say where in its file a batch stands: all offsets are 0."""

    def __init__(self, path: str, sizes: dict[bytes, int], progress: Progress) -> None:
        self._path = path
        self._sizes = sizes
        self._progress = progress

    def size_of(self, key: bytes) -> int:
        """The size of a copy (`Copies.size_of`)."""
        return self._sizes[key]

    def problem(self, batch: BatchReport, kind: str, reason: str) -> Problem:
        """A problem of a batch (`Copies.problem`): by its entries, since no place is known."""
        ids = f"entries {batch.first_entry_id} to {batch.last_entry_id} of stamp {batch.stamp}: {reason}"
        return Problem(f"{self._path}/{DATA_FILE}", 0, kind, ids)

    def read(self, keys: Iterable[bytes]) -> Iterator[Copy]:
        """Reads the copies (`Copies.read`), some megabytes in a transaction."""
        left = list(keys)
        # So that pops take them in order.
        left.reverse()
        with _opened(self._path) as (environment, _):
            while left:
                found: list[Copy] = []
                read_bytes = 0
                with _begin(environment) as transaction:
                    while left and read_bytes < _BYTES_AT_ONCE:
                        found.append(_read_batch(transaction, left.pop()))
                        read_bytes += found[-1].report.size_bytes
                self._progress(read_bytes)
                yield from found

    def close(self) -> None:
        """Nothing stays open."""


def _read_batch(transaction: lmdb.Transaction, key: bytes) -> Copy:
    first, last, stride, stamp = IDENTITY.unpack_from(key)
    found = key[IDENTITY.size :]
    entries = (last - first) // stride + 1
    ledger_id = unpack_batch_key(found)[1]
    value = transaction.get(found)
    size = 0 if value is None else len(value) - CHECKSUM_BYTES
    known = BatchReport(DATA_FILE, 0, size, ledger_id, stamp, first, last, stride, entries, -1, 0, "")
    if value is None:
        return Copy(known, b"", "gone", "it was deleted since its key was read")
    try:
        return Copy(known, unseal_batch(found, value).data)
    except DamagedError:
        return Copy(known, b"", "damage", "it doesn't match its checksum")


# -- a storage ----------------------------------------------------------------------------------------------------


def inspect_storage(path: str, progress: Progress) -> StorageReport:
    """All there is to know of a storage, without reading its batches. Raises `StorageError`."""
    path = os.path.normpath(path)
    lock_path = f"{path}/{LOCK_FILE}"
    with _opened(path) as (environment, bookie_id):
        report = StorageReport(path, "lmdb", VERSION, bookie_id, is_locked(lock_path), owner_of(lock_path), None)
        read_vouching(path, identity_of(bookie_id)).describe(report)
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
    report.free_bytes = READ_ONLY.free_bytes(path)
    return report
