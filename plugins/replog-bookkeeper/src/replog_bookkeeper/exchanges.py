"""Replog's requests as BookKeeper's, and its answers as replog's. One object for each request on its way.

Rules: a last add confirmed counts only from bytes that the ledger's digest covers (R11): the number that a bookie says beside an
entry is a hint, after which these bytes are asked for. A copy that does not fit its digest is doubt, and never "no entry" (R4).
An answer is a denial only if it says that there is no such entry, or no such ledger.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from replog.errors import RemoteProtocolError
from replog.protocol.batch import Batch
from replog.protocol.fragments import WRITER_TERM
from replog.protocol.messages import (
    AddRequest,
    FenceRequest,
    LedgerRequest,
    ReadLastAddConfirmedRequest,
    ReadRequest,
    RecoveryReadRequest,
    Response,
    Status,
    WriteLastAddConfirmedRequest,
)
from replog.protocol.proofs import claimed, prove
from replog_bookkeeper import frames
from replog_bookkeeper.digests import LedgerKey, process_digest
from replog_bookkeeper.frames import Answer, Code, Operation, ReadFlag
from replog_bookkeeper.schema import wire

_LAST = -1  # the entry id that asks for a bookie's last entry
_READ_AHEAD_MAX = 32  # entries that one read asks for at a time
_STATUSES = {
    Code.OK: Status.OK,
    Code.NO_ENTRY: Status.NO_ENTRY,
    Code.NO_LEDGER: Status.NO_ENTRY,
    Code.UNAUTHORIZED: Status.UNAUTHORIZED,
    Code.BAD_REQUEST: Status.BAD_REQUEST,
    Code.BAD_VERSION: Status.BAD_REQUEST,
    Code.FENCED: Status.FENCED,
    Code.READ_ONLY: Status.READ_ONLY,
    Code.TOO_MANY_REQUESTS: Status.TOO_BUSY,
}
_LOOK_AGAIN_S = 0.2  # where no long poll is to be had
_DENIALS = (Code.NO_ENTRY, Code.NO_LEDGER)


class Exchange(ABC):
    """One request of replog's on its way to one bookie: the frames that it takes, and what becomes of the answers."""

    def __init__(self, request: LedgerRequest) -> None:
        assert isinstance(request.key, LedgerKey), "requests carry the ledger's key (see `LedgerKey`)"
        self.request_id = request.request_id
        self.ledger_id = request.ledger_id
        self.key = request.key
        self.waits_s = 0.0  # for how long an answer that tells nothing new is held back
        self.asks_again = False

    def questions(self) -> list[tuple[Operation, Any, int]]:
        """What to ask now: operation, body and priority of each frame. An add has one of its own (`add_question`)."""
        return []

    @abstractmethod
    def answered(self, place: int, answer: Answer) -> Response | None:
        """The answer to the question at this place. None: more answers are awaited; with `asks_again`, to other questions."""

    def refusal(self, answer: Answer, request_term: int = 0) -> Response:
        """The response where a bookie did not do, or does not have, what it was asked for."""
        status = _STATUSES.get(answer.code, Status.UNKNOWN)
        # BookKeeper has no terms: a fence is one of a later term than any writer's.
        fence_term = request_term + 1 if status is Status.FENCED else 0
        return Response(self.request_id, status, fence_term=fence_term, detail=_named(answer.code))

    def damaged(self, problem: RemoteProtocolError) -> Response:
        """The response where what came does not fit: doubt."""
        return Response(self.request_id, Status.UNKNOWN, detail=str(problem))

    def confirmed_by(self, answer: Answer) -> int:
        """The last add confirmed in an answer to a read of the last entry; -1 if the bookie has none. Raises
        `RemoteProtocolError`."""
        if answer.code is not Code.OK:
            return -1
        return self.key.open_entry(answer.body.body, self.ledger_id, None).last_add_confirmed

    def prove(self, last_add_confirmed: int) -> bytes:
        """What the rest of this process takes as proof: its digest was checked here."""
        return prove(process_digest(self.ledger_id), self.ledger_id, WRITER_TERM, last_add_confirmed)

    def _read_body(self, entry_id: int, flag: ReadFlag | None = None) -> Any:
        body = wire["ReadRequest"](ledgerId=self.ledger_id, entryId=entry_id)
        if flag is ReadFlag.FENCE_LEDGER:
            body.masterKey, body.flag = bytes(self.key), flag
        return body


def _named(code: Code) -> str:
    return f"it answered {code.name.lower().replace('_', ' ')} ({int(code)})"


class Adding(Exchange):
    """An add. It does not keep the request's batch: another bookie may have confirmed it long before this one answers."""

    def __init__(self, request: AddRequest) -> None:
        super().__init__(request)
        self._term = request.term
        self._entry_id = request.batch.first_entry_id

    def answered(self, place: int, answer: Answer) -> Response | None:
        if answer.code is Code.OK:
            if (answer.body.ledgerId, answer.body.entryId) == (self.ledger_id, self._entry_id):
                return Response(self.request_id, Status.OK)
            problem = f"the answer is to entry {answer.body.entryId} of ledger {answer.body.ledgerId}"
            return self.damaged(RemoteProtocolError(problem))
        if answer.code in _DENIALS:  # it cannot deny an add
            return Response(self.request_id, Status.UNKNOWN, detail=_named(answer.code))
        return self.refusal(answer, self._term)


