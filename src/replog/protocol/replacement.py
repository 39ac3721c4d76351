"""The bookies that a machine writes to, and how some of them are replaced (rules C1, C2, C5, R6).

The writer and recovery both have one `Members`. They differ in when a replacement counts: the writer adopts it when the
metadata names it (C3), recovery at once, because its ensemble is private until it closes the ledger (R6).

Each index of the ensemble is in one of four places:

- in use: it gets what is written;
- failed: it is not sent anything, and waits until the change under way has ended;
- choosing: the change under way looks for a bookie for it;
- missing: it failed, and no bookie was found for it.

Invariants: no index is in two places. A bookie is at one index only (C2). Sets of indices are bit masks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from replog.protocol.effects import ChooseReplacements
from replog.protocol.model import LedgerMetadata


class Members:
    """The members of the ensemble that is written to."""

    __slots__ = ("bookies", "choosing", "everybody", "failed", "in_use", "missing")

    def __init__(self, ensemble: Sequence[str], missing: int = 0) -> None:
        self.bookies = list(ensemble)  # by index
        self.missing = missing
        self.failed = 0
        self.choosing = 0
        self.everybody = (1 << len(ensemble)) - 1
        assert not missing & ~self.everybody, "only an index of the ensemble can be missing"
        self.in_use = self.everybody & ~missing
        self._check()

    def fail(self, index: int) -> None:
        """The bookie at this index failed: it gets nothing until the search for a replacement has ended."""
        bit = 1 << index
        assert bit & self.everybody, "only an index of the ensemble can fail"
        # A failure of an index that is being replaced, or is missing, is nothing new.
        if not (self.missing | self.choosing) & bit:
            self.failed |= bit
            self._check()

    def retry_missing(self) -> None:
        """Looks again for bookies where none was found before."""
        self.failed |= self.missing
        self.missing = 0
        self._check()

    def choose(self, metadata: LedgerMetadata) -> ChooseReplacements:
        """Begins a change: the placement is asked for bookies at the indices that failed."""
        assert self.failed, "a change is about indices that failed"
        assert not self.choosing, "one change at a time (C1)"
        self.choosing, self.failed = self.failed, 0
        self._check()
        indices = tuple(index for index in range(len(self.bookies)) if self.choosing >> index & 1)
        in_use = frozenset(bookie_id for index, bookie_id in enumerate(self.bookies) if index not in indices)
        return ChooseReplacements(metadata, indices, in_use)

    def with_replacements(self, chosen: Mapping[int, str]) -> tuple[str, ...]:
        """The ensemble as it would be with these bookies at indices that are being replaced."""
        assert all(self.choosing >> index & 1 for index in chosen), "a replacement for what did not fail"
        ensemble = tuple(chosen.get(index, bookie_id) for index, bookie_id in enumerate(self.bookies))
        assert len(set(ensemble)) == len(ensemble), "a bookie is at one index only (C2)"
        return ensemble

    def adopt(self, chosen: Mapping[int, str]) -> int:
        """Ends the change. Returns the indices that have a bookie again; those without are missing from now on."""
        self.bookies = list(self.with_replacements(chosen))
        back = 0
        for index in chosen:
            back |= 1 << index
        self.missing |= self.choosing & ~back
        self.choosing = 0
        self._check()
        return back

    def _check(self) -> None:
        away = self.failed | self.choosing | self.missing
        assert self.failed + self.choosing + self.missing == away, "an index is in one place only"
        self.in_use = self.everybody & ~away
