"""Long polls: questions for a later last add confirmed that wait at a bookie (D1).

Their answers bring the entries that the reader would read next, if these are confirmed, small and in memory: that saves
a follower its second question, which takes longer than the first at the tail. Entries that are not in memory are left
out, and read as usual.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Callable

import trio

from replog.abc import Reply
from replog.protocol.batch import Batch
from replog.protocol.bookie import LedgerOnBookie
from replog.protocol.messages import ReadLastAddConfirmedRequest, Response, Status

Find = Callable[[int, int, int, int], tuple[Batch, ...]]  # ledger id, entry id, stamp, bytes at most: what is at hand

BROUGHT_BYTES_MAX = 64 << 10  # that an answer brings along, for any question
_WAITING_MAX = 100_000
_ANSWERED_KEPT = 1000  # answered polls that may still be in the heap, besides as many as wait


class _Poll:
    __slots__ = ("deadline", "ledger", "reply", "request")

    def __init__(
        self, request: ReadLastAddConfirmedRequest, ledger: LedgerOnBookie, reply: Reply, deadline: float
    ) -> None:
        self.request = request
        self.ledger = ledger
        self.reply: Reply | None = reply
        self.deadline = deadline

    def answer(self, find: Find) -> None:
        """Answers once, with the present state."""
        reply, self.reply = self.reply, None
        if reply is not None:
            reply([_answer(self.request, self.ledger, find)])


def _answer(request: ReadLastAddConfirmedRequest, ledger: LedgerOnBookie, find: Find) -> Response:
    confirmed = ledger.last_add_confirmed
    batches: tuple[Batch, ...] = ()
    if request.bytes_max > 0 and request.entry_id <= confirmed:
        found = find(request.ledger_id, request.entry_id, request.stamp, min(request.bytes_max, BROUGHT_BYTES_MAX))
        batches = tuple(batch for batch in found if batch.first_entry_id <= confirmed)
    return Response(request.request_id, Status.OK, confirmed, ledger.fence_term, batches, proof=ledger.proof)


class LongPolls:
    """The polls that wait at one bookie. `expire` is the task that answers those whose time is up. `find` looks for
    batches, and neither waits nor raises."""

    def __init__(self, wait_max_s: float, find: Find) -> None:
        self._wait_max_s = wait_max_s
        self._find = find
        self._by_ledger: dict[int, list[_Poll]] = {}
        self._by_deadline: list[tuple[float, int, _Poll]] = []
        self._waiting = 0
        self._numbers = itertools.count()
        self._earlier = trio.Event()

    def __len__(self) -> int:
        return self._waiting

    def are_waiting(self, ledger_id: int) -> bool:
        """True if a poll of this ledger waits."""
        return ledger_id in self._by_ledger

    def ask(self, request: ReadLastAddConfirmedRequest, ledger: LedgerOnBookie, reply: Reply) -> None:
        """Answers at once if there is news, or nothing to wait for; else later, or at once if too many wait already."""
        if ledger.last_add_confirmed > request.after or request.wait_ms <= 0:
            reply([_answer(request, ledger, self._find)])
            return
        wait_s = min(request.wait_ms / 1000, self._wait_max_s)
        poll = _Poll(request, ledger, reply, trio.current_time() + wait_s)
        # Answered at once, without news: the client asks again later, and memory stays bounded (B9).
        if self._waiting >= _WAITING_MAX:
            poll.answer(self._find)
            return
        # Answered polls stay in the heap until their deadline. A ledger that advances fast would fill it.
        if len(self._by_deadline) > 2 * self._waiting + _ANSWERED_KEPT:
            self._by_deadline = [entry for entry in self._by_deadline if entry[2].reply is not None]
            heapq.heapify(self._by_deadline)
        self._waiting += 1
        self._by_ledger.setdefault(request.ledger_id, []).append(poll)
        heapq.heappush(self._by_deadline, (poll.deadline, next(self._numbers), poll))
        if self._by_deadline[0][2] is poll:
            self._earlier.set()
        ledger.awaited(request.after)

    def advanced(self, ledger: LedgerOnBookie) -> None:
        """The ledger's last add confirmed has risen: answers the polls that waited for it."""
        if not self._by_ledger:
            return
        waiting = self._by_ledger.pop(ledger.ledger_id, [])
        polls = [poll for poll in waiting if poll.request.after < ledger.last_add_confirmed]
        # A client that heard of the last one elsewhere waits for more.
        if len(polls) < len(waiting):
            still = [poll for poll in waiting if poll.request.after >= ledger.last_add_confirmed]
            self._by_ledger[ledger.ledger_id] = still
        ledger.readers.is_awaited = len(polls) < len(waiting)
        self._waiting -= len(polls)
        # Many readers at the tail want the same batches.
        find = self._find if len(polls) == 1 else functools.cache(self._find)
        for poll in polls:
            # The machine may have been made again since the poll came.
            poll.ledger = ledger
            poll.answer(find)

    def fail(self, problem: str) -> None:
        """The bookie has stopped: answers all that wait at once, so that they ask elsewhere (B10)."""
        waiting, self._by_ledger, self._by_deadline = self._by_ledger, {}, []
        self._waiting = 0
        for polls in waiting.values():
            for poll in polls:
                poll.ledger.readers.is_awaited = False
                reply, poll.reply = poll.reply, None
                if reply is not None:
                    reply([Response(poll.request.request_id, Status.UNKNOWN, detail=problem)])

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
                    poll.answer(self._find)

    def _forget(self, poll: _Poll) -> None:
        polls = self._by_ledger.get(poll.request.ledger_id, [])
        if poll in polls:
            polls.remove(poll)
        if not polls:
            self._by_ledger.pop(poll.request.ledger_id, None)
            poll.ledger.readers.is_awaited = False