def add_question(request: AddRequest) -> tuple[Operation, Any, int]:
    """What to ask for an add, as `Exchange.questions`. A recovery's copies carry the last add confirmed with which it
    began (R5), and a priority: a read-only bookie takes it, too."""
    batch, key = request.batch, request.key
    assert isinstance(key, LedgerKey), "requests carry the ledger's key (see `LedgerKey`)"
    confirmed = claimed(request.proof) if request.recovery else batch.last_add_confirmed
    entry = key.seal_entry(batch, confirmed)
    body = wire["AddRequest"](ledgerId=batch.ledger_id, entryId=batch.first_entry_id, masterKey=bytes(key), body=entry)
    if request.recovery:
        body.flag = frames.RECOVERY_ADD
    return Operation.ADD_ENTRY, body, frames.HIGH_PRIORITY if request.recovery else 0


class Fencing(Exchange):
    """A fence: a read of the last entry that fences, as Java's recovery sends it. A bookie that has no entry is fenced all the
    same."""

    def __init__(self, request: FenceRequest) -> None:
        super().__init__(request)
        self._term = request.term

    def questions(self) -> list[tuple[Operation, Any, int]]:
        return [(Operation.READ_ENTRY, self._read_body(_LAST, ReadFlag.FENCE_LEDGER), frames.HIGH_PRIORITY)]

    def answered(self, place: int, answer: Answer) -> Response | None:
        try:
            confirmed = self.confirmed_by(answer)
        except RemoteProtocolError as problem:
            return self.damaged(problem)
        if answer.code is not Code.OK and answer.code not in _DENIALS:
            return self.refusal(answer, self._term)
        return Response(self.request_id, Status.OK, fence_term=self._term, proof=self.prove(confirmed))


class RecoveryReading(Exchange):
    """A read that fences."""

    def __init__(self, request: RecoveryReadRequest) -> None:
        super().__init__(request)
        self._term = request.term
        self._entry_id = request.entry_id

    def questions(self) -> list[tuple[Operation, Any, int]]:
        return [(Operation.READ_ENTRY, self._read_body(self._entry_id, ReadFlag.FENCE_LEDGER), frames.HIGH_PRIORITY)]

    def answered(self, place: int, answer: Answer) -> Response | None:
        if answer.code is not Code.OK:
            return self.refusal(answer, self._term)
        try:
            found = self.key.open_entry(answer.body.body, self.ledger_id, self._entry_id)
        except RemoteProtocolError as problem:
            return self.damaged(problem)
        return Response(self.request_id, Status.OK, batches=(found,))


