"""Finding the leader: any member that is asked answers, or says who leads. Members that can't be reached are passed over."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import attrs
import trio

from replog.abc import Authenticator
from replog.errors import MetastoreError, RemoteProtocolError
from replog.metastores.quorum.channels import LostError, NotSentError, OpenTransport
from replog.metastores.quorum.questions import OF_ADMINISTRATORS, Answer, AnswerKind, Question, QuestionKind
from replog.protocol.messages import MetastorePurpose, Response, Status

_REFRESH_S = 30.0  # a client that only asks the leader would not hear of new members
_SILENT_S = 2.0  # so long after a member did not answer, the others are asked who leads: they elect another one, if it is cut off
_PAUSE_S = 0.05  # before the members are asked again, while none of them leads


class Members(Protocol):
    """The way to ask a member."""

    @property
    def addresses(self) -> Sequence[str]:
        """The addresses that were named at first. Others are learned from answers."""

    def use(self, open_transport: OpenTransport, authenticator: Authenticator | None) -> None:
        """How to reach members, and to prove who asks: called before the first question."""

    async def ask(self, address: str, purpose: MetastorePurpose, body: bytes, sent: Callable[[], None]) -> Response:
        """Asks the member at this address; calls `sent` once it may have the question. Raises `NotSentError`, `LostError`."""

    async def aclose(self) -> None:
        """Ends the connections. Idempotent."""


@attrs.define
class Attempt:
    """The tries of one call, and whether one of them may have been carried out (M1)."""

    was_lost: bool = False
    is_under_way: bool = False

    def sent(self) -> None:
        """A member may have it from now on."""
        self.is_under_way = True

    @property
    def may_be_done(self) -> bool:
        """True if a member may have appended it."""
        return self.was_lost or self.is_under_way


class Asking:
    """One client's knowledge of the members: their addresses, and which of them leads."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._leader: str | None = None
        self._learned: tuple[str, ...] = ()
        self._learned_at_s = -math.inf
        self._problems: dict[str, str] = {}  # by address, of the last try
        self._failed_at_s: dict[str, float] = {}
        self._asked: dict[str, int] = {}  # by address, in which turn: while nobody is known to lead

    @property
    def addresses(self) -> tuple[str, ...]:
        """All that are known: those that members name now first, then those that were named at first."""
        return tuple(dict.fromkeys((*self._learned, *self._members.addresses)))

    def learn(self, addresses: Iterable[str]) -> None:
        """These are the members' addresses now."""
        self._learned = tuple(addresses) or self._learned
        self._learned_at_s = trio.current_time()

    async def _refresh(self, leader: str) -> None:
        """Learns the members' addresses: those that were named at first may all be gone one day."""
        self._learned_at_s = trio.current_time()
        try:
            facts = await self._status(leader)
            self.learn([str(each["address"]) for each in facts.get("members", ()) if each["address"]])
        except (NotSentError, LostError, RemoteProtocolError, MetastoreError, TypeError, KeyError) as error:
            self._failed(leader, str(error))  # another member is asked next

    async def ask(self, question: Question, attempt: Attempt) -> Answer:
        """Asks until a leader has answered, however long it takes: the caller sets the deadline. Raises `MetastoreError`
        if a member refuses the question for good."""
        body = question.encode()
        purpose = MetastorePurpose.ADMIN if question.kind in OF_ADMINISTRATORS else MetastorePurpose.CLIENT
        tries = 0
        if self._leader is not None and trio.current_time() - self._learned_at_s > _REFRESH_S:
            await self._refresh(self._leader)
        while True:
            address = self._leader or self._next()
            try:
                answer = _read(address, await self._members.ask(address, purpose, body, attempt.sent), purpose)
                leads = answer.members() if answer.kind is AnswerKind.NOT_LEADER else (None, ())
            except NotSentError as error:
                attempt.is_under_way = False
                self._failed(address, str(error))
            except (LostError, RemoteProtocolError) as error:
                attempt.was_lost = True
                self._failed(address, str(error))
            else:
                attempt.was_lost |= answer.kind is AnswerKind.UNKNOWN
                attempt.is_under_way = False
                if self._is_final(address, answer, *leads):
                    return answer
            tries += 1
            if tries > len(self.addresses):
                tries = 0
                await trio.sleep(_PAUSE_S)

    def _is_final(self, address: str, answer: Answer, leader: str | None, members: tuple[str, ...]) -> bool:
        match answer.kind:
            case AnswerKind.FOUND | AnswerKind.MISSING | AnswerKind.REFUSED | AnswerKind.UNCHANGED:
                self._leader = address
                self._problems.pop(address, None)
                return True
            case AnswerKind.NOT_LEADER:
                self.learn(members)
                self._leader = leader if leader != address and not self._is_silent(leader) else None
                self._problems[address] = "it knows no leader" if not leader else f"it follows {leader}"
            case AnswerKind.BUSY:
                self._problems[address] = answer.text
            case AnswerKind.UNKNOWN:
                self._failed(address, "it leads no more")
        return False

    def _failed(self, address: str, problem: str) -> None:
        self._problems[address] = problem
        self._failed_at_s[address] = trio.current_time()
        if self._leader == address:
            self._leader = None

    def _is_silent(self, address: str | None) -> bool:
        """True if it did not answer a moment ago, though others may still name it."""
        return trio.current_time() - self._failed_at_s.get(address or "", -math.inf) < _SILENT_S

    def _next(self) -> str:
        """The one that was not asked for the longest time; one that is silent only if all are."""
        address = min(self.addresses, key=lambda each: (self._is_silent(each), self._asked.get(each, 0)))
        self._asked[address] = max(self._asked.values(), default=0) + 1
        return address

    def problems(self) -> str:
        """What is the matter with each member, for people."""
        said = [f"{address} ({self._problems[address]})" for address in self.addresses if address in self._problems]
        return f"Members: {', '.join(said)}: start those that do not run" if said else ""

    async def all_status(self, timeout_s: float) -> list[dict[str, Any]]:
        """What each known member says of itself and of the others; of one that does not answer, `address` and `problem`."""
        found: dict[str, dict[str, Any]] = {}

        async def ask(address: str) -> None:
            try:
                found[address] = await self._status(address)
            except (NotSentError, LostError, RemoteProtocolError, MetastoreError) as error:
                found[address] = {"address": address, "problem": str(error)}

        asked: set[str] = set()
        with trio.move_on_after(timeout_s):
            # Members name others: so one address is enough.
            while unasked := [each for each in self._named(found) if each not in asked]:
                asked.update(unasked)
                async with trio.open_nursery() as nursery:
                    for address in unasked:
                        nursery.start_soon(ask, address)
        return [found.get(each, {"address": each, "problem": "no answer"}) for each in self._named(found)]

    async def _status(self, address: str) -> dict[str, Any]:
        """Raises `NotSentError`, `LostError`, `RemoteProtocolError`, `MetastoreError`."""
        body = Question(QuestionKind.STATUS).encode()
        return _read(address, await self._members.ask(address, MetastorePurpose.CLIENT, body, Attempt().sent)).facts()

    def _named(self, found: dict[str, dict[str, Any]]) -> list[str]:
        said = [str(member["address"]) for facts in found.values() for member in facts.get("members", ())]
        return sorted({*self.addresses, *said})


def _read(address: str, response: Response, purpose: MetastorePurpose = MetastorePurpose.CLIENT) -> Answer:
    """Raises `NotSentError` for a member that is too busy, `MetastoreError` for one that refuses for good."""
    if response.status is Status.TOO_BUSY:
        raise NotSentError(response.detail)
    if response.status is not Status.OK:
        problem = f"metastore quorum: the member at {address} refuses: {response.detail}"
        if purpose is MetastorePurpose.ADMIN and response.status is Status.UNAUTHORIZED:
            problem += (
                f"; nothing was changed. Authenticate as an administrator; or, without authentication, run this on {address}'s "
                "own machine, as the user of its process"
            )
        raise MetastoreError(problem)
    return Answer.decode(response.body)
