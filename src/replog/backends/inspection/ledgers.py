"""Inspecting one ledger, whatever storage has it: its batches in order, each checked, its entries, and its holes."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from replog.backends.inspection.reports import BatchReport, EntryReport, Hole, LedgerReport, Problem, report_batch
from replog.errors import EntryNotFoundError, RemoteProtocolError, StorageUncertainError
from replog.protocol.batch import decode

_HOLES_MAX = 1000
IDENTITY = struct.Struct(">QQIq")  # first id, last id, stride, stamp: sorts as bytes
_STRIPES_MAX = 256  # an ensemble is smaller; no holes are computed for a ledger that claims more


class Coverage:
    """Takes batches in the order of their first ids; `holes` are then the gaps between them.

    Where entries stripe (W1) a batch has every so many-th id, so each remainder is looked at by itself."""

    def __init__(self, strides: Iterable[int]) -> None:
        self.stripes = 1
        for stride in strides:
            self.stripes = math.lcm(self.stripes, stride)
            if self.stripes > _STRIPES_MAX:
                break
        self.is_known = self.stripes <= _STRIPES_MAX
        if not self.is_known:
            self.stripes = 1
        self._reach: dict[int, int] = {}  # by remainder: the last id that is held
        self._holes: list[Hole] = []
        self._holes_max = 0
        self.hole_count = 0
        self._last = -1

    def add(self, first: int, last: int, stride: int) -> None:
        """These ids are held."""
        if not self.is_known:
            return
        self._last = max(self._last, last)
        # One look at each remainder that the batch has, however many entries it holds.
        for entry_id in range(first, min(last, first + self.stripes - stride) + 1, stride):
            self._add_stripe(entry_id, last - (last - entry_id) % self.stripes)

    def _add_stripe(self, first: int, last: int) -> None:
        remainder = first % self.stripes
        reached = self._reach.get(remainder, remainder - self.stripes)
        if first > reached + self.stripes:
            self.hole_count += 1
            if len(self._holes) < self._holes_max:
                self._holes.append(Hole(reached + self.stripes, first - self.stripes, self.stripes))
        self._reach[remainder] = max(reached, last)

    def keep(self, holes_max: int) -> None:
        """How many holes are kept; others are only counted."""
        self._holes_max = holes_max

    def holes(self) -> list[Hole]:
        """The kept holes, by their first ids."""
        return sorted(self._holes, key=lambda hole: hole.first_entry_id)

    def absent(self) -> Iterator[int]:
        """The remainders of which nothing is held, though the ledger reaches over them."""
        return (each for each in range(min(self.stripes, self._last + 1)) if each not in self._reach)


class Copy(NamedTuple):
    """One copy of a batch that was read, and `why` it is not what was stored there: then `kind` is that of the problem."""

    report: BatchReport
    data: bytes
    kind: str = ""
    why: str = ""


class Copies(Protocol):
    """How a storage finds and reads the copies of a ledger's batches. Keys begin with their packed `IDENTITY`."""

    def read(self, keys: Iterable[bytes]) -> Iterator[Copy]:
        """The copies under these keys, in this order, each compared with its checksum."""

    def problem(self, batch: BatchReport, kind: str, reason: str) -> Problem:
        """A problem with this batch, at the place that people find it by."""

    def size_of(self, key: bytes) -> int:
        """The bytes of a copy, known without reading it."""

    def close(self) -> None:
        """Gives files back. Idempotent."""


