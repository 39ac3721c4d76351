"""Opening an environment: checks its owner and that it is whole, and makes everything that is read in it durable."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import attrs
import lmdb

from replog.backends.directory import identity_of, new_bookie_id
from replog.backends.disk import Disk, named_error, named_errors
from replog.backends.durable_mark import DurableMark, make_mark
from replog.backends.lmdb.directory import Former, read_bookie_id, write_format
from replog.backends.lmdb.options import LMDBStorageTuning
from replog.backends.lmdb.records import (
    DELETED,
    DROPPED,
    FORMAT_KEY,
    GARBAGE,
    LEDGER,
    LEDGER_KEY_BYTES,
    OPENINGS_KEY,
    DamagedError,
    format_text,
    pack_number,
    unpack_id_key,
    unpack_number,
    unseal,
)
from replog.backends.lmdb.vouching import vouch
from replog.backends.ranges import LedgerRanges
from replog.errors import (
    LocalProtocolError,
    StorageDamagedError,
    StorageIdentityError,
)
from replog.runtime.disk_errors import exists, free_bytes_at, is_full
from replog.runtime.lmdb_file import DATA_FILE, DataFileDamagedError, check_data_file, is_half_made, make_data_file
from replog.runtime.lmdb_map import ForkedInUseError, LMDBMap

NEW_BYTES = 192 << 10  # what the files of a new storage take, with the pages of its first commits
RESERVE_BYTES = 4 << 20  # of the map, for fences and deletions when it is full
_RECOVER = "Recover this bookie's copies from the others, into a new directory"


@attrs.define
class Opened:
    """The contents of a directory."""

    bookie_id: str
    lmdb_map: LMDBMap
    mark: DurableMark
    deleted: LedgerRanges
    garbage: list[int]
    ledgers: int
    with_dropped: set[int]


def open_directory(disk: Disk, path: str, options: LMDBStorageTuning, former: Former) -> Opened:
    """Opens the storage in a directory that is locked, or makes one. On an error nothing stays open."""
    bookie_id = read_bookie_id(disk, path, options.expected_bookie_id)
    data = f"{path}/{DATA_FILE}"
    if bookie_id is None:
        _check_half_made(path)
        bookie_id = new_bookie_id(disk, options.expected_bookie_id, path)
        with _named_lmdb_errors(path):
            _make(disk, path, bookie_id)
    elif not _exists(data):
        # LMDB would make an empty one, and the bookie would deny all that it acknowledged.
        raise StorageDamagedError(f"{data} is missing", _RECOVER)
    mark = DurableMark(disk, path, identity_of(bookie_id))
    try:
        with _named_lmdb_errors(path):
            # Before LMDB maps the file: it follows damaged pages blindly.
            vouch(path, data, bookie_id, mark, former)
            lmdb_map = LMDBMap(path, options.map_bytes, options.map_bytes_max, read_ahead=options.read_ahead)
            try:
                return _look(lmdb_map, bookie_id, data, mark)
            except BaseException:
                lmdb_map.close()
                raise
    except BaseException:
        mark.close()
        raise


def iterate_ids(transaction: lmdb.Transaction, kind: bytes) -> Iterator[int]:
    """The ledger ids in the keys of this kind."""
    with transaction.cursor() as cursor:
        if not cursor.set_range(kind):
            return
        for key in cursor.iternext(keys=True, values=False):
            if key[:1] != kind:
                return
            if len(key) == LEDGER_KEY_BYTES:  # else a series
                yield unpack_id_key(key)


def _look(lmdb_map: LMDBMap, bookie_id: str, data: str, mark: DurableMark) -> Opened:
    environment = lmdb_map.environment
    with environment.begin(buffers=True) as transaction:
        found = bytes(transaction.get(FORMAT_KEY) or b"")
        if found != format_text(bookie_id):
            raise StorageIdentityError(
                f"{data} says {found.decode('ascii', 'replace')!r}, expected {format_text(bookie_id).decode()!r}",
                "Nothing was touched: put the right file there",
            )
        deleted, damaged = _read_deleted(transaction)
        # A key of garbage has no checksum: a ledger that was not deleted is not removed, even if such a key names it.
        garbage = [ledger_id for ledger_id in iterate_ids(transaction, GARBAGE) if ledger_id in deleted]
        ledgers = sum(1 for _ in iterate_ids(transaction, LEDGER))
        with_dropped = set(iterate_ids(transaction, DROPPED))
    if damaged:
        reasons = [f"{data}: the record of deleted ledgers from {unpack_id_key(key)} on is damaged" for key in damaged]
        # What such a record deleted may come back, fences of deleted ledgers included: so the bookie can't vouch (B8).
        mark.raise_doubt(reasons, is_lost=True, position=int(environment.info()["last_txnid"]))
    _settle(lmdb_map, damaged)
    mark.advance(int(environment.info()["last_txnid"]))
    return Opened(bookie_id, lmdb_map, mark, deleted, garbage, ledgers, with_dropped)


def _read_deleted(transaction: lmdb.Transaction) -> tuple[LedgerRanges, list[bytes]]:
    """The ledgers that were deleted, and the keys of such records that are damaged: what those deleted may come back."""
    deleted = LedgerRanges()
    damaged: list[bytes] = []
    with transaction.cursor() as cursor:
        more = cursor.set_range(DELETED)
        while more and cursor.key()[:1] == DELETED:
            try:
                last = unpack_number(unseal(bytes(cursor.key()), cursor.value()))
                deleted.add(unpack_id_key(cursor.key()), last)
            except DamagedError:
                damaged.append(bytes(cursor.key()))
            more = cursor.next()
    return deleted, damaged


def _settle(lmdb_map: LMDBMap, damaged: Iterable[bytes]) -> None:
    """Makes everything that was read durable, and removes these damaged records.

    A process that was killed may have left its last commit in the page cache only, where it looks as if it were on the disk.
    The sync of a commit after it makes both durable."""
    try:
        with lmdb_map.writing, lmdb_map.environment.begin(write=True) as transaction:
            openings = unpack_number(transaction.get(OPENINGS_KEY, pack_number(0)))
            transaction.put(OPENINGS_KEY, pack_number(openings + 1))
            for key in damaged:
                transaction.delete(key)
    except lmdb.Error as error:
        if not isinstance(error, lmdb.MapFullError) and not is_full(error, free_bytes_at(lmdb_map.path)):
            raise
        # Without space for a record, the sync alone makes everything that was read durable.
        lmdb_map.environment.sync(True)
        lmdb_map.mend()


def _exists(data: str) -> bool:
    with named_errors(f"look for {data}"):
        return exists(data)


def _make(disk: Disk, path: str, bookie_id: str) -> None:
    # In this order: the format file comes last, and says that all else is there.
    make_mark(disk, path, identity_of(bookie_id))
    make_data_file(path, [(FORMAT_KEY, format_text(bookie_id))])
    write_format(disk, path, bookie_id)


def _check_half_made(path: str) -> None:
    """Refuses to make a storage over one that holds anything, or that a crash did not leave half made."""
    data = f"{path}/{DATA_FILE}"
    with _named_lmdb_errors(path):
        if not exists(data) or is_half_made(data):
            return
        check_data_file(data)
        with lmdb.open(path, readonly=True, lock=False) as environment, environment.begin() as transaction:
            keys = [bytes(key) for key in itertools.islice(transaction.cursor().iternext(values=False), 3)]
    if set(keys) - {FORMAT_KEY}:
        raise StorageDamagedError(
            f"{path}/storage.json is missing, but {data} holds records",
            "Nothing was touched: restore the file, or recover this bookie's copies from the others",
        )


@contextmanager
def _named_lmdb_errors(path: str) -> Iterator[None]:
    try:
        yield
    except ForkedInUseError as error:
        raise LocalProtocolError(str(error)) from error
    except DataFileDamagedError as error:
        raise StorageDamagedError(f"{path}/{DATA_FILE} is damaged {error}", _RECOVER) from error
    except OSError as error:
        raise named_error(f"open {path}", error) from error
    except (lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.CorruptedError, lmdb.PageNotFoundError) as error:
        raise StorageDamagedError(f"{path}/{DATA_FILE} can't be read: {error}", _RECOVER) from error
    except lmdb.Error as error:
        raise named_error(f"open {path}", error, free_bytes_at(path)) from error
