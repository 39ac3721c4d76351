"""The client's side of one bookie: matches answers with requests, and ends silence in a named error.

A message costs no task, event or await: the caller gives a function, which is called once with the answer or with an error.
Every request has a deadline (W6), checked a few times a second for all of them together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import trio

from replog.abc import Connection
from replog.errors import (
    BookieAnswerError,
    BookieError,
    BookieTooBusyError,
    BookieUnreachableError,
    RemoteProtocolError,
    ReplogError,
)
from replog.protocol.answers import check_answer
from replog.protocol.messages import MESSAGE_BYTES, AddRequest, LedgerAwaited, Request, Response, Status

Answer = Response | BookieError
OnAnswer = Callable[[Answer, Any], None]

_CHECKS_PER_TIMEOUT = 10


class BookieChannel:
    """The requests to one bookie over one connection. Made by `Connections`.

    All channels of a client take ids from the same `request_ids`, so that one request can go to several bookies.
    `on_awaited` is called with a ledger's id when the bookie says, unasked, that a reader waits for entries of this
    client (W5)."""

    def __init__(
        self,
        bookie_id: str,
        outstanding_bytes_max: int,
        shortest_timeout_s: float,
        request_ids: Iterator[int],
        on_awaited: Callable[[int], None] = lambda _ledger_id: None,
    ) -> None:
        self.bookie_id = bookie_id
        self.error: BookieError | None = None
        self.outstanding_bytes = 0
        self.connection: Connection | None = None
        self._outstanding_bytes_max = outstanding_bytes_max
        self._check_every_s = shortest_timeout_s / _CHECKS_PER_TIMEOUT
        # Made so far: deadlines are counted in them, because reading a clock for each request costs more
        self._checks = 0
        self._outstanding: dict[int, tuple[OnAnswer, Any, int, float, Request]] = {}
        # The next one is for a request that goes here, and perhaps to other bookies, too
        self.request_ids = request_ids
        self._on_awaited = on_awaited
        self._busy: trio.Event | None = None  # what `watch` waits for while nothing is outstanding
        self._heard_at_check = 0
        self._late: int | None = None  # a request whose answer a close waited for in vain

    @property
    def silence_s(self) -> float:
        """For how long the bookie has answered nothing while a request was outstanding: up to two checks too little."""
        return max(0, self._checks - self._heard_at_check - 1) * self._check_every_s

    def oldest_add(self) -> int | None:
        """The add that has waited longest for its answer, by its request; None if there is none."""
        return next((number for number, entry in self._outstanding.items() if isinstance(entry[-1], AddRequest)), None)

    def is_late(self, silence_max_s: float) -> bool:
        """True if its answers came too late for a close, and it has not answered since; or it is silent for so long."""
        return self._late in self._outstanding or self.silence_s >= silence_max_s

    def connected(self, connection: Connection) -> None:
        """Requests go over this connection from now on."""
        self.connection = connection

    def ask(self, request: Request, on_answer: OnAnswer, context: object, timeout_s: float) -> None:
        """Sends the request; never waits. `on_answer(answer, context)` is called once, maybe before this returns."""
        # Noted before it is sent: a bookie in this thread may answer before `send` returns.
        if self._register(request, on_answer, context, timeout_s) and self.connection is not None:
            try:
                self.connection.send((request,))
            except BookieError as error:
                self._give_up(request.request_id, error)

    def ask_all(self, requests: Sequence[Request], on_answer: OnAnswer, timeout_s: float) -> None:
        """Sends these requests together, each with its id as the context (see `ask`)."""
        noted = [each for each in requests if self._register(each, on_answer, each.request_id, timeout_s)]
        if noted and self.connection is not None:
            try:
                self.connection.send(noted)
            except BookieError as error:
                for request in noted:
                    self._give_up(request.request_id, error)

    def _register(self, request: Request, on_answer: OnAnswer, context: object, timeout_s: float) -> bool:
        if self.error is not None or self.connection is None:
            on_answer(self.error or BookieUnreachableError(self.bookie_id, "not connected"), context)
            return False
        size_bytes = MESSAGE_BYTES + len(request.batch.data) if isinstance(request, AddRequest) else MESSAGE_BYTES
        # A request above the bound goes if it is the only one; otherwise it could never go.
        if self.outstanding_bytes + size_bytes > self._outstanding_bytes_max and self._outstanding:
            problem = f"{self.outstanding_bytes} bytes wait for its answers: it is too slow"
            on_answer(BookieTooBusyError(self.bookie_id, problem), context)
            return False
        # One more, because the next check may come at once: no request fails before its time is over.
        last_check = self._checks + 1 + timeout_s / self._check_every_s
        self._outstanding[request.request_id] = (on_answer, context, size_bytes, last_check, request)
        self.outstanding_bytes += size_bytes
        if self._busy is not None:
            self._wake_watch()
        return True

    def adds_outstanding(self, ledger_id: int) -> list[int]:
        """The requests to add to this ledger that were not answered yet. Looks at each request: for rare calls."""
        requests = [entry[-1] for entry in self._outstanding.values()]
        return [each.request_id for each in requests if isinstance(each, AddRequest) and each.ledger_id == ledger_id]

    def call_after(self, request_id: int, ended: Callable[[], None]) -> None:
        """Calls `ended()` after the answer to this outstanding request, or its failure, was told."""
        on_answer, *rest = self._outstanding[request_id]

        def tell(answer: Answer, context: object) -> None:
            on_answer(answer, context)
            ended()

        self._outstanding[request_id] = (tell, *rest)

    def note_late(self, request_ids: Iterable[int]) -> None:
        """If one of these requests is not answered yet, the bookie is late until it is."""
        self._late = next((each for each in request_ids if each in self._outstanding), self._late)

    # -- called by the connection -----------------------------------------------------------------------------------

    def responses_received(self, responses: Sequence[Response]) -> None:
        """Answers came."""
        self._heard_at_check = self._checks
        for response in responses:
            entry = self._outstanding.pop(response.request_id, None)
            if entry is None:  # late, a duplicate, or it answers nothing
                if isinstance(response, LedgerAwaited):
                    self._on_awaited(response.ledger_id)
            else:
                on_answer, context, size_bytes, _, request = entry
                self.outstanding_bytes -= size_bytes
                answer: Answer = response
                # The answer to most adds is only a status, and the writer reads no more: checking more would cost every entry.
                if response.status is not Status.OK or request.__class__ is not AddRequest or response.batches:
                    try:
                        check_answer(request, response)
                    except RemoteProtocolError as error:  # a bookie's invalid answer ends here
                        answer = BookieAnswerError(self.bookie_id, str(error))
                on_answer(answer, context)

    def disconnected(self, error: ReplogError) -> None:
        """The connection was lost: every outstanding request has an unknown outcome."""
        if self.error is None:
            lost = error if isinstance(error, BookieError) else BookieUnreachableError(self.bookie_id, str(error))
            self.error = lost
            if self._busy is not None:
                self._wake_watch()
            # A copy, because a callback may ask again: that ends at once with the same error.
            for request_id in list(self._outstanding):
                self._give_up(request_id, lost)

    def _give_up(self, request_id: int, error: BookieError) -> None:
        entry = self._outstanding.pop(request_id, None)
        if entry is not None:  # otherwise the callback of an earlier one has ended it
            on_answer, context, size_bytes, _, _ = entry
            self.outstanding_bytes -= size_bytes
            on_answer(error, context)

    def _wake_watch(self) -> None:
        assert self._busy is not None
        self._busy.set()
        self._busy = None

    async def watch(self) -> None:
        """Ends requests whose deadline has passed. Runs while connected; sleeps while nothing is outstanding."""
        while self.error is None:
            # Without this, a client with thousands of idle connections would wake for each of them several times a second.
            if not self._outstanding:
                self._busy = busy = trio.Event()
                await busy.wait()
            await trio.sleep(self._check_every_s)
            self._checks += 1
            late = [request_id for request_id, entry in self._outstanding.items() if entry[3] <= self._checks]
            for request_id in late:
                problem = "did not answer in time: whether it did what it was asked is unknown"
                self._give_up(request_id, BookieUnreachableError(self.bookie_id, problem))
