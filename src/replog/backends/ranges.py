"""A set of ledger ids as ranges: deleted ledgers are remembered permanently, and their ids mostly follow one another."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator


class LedgerRanges:
    """Ids in as few ranges as possible: 16 bytes each."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts = array("q")
        self._lasts = array("q")
        for first, last in ranges:
            self.add(first, last)

    def __contains__(self, ledger_id: int) -> bool:
        at = bisect_right(self._firsts, ledger_id) - 1
        return at >= 0 and ledger_id <= self._lasts[at]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The ranges, ascending: first and last id of each."""
        return zip(self._firsts, self._lasts, strict=True)

    def __len__(self) -> int:
        """How many ranges."""
        return len(self._firsts)

    def copy(self) -> LedgerRanges:
        """The same set, apart from this one."""
        copied = LedgerRanges()
        copied._firsts, copied._lasts = self._firsts[:], self._lasts[:]
        return copied

    def add(self, first: int, last: int | None = None) -> None:
        """Adds one id, or all from first to last."""
        last = first if last is None else last
        start = bisect_right(self._firsts, first)
        if start and self._lasts[start - 1] >= first - 1:
            start -= 1
            first = self._firsts[start]
        stop = start
        while stop < len(self._firsts) and self._firsts[stop] <= last + 1:
            last = max(last, self._lasts[stop])
            stop += 1
        self._firsts[start:stop] = array("q", (first,))
        self._lasts[start:stop] = array("q", (last,))
