"""The member's end of connections: messages of other members, and the questions of clients.

Messages are taken in their order, and answered at once, by nothing: an answer says only that the message has arrived. A question
waits for its answer, which any member gives that leads; others name the leader.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import trio

from replog.abc import Reply
from replog.errors import RemoteProtocolError
from replog.metastores.quorum import questions
from replog.metastores.quorum.callers import BusyError, NotLeaderError, UnknownOutcomeError
from replog.metastores.quorum.copies import CopyInParts
from replog.metastores.quorum.frames import FrameKind, MemberFrame
from replog.metastores.quorum.node import Node
from replog.metastores.quorum.peers import Peers
from replog.metastores.quorum.questions import (
    OF_ADMINISTRATORS,
    PLACE_BYTES_MAX,
    AnswerKind,
    Question,
    QuestionKind,
)
from replog.protocol.consensus.commands import What
from replog.protocol.consensus.message_codec import decode_message
from replog.protocol.consensus.messages import Copy, Message
from replog.protocol.consensus.registers import Registers
from replog.protocol.messages import MetastorePurpose, MetastoreRequest, Request, Response, Status
from replog.runtime.keys import VALUE_BYTES_MAX
from replog.runtime.loggers import logger

_log = logger("replog.metastores.quorum")

_QUESTIONS_MAX = 10_000  # under way: more are refused as busy


class MemberService:
    """Serves the member of this process. While it belongs to no cluster, `node` is None; `outside` takes the messages that are
    not for a node: those of founding, of joining and of refusals."""

    def __init__(self, peers: Peers, nursery: trio.Nursery) -> None:
        self.node: Node | None = None
        self.outside: Callable[[MemberFrame], None] = _ignore
        self.administer: Callable[[Question], Awaitable[bytes]] | None = None
        self.status: Callable[[], Mapping[str, Any]] = dict
        self._peers = peers
        self._nursery = nursery
        self._copies: dict[str, CopyInParts] = {}
        self._questions = 0
        self._refused: set[str] = set()  # clusters whose messages were refused: said once

    def handle(self, requests: Sequence[Request], reply: Reply) -> None:
        """Takes requests, as a `RequestHandler`: those that are for a metastore."""
        for request in requests:
            assert isinstance(request, MetastoreRequest), "others are for the bookie"
            if request.purpose is MetastorePurpose.MEMBER:
                reply((self._message(request),))
            elif self._questions >= _QUESTIONS_MAX:
                problem = f"{self._questions} questions to the metastore are under way: try again later"
                reply((Response(request.request_id, Status.TOO_BUSY, detail=problem),))
            else:
                self._questions += 1
                self._nursery.start_soon(self._reply, request, reply)

    # -- members ------------------------------------------------------------------------------------------------------

    def _message(self, request: MetastoreRequest) -> Response:
        try:
            self.receive(request.body)
        except RemoteProtocolError as error:
            _log.warning("a message of a member was refused: %s", error)
            return Response(request.request_id, Status.BAD_REQUEST, detail=str(error))
        return Response(request.request_id, Status.OK)

    def receive(self, body: bytes) -> None:
        """A message of another member. Raises `RemoteProtocolError`."""
        frame = MemberFrame.decode(body)
        if frame.kind in (FrameKind.FOUNDING, FrameKind.JOIN, FrameKind.REFUSED):
            self.outside(frame)
        elif frame.cluster != self._peers.cluster or self.node is None:
            self._refuse_cluster(frame)
        else:
            self._of_member(self.node, frame)

    def _of_member(self, node: Node, frame: MemberFrame) -> None:
        name = frame.sender
        self._peers.heard(name, frame.address)
        if frame.kind is FrameKind.PAGE:
            self._copies.setdefault(name, CopyInParts()).page(frame.payload)
        elif frame.kind is FrameKind.COPY:
            whole = self._copies.pop(name, CopyInParts()).message(frame.payload)
            if whole is not None:
                node.receive(name, _message_of(whole[0], is_copy=True), whole[1])
        else:
            node.receive(name, _message_of(frame.payload, is_copy=False))

    def _refuse_cluster(self, frame: MemberFrame) -> None:
        """Messages of another cluster are refused (Q16): a disk that was begun anew, or a wrong address."""
        if self._peers.cluster and frame.cluster not in self._refused:
            self._refused.add(frame.cluster)
            _log.error(
                "a message of another metastore was refused: %s at %s belongs to cluster %s, this member to %s",
                frame.sender,
                frame.address,
                frame.cluster,
                self._peers.cluster,
            )

    # -- clients ------------------------------------------------------------------------------------------------------

    async def _reply(self, request: MetastoreRequest, reply: Reply) -> None:
        try:
            body = await self.ask(request.purpose, request.body)
            reply((Response(request.request_id, Status.OK, body=body),))
        except RemoteProtocolError as error:
            reply((Response(request.request_id, Status.BAD_REQUEST, detail=str(error)),))
        finally:
            self._questions -= 1

    async def ask(self, purpose: MetastorePurpose, body: bytes) -> bytes:
        """The answer to a question, of this process or another one. Raises `RemoteProtocolError`."""
        question = Question.decode(body)
        if question.kind in OF_ADMINISTRATORS and purpose is not MetastorePurpose.ADMIN:
            raise RemoteProtocolError("a change of the members needs the role of an administrator")
        if question.kind is QuestionKind.STATUS:
            await trio.lowlevel.checkpoint()
            return questions.facts(self.status())
        node = self.node
        if node is None or node.failure is not None:
            await trio.lowlevel.checkpoint()
            return questions.not_leader(None, ())
        try:
            if question.kind in OF_ADMINISTRATORS:
                assert self.administer is not None, "a member administers"
                return await self.administer(question)
            return await _answer(node, question)
        except NotLeaderError as error:
            leader = self._peers.address_of(error.leader or "") or None
            return questions.not_leader(leader, tuple(node.member.members.addresses.values()))
        except UnknownOutcomeError:
            return questions.other(AnswerKind.UNKNOWN)
        except BusyError as error:
            return questions.other(AnswerKind.BUSY, str(error))


def _message_of(data: bytes, *, is_copy: bool) -> Message:
    """Raises `RemoteProtocolError`, also for a copy without its state, and for a state without its copy."""
    message = decode_message(data)
    if isinstance(message, Copy) is not is_copy:
        raise RemoteProtocolError(f"a message {type(message).__name__} in a frame that is not for it")
    return message


def _check(question: Question) -> None:
    """Raises `RemoteProtocolError` for what no disk of a member takes: it would stop, and all if that was in the log; and for
    what only a leader asks of itself."""
    command = question.command
    if command is not None and command.what is What.EXPIRE:
        raise RemoteProtocolError("only the leader's clock expires an announced key (Q15)")
    key, value_bytes = (question.key, 0) if command is None else (command.key, len(command.value))
    key_bytes = len(key.encode())
    if key_bytes > PLACE_BYTES_MAX or value_bytes > VALUE_BYTES_MAX:
        raise RemoteProtocolError(
            f"a key of {key_bytes} bytes with a value of {value_bytes}: {PLACE_BYTES_MAX} and {VALUE_BYTES_MAX} are taken"
        )


async def _answer(node: Node, question: Question) -> bytes:
    _check(question)
    key = question.key
    match question.kind:
        case QuestionKind.CHANGE:
            assert question.command is not None, "a change has a command"
            outcome, index = await node.change(question.command)
            return questions.found(index, outcome.encode())
        case QuestionKind.GET:
            found, index = await node.read(lambda state: state.get(key))
            if found is None:
                return questions.missing(index)
            return questions.found(index, questions.value_payload(*found))
        case QuestionKind.CHILDREN:
            words, index = await node.read(lambda state: state.children(key))
            return questions.found(index, questions.words_payload(words))
        case QuestionKind.BEAT:
            version = question.facts.get("version", 0)
            is_there, index = await node.read(lambda state: node.leases.beat(state, key, version))
            return questions.found(index, b"") if is_there else questions.missing(index)
        case QuestionKind.WAIT:
            is_changed = await _wait(node, key, question.facts)
            return questions.found(0, b"") if is_changed else questions.other(AnswerKind.UNCHANGED)
        case _:
            of = Registers.announced if question.kind is QuestionKind.ANNOUNCED else Registers.values
            first, count_max = question.page()
            payload, index = await node.read(lambda state: questions.page_payload(of(state, key, first), count_max))
            return questions.found(index, payload)


async def _wait(node: Node, key: str, facts: Mapping[str, Any]) -> bool:
    """Waits for another version of the key, or for other words right below it: whichever was named."""
    if "words" in facts:
        return await node.wait(f"{key}/", lambda state: questions.digest_of(state.children(key)) != facts["words"])

    def version(state: Registers) -> int | None:
        found = state.get(key)
        return None if found is None else found[0]

    return await node.wait(key, lambda state: version(state) != facts.get("version"))


def _ignore(_frame: MemberFrame) -> None:
    """Messages for nobody are lost, as any may be."""
