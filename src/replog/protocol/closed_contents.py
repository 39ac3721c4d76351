"""The contents of a closed ledger, as far as the client that closed it knew them (R1, R6).

It is for plans and for searches by time, which then need not ask bookies. No rule of the protocol depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

_NS_PER_MS = 1_000_000


@attrs.frozen
class Contents:
    """How much a closed ledger holds, and when that was sent, by its writer's clock. None: unknown, and never a guess.

    `size_bytes` counts the values. The times are ms since the epoch: of the first entry, rounded down, and of the last one,
    rounded up. An empty ledger has none. Times never go back within the ledger of one writer."""

    entries: int
    size_bytes: int | None = None
    first_sent_ms: int | None = None
    last_sent_ms: int | None = None

    @classmethod
    def of(cls, entries: int, size_bytes: int | None, first_sent_ns: int | None, last_sent_ns: int | None) -> Contents:
        """The contents of a ledger with this many entries; the times are in ns, as batches have them."""
        assert entries >= 0, "a ledger ends at an entry, or is empty (R8)"
        if not entries:
            return _EMPTY
        first_ms = None if first_sent_ns is None else first_sent_ns // _NS_PER_MS
        last_ms = None if last_sent_ns is None else -(-last_sent_ns // _NS_PER_MS)
        return cls(entries, size_bytes, first_ms, last_ms)

    @property
    def is_complete(self) -> bool:
        """True if nothing is unknown."""
        return not self.entries or None not in (self.size_bytes, self.first_sent_ms, self.last_sent_ms)

    def may_be_sent_since(self, time_ns: int) -> bool:
        """True if an entry may have been sent at this time or later; True if that is unknown."""
        if not self.entries:
            return False
        return self.last_sent_ms is None or self.last_sent_ms * _NS_PER_MS >= time_ns

    def faults(self) -> list[str]:
        """The reasons why these contents are impossible."""
        if self.entries:
            # Not `min`, which takes three times as long: a plan of a long log checks 100,000 of these.
            sizes_are_possible = self.entries > 0 and (self.size_bytes or 0) >= 0
            is_possible = sizes_are_possible and (self.first_sent_ms or 0) >= 0 and (self.last_sent_ms or 0) >= 0
        else:
            is_possible = self == _EMPTY
        return [] if is_possible else [f"contents: {list(self.as_tuple())} are not what a ledger can hold"]

    def as_tuple(self) -> tuple[int, int | None, int | None, int | None]:
        """The four numbers."""
        # `attrs.astuple` takes five times as long, and a log's record has hundreds of these.
        return (self.entries, self.size_bytes, self.first_sent_ms, self.last_sent_ms)


_EMPTY = Contents(0, 0)
Known = Mapping[int, Contents]  # by ledger id
