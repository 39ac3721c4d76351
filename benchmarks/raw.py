"""The disk alone, and SQLite on it: what appends one by one, and a thousand per call, are compared with."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from benchmarks.figures import clock

_FILE_BYTES = 64 << 20
_BLOCK_BYTES = 4096


def zero_filled(path: Path, size_bytes: int = _FILE_BYTES) -> Path:
    """A file that need not grow any more. Filled in large pieces: small ones leave slow pieces in the page cache."""
    if not path.exists():
        with path.open("wb", buffering=0) as file:
            for _ in range(size_bytes >> 20):
                file.write(bytes(1 << 20))
            os.fsync(file.fileno())
    return path


def raw_fdatasync(directory: Path, seconds: float) -> list[float]:
    """How long it takes to write 4 KiB into a file that need not grow, and sync it: the least of anything durable."""
    path = zero_filled(directory / "raw")
    block, offset = os.urandom(_BLOCK_BYTES), 0
    durations: list[float] = []
    fd = os.open(path, os.O_RDWR)
    try:
        deadline = clock() + seconds
        while not durations or clock() < deadline:
            started = clock()
            os.pwrite(fd, block, offset)
            os.fdatasync(fd)
            durations.append(clock() - started)
            offset = (offset + _BLOCK_BYTES) % _FILE_BYTES
    finally:
        os.close(fd)
    return durations


@contextmanager
def sqlite_inserts(directory: Path, entry_bytes: int, rows_per_commit: int) -> Iterator[Callable[[float], list[float]]]:
    """Commits rows to a SQLite table for so many seconds, and tells how long each commit took. They are as durable as
    replog's entries: write-ahead log, synchronous=FULL."""
    rows = [(os.urandom(entry_bytes),) for _ in range(rows_per_commit)]
    with closing(
        sqlite3.connect(directory / f"sqlite-{entry_bytes}-{rows_per_commit}", isolation_level=None)
    ) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
        database.execute("CREATE TABLE IF NOT EXISTS entries (id INTEGER PRIMARY KEY, data BLOB NOT NULL)")
        yield lambda seconds: _insert(database, rows, seconds)
        database.execute("DELETE FROM entries")


def _insert(database: sqlite3.Connection, rows: list[tuple[bytes]], seconds: float) -> list[float]:
    durations: list[float] = []
    deadline = clock() + seconds
    while not durations or clock() < deadline:
        started = clock()
        database.execute("BEGIN")
        database.executemany("INSERT INTO entries (data) VALUES (?)", rows)
        database.execute("COMMIT")
        durations.append(clock() - started)
    return durations
