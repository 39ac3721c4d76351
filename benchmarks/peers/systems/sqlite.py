"""SQLite as a log on one node: a table with an integer key, a row for each entry, a transaction for each call."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from benchmarks.peers.local import LocalRunning
from benchmarks.peers.system import Promise

_READ_ROWS = 1000
_INSERT = "INSERT INTO entries (data) VALUES (?)"


class SQLiteStore:
    """The table."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=FULL")
        self._database.execute("CREATE TABLE IF NOT EXISTS entries (id INTEGER PRIMARY KEY, data BLOB NOT NULL)")

    def append(self, entries: list[bytes]) -> None:
        """As `Store.append`."""
        if len(entries) == 1:
            self._database.execute(_INSERT, entries)  # a transaction of its own
        else:
            self._database.execute("BEGIN")
            self._database.executemany(_INSERT, zip(entries))
            self._database.execute("COMMIT")

    def read(self) -> int:
        """As `Store.read`."""
        found, rows = 0, self._database.execute("SELECT data FROM entries ORDER BY id")
        while some := rows.fetchmany(_READ_ROWS):
            found += len(some)
        return found

    def clear(self) -> None:
        """As `Store.clear`: pages of deleted rows, and the file of the WAL, are used again."""
        self._database.execute("DELETE FROM entries")
        self._database.execute("PRAGMA wal_checkpoint(RESTART)")

    def close(self) -> None:
        """As `Store.close`."""
        self._database.close()


def open_store(directory: Path) -> SQLiteStore:
    """In this directory."""
    return SQLiteStore(directory / "entries.sqlite")


class SQLite:
    """The system."""

    name = "sqlite"
    title = "SQLite"
    is_replicated = False
    promise = Promise(
        copies=1,
        confirmed_by=1,
        is_synced=True,
        words="one file in this process: journal_mode=WAL, synchronous=FULL, a row for each entry; the WAL is synced for each "
        "transaction, and copied into the table by SQLite's automatic checkpoints",
    )

    def missing(self) -> str | None:
        """It comes with Python."""
        return None

    def version(self) -> str:
        """Of the library."""
        return sqlite3.sqlite_version

    @contextmanager
    def running(self, directory: Path) -> Iterator[LocalRunning]:
        """An empty table."""
        with closing(LocalRunning(__name__, directory)) as running:
            yield running


SYSTEM = SQLite()
