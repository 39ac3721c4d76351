"""The verdict: what was read back against the input and against what the leaders were told.

Three questions, each answered from the entries themselves: is the log the input from its beginning, byte for byte; is
every entry that was confirmed there, at the very position at which it was confirmed; and is there nothing more?
The position matters: an entry that got lost and was appended again by the next leader stands somewhere else.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from itertools import chain, islice

import attrs

from replog.demo.reports import Confirmed
from replog.protocol.model import Position

_LENGTH = struct.Struct("<I")
_WINDOW = 256  # entries looked at to tell what kind of fault it is
_SHOWN_BYTES = 40
_LONGEST_DOUBLING = 64


@attrs.frozen
class Findings:
    """What the comparison found: no faults, or what is wrong, in words."""

    confirmed: int
    read: int
    read_bytes: int
    digest_expected: str
    digest_read: str
    faults: tuple[str, ...]


class EntriesDigest:
    """SHA-256 over entries, each with its length before it: so that where one ends counts too."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def update(self, entries: Sequence[bytes]) -> None:
        """Adds entries."""
        prefixes = map(_LENGTH.pack, map(len, entries))
        self._digest.update(b"".join(chain.from_iterable(zip(prefixes, entries, strict=True))))

    def hexdigest(self) -> str:
        """The digest of all of them, in hexadecimal."""
        return self._digest.hexdigest()


@attrs.define
class _Difference:
    """The first place where the log is not the input, and what comes there on both sides."""

    index: int
    position: Position
    before: list[bytes]
    expected: list[bytes]
    found: list[bytes]


class Verification:
    """Compares as it reads, in one pass and with bounded memory. Feed it all that is read back, in order, then `finish`.

    `lines` are the input from its first line on, `confirmations` what the leaders were told, in any order."""

    def __init__(self, lines: Iterator[bytes], confirmations: Sequence[Confirmed]) -> None:
        self._lines = lines
        self._confirmations = sorted(confirmations, key=lambda each: each.entries)
        self._confirmed = self._confirmations[-1].entries if self._confirmations else 0
        self._checked = 0  # of the confirmations
        self._read = 0
        self._read_bytes = 0
        self._hashed = 0  # of the input
        self._expected_digest = EntriesDigest()
        self._read_digest = EntriesDigest()
        self._tail: list[bytes] = []
        self._difference: _Difference | None = None
        self._misplaced: str | None = None

    @property
    def read(self) -> int:
        """How many entries were read so far."""
        return self._read

    def feed(self, first: Position, entries: Sequence[bytes]) -> None:
        """Consecutive entries of one segment, the first of them at this position."""
        self._check_positions(first, len(entries))
        self._compare(first, list(entries))
        self._read_digest.update(entries)
        self._read += len(entries)
        self._read_bytes += sum(map(len, entries))

    def finish(self) -> Findings:
        """All was fed: what is the verdict?"""
        behind = self._take_expected(self._confirmed - self._hashed)
        faults = []
        if self._difference is not None and self._difference.index < self._confirmed:
            self._difference.expected += behind[:_WINDOW]
            faults.append(_describe(self._difference))
        if self._misplaced is not None:
            faults.append(self._misplaced)
        if self._read < self._confirmed:
            faults.append(f"missing: {self._confirmed:,} entries were confirmed, and {self._read:,} were read back")
        if self._read > self._confirmed:
            extra = self._read - self._confirmed
            faults.append(f"doubled or foreign: {extra:,} entries more were read back than were confirmed")
        digests = self._expected_digest.hexdigest(), self._read_digest.hexdigest()
        if digests[0] != digests[1] and not faults:
            faults.append("changed: the checksums differ")
        return Findings(self._confirmed, self._read, self._read_bytes, *digests, tuple(faults))

    def _check_positions(self, first: Position, count: int) -> None:
        """The confirmations whose last entry is among these: does it stand where it was confirmed?"""
        while self._checked < len(self._confirmations):
            confirmation = self._confirmations[self._checked]
            offset = confirmation.entries - self._read - 1
            if offset >= count:
                return
            self._checked += 1
            position = Position(first.segment, first.entry + offset)
            if position != confirmation.position and self._misplaced is None:
                self._misplaced = (
                    f"missing or out of order: entry {confirmation.entries:,} was confirmed at {confirmation.position} "
                    f"and was read back at {position}"
                )

    def _compare(self, first: Position, entries: list[bytes]) -> None:
        expected = self._take_expected(len(entries))
        if self._difference is not None:
            room = _WINDOW - len(self._difference.found)
            self._difference.expected += expected[:room]
            self._difference.found += entries[:room]
        elif expected != entries:
            index = next(i for i, pair in enumerate(zip(expected, entries, strict=True)) if pair[0] != pair[1])
            self._difference = _Difference(
                self._read + index,
                Position(first.segment, first.entry + index),
                (self._tail + entries[:index])[-_LONGEST_DOUBLING:],
                expected[index:][:_WINDOW],
                entries[index:][:_WINDOW],
            )
        self._tail = (self._tail + entries[-_LONGEST_DOUBLING:])[-_LONGEST_DOUBLING:]

    def _take_expected(self, count: int) -> list[bytes]:
        """The next lines of the input; only as many as were confirmed count for its digest."""
        lines = list(islice(self._lines, max(count, 0)))
        counted = lines[: max(self._confirmed - self._hashed, 0)]
        self._expected_digest.update(counted)
        self._hashed += len(counted)
        return lines


def _describe(difference: _Difference) -> str:
    """Which kind of fault: told by where the two sides agree again, for at least half of the window."""
    expected, found = difference.expected, difference.found
    where = f"entry {difference.index + 1:,}, read at {difference.position}"
    enough = (min(len(expected), len(found)) + 1) // 2
    if len(found) > 1 and found[:2] == expected[1::-1] and _agree(expected[2:], found[2:]):
        return f"out of order: {where}, and the next one stand the wrong way round"
    if _agree(expected[1:], found[1:]):
        return f"changed: {where}, is {_shown(found[0])} instead of {_shown(expected[0])}"
    for shift in range(1, enough + 1):
        if len(expected) - shift >= enough and _agree(expected[shift:], found):
            return f"missing: {shift:,} before {where}, the first of them {_shown(expected[0])}"
        if len(found) - shift >= enough and _agree(expected, found[shift:]):
            is_double = found[:shift] == difference.before[-shift:]
            return f"{'doubled' if is_double else 'foreign'}: {shift:,} from {where}, {_shown(found[0])}"
    if sorted(found) == sorted(expected):
        return f"out of order: from {where}"
    return f"changed: {where}, is {_shown(found[0])} instead of {_shown(expected[0])}, and others behind it"


def _agree(one: list[bytes], other: list[bytes]) -> bool:
    """Whether they are the same as far as both go."""
    return all(map(bytes.__eq__, one, other))


def _shown(entry: bytes) -> str:
    return repr(entry if len(entry) <= _SHOWN_BYTES else entry[:_SHOWN_BYTES] + b"...")
