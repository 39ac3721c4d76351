"""The change of its ensemble that a writer is making, and what it keeps for the bookies that the change brings in (C9).

Entries are confirmed during a change, by the bookies that stay. The new fragment begins behind the entries that were
confirmed when its compare-and-set was sent, so the bookies that it brings in should store these entries, too. They may
be sent there only once the change is durable (C3); until then they are kept. Appends never wait for that: entries that
do not fit are dropped, the oldest first, and recorded as a gap (W7).

Invariants:

- All entries confirmed from `_kept_from` on are kept. Entries confirmed before it in the new fragment were dropped.
- When something is confirmed, and when it is sent, kept and unconfirmed payloads have at most `bytes_max` bytes
  together, but for unconfirmed ones alone (W6).
"""

from __future__ import annotations

from collections import deque

from replog.protocol.batch import PendingBatch


class Reshaping:
    """The change under way, if there is one."""

    def __init__(self, bytes_max: int) -> None:
        self.replaced: dict[int, str] = {}  # the bookies that it brings in, by index
        self.is_planned = False  # no bookie has failed
        self._bytes_max = bytes_max
        self._kept_from = 0  # an entry
        self._kept: deque[tuple[int, list[PendingBatch]]] = deque()  # gatherings, each behind its last entry id
        self._length = 0  # of the writer's payloads, up to `_kept_from`

    def propose(self, first_entry_id: int, length: int) -> None:
        """A fragment is proposed that begins at this entry. The payloads before it have `length` bytes."""
        self._kept.clear()
        self._kept_from = first_entry_id
        self._length = length

    def keep(self, last_entry_id: int, gathered: list[PendingBatch], length: int) -> None:
        """These batches, up to this entry, were confirmed since the fragment was proposed. All payloads so far have `length`
        bytes."""
        assert last_entry_id >= self._kept_from, "what is kept belongs to the new fragment (C9)"
        self._kept.append((last_entry_id, gathered))
        self._drop_excess(length)

    def end(self, length: int) -> tuple[int, list[PendingBatch]]:
        """Ends the change. Returns the entry from which on confirmed entries are kept, and the batches, in their order."""
        self._drop_excess(length)
        kept = [pending for _, gathered in self._kept for pending in gathered]
        self._kept.clear()
        self.replaced, self.is_planned = {}, False
        return self._kept_from, kept

    def _drop_excess(self, length: int) -> None:
        """Drops the oldest batches that do not fit beside the unconfirmed ones."""
        assert length >= self._length, "a writer's length never sinks"
        while self._kept and length - self._length > self._bytes_max:
            last_entry_id, gathered = self._kept.popleft()
            self._kept_from = last_entry_id + 1
            self._length = gathered[0].batch.cumulative_length
