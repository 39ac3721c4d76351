"""The requests of one connection to its bookie, and the answers to its client.

Adds are gathered, and handed on together, so that the bookie commits them together. All else is asked at once, behind the adds
that came before it: so what is asked sees the ledger as they leave it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from replog.bookie.server import BookieServer
from replog.errors import RemoteProtocolError, StorageError
from replog.protocol.bookie import LedgerOnBookie
from replog.protocol.messages import NO_REQUEST, AddRequest, Request, Response, Status
from replog.runtime.loggers import logger
from replog_bookkeeper.frames import Code, Operation

_log = logger("replog.bookkeeper")

# Not mapped is doubt of another kind: an I/O error, which denies nothing.
_CODES = {
    Status.OK: Code.OK,
    Status.NO_ENTRY: Code.NO_ENTRY,
    Status.NO_ENTRY_IN_DOUBT: Code.UNKNOWN_LEDGER_STATE,
    Status.NO_ENTRY_AFTER_LOSS: Code.UNKNOWN_LEDGER_STATE,
    Status.IN_DOUBT: Code.UNKNOWN_LEDGER_STATE,
    Status.FENCED: Code.FENCED,
    Status.UNAUTHORIZED: Code.UNAUTHORIZED,
    Status.READ_ONLY: Code.READ_ONLY,
    Status.BAD_REQUEST: Code.BAD_REQUEST,
    Status.TOO_BUSY: Code.TOO_MANY_REQUESTS,
}
_LEDGER, _ENTRY = ("ledgerId",), ("ledgerId", "entryId")
# Of the question, which its answer repeats.
_NAMES: dict[int, tuple[str, ...]] = {
    Operation.ADD_ENTRY: _ENTRY,
    Operation.READ_ENTRY: _ENTRY,
    Operation.WRITE_CONFIRMED: _LEDGER,
    Operation.READ_CONFIRMED: _LEDGER,
    Operation.FORCE_LEDGER: _LEDGER,
    Operation.LIST_ENTRIES: _LEDGER,
}


class Question(Protocol):
    """A request, of version 2 or 3 (`frames`, `frames_v2`)."""

    operation: int
    is_known_version: bool
    body: Any

    def answer(self, code: Code, **fields: Any) -> bytes: ...


Then = Callable[[Question, Response], None]
Tell = Callable[[Question, bytes], None]


class Asking:
    """The bookie's end of one connection. `tell` gets a question and the frame that answers it, once."""

    def __init__(self, server: BookieServer, tell: Tell) -> None:
        self.server = server
        self.tell = tell
        self.hear: Callable[[Sequence[Response]], None] = self._hear  # one object: a connection's answers go together
        self._ids = itertools.count(NO_REQUEST + 1)
        self._open: dict[int, tuple[Question, Then]] = {}
        self._adds: list[AddRequest] = []  # taken, and not handed on

    # -- to the bookie ------------------------------------------------------------------------------------------------

    def begin(self, question: Question, then: Then) -> int:
        """The id of the next request. `then` gets the question and the response."""
        request_id = next(self._ids)
        self._open[request_id] = question, then
        return request_id

    def gather(self, request: AddRequest) -> None:
        """Keeps an add until `hand_on`."""
        self._adds.append(request)

    def hand_on(self) -> None:
        """Hands the bookie the adds that were gathered."""
        if self._adds:
            adds, self._adds = self._adds, []
            self.server.handle(adds, self.hear)

    def ask(self, request: Request) -> None:
        """Asks the bookie at once."""
        self.server.handle((request,), self.hear)

    def ledger(self, ledger_id: int) -> LedgerOnBookie:
        """The ledger as it is behind everything that was taken. Raises `RemoteProtocolError`, `StorageError`."""
        if ledger_id < 0:
            raise RemoteProtocolError(f"ledger {ledger_id} was asked for")
        self.hand_on()
        return self.server.ledger(ledger_id)

    def is_known(self, ledger_id: int) -> bool:
        """True if a client ever showed the ledger's key here, and it was not deleted. Raises `StorageError`."""
        return self.server.ledger(ledger_id).stored_key is not None

    # -- from the bookie ----------------------------------------------------------------------------------------------

    def _hear(self, responses: Sequence[Response]) -> None:
        for response in responses:
            # What answers nothing is a hint to writers of replog's; a poll may have been answered by a fence.
            if response.request_id in self._open:
                self.go_on(response)

    def go_on(self, response: Response) -> None:
        """Goes on with the question to which this is the response, if it waits for one."""
        found = self._open.pop(response.request_id, None)
        if found is None:
            return
        question, then = found
        # Called by the bookie's own tasks: nothing is raised there.
        try:
            then(question, response)
        except StorageError as error:
            self.refuse(question, Response(NO_REQUEST, Status.UNKNOWN, detail=str(error)))

    def leave(self) -> None:
        """The connection has ended: nothing is answered any more."""
        self._open.clear()

    # -- to the client ------------------------------------------------------------------------------------------------

    def end(self, question: Question, code: Code, **fields: Any) -> None:
        """Answers, naming the ledger and entry of the question unless `fields` do."""
        body = question.body
        if body is not None:
            for name in _NAMES.get(question.operation, ()):
                fields.setdefault(name, getattr(body, name))
        self.tell(question, question.answer(code, **fields))

    def refuse(self, question: Question, response: Response) -> None:
        """Answers that it was not done, or is not there."""
        if response.status is Status.CONFLICT:
            _log.warning("an add of a client of BookKeeper is refused (T3): %s", response.detail)
        else:  # failures of the storage and its damage are reported by themselves
            _log.debug("a request of a client of BookKeeper fails: %s %s", response.status.name, response.detail)
        self.end(question, _CODES.get(response.status, Code.IO_ERROR))

    def deny(self, question: Question, response: Response) -> None:
        """Answers a plain read that found nothing. Raises `StorageError`."""
        if response.status is Status.NO_ENTRY and not self.is_known(question.body.ledgerId):
            self.end(question, Code.NO_LEDGER)
        else:
            self.refuse(question, response)

    def answered(self, question: Question, response: Response) -> None:
        """Answers what brings nothing along."""
        if response.status is Status.OK:
            self.end(question, Code.OK)
        else:
            self.refuse(question, response)
