"""Keys and values in an LMDB environment (format 1), read and written within a transaction.

    \\0format            what this is, and its version
    \\0version           the last version given out, 8 bytes
    k WORD \\0 WORD ...  a key, its words separated by NUL so that what is below a key follows it: a head of 20 bytes (version,
                        kind, and for what is announced the seat of its process), then the value
    s WORD \\0 WORD ...  the same key once more if it is announced, empty: to find what dead processes left

Keys that a dead process announced (`presence.py`) do not exist for any reader. The next process that announces a key
overwrites or removes them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from replog.abc import ValuesPage, Versioned
from replog.errors import KeyExistsError, KeyNotFoundError, MetastoreCorruptError, VersionConflictError
from replog.metastores.presence import Presence, Seat

if TYPE_CHECKING:
    import lmdb

FORMAT_KEY = b"\0format"
FORMAT = b"replog metastore 1"
_VERSION_KEY = b"\0version"
_HEAD = struct.Struct(">QBHQx")  # version, kind, seat number, seat incarnation
_PLAIN, _ANNOUNCED = 0, 1


@attrs.frozen
class _Record:
    version: int
    seat: Seat | None
    value: memoryview

    def copy(self) -> Versioned:
        # The view is into the map, and ends with the transaction.
        return Versioned(bytes(self.value), self.version)


@attrs.frozen
class Words:
    """The words below a key at one moment: after the change with the number `last_change`, which LMDB can tell of a little
    before it can be read. `is_fickle`: one of them may vanish without any commit, because it is announced."""

    words: list[str]
    is_fickle: bool
    last_change: int


class Reading:
    """Questions to one snapshot. Raises `KeyNotFoundError`, and what LMDB raises."""

    def __init__(self, transaction: lmdb.Transaction, presence: Presence) -> None:
        self._transaction = transaction
        self._presence = presence

    def format(self) -> bytes | None:
        """The format that the environment names; None if it is empty; b"" if it holds something else."""
        found = self._transaction.get(FORMAT_KEY)
        if found is not None:
            return bytes(found)
        return b"" if self._transaction.stat()["entries"] else None

    def get(self, key: str) -> Versioned:
        """The value."""
        found = self._find(key)
        if found is None:
            raise KeyNotFoundError(key, "it does not exist")
        return found.copy()

    def version(self, key: str) -> int | None:
        """The version, or None if the key does not exist."""
        return self.look(key)[0]

    def look(self, key: str) -> tuple[int | None, bool]:
        """The version of the key; and whether it may change without a commit, because the key is announced."""
        found = self._transaction.get(_stored(key))
        if found is None:
            return None, False
        record = _parse(found)
        return record.version if self._exists(record) else None, record.seat is not None

    @property
    def last_change(self) -> int:
        """The number of the last change that this snapshot has."""
        return int(self._transaction.id())

    def children(self, key: str, first: str = "", count_max: int | None = None) -> Words:
        """The words below a key, from `first` on."""
        prefix = _stored(key) + b"\0"
        words: list[str] = []
        fickle = False
        with self._transaction.cursor() as cursor:
            more = cursor.set_range(prefix + first.encode())
            while more and len(words) != count_max and bytes(found := cursor.key())[: len(prefix)] == prefix:
                rest = bytes(found[len(prefix) :])
                word = rest.partition(b"\0")[0]
                record = _parse(cursor.value())
                fickle = fickle or record.seat is not None
                if self._exists(record):
                    words.append(word.decode())
                    # Skips all keys below this word: otherwise listing a directory would read everything that is below it.
                    more = cursor.set_range(prefix + word + b"\1")
                else:
                    # There may be something below it that does exist.
                    more = cursor.next()
        return Words(words, fickle, self.last_change)

    def values(self, key: str) -> dict[str, Versioned]:
        """The values right below a key, by their last words."""
        return {word: record.copy() for word, record in self._right_below(key, self.children(key).words).items()}

    def values_page(self, key: str, first: str, count_max: int) -> ValuesPage:
        """The values right below a key from this word on, so many at most."""
        words = self.children(key, first, count_max + 1).words
        below = self._right_below(key, words[:count_max])
        next_first = words[count_max] if len(words) > count_max else None
        return ValuesPage({word: record.copy() for word, record in below.items()}, next_first)

    def announced(self, key: str) -> dict[str, bytes]:
        """The announced ones among the keys right below this one."""
        below = self._right_below(key, self.children(key).words)
        return {word: bytes(record.value) for word, record in below.items() if record.seat is not None}

    def _right_below(self, key: str, words: Sequence[str]) -> dict[str, _Record]:
        records = {word: self._find(f"{key}/{word}") for word in words}
        return {word: record for word, record in records.items() if record is not None}

    def _find(self, key: str) -> _Record | None:
        found = self._transaction.get(_stored(key))
        if found is None:
            return None
        record = _parse(found)
        return record if self._exists(record) else None

    def _exists(self, record: _Record) -> bool:
        return record.seat is None or self._presence.is_there(record.seat)


class Writing(Reading):
    """Changes in one write transaction. Each raises before it has written anything, or does all of it."""

    def __init__(self, transaction: lmdb.Transaction, presence: Presence) -> None:
        super().__init__(transaction, presence)
        self._version_before = self._version = int.from_bytes(transaction.get(_VERSION_KEY) or b"", "big")

    def initialize(self) -> int:
        """Makes an empty environment one of ours; leaves any other as it is."""
        if self.format() is None:
            self._transaction.put(FORMAT_KEY, FORMAT)
        return 0

    def settle(self) -> None:
        """Writes what changes nothing."""
        self._transaction.put(FORMAT_KEY, FORMAT)

    def create(self, key: str, value: bytes) -> int:
        """Creates the key and returns its version. Raises `KeyExistsError`."""
        if self._find(key) is not None:
            raise KeyExistsError(key, "it exists already: nothing was written")
        # A dead process may have announced this key: its entry for sweeps would stay permanently.
        self._forget_announced(key)
        return self._store(key, value, None)

    def put(self, key: str, value: bytes, expected: int) -> int:
        """Replaces the value and returns the new version. Raises `VersionConflictError`, `KeyNotFoundError`."""
        found = self._check(key, expected)
        # With its seat: an announcement that is changed is still an announcement.
        return self._store(key, value, found.seat)

    def delete(self, key: str, expected: int | None) -> int:
        """Deletes the key. Raises `VersionConflictError`, `KeyNotFoundError`."""
        self._check(key, expected)
        self._forget_announced(key)
        self._transaction.delete(_stored(key))
        return 0

    def announce(self, key: str, value: bytes) -> int:
        """Creates a key that exists only while this process does. Removes announcements of dead processes."""
        if self._find(key) is not None:
            raise KeyExistsError(key, "another client announces it: nothing was written")
        # Here, since announcements are rare, and its maker needs the writer lock anyway.
        self._sweep()
        version = self._store(key, value, self._presence.sit_down())
        self._transaction.put(_announced(key), b"")
        return version

    def finish(self) -> None:
        """To be called before the commit."""
        # A transaction in which every change failed writes nothing, and costs no sync.
        if self._version != self._version_before:
            self._transaction.put(_VERSION_KEY, self._version.to_bytes(8, "big"))

    def _store(self, key: str, value: bytes, seat: Seat | None) -> int:
        self._version += 1
        kind, number, incarnation = (_PLAIN, 0, 0) if seat is None else (_ANNOUNCED, seat.number, seat.incarnation)
        self._transaction.put(_stored(key), _HEAD.pack(self._version, kind, number, incarnation) + value)
        return self._version

    def _check(self, key: str, expected: int | None) -> _Record:
        found = self._find(key)
        if found is None:
            raise KeyNotFoundError(key, "it does not exist")
        if expected is not None and found.version != expected:
            raise VersionConflictError(key, expected, found.version)
        return found

    def _forget_announced(self, key: str) -> None:
        self._transaction.delete(_announced(key))

    def _sweep(self) -> None:
        """Deletes announcements of processes that are gone permanently; silent ones may come back."""
        found = []
        with self._transaction.cursor() as cursor:
            more = cursor.set_range(b"s")
            while more and bytes(cursor.key())[:1] == b"s":
                found.append(bytes(cursor.key()))
                more = cursor.next()
        # Only now: deleting below a cursor moves it, and it would skip keys.
        for announced in found:
            stored = b"k" + announced[1:]
            value = self._transaction.get(stored)
            seat = None if value is None else _parse(value).seat
            if seat is not None and self._presence.is_gone(seat):
                self._transaction.delete(stored)
                self._transaction.delete(announced)


def _stored(key: str) -> bytes:
    return b"k" + key.encode().replace(b"/", b"\0")


def _announced(key: str) -> bytes:
    return b"s" + key.encode().replace(b"/", b"\0")


def _parse(stored: bytes | memoryview) -> _Record:
    try:
        version, kind, number, incarnation = _HEAD.unpack_from(stored)
    except struct.error as error:
        raise MetastoreCorruptError(
            f"a record of {len(stored)} bytes in an LMDB metastore: its file is damaged"
        ) from error
    seat = Seat(number, incarnation) if kind == _ANNOUNCED else None
    return _Record(version, seat, memoryview(stored)[_HEAD.size :])
