"""Works that a bookie has accepted and not committed yet, and the choice of the next group.

Copies that repairers store come by the mebibyte, and no caller waits for a single one. An append that came behind them
would wait until all are durable. So copies wait in a line of their own: groups are taken from both lines in turn, and
while appends come a group of copies is small. An append waits for one such group at most, and its own group has no
copies in it. Lost: one line for both, where an append that came behind 4 MiB of copies waited until all were durable.

Invariants:

- Works of one ledger are taken in the order in which they were put (B2). A work behind unanswered copies of its ledger
  waits in their line. A copy is not taken before any work that was put before it.
- A group is of one epoch: a work that builds on a failed commit must fail with it.
- Neither line starves: if both wait, they take turns.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence

from replog.bookie.groups import Work
from replog.protocol.messages import CopyRequest

COPIES_BYTES_MAX = 512 << 10  # of one group, or a single larger one, while appends come
_APPENDS_COME_S = 1.0  # after the last other work


class CommitQueue:
    """Two lines of works. `take` is called where commits are made, all else in the trio thread."""

    def __init__(self, group_bytes_max: int, clock_s: Callable[[], float]) -> None:
        self._group_bytes_max = group_bytes_max
        self._clock_s = clock_s
        self.waiting: deque[Work] = deque()
        self.copies: deque[Work] = deque()
        # A copy is among what is put next, or was put and not answered. Otherwise works go to `waiting` directly: a call for each
        # would cost every append something.
        self.is_parted = False
        self._behind: set[Work] = set()  # those put into the line of copies that are not answered
        self._ledgers: Counter[int] = Counter()  # of these
        # Where commits are made:
        self._is_turn_of_copies = False
        self._others: list[Work] = []  # the last group that was not of copies

    def put(self, works: Sequence[Work]) -> None:
        """Takes works, in their order."""
        for work in works:
            request = work.accepted.request
            if isinstance(request, CopyRequest) or request.ledger_id in self._ledgers:
                self._behind.add(work)
                self._ledgers[request.ledger_id] += 1
                self.copies.append(work)
            else:
                self.waiting.append(work)
        self.is_parted = bool(self._behind)

    def answered(self, works: Sequence[Work]) -> None:
        """These works are answered. Nothing changes unless the queue `is_parted`."""
        for work in works:
            if work in self._behind:
                self._behind.remove(work)
                ledger_id = work.accepted.request.ledger_id
                self._ledgers[ledger_id] -= 1
                if not self._ledgers[ledger_id]:
                    del self._ledgers[ledger_id]
        self.is_parted = bool(self._behind)

    def take(self) -> list[Work]:
        """The next group; [] if nothing waits."""
        if self.copies:
            if (self._is_turn_of_copies or not self.waiting) and (copies := self._take_copies()):
                self._is_turn_of_copies = False
                return copies
            self._is_turn_of_copies = True
        # Not a call of its own: this runs for each lone append.
        group: list[Work] = []
        size_bytes, waiting = 0, self.waiting
        while waiting:
            work = waiting[0]
            size_bytes += work.size_bytes
            if group and (size_bytes > self._group_bytes_max or work.epoch != group[0].epoch):
                break
            group.append(waiting.popleft())
        if group:
            self._others = group
        return group

    def _take_copies(self) -> list[Work]:
        came_s = self._clock_s() - self._others[-1].accepted_at_s if self._others else float("inf")
        is_busy = bool(self.waiting) or came_s <= _APPENDS_COME_S
        bytes_max = COPIES_BYTES_MAX if is_busy else self._group_bytes_max
        group: list[Work] = []
        size_bytes, copies, waiting = 0, self.copies, self.waiting
        while copies:
            work = copies[0]
            size_bytes += work.size_bytes
            if group and (size_bytes > bytes_max or work.epoch != group[0].epoch):
                break
            # Looked at for each, and after the copy was seen: what was put before it is in the other line by then.
            if waiting and waiting[0].accepted_at_s <= work.accepted_at_s:
                break
            group.append(copies.popleft())
        return group
