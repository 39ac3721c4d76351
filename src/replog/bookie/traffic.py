"""Traffic of one bookie, counted for people and metrics: once for each request, never for each entry."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from replog.abc import Reply
from replog.protocol.batch import Batch
from replog.protocol.bookie import OrderedRequest
from replog.protocol.messages import AddRequest, FenceRequest, RecoveryReadRequest

_TURN_S = 10.0  # how long a ledger counts as active after an add, at least
_ACTIVE_LEDGERS_MAX = 100_000  # remembered; above it they are counted as so many


class Traffic:
    """Counters since the bookie was started. Called in the trio thread."""

    __slots__ = (
        "_active",
        "_active_before",
        "added_batches",
        "added_bytes",
        "added_entries",
        "dropped_ledgers",
        "fence_requests",
        "last_reply",
        "read_bytes",
        "reads",
        "recovery_reads",
    )

    def __init__(self) -> None:
        self.added_batches = self.added_entries = self.added_bytes = 0
        self.fence_requests = self.recovery_reads = 0
        self.reads = self.read_bytes = 0
        self.dropped_ledgers = 0
        self.last_reply: Reply | None = None  # of the connection that brought something to commit last
        self._active: set[int] = set()  # ledgers that were added to since `turn`
        self._active_before: set[int] = set()  # and between the two turns before

    def accepted(self, request: OrderedRequest) -> None:
        """A request was not refused."""
        if isinstance(request, AddRequest):
            batch = request.batch
            self.added_batches += 1
            self.added_entries += batch.count
            self.added_bytes += len(batch.data)
            if request.ledger_id not in self._active and len(self._active) < _ACTIVE_LEDGERS_MAX:
                self._active.add(request.ledger_id)
        elif isinstance(request, RecoveryReadRequest):
            self.recovery_reads += 1
        elif isinstance(request, FenceRequest):
            self.fence_requests += 1

    def read(self, found: Sequence[Batch]) -> None:
        """A plain read is answered with these."""
        self.reads += 1
        for batch in found:
            self.read_bytes += len(batch.data)

    def turn(self) -> None:
        """To be called at an even pace: ledgers without new entries are forgotten at the second call."""
        self._active_before, self._active = self._active, set()

    async def turn_at_a_pace(self) -> None:
        """Turns until it is cancelled."""
        while True:
            await trio.sleep(_TURN_S)
            self.turn()

    def statistics(self) -> dict[str, float]:
        """Counters since the start; `active_ledgers` were added to lately."""
        return {
            "added_batches": self.added_batches,
            "added_entries": self.added_entries,
            "added_bytes": self.added_bytes,
            "active_ledgers": len(self._active | self._active_before),
            "fence_requests": self.fence_requests,
            "recovery_reads": self.recovery_reads,
            "reads": self.reads,
            "read_bytes": self.read_bytes,
        }
