"""Requests that reach a member over its transports: each is a batch, in the frame of an add.

A request is a batch of entries for the machine's log; its answer is a batch of as many answers. So callers use the
transports of bookies, with their authentication and bounds, and no protocol of their own. The request's key proves that
the caller knows the log's password (B7).
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Protocol

from replog.abc import Reply
from replog.errors import RemoteProtocolError, UnknownCommandError
from replog.machine.entries import Answer, Code, MachineEntry, decode_entry
from replog.protocol.batch import Batch, build, check_damage
from replog.protocol.digest import Digest, DigestType, ledger_key
from replog.protocol.messages import AddRequest, Request, Response, Status

ANSWER_BYTES_MAX = 16 << 20  # of one response; answers beyond it are asked for again
_LEDGER_ID = 0  # of no meaning here: a batch has one
_DIGEST = Digest(DigestType.CRC32C, _LEDGER_ID, b"")
_AGAIN = Answer(Code.BUSY).encode()


def machine_key(password: bytes) -> bytes:
    """The key that a caller presents, and a member compares."""
    return ledger_key(_LEDGER_ID, password)


def batch_of(payloads: Sequence[bytes]) -> Batch:
    """Requests or answers in one batch."""
    return build(
        _DIGEST,
        ledger_id=_LEDGER_ID,
        first_entry_id=0,
        stride=1,
        payloads=payloads,
        last_add_confirmed=-1,
        stamp=1,
        timestamp_ns=0,
        cumulative_length=0,
    )


def request_of(request_id: int, payloads: Sequence[bytes], key: bytes) -> AddRequest:
    """The message that carries these requests to a leader."""
    return AddRequest(request_id, _LEDGER_ID, key, 1, batch_of(payloads))


class Visit:
    """One message of a caller, whose requests are answered together."""

    __slots__ = ("_answers", "_missing", "_request_id", "reply")

    def __init__(self, request_id: int, reply: Reply, requests: int) -> None:
        self.reply = reply
        self._request_id = request_id
        self._answers: list[bytes] = [b""] * requests
        self._missing = requests

    def answered(self, place: int, answer: Answer) -> Response | None:
        """The request at this place has its answer; the response is returned when all have."""
        self._answers[place] = answer.encode()
        self._missing -= 1
        if self._missing:
            return None
        answers, size_bytes = self._answers, 0
        for number, each in enumerate(answers):
            size_bytes += len(each)
            # The first goes however large it is, so that asking again ends.
            if size_bytes > ANSWER_BYTES_MAX and number:
                answers[number] = _AGAIN
        return Response(self._request_id, Status.OK, batches=(batch_of(answers),))

    def refused(self) -> Response:
        """The answer of a member that does not lead, or does not lead any more."""
        return Response(self._request_id, Status.FENCED, detail="this member does not lead")


class Host(Protocol):
    """The leader, which takes visits."""

    def take(self, visit: Visit, requests: Sequence[MachineEntry]) -> None:
        """Answers the visit, now or later."""


class Reception:
    """The handler of a member's listeners: passes visits on to the leader while this member leads."""

    def __init__(self, password: bytes) -> None:
        self.leader: Host | None = None
        self._key = machine_key(password)

    def handle(self, requests: Sequence[Request], reply: Reply) -> None:
        """Takes requests and replies to each (`RequestHandler.handle`)."""
        refused = []
        for request in requests:
            problem = self._receive(request, reply)
            if problem is not None:
                refused.append(problem)
        if refused:
            reply(refused)

    def _receive(self, request: Request, reply: Reply) -> Response | None:
        if type(request) is not AddRequest:
            problem = "this is a member of a state machine, and no bookie"
            return Response(request.request_id, Status.BAD_REQUEST, detail=problem)
        if not hmac.compare_digest(request.key, self._key):
            return Response(request.request_id, Status.UNAUTHORIZED, detail="wrong password for this machine")
        if self.leader is None:
            return Visit(request.request_id, reply, 0).refused()
        try:
            check_damage(request.batch)
            entries = [decode_entry(each) for each in request.batch.payloads()]
        except (RemoteProtocolError, UnknownCommandError) as error:
            return Response(request.request_id, Status.BAD_REQUEST, detail=str(error))
        self.leader.take(Visit(request.request_id, reply, len(entries)), entries)
        return None
