"""Questions for a later last add confirmed that wait at a bookie: long polls (D1)."""

from __future__ import annotations

import heapq
import itertools
import math

import trio

from replog.abc import Reply
from replog.protocol.bookie import LedgerOnBookie
from replog.protocol.messages import ReadLastAddConfirmedRequest, Response, Status

_WAITING_MAX = 100_000
_ANSWERED_KEPT = 1000  # that were answered early may stand in the heap, beside as many as wait


class _Poll:
    __slots__ = ("deadline", "ledger", "reply", "request")

    def __init__(
        self, request: ReadLastAddConfirmedRequest, ledger: LedgerOnBookie, reply: Reply, deadline: float
    ) -> None:
        self.request = request
        self.ledger = ledger
        self.reply: Reply | None = reply
        self.deadline = deadline

    def answer(self) -> None:
        """Answers once, with what is known now."""
        reply, self.reply = self.reply, None
        if reply is not None:
            ledger = self.ledger
            response = Response(self.request.request_id, Status.OK, ledger.last_add_confirmed, ledger.fence_term)
            reply([response])


class LongPolls:
    """All that wait at one bookie. `expire` is the task that ends those whose time is up."""

    def __init__(self, wait_max_s: float) -> None:
        self._wait_max_s = wait_max_s
        self._by_ledger: dict[int, list[_Poll]] = {}
        self._by_deadline: list[tuple[float, int, _Poll]] = []
        self._waiting = 0
        self._numbers = itertools.count()
        self._earlier = trio.Event()

    def __len__(self) -> int:
        return self._waiting

    def wait(self, request: ReadLastAddConfirmedRequest, ledger: LedgerOnBookie, reply: Reply) -> None:
        """Answers later; at once if too many wait already."""
        wait_s = min(request.wait_ms / 1000, self._wait_max_s)
        poll = _Poll(request, ledger, reply, trio.current_time() + wait_s)
        if self._waiting >= _WAITING_MAX:
            poll.answer()
            return
        if len(self._by_deadline) > 2 * self._waiting + _ANSWERED_KEPT:
            self._by_deadline = [entry for entry in self._by_deadline if entry[2].reply is not None]
            heapq.heapify(self._by_deadline)
        self._waiting += 1
        self._by_ledger.setdefault(request.ledger_id, []).append(poll)
        heapq.heappush(self._by_deadline, (poll.deadline, next(self._numbers), poll))
        if self._by_deadline[0][2] is poll:
            self._earlier.set()

    def advanced(self, ledger: LedgerOnBookie) -> None:
        """The ledger's last add confirmed has risen: answers those who waited for it."""
        if not self._by_ledger:
            return
        polls = self._by_ledger.pop(ledger.ledger_id, [])
        self._waiting -= len(polls)
        for poll in polls:
            poll.ledger = ledger
            poll.answer()

    async def expire(self) -> None:
        """Answers what has waited long enough. Runs until cancelled."""
        while True:
            self._earlier = trio.Event()
            deadline = self._by_deadline[0][0] if self._by_deadline else math.inf
            with trio.move_on_at(deadline):
                await self._earlier.wait()
            while self._by_deadline and self._by_deadline[0][0] <= trio.current_time():
                _, _, poll = heapq.heappop(self._by_deadline)
                if poll.reply is not None:
                    self._waiting -= 1
                    self._forget(poll)
                    poll.answer()

    def _forget(self, poll: _Poll) -> None:
        polls = self._by_ledger.get(poll.request.ledger_id, [])
        if poll in polls:
            polls.remove(poll)
        if not polls:
            self._by_ledger.pop(poll.request.ledger_id, None)
