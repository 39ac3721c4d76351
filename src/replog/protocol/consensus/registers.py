"""The state that the members agree on: versioned keys, and the outcomes of recent commands (Q13).

It lives in rows: bytes by bytes, in their order, which a member keeps in memory, on disk, or both. All members apply
the same: nothing here uses a time or a random number that is not in an entry.

    \\0version       the last version that was given out (u64): it never comes again, so a key that is created anew has a new one
    \\0forgotten     the index of the newest command whose outcome is forgotten (u64)
    \\0sum           the sum of all keys: of each, 64 bits of a hash of key, version and value, added up (Q19)
    k WORD \\0 ...    version (u64), then the value
    e WORD \\0 ...    the lease of an announced key in ms (u32): it exists beside the key's own row
    t TOKEN         index (u64), stamp in ms (u64), outcome
    o INDEX PLACE   the token of that command: the order in which outcomes are forgotten
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Protocol

from replog.errors import RemoteProtocolError
from replog.protocol.consensus.commands import (
    CREATING,
    DELETING,
    LEASE,
    TERM,
    Command,
    Outcome,
    Status,
    What,
    decode_commands,
    sum_as_of,
)

VERSION_ROW, FORGOTTEN_ROW, SUM_ROW = b"\0version", b"\0forgotten", b"\0sum"
OUTCOMES_MAX = 10_000  # that are remembered, and beyond them
OUTCOMES_MS = 30_000  # those of so long: clients repeat for 10 s at most

_NUMBER = struct.Struct(">Q")
_REMEMBERED = struct.Struct(">QQ")
_ORDER = struct.Struct(">cQI")
_SUMS = 1 << 64
_SUMS_KEPT = 1024


class Rows(Protocol):
    """Bytes by bytes, in the order of the keys."""

    def get(self, row: bytes) -> bytes | None:
        """The value, or None."""

    def put(self, row: bytes, value: bytes) -> None:
        """Sets the value."""

    def delete(self, row: bytes) -> None:
        """Removes the row, if there is one."""

    def rows_from(self, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The rows from this key on, in order. It ends when something is changed meanwhile."""


def key_row(key: str) -> bytes:
    """Where a key is: what is below it follows it."""
    return b"k" + key.replace("/", "\0").encode()


def _lease_row(row: bytes) -> bytes:
    """Where the lease of the key with this row is."""
    return b"e" + row[1:]


