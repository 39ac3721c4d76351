"""The leader's part in changes of the members: who is let in, in whose place, and who is let go (Q9, Q11).

A process that belongs to the cluster and is no member asks to be let in, again and again. The leader lets it in if its address
is a member's: then that member's disk is gone, and the new name takes its place; or if an administrator has named its address.
It copies the state to it first. A member that still answers is never replaced by somebody who only has its address.
"""

from __future__ import annotations

from typing import Any

import attrs
import trio

from replog.errors import ConfigError
from replog.metastores.quorum import questions
from replog.metastores.quorum.addresses import normalized
from replog.metastores.quorum.callers import NotLeaderError
from replog.metastores.quorum.node import Node
from replog.metastores.quorum.peers import Peers
from replog.metastores.quorum.questions import AnswerKind, Question, QuestionKind
from replog.protocol.consensus.groups import Group, is_majority
from replog.runtime.loggers import logger

_log = logger("replog.metastores.quorum")

_LOOK_S = 0.05
_PATIENCE_S = 30.0  # with a newcomer that an administrator has named


@attrs.define(eq=False)
class _Expected:
    """An address that an administrator named, and the member in whose place it comes, if it does."""

    replaced: str | None = None
    problem: str = "nobody there has asked to be let in yet: start it, with the other members as its peers"