class LedgerInspection:
    """A ledger whose batches are found. `report` has what is known without reading them; iterating `batches` reads and
    checks each, and adds what is damaged to the report. Of several copies of a batch that with the lowest key counts."""

    def __init__(self, report: LedgerReport, keys: list[bytes], copies: Copies) -> None:
        self.report = report
        self._keys = sorted(keys)
        self._copies = copies
        report.is_known = report.is_known or bool(keys)
        self._measure()

    def _measure(self) -> None:
        report = self.report
        coverage = Coverage({IDENTITY.unpack_from(key)[2] for key in self._keys})
        coverage.keep(_HOLES_MAX)
        for key, is_first in self._marked(self._keys):
            report.copies += 1
            if not is_first:
                continue
            first, last, stride, _ = IDENTITY.unpack_from(key)
            report.batches += 1
            report.batch_bytes += self._copies.size_of(key)
            coverage.add(first, last, stride)
            if not report.is_deleted:
                report.last_entry_id = max(report.last_entry_id, last)
        report.stripes, report.absent_stripes = coverage.stripes, list(coverage.absent())
        report.holes, report.hole_count = coverage.holes(), coverage.hole_count

    @staticmethod
    def _marked(keys: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
        """Each key, and whether it is the first one of its batch."""
        before = b""
        for key in keys:
            identity = key[: IDENTITY.size]
            yield key, identity != before
            before = identity

    def batches(self) -> Iterator[BatchReport]:
        """Each copy of each batch in the order of first ids, the one that counts before the others, read and checked."""
        for report, _ in self._read():
            yield report

    def entries(self) -> Iterator[EntryReport]:
        """The entries of all intact batches that count, in the order of the batches' first ids."""
        for report, data in self._read():
            if report.problem or not report.is_current:
                continue
            try:
                payloads = decode(data).payloads()
            except RemoteProtocolError as error:
                self._note(report, "damage", str(error))
                continue
            ids = range(report.first_entry_id, report.last_entry_id + 1, report.stride)
            for entry_id, payload in zip(ids, payloads, strict=True):
                yield EntryReport(report.ledger_id, entry_id, report.stamp, payload)

    def payload(self, entry_id: int, stamp: int | None = None) -> bytes:
        """The payload of one entry: of this stamp, or of the highest. Raises `EntryNotFoundError` if no batch here holds it,
        `StorageUncertainError` if every one that does is damaged."""
        found: list[bytes] = []
        for key in self._keys:
            first, last, stride, of_stamp = IDENTITY.unpack_from(key)
            if first <= entry_id <= last and (entry_id - first) % stride == 0 and stamp in (None, of_stamp):
                found.append(key)
        if not found:
            raise EntryNotFoundError(self.report.ledger_id, entry_id, "no batch in this storage holds it")
        # The highest stamp first; keys of one stamp stay in their order, the copy that counts before the others.
        found.sort(key=lambda key: -IDENTITY.unpack_from(key)[3])
        place = ""
        for copy in self._copies.read(found):
            report, kind, why = self._judged(copy)
            if not why:
                try:
                    return decode(copy.data).payloads()[(entry_id - report.first_entry_id) // report.stride]
                except RemoteProtocolError as error:
                    kind, why = "damage", str(error)
            problem = self._copies.problem(report, kind, why)
            place = f"{problem.path} is damaged at {problem.offset}: {problem.reason}"
        raise StorageUncertainError(
            f"entry {entry_id} of ledger {self.report.ledger_id}: {place}", "Ask another bookie"
        )

    def close(self) -> None:
        """Gives files back. Idempotent."""
        self._copies.close()

    def _read(self) -> Iterator[tuple[BatchReport, bytes]]:
        self.report.damaged_batches = 0
        try:
            for copy, (_, is_first) in zip(self._copies.read(self._keys), self._marked(self._keys), strict=True):
                report, kind, why = self._judged(copy)
                report.is_current = is_first and not self.report.is_deleted
                if why:
                    self._note(report, kind, why)
                yield report, copy.data
        finally:
            self.close()

    def _judged(self, copy: Copy) -> tuple[BatchReport, str, str]:
        """The report of a copy whose bytes are the requested batch; else the kind of problem, and the reason."""
        known = copy.report
        if copy.why:
            return known, copy.kind, copy.why
        report = report_batch(known.path, known.offset, copy.data)
        expected = known.ledger_id, known.stamp, known.first_entry_id, known.last_entry_id
        found = report.ledger_id, report.stamp, report.first_entry_id, report.last_entry_id
        # All checksums may be right, and yet the place may hold another batch: then an index or a key is wrong.
        why = report.problem or ("another batch stands here" if found != expected else "")
        return (known, "damage", why) if why else (report, "", "")

    def _note(self, batch: BatchReport, kind: str, why: str) -> None:
        batch.problem = why
        self.report.damaged_batches += kind != "gone"
        self.report.problems.append(self._copies.problem(batch, kind, why))