class Registers:
    """The state in these rows."""

    def __init__(self, rows: Rows, *, outcomes_max: int = OUTCOMES_MAX, outcomes_ms: int = OUTCOMES_MS) -> None:
        self._rows = rows
        self._outcomes_max = outcomes_max
        self._outcomes_ms = outcomes_ms
        self._remembered = sum(1 for _ in self._below(b"o"))
        self._sums: dict[int, int] = {}  # of the last entries, by index
        self._last = 0  # the last entry that was applied here

    @property
    def sum(self) -> int:
        """Of all keys: equal states have equal sums (Q19)."""
        return self._number(SUM_ROW)

    @property
    def as_of(self) -> tuple[int, int]:
        """The index of the last entry that was applied here, and the sum behind it: for the next entry, so that all members
        compare theirs (Q19)."""
        return self._last, self._sums.get(self._last, 0)

    def get(self, key: str) -> tuple[int, bytes] | None:
        """The version and the value; None if the key does not exist."""
        found = self._rows.get(key_row(key))
        return None if found is None else (_NUMBER.unpack_from(found)[0], found[_NUMBER.size :])

    def children(self, key: str) -> list[str]:
        """The words right below a key, ascending."""
        return sorted(word.decode() for word, _ in self._children(key))

    def values(self, key: str, first: str = "") -> Iterator[tuple[str, int, bytes]]:
        """Last word, version and value of each key right below this one, from the word `first` on, ascending. It ends when
        something is changed meanwhile."""
        for word, found in self._children(key, first):
            if found is not None:
                yield word.decode(), _NUMBER.unpack_from(found)[0], found[_NUMBER.size :]

    def announced(self, key: str, first: str = "") -> Iterator[tuple[str, int, bytes]]:
        """Those of `values` that are announced."""
        return (each for each in self.values(key, first) if self.lease_ms(f"{key}/{each[0]}") is not None)

    def lease_ms(self, key: str) -> int | None:
        """The lease of an announced key; None for another one."""
        found = self._rows.get(_lease_row(key_row(key)))
        return None if found is None else int(LEASE.unpack(found)[0])

    def announcements(self) -> Iterator[tuple[str, int, int]]:
        """All announced keys, with their versions and leases in ms."""
        for row, found in self._below(b"e"):
            key = row[1:].decode().replace("\0", "/")
            present = self.get(key)
            assert present is not None, "a lease is that of a key"
            yield key, present[0], int(LEASE.unpack(found)[0])

    def _children(self, key: str, first: str = "") -> Iterator[tuple[bytes, bytes | None]]:
        """The words right below a key, each once, and what is stored there; None if there is something below the word only."""
        prefix = key_row(key) + b"\0"
        start, last = prefix + first.encode(), None
        while start:
            rows, start = self._rows.rows_from(start), b""
            for row, found in rows:
                if not row.startswith(prefix):
                    return
                word, deeper, _ = row[len(prefix) :].partition(b"\0")
                if word != last:
                    yield word, None if deeper else found
                    last = word
                elif deeper:
                    # On behind all keys below this word: else a listing would read everything that is below a directory.
                    start = prefix + word + b"\1"
                    break

    def apply(self, index: int, body: bytes, term: int = 0) -> list[tuple[Command, Outcome]]:
        """Applies the commands of the entry with this index, of a leader of this term. Returns them and their outcomes, in order.

        Raises `RemoteProtocolError` for commands that this version does not know (Q20), and if its sender had another state
        (Q19): then nothing was applied."""
        stamp_ms, commands = decode_commands(body)
        self._compare(index, *sum_as_of(body))
        found = [(each, self._once(index, place, stamp_ms, each, term)) for place, each in enumerate(commands)]
        self._forget(stamp_ms)
        self._sums[index] = self.sum
        self._sums.pop(index - _SUMS_KEPT, None)
        self._last = index
        return found

    def _compare(self, index: int, earlier: int, state_sum: int) -> None:
        own = self._sums.get(earlier, state_sum)  # it may be forgotten, or from before this started
        if own != state_sum:
            raise RemoteProtocolError(
                f"entry {index} of the metastore's log comes from a member whose state behind entry {earlier} had the sum "
                f"{state_sum:016x}, and here it had {own:016x}: one of the two is wrong"
            )

    # -- commands ---------------------------------------------------------------------------------------------------

    def _once(self, index: int, place: int, stamp_ms: int, command: Command, term: int) -> Outcome:
        """A repetition has its first outcome. One that may be a repetition of what is forgotten is refused (Q13)."""
        remembered = self._rows.get(b"t" + command.token)
        if remembered is not None:
            return Outcome.decode(remembered[_REMEMBERED.size :])
        if command.known < self._number(FORGOTTEN_ROW):
            return Outcome(Status.UNKNOWN, index)
        outcome = self._perform(command, term)
        self._rows.put(b"t" + command.token, _REMEMBERED.pack(index, stamp_ms) + outcome.encode())
        self._rows.put(_ORDER.pack(b"o", index, place), command.token)
        self._remembered += 1
        return outcome

    def _perform(self, command: Command, term: int) -> Outcome:
        found = self.get(command.key)
        if command.what in CREATING:
            if found is not None:
                return Outcome(Status.EXISTS, found[0])
        elif found is None:
            return Outcome(Status.MISSING)
        elif command.expected is not None and command.expected != found[0]:
            return Outcome(Status.CONFLICT, found[0])
        elif command.what is What.EXPIRE and command.value != TERM.pack(term):
            return Outcome(
                Status.CONFLICT, found[0]
            )  # who leads now has its own clock, and has given the holder time (Q15)
        row, value = key_row(command.key), command.value
        change = -_hash(row, *found) if found is not None else 0
        if command.what in DELETING:
            self._rows.delete(row)
            if self.lease_ms(command.key) is not None:
                self._rows.delete(_lease_row(row))
            version = 0
        else:
            if command.what is What.ANNOUNCE:
                lease, value = value[: LEASE.size], value[LEASE.size :]
                self._rows.put(_lease_row(row), lease)
            version = self._number(VERSION_ROW) + 1
            self._put_number(VERSION_ROW, version)
            self._rows.put(row, _NUMBER.pack(version) + value)
            change += _hash(row, version, value)
        self._put_number(SUM_ROW, (self.sum + change) % _SUMS)
        return Outcome(Status.DONE, version)

    def _forget(self, now_ms: int) -> None:
        """Forgets outcomes that are both old and too many, the oldest first. Old is what is far from now, before or behind."""
        old: list[tuple[bytes, bytes, int]] = []
        for row, token in self._below(b"o") if self._remembered > self._outcomes_max else ():
            remembered = self._rows.get(b"t" + token)
            assert remembered is not None, "what is in the order is remembered"
            index, stamp_ms = _REMEMBERED.unpack_from(remembered)
            # A stamp from far ahead is of a leader whose clock was wrong: it must not keep all later outcomes for so long.
            if abs(now_ms - stamp_ms) < self._outcomes_ms:
                break
            old.append((row, token, index))
            if self._remembered - len(old) <= self._outcomes_max:
                break
        for row, token, index in old:
            self._rows.delete(row)
            self._rows.delete(b"t" + token)
            self._put_number(FORGOTTEN_ROW, max(index, self._number(FORGOTTEN_ROW)))
            self._remembered -= 1

    # -- rows -------------------------------------------------------------------------------------------------------

    def _below(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        for row, value in self._rows.rows_from(prefix):
            if not row.startswith(prefix):
                return
            yield row, value

    def _number(self, row: bytes) -> int:
        found = self._rows.get(row)
        return 0 if found is None else int(_NUMBER.unpack(found)[0])

    def _put_number(self, row: bytes, number: int) -> None:
        self._rows.put(row, _NUMBER.pack(number))


def first_rows(keys: Mapping[str, bytes]) -> dict[bytes, bytes]:
    """The rows of a state that begins with these keys, and in which nothing has happened yet."""
    rows: dict[bytes, bytes] = {}
    total = 0
    for version, (key, value) in enumerate(keys.items(), 1):
        row = key_row(key)
        rows[row] = _NUMBER.pack(version) + value
        total += _hash(row, version, value)
    return rows | {VERSION_ROW: _NUMBER.pack(len(keys)), SUM_ROW: _NUMBER.pack(total % _SUMS)}


def _hash(row: bytes, version: int, value: bytes) -> int:
    digest = blake2b(row + b"\0" + _NUMBER.pack(version) + value, digest_size=_NUMBER.size).digest()
    return int(_NUMBER.unpack(digest)[0])
