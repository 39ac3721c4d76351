"""A metastore in an SQLite file: `sqlite:PATH`, for the processes of one machine.

Rules: every change is one transaction, durable when it is answered. A version is the number of a row, and SQLite gives out
none of them twice, not even after a deletion. `database` knows files, threads and errors; this module knows keys.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Sequence
from math import inf

import attrs
from attrs.validators import gt, lt

from replog.abc import Metastore, ValuesPage, Versioned, check_key, check_value
from replog.errors import ConfigError, KeyExistsError, KeyNotFoundError, VersionConflictError
from replog.hookspecs import Backend, hookimpl
from replog_sqlite.database import CHANGE, READ, Database


@attrs.frozen(kw_only=True)
class SQLiteOptions:
    """A call takes `timeout_s` at most. A process that announced something counts as alive for `lease_s` after a sign
    of life."""

    timeout_s: float = attrs.field(default=10.0, validator=[gt(0), lt(inf)])
    lease_s: float = attrs.field(default=10.0, validator=[gt(0), lt(inf)])


class SQLiteMetastore(Metastore):
    """The metastore in a file, which is opened, and made, at the first call. For one trio run. A call that is cancelled or
    out of time before it was begun never happens. In a fork of a process that has one open, none can be used."""

    def __init__(self, path: str | os.PathLike[str], options: SQLiteOptions = SQLiteOptions()) -> None:
        self._database = Database(os.fspath(path), options.timeout_s)
        self.lease_s = options.lease_s

    async def create(self, key: str, value: bytes) -> int:
        """Creates the key and returns its version. Raises `KeyExistsError`, `MetastoreUncertainError`."""
        check_key(key)
        check_value(key, value)
        return await self._database.run(CHANGE, _create, key, bytes(value))

    async def get(self, key: str) -> Versioned:
        """Raises `KeyNotFoundError` only if the key does not exist."""
        check_key(key)
        return await self._database.run(READ, _find, key)

    async def put(self, key: str, value: bytes, expected: int) -> int:
        """Replaces the value and returns the new version.

        Raises `VersionConflictError`, `KeyNotFoundError`, `MetastoreUncertainError`."""
        check_key(key)
        check_value(key, value)
        return await self._database.run(CHANGE, _put, key, bytes(value), expected)

    async def delete(self, key: str, expected: int | None = None) -> None:
        """Deletes the key. Raises `VersionConflictError`, `KeyNotFoundError`, `MetastoreUncertainError`."""
        check_key(key)
        await self._database.run(CHANGE, _delete, key, expected)

    async def children(self, key: str) -> list[str]:
        """The words that follow the key in existing keys, sorted."""
        check_key(key)
        return await self._database.run(READ, _children, key)

    async def values(self, key: str) -> dict[str, Versioned]:
        """The keys right below this one, by their last words, as they were at one moment."""
        return (await self.values_page(key, "", sys.maxsize)).values

    async def values_page(self, key: str, first: str, count_max: int) -> ValuesPage:
        """The keys right below this one from this last word on, as they were at one moment."""
        check_key(key)
        return await self._database.run(READ, _values_page, key, first, count_max)

    async def aclose(self) -> None:
        """Closes the file once no call is at it. Idempotent; later calls raise `trio.ClosedResourceError`."""
        await self._database.aclose()


def _find(file: sqlite3.Connection, key: str, expected: int | None = None) -> Versioned:
    found = file.execute("SELECT value, version FROM entries WHERE key = ?", (key,)).fetchone()
    if found is None:
        raise KeyNotFoundError(key, "it does not exist")
    if expected is not None and expected != found[1]:
        raise VersionConflictError(key, expected, found[1])
    return Versioned(*found)


def _create(file: sqlite3.Connection, key: str, value: bytes) -> int:
    if file.execute("SELECT version FROM entries WHERE key = ?", (key,)).fetchone():
        raise KeyExistsError(key, "it exists already: nothing was written")
    return _write(file, key, value)


def _put(file: sqlite3.Connection, key: str, value: bytes, expected: int) -> int:
    _find(file, key, expected)
    return _write(file, key, value)


def _write(file: sqlite3.Connection, key: str, value: bytes) -> int:
    """The row gets a new number: REPLACE deletes and inserts."""
    version = file.execute("REPLACE INTO entries (key, value) VALUES (?, ?)", (key, value)).lastrowid
    assert version is not None
    return version


def _delete(file: sqlite3.Connection, key: str, expected: int | None) -> None:
    _find(file, key, expected)
    file.execute("DELETE FROM entries WHERE key = ?", (key,))


_BELOW = "FROM entries WHERE key >= ? AND key < ?"


def _children(file: sqlite3.Connection, key: str) -> list[str]:
    """From word to word, not from key to key: what it costs grows with the children, not with all that is below them."""
    words, start, end = set(), f"{key}/", f"{key}0"  # "0" follows "/"
    while (found := file.execute(f"SELECT min(key) {_BELOW}", (start, end)).fetchone()[0]) is not None:
        word, *deeper = found[len(key) + 1 :].split("/", 1)
        words.add(word)
        start = f"{key}/{word}0" if deeper else f"{found} "  # a space is the first of all printable characters
    return sorted(words)


def _values_page(file: sqlite3.Connection, key: str, first: str, count_max: int) -> ValuesPage:
    """From key to key, and past those below a word."""
    values: dict[str, Versioned] = {}
    start, end = f"{key}/{first}", f"{key}0"
    while row := file.execute(f"SELECT key, value, version {_BELOW} ORDER BY key LIMIT 1", (start, end)).fetchone():
        found, value, version = row
        word, *deeper = found[len(key) + 1 :].split("/", 1)
        if deeper:
            start = f"{key}/{word}0"
        elif len(values) == count_max:
            return ValuesPage(values, word)
        else:
            values[word], start = Versioned(value, version), f"{found} "
    return ValuesPage(values, None)


@hookimpl
def replog_metastores() -> Sequence[Backend[Metastore]]:
    """Offers "sqlite"."""
    return [Backend("sqlite", _open, SQLiteOptions, summary="an SQLite file on this machine: sqlite:PATH")]


def _open(rest: str, options: SQLiteOptions) -> Metastore:
    if not rest or "\0" in rest:
        raise ConfigError(f"sqlite:{rest!r} names no file; write sqlite:PATH")
    return SQLiteMetastore(rest, options)
