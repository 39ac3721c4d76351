"""LMDB as a log on one node: an ascending key for each entry, appended at the end of the tree, a transaction for each call."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.metadata import version
from pathlib import Path

import lmdb

from benchmarks.peers.local import LocalRunning
from benchmarks.peers.system import Promise

_MAP_BYTES = 64 << 30  # of addresses; the file is only as long as what was written
_KEY = struct.Struct(">Q")


class LMDBStore:
    """The tree."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self._environment = lmdb.open(str(directory), map_size=_MAP_BYTES, sync=True, metasync=True)
        with self._environment.begin() as transaction, transaction.cursor() as cursor:
            self._next = _KEY.unpack(cursor.key())[0] + 1 if cursor.last() else 0

    def append(self, entries: list[bytes]) -> None:
        """As `Store.append`."""
        last = self._next + len(entries)
        with self._environment.begin(write=True) as transaction:
            if len(entries) == 1:
                transaction.put(_KEY.pack(self._next), entries[0], append=True)
            else:
                keys = map(_KEY.pack, range(self._next, last))
                with transaction.cursor() as cursor:
                    cursor.putmulti(list(zip(keys, entries, strict=True)), append=True)
        self._next = last

    def read(self) -> int:
        """As `Store.read`."""
        with self._environment.begin() as transaction, transaction.cursor() as cursor:
            return sum(1 for _ in cursor.iternext(keys=False, values=True))

    def clear(self) -> None:
        """As `Store.clear`: pages of deleted entries are used again."""
        with self._environment.begin(write=True) as transaction:
            transaction.drop(self._environment.open_db(txn=transaction), delete=False)

    def close(self) -> None:
        """As `Store.close`."""
        self._environment.close()


def open_store(directory: Path) -> LMDBStore:
    """In a directory below this one, since LMDB wants one of its own."""
    return LMDBStore(directory / "entries")


class LMDB:
    """The system."""

    name = "lmdb"
    title = "LMDB"
    is_replicated = False
    promise = Promise(
        copies=1,
        confirmed_by=1,
        is_synced=True,
        words="one file in this process: sync on (fdatasync for each transaction), MDB_APPEND, an ascending key for each entry; "
        "a call with several entries is one `putmulti`",
    )

    def missing(self) -> str | None:
        """replog needs it itself."""
        return None

    def version(self) -> str:
        """Of the library, and of what binds it to Python."""
        return f"{'.'.join(map(str, lmdb.version()))} (py-lmdb {version('lmdb')})"

    @contextmanager
    def running(self, directory: Path) -> Iterator[LocalRunning]:
        """An empty tree."""
        with closing(LocalRunning(__name__, directory)) as running:
            yield running


SYSTEM = LMDB()