class ReadAhead:
    """How many entries the reads of one ledger at one bookie ask for at a time: more and more, while they find all of them."""

    def __init__(self) -> None:
        self._next_entry_id = -1
        self._count = 1
        self._entry_bytes = 1  # the largest that came lately

    def count(self, entry_id: int, bytes_max: int) -> int:
        """How many a read that begins with this entry asks for."""
        if entry_id != self._next_entry_id:
            self._count = 1
        return max(1, min(self._count, bytes_max // self._entry_bytes))

    def found(self, asked: range, batches: list[Batch]) -> None:
        """So much of what was asked for came, from the first entry on."""
        is_all = len(batches) == len(asked)
        self._count = min(_READ_AHEAD_MAX, 2 * len(asked)) if is_all else 1
        self._next_entry_id = asked.start + len(batches) * asked.step
        self._entry_bytes = max([1, *(len(batch.data) for batch in batches)])


class Reading(Exchange):
    """A plain read, of several entries at a time. What is found behind the first one comes along, up to the first that is not."""

    def __init__(self, request: ReadRequest, ahead: ReadAhead) -> None:
        super().__init__(request)
        stride = self.key.quorum.stride
        count = ahead.count(request.entry_id, request.bytes_max)
        self._ahead = ahead
        self._asked = range(request.entry_id, request.entry_id + count * stride, stride)
        self._answers: dict[int, Answer] = {}
        self._bytes_max = request.bytes_max

    def questions(self) -> list[tuple[Operation, Any, int]]:
        return [(Operation.READ_ENTRY, self._read_body(entry_id), 0) for entry_id in self._asked]

    def answered(self, place: int, answer: Answer) -> Response | None:
        self._answers[place] = answer
        if len(self._answers) < len(self._asked):
            return None
        first = self._answers[0]
        if first.code is not Code.OK:
            self._ahead.found(self._asked, [])
            return self.refusal(first)
        found: list[Batch] = []
        size_bytes = 0
        for number, entry_id in enumerate(self._asked):
            each = self._answers[number]
            if each.code is not Code.OK:
                break
            try:
                batch = self.key.open_entry(each.body.body, self.ledger_id, entry_id)
            except RemoteProtocolError as problem:
                if not found:
                    self._ahead.found(self._asked, [])
                    return self.damaged(problem)
                break
            size_bytes += len(batch.data)
            if found and size_bytes > self._bytes_max:
                break
            found.append(batch)
        self._ahead.found(self._asked, found)
        return Response(self.request_id, Status.OK, batches=tuple(found))


class AskingConfirmed(Exchange):
    """A query for the last add confirmed. One that waits is a long poll first; then the bytes are asked for that prove what it
    says, unless they came along."""

    def __init__(self, request: ReadLastAddConfirmedRequest) -> None:
        super().__init__(request)
        self._after = request.after
        self._wait_ms = request.wait_ms
        self._wanted = request.entry_id if request.bytes_max else None
        self._is_polling = request.wait_ms > 0
        self._confirmed = -1
        self._brought: tuple[Batch, ...] = ()

    def questions(self) -> list[tuple[Operation, Any, int]]:
        if not self._is_polling:
            return [(Operation.READ_CONFIRMED, wire["ReadLacRequest"](ledgerId=self.ledger_id), 0)]
        body = self._read_body(_LAST)
        body.previousLAC, body.timeOut, body.flag = self._after, self._wait_ms, ReadFlag.ENTRY_PIGGYBACK
        return [(Operation.READ_ENTRY, body, 0)]

    def answered(self, place: int, answer: Answer) -> Response | None:
        try:
            return self._polled(answer) if self._is_polling else self._told(answer)
        except RemoteProtocolError as problem:
            return self.damaged(problem)

    def _polled(self, answer: Answer) -> Response | None:
        self._is_polling = False
        if answer.code in _DENIALS:
            # At once, and not after the wait: the caller would ask again and again.
            self.waits_s = self._wait_ms / 1000
            return self._response()
        if answer.code is not Code.OK:
            self.waits_s = self._wait_ms / 1000
            return self.refusal(answer)
        body = answer.body
        if body.HasField("body"):
            found = self.key.open_entry(body.body, self.ledger_id, None)
            self._confirmed = found.last_add_confirmed
            if found.first_entry_id == self._wanted:
                self._brought = (found,)
        self.asks_again = body.maxLAC > max(self._after, self._confirmed)
        return None if self.asks_again else self._response()

    def _told(self, answer: Answer) -> Response | None:
        if answer.code is Code.OK:
            body = answer.body
            if body.HasField("lacBody"):
                self._confirmed = max(self._confirmed, self.key.open_confirmed(body.lacBody, self.ledger_id))
            if body.HasField("lastEntryBody"):
                last = self.key.open_entry(body.lastEntryBody, self.ledger_id, None)
                self._confirmed = max(self._confirmed, last.last_add_confirmed)
        elif answer.code not in _DENIALS:
            return self.refusal(answer)
        return self._response()

    def _response(self) -> Response:
        return Response(
            self.request_id,
            Status.OK,
            last_add_confirmed=self._confirmed,
            proof=self.prove(self._confirmed),
            batches=self._brought,
        )


class AskingLastEntry(Exchange):
    """A query for the last add confirmed in version 2, which has neither long polls nor explicit ones: the last entry says what
    was confirmed when it was written. An answer without news is held back for a while."""

    def __init__(self, request: ReadLastAddConfirmedRequest) -> None:
        super().__init__(request)
        self._after = request.after
        self._wait_ms = request.wait_ms

    def questions(self) -> list[tuple[Operation, Any, int]]:
        return [(Operation.READ_ENTRY, self._read_body(_LAST), 0)]

    def answered(self, place: int, answer: Answer) -> Response | None:
        try:
            confirmed = self.confirmed_by(answer)
        except RemoteProtocolError as problem:
            return self.damaged(problem)
        if confirmed <= self._after:
            self.waits_s = min(self._wait_ms / 1000, _LOOK_AGAIN_S)
        if answer.code is not Code.OK and answer.code not in _DENIALS:
            return self.refusal(answer)
        return Response(self.request_id, Status.OK, confirmed, proof=self.prove(confirmed))


class NotPublishing(Exchange):
    """A last add confirmed that no bookie can be told, since version 2 has no word for it: readers hear of it with the next
    entry, or when the ledger is closed (W5 is advice)."""

    def answered(self, place: int, answer: Answer) -> Response | None:
        raise AssertionError("nothing was asked")


class Publishing(Exchange):
    """Writes an explicit last add confirmed."""

    def __init__(self, request: WriteLastAddConfirmedRequest) -> None:
        super().__init__(request)
        self._term = request.term
        self._confirmed = claimed(request.proof)

    def questions(self) -> list[tuple[Operation, Any, int]]:
        statement = self.key.seal_confirmed(self.ledger_id, self._confirmed)
        fields = {"ledgerId": self.ledger_id, "lac": self._confirmed, "masterKey": bytes(self.key), "body": statement}
        return [(Operation.WRITE_CONFIRMED, wire["WriteLacRequest"](**fields), 0)]

    def answered(self, place: int, answer: Answer) -> Response | None:
        if answer.code is Code.OK:
            return Response(self.request_id, Status.OK)
        if answer.code in _DENIALS:
            return Response(self.request_id, Status.UNKNOWN, detail=_named(answer.code))
        return self.refusal(answer, self._term)
