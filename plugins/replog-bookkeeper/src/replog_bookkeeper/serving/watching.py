"""Questions of one connection for the last add confirmed, and those that wait for a later one."""

from __future__ import annotations

from collections.abc import Callable

from replog.errors import RemoteProtocolError
from replog.protocol.fragments import WRITER_TERM
from replog.protocol.messages import Response, Status, WatchRequest, WriteLastAddConfirmedRequest
from replog_bookkeeper.frames import Code, ReadFlag
from replog_bookkeeper.serving.asking import Asking, Question
from replog_bookkeeper.serving.entries import unwrap_confirmed, unwrap_entry, wrap_confirmed
from replog_bookkeeper.serving.reads import LAST, Reads
from replog_bookkeeper.serving.watched import LedgersWatched

_BROUGHT_BYTES = 64 << 10  # that an answer brings along at once; a larger entry is read


class Watching:
    """Last adds confirmed, for one connection."""

    def __init__(self, asking: Asking, reads: Reads, watched: LedgersWatched) -> None:
        self._asking = asking
        self._end = asking.end
        self._reads = reads
        self._watched = watched
        self._polls: dict[int, tuple[int, Callable[[], None]]] = {}  # ledger and wake, by request

    # -- waiting ------------------------------------------------------------------------------------------------------

    def poll(self, question: Question) -> None:
        """Waits until more is confirmed than the client knows, until the ledger is fenced, or until its time is over.

        Raises `RemoteProtocolError`, `StorageError`."""
        body = question.body
        ledger = self._asking.ledger(body.ledgerId)
        brings = body.flag == ReadFlag.ENTRY_PIGGYBACK
        if body.entryId < LAST or (brings and body.entryId != LAST):
            raise RemoteProtocolError(f"entry {body.entryId} is asked for, and another is to be brought along")
        if not self._asking.is_known(body.ledgerId):
            self._end(question, Code.NO_LEDGER)
            return
        ledger_id, after, wait_ms = ledger.ledger_id, max(-1, body.previousLAC), max(0, body.timeOut)
        request_id = self._asking.begin(question, self._polled)

        def wake() -> None:
            self._asking.go_on(Response(request_id, Status.OK, ledger.last_add_confirmed))

        self._polls[request_id] = ledger_id, wake
        self._watched.wait(ledger_id, wake)
        where = request_id, ledger_id, b"", after, wait_ms, after + 1, WRITER_TERM
        self._asking.ask(WatchRequest(*where, _BROUGHT_BYTES if brings else 0, ledger.stored_key or b""))

    def _polled(self, question: Question, response: Response) -> None:
        self._watched.forget(*self._polls.pop(response.request_id))
        body, confirmed = question.body, response.last_add_confirmed
        brings = body.flag == ReadFlag.ENTRY_PIGGYBACK
        if response.status is not Status.OK:
            self._asking.deny(question, response)
        elif response.batches:
            self._bring(question, response)
        elif brings and confirmed <= body.previousLAC:
            self._end(question, Code.OK, maxLAC=confirmed)
        else:
            entry_id, then = body.entryId, self._reads.found
            if brings:
                entry_id, then = max(-1, body.previousLAC) + 1, self._bring
            self._reads.look_up(question, self._asking.server.ledger(body.ledgerId), entry_id, then)

    def _bring(self, question: Question, response: Response) -> None:
        """Answers with the entry behind the one that the client knew to be confirmed. It may be on other bookies alone."""
        fields = {}
        if response.batches:
            batch = response.batches[0]
            fields = {"entryId": batch.first_entry_id, "body": unwrap_entry(batch)}
        self._end(question, Code.OK, maxLAC=response.last_add_confirmed, **fields)

    def leave(self) -> None:
        """The connection has ended: nobody waits any more."""
        for each in self._polls.values():
            self._watched.forget(*each)
        self._polls.clear()

    # -- explicit -----------------------------------------------------------------------------------------------------

    def write(self, question: Question) -> None:
        """Keeps what a writer publishes by itself. Raises `RemoteProtocolError`, `StorageError`."""
        body = question.body
        self._asking.ledger(body.ledgerId)
        proof = wrap_confirmed(body.body, body.ledgerId)
        if proof:
            where = self._asking.begin(question, self._asking.answered), body.ledgerId, body.masterKey
            self._asking.ask(WriteLastAddConfirmedRequest(*where, WRITER_TERM, proof))
        else:
            self._end(question, Code.OK)

    def read(self, question: Question) -> None:
        """Answers with what was published, and with the last entry. Raises `RemoteProtocolError`, `StorageError`."""
        ledger = self._asking.ledger(question.body.ledgerId)
        self._reads.look_up(question, ledger, LAST, self._found)

    def _found(self, question: Question, response: Response) -> None:
        marks = self._asking.server.storage.marks(question.body.ledgerId)
        explicit = None if marks is None else unwrap_confirmed(marks.proof)
        fields = {} if explicit is None else {"lacBody": explicit}
        if response.status is Status.OK:
            fields["lastEntryBody"] = unwrap_entry(response.batches[0])
        if fields:
            self._end(question, Code.OK, **fields)
        else:
            self._asking.refuse(question, response)
