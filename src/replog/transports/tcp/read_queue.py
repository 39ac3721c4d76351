"""The reads of one connection: each is made when there is room for its answer, and waits its turn until then (B9).

Reads also wait until the client has received the answers before. Later requests overtake a waiting read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import trio

from replog.protocol.messages import ReadRequest, RecoveryReadRequest, Request, Response, Status
from replog.transports.tcp.answers import UNTAKEN_BYTES_MAX, Answers
from replog.transports.tcp.budget import SMALL_BYTES

if TYPE_CHECKING:
    from replog.transports.tcp.account import Account
    from replog.transports.tcp.stream import Stream
    from replog.transports.tcp.waking import Wakeup

_ANSWER_BYTES_MAX = 4 << 20  # what is set aside for an answer, until its size is known
_READS_MAX = 32  # of one client that are being made: its others wait for their turn among all clients
_WAITING_READS_MAX = 256  # of one client: with more, nothing is received from it


class ReadQueue:
    """Decides when a read is made. `hand_on` gives requests to the bookie."""

    def __init__(
        self,
        stream: Stream,
        account: Account,
        answers: Answers,
        hand_on: Callable[[Sequence[Request]], None],
        began: Wakeup,
    ) -> None:
        self.wake = self._schedule  # one object: the gates of the budget know it by that
        self._stream = stream
        self._account = account
        self._answers = answers
        self._hand_on = hand_on
        self._began = began  # reads that waited: there is room for other requests
        self._waiting = answers.waiting_reads
        self._is_scheduled = False
        self._is_closed = False
        self._token = trio.lowlevel.current_trio_token()
        answers.wake_reads = self.wake

    @property
    def are_too_many(self) -> bool:
        """True while so many wait that nothing more is received."""
        return len(self._waiting) >= _WAITING_READS_MAX

    def begins(self, request: ReadRequest | RecoveryReadRequest) -> bool:
        """Whether this read is made now; otherwise it waits for its turn, behind those that wait already."""
        if not self._waiting and self._begin(request):
            return True
        self._waiting.append((request, trio.current_time()))
        return False

    def refuse_old(self, before_s: float) -> None:
        """Refuses the reads that have waited since then for room that others keep: their client may ask another bookie."""
        while self._waiting and self._waiting[0][1] < before_s:
            request, _ = self._waiting.popleft()
            problem = "no room for the answer: other clients do not take theirs"
            self._answers.reply([Response(request.request_id, Status.TOO_BUSY, detail=problem)])

    def close(self) -> None:
        """Makes no more of the reads that wait."""
        self._is_closed = True

    def _begin(self, request: ReadRequest | RecoveryReadRequest) -> bool:
        """Sets aside room for the answer to a read. Returns False if there is none."""
        answers, account = self._answers, self._account
        if len(answers.reads) >= _READS_MAX or self._stream.held_bytes > UNTAKEN_BYTES_MAX:
            return False
        budget, own_bytes, size_bytes = account.budget, account.answer_bytes, SMALL_BYTES
        if isinstance(request, ReadRequest):
            size_bytes = max(0, min(request.bytes_max, _ANSWER_BYTES_MAX))
            # A client's only answer must not need more than its share.
            if size_bytes > SMALL_BYTES and not own_bytes:
                size_bytes = min(size_bytes, max(budget.answer_share_bytes, SMALL_BYTES, answers.largest_batch_bytes))
                request.bytes_max = min(request.bytes_max, max(size_bytes, budget.answer_share_bytes))
        size_bytes = max(size_bytes, answers.largest_batch_bytes)
        if own_bytes and account.charged_bytes + size_bytes > account.bytes_max:
            return False
        if not budget.takes_answer(own_bytes, size_bytes):
            budget.wait_for_answer(self.wake, own_bytes, size_bytes)
            return False
        answers.reads[request.request_id] = size_bytes
        # A recovery read raises the fence, so a bookie that stops answers it before it leaves.
        if isinstance(request, RecoveryReadRequest):
            answers.changing.add(request.request_id)
        account.charge_answers(size_bytes)
        return True

    def _schedule(self) -> None:
        # In the next turn of the event loop: so the reads of all clients take turns.
        if not self._is_scheduled:
            self._is_scheduled = True
            self._token.run_sync_soon(self._pump)

    def _pump(self) -> None:
        """Makes the reads that wait, as far as there is room."""
        self._is_scheduled = False
        self.leave_gates()
        # Scheduled before the session ended.
        if self._stream.is_closed or self._is_closed:
            return
        requests: list[Request] = []
        while self._waiting and self._begin(self._waiting[0][0]):
            requests.append(self._waiting.popleft()[0])
        if requests:
            self._hand_on(requests)
            self._began.wake()

    def leave_gates(self) -> None:
        """Waits no more for others to give bytes back."""
        self._account.budget.for_requests.leave(self.wake)
        self._account.budget.for_answers.leave(self.wake)
