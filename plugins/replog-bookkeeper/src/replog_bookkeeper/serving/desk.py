"""Takes the questions that clients of BookKeeper ask. One desk for each connection; it never waits: an answer that takes several
requests is made as their answers come.

Rules:

- A recovery's add passes a fence, and fences nothing: Java's repairs send such adds to bookies of a live writer.
- Doubt is answered by 507 in version 3, and by an I/O error in version 2, whose clients know no other word. Neither counts as a
  denial (B8).
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from replog.bookie.server import BookieServer
from replog.errors import RemoteProtocolError, StorageError
from replog.protocol.fragments import WRITER_TERM
from replog.protocol.messages import AddRequest, Response, Status
from replog.runtime.loggers import logger
from replog_bookkeeper.frames import RECOVERY_ADD, Code, Operation, ReadFlag
from replog_bookkeeper.serving.asking import Asking, Question, Tell
from replog_bookkeeper.serving.entries import wrap_entry
from replog_bookkeeper.serving.looking import Looking
from replog_bookkeeper.serving.reads import RECOVERY_TERM, Reads
from replog_bookkeeper.serving.watched import LedgersWatched
from replog_bookkeeper.serving.watching import Watching

_log = logger("replog.bookkeeper")

_PLUGIN = "AuthDisabledPlugin"  # what a bookie without authentication calls it


class Desk:
    """The requests of one connection. `tell` gets a question and the frame that answers it, once; `nursery` runs what looks at
    the storage at length."""

    def __init__(self, server: BookieServer, watched: LedgersWatched, nursery: trio.Nursery, tell: Tell) -> None:
        self._asking = asking = Asking(server, tell)
        self._reads = reads = Reads(asking, watched)
        self._watching = watching = Watching(asking, reads, watched)
        self._looking = Looking(server, nursery, asking.end)
        self.hand_on = asking.hand_on
        self._methods: dict[int, Callable[[Question], None]] = {
            Operation.ADD_ENTRY: self._add,
            Operation.READ_ENTRY: self._read,
            Operation.BATCH_READ: reads.read_batch,
            Operation.WRITE_CONFIRMED: watching.write,
            Operation.READ_CONFIRMED: watching.read,
            Operation.FORCE_LEDGER: self._force,
            Operation.LIST_ENTRIES: self._list,
            Operation.BOOKIE_INFO: self._looking.tell_space,
            Operation.AUTHENTICATE: self._authenticate,
        }

    def take(self, question: Question) -> None:
        """Takes a question, in the order of their arrival. Adds are handed to the bookie with `hand_on`, all else at once."""
        if not question.is_known_version:
            self._asking.end(question, Code.BAD_VERSION)
            return
        method = self._methods.get(question.operation)
        if method is None or question.body is None:
            self._asking.tell(question, question.answer(Code.BAD_REQUEST))
            return
        try:
            method(question)
        except RemoteProtocolError as error:
            _log.debug("a request of a client of BookKeeper is refused: %s", error)
            self._asking.end(question, Code.BAD_REQUEST)
        except StorageError as error:
            self._asking.refuse(question, Response(0, Status.UNKNOWN, detail=str(error)))

    def leave(self) -> None:
        """The connection has ended: nothing is answered any more."""
        self._watching.leave()
        self._asking.leave()

    def _add(self, question: Question) -> None:
        body, asking = question.body, self._asking
        batch, term = wrap_entry(body.body, body.ledgerId, body.entryId), WRITER_TERM
        is_recovery = body.flag == RECOVERY_ADD
        if is_recovery:
            # Of the fence that is there. A ledger that was dropped has a higher one: it takes nothing any more.
            term = max(term, min(asking.ledger(body.ledgerId).fence_term, RECOVERY_TERM))
        request_id = asking.begin(question, asking.answered)
        asking.gather(AddRequest(request_id, body.ledgerId, body.masterKey, term, batch, is_recovery))

    def _read(self, question: Question) -> None:
        if question.body.HasField("previousLAC") and question.body.flag != ReadFlag.FENCE_LEDGER:
            self._watching.poll(question)
        else:
            self._reads.read(question)

    def _force(self, question: Question) -> None:
        """Needs to do nothing: acknowledged entries are durable (B1)."""
        self._asking.ledger(question.body.ledgerId)
        is_known = self._asking.is_known(question.body.ledgerId)
        self._asking.end(question, Code.OK if is_known else Code.NO_LEDGER)

    def _list(self, question: Question) -> None:
        self._asking.ledger(question.body.ledgerId)
        if self._asking.is_known(question.body.ledgerId):
            self._looking.list(question)
        else:
            self._asking.end(question, Code.NO_LEDGER)

    def _authenticate(self, question: Question) -> None:
        self._asking.tell(question, question.answer(Code.OK, authPluginName=_PLUGIN, payload=b""))
