"""Who waits for which entry to be confirmed: one event for all that wait for one batch, none for an entry.

Also counts the bytes that are pushed and not confirmed (W6).
"""

from __future__ import annotations

from collections import deque

import trio


class Confirmations:
    """The waiting side of one writer. Entry ids of batches must be given in their order."""

    def __init__(self) -> None:
        self.confirmed = -1
        self.unconfirmed_bytes = 0  # pushed and not confirmed
        self.in_flight = 0  # batches sent and not confirmed
        self.in_flight_bytes = 0  # of the bytes, those that were sent
        self._waiting: deque[tuple[int, trio.Event]] = deque()  # by the last id waited for
        self._sizes: deque[tuple[int, int, float]] = deque()  # last id, bytes, when sent: of each batch under way
        self._gathering: trio.Event | None = None
        self._freed: trio.Event | None = None

    def gathering(self) -> trio.Event:
        """The event of the batch that gathers now: set once it is confirmed, or the writer has failed."""
        if self._gathering is None:
            self._gathering = trio.Event()
        return self._gathering

    def sent(self, last_entry_id: int, size_bytes: int, now: float, last_add_pushed: int) -> None:
        """Entries up to this one are on their way; those after it, up to the last pushed, go on gathering.

        Who waits so far waits for the last pushed now, and not for what others push later: that might never end."""
        self._sizes.append((last_entry_id, size_bytes, now))
        self.in_flight += 1
        self.in_flight_bytes += size_bytes
        if self._gathering is not None:
            self._waiting.append((last_add_pushed, self._gathering))
            self._gathering = None

    def all_sent(self, last_entry_id: int) -> trio.Event:
        """The event that is set once this entry, the last one sent, is confirmed, or the writer has failed."""
        if not self._waiting or self._waiting[-1][0] != last_entry_id:
            self._waiting.append((last_entry_id, trio.Event()))
        return self._waiting[-1][1]

    @property
    def oldest_sent_at(self) -> float | None:
        """When the oldest unconfirmed batch was sent."""
        return self._sizes[0][2] if self._sizes else None

    def advance(self, confirmed: int) -> float:
        """Everything up to this entry is confirmed: wakes who waited. Returns when the last batch of it was sent."""
        self.confirmed = confirmed
        sent_at = 0.0
        while self._sizes and self._sizes[0][0] <= confirmed:
            _, size_bytes, sent_at = self._sizes.popleft()
            self.unconfirmed_bytes -= size_bytes
            self.in_flight_bytes -= size_bytes
            self.in_flight -= 1
        while self._waiting and self._waiting[0][0] <= confirmed:
            self._waiting.popleft()[1].set()
        if self._freed is not None:
            self._freed.set()
            self._freed = None
        return sent_at

    def freed(self) -> trio.Event:
        """The event that is set when bytes are confirmed next, or the writer has failed."""
        if self._freed is None:
            self._freed = trio.Event()
        return self._freed

    def fail(self) -> None:
        """The writer has failed or closed: wakes everybody."""
        while self._waiting:
            self._waiting.popleft()[1].set()
        if self._gathering is not None:
            self._gathering.set()
            self._gathering = None
        if self._freed is not None:
            self._freed.set()
            self._freed = None