class Admission:
    """Lets processes in, and members go, while its node leads."""

    def __init__(self, node: Node, peers: Peers, silence_s: float) -> None:
        self._node = node
        self._peers = peers
        self._silence_s = silence_s  # after which a member is taken for gone
        self._term, self._leads_since_s = 0, 0.0
        self._expected: dict[str, _Expected] = {}  # by address

    def ask_in(self, name: str, address: str) -> str:
        """A process asks to be let in. Returns why it is not, for people; "" if it is a member, or may soon be one."""
        member = self._node.member
        if member.leading is None or name in member.members.names:
            return ""
        expected, there = self._expected.get(address), self._at(address)
        if expected is None and there is None:
            others = ",".join(member.members.addresses.get(each, "") for each in member.members.newest)
            return (
                f"{address} is no member's address: let it in with: replog metastore add {address}; or start its bookie with "
                f"--metastore quorum:{others} in place of --peers, if it is to be no member"
            )
        named = expected.replaced if expected is not None else None
        if there is not None and there != named and not self._is_silent(there):
            return (
                f"member {there} still answered a moment ago at {address}: if it runs, two processes have that address"
            )
        replaced = there or named  # an address has one member, whatever an administrator still waits for
        self._peers.know({name: address})
        self._node.do(lambda member: member.learn(name))
        group = _with(member.members.newest, name, replaced)
        if problem := member.why_no_change(group):
            if expected is not None:
                expected.problem = problem
            return ""
        _log.warning("member %s at %s is let in%s", name, address, f", in place of {replaced}" if replaced else "")
        self._node.do(lambda member: member.change_members(group, {name: address}))
        return ""

    def follow_moved(self) -> None:
        """Has the record say where members are that were started at other addresses, this one included: clients and newcomers
        know them from there."""
        member, peers = self._node.member, self._peers
        recorded = member.members.addresses
        said = {name: peers.address_of(name) or recorded.get(name, "") for name in member.members.newest}
        said |= {member.name: peers.address} if member.name in said else {}
        moved = {name: address for name, address in said.items() if address != recorded.get(name)}
        if moved and not member.why_no_change(member.members.newest, moved):
            _log.warning(
                "members of the metastore have moved: %s", ", ".join(f"{name} to {at}" for name, at in moved.items())
            )
            self._node.do(lambda member: member.change_members(member.members.newest, moved))

    async def _answering(self, group: Group) -> list[str]:
        """The members of the group that answer. A new leader waits for a moment until a majority of them has."""
        end_s = trio.current_time() + self._silence_s
        while True:
            found = [name for name in group if self._peers.silence_s(name) < self._silence_s]
            if is_majority(group, found) or trio.current_time() >= end_s:
                return found
            await trio.sleep(_LOOK_S)
            self._check_leads()

    def _is_silent(self, name: str) -> bool:
        now_s, term = trio.current_time(), self._node.member.term
        if term != self._term:
            self._term, self._leads_since_s = term, now_s
        # A leader has not heard of anybody before it led.
        return min(now_s - self._leads_since_s, self._peers.silence_s(name)) > self._silence_s

    def _at(self, address: str) -> str | None:
        members = self._node.member.members
        return next((name for name in members.newest if members.addresses.get(name) == address), None)

    # -- what administrators ask for ----------------------------------------------------------------------------------

    async def administer(self, question: Question) -> bytes:
        """Carries out a change of the members. Raises `NotLeaderError`."""
        facts = question.facts
        try:
            match question.kind:
                case QuestionKind.ADD:
                    return await self._expect(normalized(str(facts.get("address", ""))), _Expected())
                case QuestionKind.REPLACE:
                    old = self._named(str(facts.get("member", "")))
                    return await self._expect(normalized(str(facts.get("address", ""))), _Expected(old))
                case _:
                    return await self._remove(self._named(str(facts.get("member", ""))))
        except ConfigError as error:
            return questions.other(AnswerKind.REFUSED, str(error))

    def _named(self, text: str) -> str:
        """The member that a name, its beginning, or an address means. Raises `ConfigError`."""
        self._check_leads()
        members = self._node.member.members
        found = [name for name in members.newest if text and name.startswith(text)]
        if len(found) != 1 and text and (at := self._at(normalized(text))) is not None:
            found = [at]
        if len(found) != 1:
            listed = ", ".join(f"{name} ({members.addresses.get(name, '?')})" for name in members.newest)
            raise ConfigError(f"{text!r} names {len(found) or 'no'} members; there are: {listed}")
        return found[0]

    async def _expect(self, address: str, expected: _Expected) -> bytes:
        self._check_leads()
        if self._at(address) is not None and self._at(address) != expected.replaced:
            raise ConfigError(f"{address} is a member's address already: a new disk there is let in by itself")
        self._expected[address] = expected
        try:
            with trio.move_on_after(_PATIENCE_S):
                while (name := self._at(address)) is None or name == expected.replaced or not self._is_settled():
                    self._check_leads()
                    await trio.sleep(_LOOK_S)
                return self._done()
        finally:
            # Whoever asked again meanwhile waits for it still.
            if self._expected.get(address) is expected:
                del self._expected[address]
        raise ConfigError(f"{address} was not let in within {_PATIENCE_S:g} s: {expected.problem}")

    async def _remove(self, name: str) -> bytes:
        member = self._node.member
        group = tuple(each for each in member.members.newest if each != name)
        answering = await self._answering(group)
        if not is_majority(group, answering):
            raise ConfigError(
                f"{name} was not removed: of the {len(group)} members that would be left, only {len(answering)} answer"
            )
        if problem := member.why_no_change(group):
            raise ConfigError(f"{name} was not removed: {problem}")
        _log.warning("member %s is removed", name)
        self._node.do(lambda member: member.change_members(group, {}))
        with trio.move_on_after(_PATIENCE_S):
            while not (self._is_settled() and name not in member.members.names):
                if name != member.name:
                    self._check_leads()
                await trio.sleep(_LOOK_S)
            return self._done()
        raise NotLeaderError(None)  # whoever leads then finds it under way, or done

    def _check_leads(self) -> None:
        member = self._node.member
        # One that was just elected does not know yet what is committed: whoever asked it asks again soon (Q10).
        if not member.is_ready:
            raise NotLeaderError(member.leader)

    def _is_settled(self) -> bool:
        member = self._node.member
        return not member.members.is_changing and member.log.members_index <= member.commit

    def _done(self) -> bytes:
        members = self._node.member.members
        found: dict[str, Any] = {name: members.addresses.get(name, "") for name in members.newest}
        return questions.facts({"members": found})


def _with(group: Group, name: str, replaced: str | None) -> Group:
    if replaced is None or replaced not in group:
        return (*group, name)
    return tuple(name if each == replaced else each for each in group)
