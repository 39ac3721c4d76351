"""Reads of one connection: of entries, of the last one, and those that fence.

Plain reads show no key. They read what is stored under the key that the bookie knows, as a repairer does (F3). A fence is one
of the term of recoveries (T2): BookKeeper has no terms.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from replog.errors import RemoteProtocolError
from replog.protocol.batch import Batch
from replog.protocol.bookie import LedgerOnBookie
from replog.protocol.fragments import WRITER_TERM
from replog.protocol.messages import (
    DENIALS,
    NO_REQUEST,
    CopyReadRequest,
    FenceRequest,
    RecoveryReadRequest,
    Response,
    Status,
)
from replog_bookkeeper.frames import Code, Operation, ReadFlag
from replog_bookkeeper.frames_v2 import BATCH_ENTRY_BYTES, BATCH_HEAD_BYTES
from replog_bookkeeper.serving.asking import Asking, Question, Then
from replog_bookkeeper.serving.entries import unwrap_entry
from replog_bookkeeper.serving.watched import LedgersWatched

RECOVERY_TERM = WRITER_TERM + 1
LAST = -1  # the entry id that asks for a bookie's last entry


class Reads:
    """The reads of one connection."""

    def __init__(self, asking: Asking, watched: LedgersWatched) -> None:
        self._asking = asking
        self._end, self._refuse = asking.end, asking.refuse
        self._watched = watched

    def read(self, question: Question) -> None:
        """Takes a read of one entry. Raises `RemoteProtocolError`, `StorageError`."""
        body = question.body
        ledger = self._asking.ledger(body.ledgerId)
        if body.entryId < LAST:
            raise RemoteProtocolError(f"entry {body.entryId} of ledger {body.ledgerId} was asked for")
        if body.flag == ReadFlag.FENCE_LEDGER:
            self._fence(question)
        elif body.flag == ReadFlag.ENTRY_PIGGYBACK:
            raise RemoteProtocolError("an entry is to be brought along, and none is waited for")
        else:
            self.look_up(question, ledger, body.entryId, self.found)

    def look_up(self, question: Question, ledger: LedgerOnBookie, entry_id: int, then: Then) -> None:
        """Reads an entry, or the last one. Raises `StorageError`."""
        if entry_id == LAST:
            storage = self._asking.server.storage
            marks = storage.marks(ledger.ledger_id)
            entry_id = LAST if marks is None else marks.last_entry_id
            if entry_id == LAST:
                denial = storage.doubt().denial(ledger.ledger_id)
                then(question, Response(NO_REQUEST, denial, ledger.last_add_confirmed))
                return
        self._copy_read(question, ledger, entry_id, 1, then)

    def _copy_read(self, question: Question, ledger: LedgerOnBookie, entry_id: int, bytes_max: int, then: Then) -> None:
        request_id, key = self._asking.begin(question, then), ledger.stored_key or b""
        self._asking.ask(CopyReadRequest(request_id, ledger.ledger_id, b"", entry_id, WRITER_TERM, bytes_max, key))

    def found(self, question: Question, response: Response) -> None:
        """Answers a plain read, with what the bookie knows to be confirmed."""
        if response.status is Status.OK:
            body = unwrap_entry(response.batches[0])
            self._end(question, Code.OK, body=body, maxLAC=response.last_add_confirmed)
        else:
            self._asking.deny(question, response)

    # -- fences -------------------------------------------------------------------------------------------------------

    def _fence(self, question: Question) -> None:
        body = question.body
        where = body.ledgerId, body.masterKey, RECOVERY_TERM
        if not body.masterKey:
            self._end(question, Code.UNAUTHORIZED)
        elif body.entryId == LAST:
            self._asking.ask(FenceRequest(self._asking.begin(question, self._fenced), *where))
        else:
            request_id = self._asking.begin(question, self._behind_fence)
            self._asking.ask(RecoveryReadRequest(request_id, *where, body.entryId, WRITER_TERM))

    def _fenced(self, question: Question, response: Response) -> None:
        """The fence is durable, and with it all that was added before: now the last entry is read."""
        if response.status is Status.OK:
            ledger_id = question.body.ledgerId
            self._watched.fenced(ledger_id)
            self.look_up(question, self._asking.server.ledger(ledger_id), LAST, self._shown)
        else:
            self._refuse_fence(question, response)

    def _behind_fence(self, question: Question, response: Response) -> None:
        if response.status is Status.OK or response.status in DENIALS:
            self._watched.fenced(question.body.ledgerId)
        if question.operation == Operation.BATCH_READ and response.status is Status.OK:
            self._read_several(question)
        else:
            self._shown(question, response)

    def _shown(self, question: Question, response: Response) -> None:
        """Answers a read that fenced: the ledger is known."""
        if response.status is Status.OK:
            self._end(question, Code.OK, body=unwrap_entry(response.batches[0]))
        else:
            self._refuse_fence(question, response)

    def _refuse_fence(self, question: Question, response: Response) -> None:
        # Only a ledger that was deleted has a higher fence.
        if response.status is Status.FENCED:
            self._end(question, Code.NO_LEDGER)
        else:
            self._refuse(question, response)

    # -- several entries ----------------------------------------------------------------------------------------------

    def read_batch(self, question: Question) -> None:
        """Takes a read of several entries. Raises `RemoteProtocolError`, `StorageError`."""
        body = question.body
        if body.entryId < 0:
            raise RemoteProtocolError(f"entries from {body.entryId} on of ledger {body.ledgerId} were asked for")
        self._asking.ledger(body.ledgerId)
        if body.flag == ReadFlag.FENCE_LEDGER:
            self._fence(question)
        else:
            self._read_several(question)

    def _read_several(self, question: Question) -> None:
        self._read_more(question, _Several(question.body))

    def _read_more(self, question: Question, several: _Several) -> None:
        """Reads as many bytes as there is room for. Entries are stored with more around them: so there may be room for others
        then."""
        ledger = self._asking.server.ledger(question.body.ledgerId)
        bytes_max = max(1, several.room_bytes)
        self._copy_read(question, ledger, several.next_entry_id, bytes_max, partial(self._found_several, several))

    def _found_several(self, several: _Several, question: Question, response: Response) -> None:
        """Answers with the entries that follow each other, as many as were asked for."""
        if response.status is Status.OK and all(map(several.take, response.batches)) and several.has_room:
            self._read_more(question, several)
        elif several.pieces:
            self._end(question, Code.OK, body=b"".join(several.pieces))
        else:
            self._asking.deny(question, response)


class _Several:
    """The entries of one answer so far: the first one in any case, others while there is room for them."""

    def __init__(self, body: Any) -> None:
        self.next_entry_id: int = body.entryId
        self.room_bytes: int = body.bytes_max - BATCH_HEAD_BYTES
        self.pieces: list[bytes] = []
        self._left = body.count_max if body.count_max > 0 else math.inf
        self._last_bytes = 0

    def take(self, batch: Batch) -> bool:
        """Adds an entry, if it is the next one and there is room for it."""
        entry = unwrap_entry(batch)
        size_bytes = BATCH_ENTRY_BYTES + len(entry)
        has_room = not self.pieces or (size_bytes <= self.room_bytes and self._left > 0)
        if batch.first_entry_id != self.next_entry_id or not has_room:
            return False
        self.pieces += [len(entry).to_bytes(BATCH_ENTRY_BYTES, "big"), entry]
        self.next_entry_id += 1
        self.room_bytes -= size_bytes
        self._left -= 1
        self._last_bytes = size_bytes
        return True

    @property
    def has_room(self) -> bool:
        """True if another entry like the last one is wanted."""
        return self._left > 0 and self._last_bytes <= self.room_bytes
