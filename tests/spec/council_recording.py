"""Writes down what members of a metastore do: the traces that `spec/CouncilTrace.tla` accepts.

`recording_members` wraps the methods of the machine while it lasts, in the simulator and in real processes alike, and tells each
step when it is taken. `Assembler` puts the steps of all members into the order in which others could see them: what a leader does
is seen at once; what others do, once it is durable. Such steps wait for the write that has them, and are forgotten if the process
dies before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import attrs

from replog.protocol.consensus import following
from replog.protocol.consensus.log import LogEntry
from replog.protocol.consensus.member import Member, Role
from replog.protocol.consensus.messages import Append, Appended, Copy, Message, Vote, VoteRequest
from replog.protocol.consensus.outbox import Outbox, Write
from tests.spec.recording import Event, applied, around

Tell = Callable[[str, Event], None]  # a member's name, and what it does

_AT_ONCE = {"leads", "appends", "commits"}
_SYNCED = {"stands", "votes", "sees", "follows", "takes copy"}  # steps that have all that went before on the disk
_NEW = (0, None, 0, 0)  # the state of a name that is in no group yet


@attrs.define
class Trace:
    """What the members of one cluster did. It ends where a name begins with entries of another one: `Council` lacks that."""

    first: tuple[str, ...] = ()
    begun: dict[str, int] = attrs.field(
        factory=dict
    )  # those that begin with the entry about the first members: their terms
    together: int = 1  # entries of one message
    events: list[Event] = attrs.field(factory=list)
    is_cut: bool = False


@attrs.define
class _Known:
    """What is known of one member: its steps that are not durable yet, by the write that has them; and its writes under way."""

    durable_last: int  # as the events say
    waiting: list[tuple[int, int, Event]] = attrs.field(factory=list)  # with the last entry at that time
    begun: dict[int, tuple[Any, ...]] = attrs.field(factory=dict)


class Assembler:
    """The trace of one cluster, from what its members tell, in the order of time."""

    def __init__(self) -> None:
        self.trace = Trace()
        self._known: dict[str, _Known] = {}

    def tell(self, name: str, what: Event) -> None:
        """A member began (with its state, what it knows to be committed, the members, and how many entries a message has), began
        to write, wrote, or took a step (with the write that has it, the last one that is durable, and its last entry)."""
        match what:
            case "begins", state, commit, group, together:
                self._begins(name, state, commit, group, together)
            case "begins to write", number, state:
                self._known[name].begun[number] = state
            case "wrote", number:
                self._wrote(self._known[name], number, name)
            case "step", number, written, last, event:
                known = self._known[name]
                known.waiting.append((number, last, event))
                self._flush(known, written, name)

    def _begins(self, name: str, state: tuple[Any, ...], commit: int, group: tuple[str, ...], together: int) -> None:
        trace, before = self.trace, self._known.get(name)
        self._known[name] = _Known(state[2])
        if before is not None:
            for number, written in list(before.begun.items()):
                if written == state:  # the write that was under way was made
                    self._wrote(before, number, name)
            self._add(("restarts", name, state[0], state[2], commit))
        elif group and (not trace.first or (name in trace.first and state[2] == 1)):
            trace.first, trace.together = group, together
            trace.begun[name] = state[0]
        elif state != _NEW:
            trace.is_cut = True

    def _wrote(self, known: _Known, number: int, name: str) -> None:
        self._flush(known, number, name)
        last = known.begun.pop(number)[2]
        if last != known.durable_last:
            self._add(("wrote", name, last))
            known.durable_last = last

    def _flush(self, known: _Known, number: int, name: str) -> None:
        """What is durable by this write can be seen by others."""
        while known.waiting and known.waiting[0][0] <= number:
            _, last, event = known.waiting.pop(0)
            self._add((event[0], name, *event[1:]))
            if event[0] in _SYNCED:
                known.durable_last = last

    def _add(self, event: Event) -> None:
        if not self.trace.is_cut:
            self.trace.events.append(event)


class _Watcher:
    """Tells what members do."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._said: dict[Outbox, Message] = {}  # what it said last
        self._acknowledged: dict[tuple[Outbox, str, int], int] = {}  # of a member, by a leader and its term

    def step(self, member: Member, *event: Any) -> None:
        """A member took a step."""
        outbox = member.outbox
        number = 0 if event[0] in _AT_ONCE else outbox._number + outbox.is_dirty
        self._tell(member.name, ("step", number, outbox._written, member.log.last, event))

    def began(self, member: Member) -> None:
        """A process begins, with what its disk has."""
        state = "begins", _state(member), member.commit, member.members.newest, member._entries_max
        self._tell(member.name, state)

    def writes(self, member: Member, write: object) -> None:
        """A write begins."""
        if isinstance(write, Write):
            self._tell(member.name, ("begins to write", write.number, _state(member)))

    def wrote(self, member: Member, number: int) -> None:
        """A write is durable."""
        self._tell(member.name, ("wrote", number))

    def said(self, outbox: Outbox, message: Message) -> None:
        """A member says something to another one."""
        self._said[outbox] = message

    def last_said(self, member: Member) -> Message | None:
        """What it said last."""
        return self._said.get(member.outbox)

    def followed(self, member: Member, leader: str, message: Append | Copy, before: tuple[object, ...]) -> None:
        """A member took a leader's message, and acknowledged it. One that tells nobody anything is left out."""
        answer = self.last_said(member)
        if not isinstance(answer, Appended) or not answer.is_matched:
            return
        which = member.outbox, leader, message.term
        known = self._acknowledged.get(which, -1)
        if known >= answer.index and before == (_state(member), member.commit):
            return
        self._acknowledged[which] = max(known, answer.index)
        if isinstance(message, Copy):
            self.step(member, "takes copy", leader, message.term, message.base.index, member.log.last)
        else:
            count = answer.index - message.previous
            where = leader, message.term, message.previous, count, message.commit
            self.step(member, "follows", *where, member.log.last, member.commit)


def _state(member: Member) -> tuple[int, str | None, int, int]:
    return member.term, member._voted_for, member.log.last, member.log.last_term


@contextmanager
def recording_members(tell: Tell) -> Iterator[None]:
    """Tells what members do while the context lasts."""
    watcher = _Watcher(tell)
    with applied(
        around(Member, "begin_write", lambda member, write: watcher.writes(member, write)),
        around(Outbox, "say", lambda outbox, _done, _name, message: watcher.said(outbox, message)),
        patch.object(Member, "__init__", _made(watcher)),
        patch.object(Member, "written", _written(watcher)),
        patch.object(Member, "_count_asked", _asked(watcher)),
        patch.object(Member, "_vote_requested", _voted(watcher)),
        patch.object(Member, "see_term", _term_seen(watcher)),
        patch.object(Member, "step_down", _stepped_down(watcher)),
        patch.object(Member, "_lead", _led(watcher)),
        patch.object(Member, "append", _appended(watcher)),
        patch.object(Member, "commit_up_to", _committed(watcher)),
        patch.object(following, "append", _followed(watcher, following.append)),
        patch.object(following, "take_copy", _followed(watcher, following.take_copy)),
    ):
        yield


def _made(watcher: _Watcher) -> Callable[..., None]:
    original = Member.__init__

    def made(self: Member, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        watcher.began(self)

    return made


def _written(watcher: _Watcher) -> Callable[..., None]:
    original = Member.written

    def written(self: Member, number: int) -> None:
        watcher.wrote(self, number)
        original(self, number)

    return written


def _asked(watcher: _Watcher) -> Callable[..., None]:
    original = Member._count_asked

    def counted(self: Member) -> None:
        term = self.term
        original(self)
        if self.term != term:
            watcher.step(self, "stands", self.term)

    return counted


def _voted(watcher: _Watcher) -> Callable[..., None]:
    original = Member._vote_requested

    def voted(self: Member, name: str, message: VoteRequest) -> None:
        before = self.term, self._voted_for
        original(self, name, message)
        answer = watcher.last_said(self)
        if isinstance(answer, Vote) and answer.is_granted and before != (self.term, name):
            watcher.step(self, "votes", name, message.term, message.last_term, message.last)

    return voted


def _term_seen(watcher: _Watcher) -> Callable[..., None]:
    original = Member.see_term

    def seen(self: Member, term: int) -> None:
        before = self.term
        original(self, term)
        if self.term != before:
            watcher.step(self, "sees", term)

    return seen


def _stepped_down(watcher: _Watcher) -> Callable[..., None]:
    original = Member.step_down

    def stepped_down(self: Member) -> None:
        was = self.role
        original(self)
        if was in (Role.CANDIDATE, Role.LEADER):
            watcher.step(self, "steps down")

    return stepped_down


def _led(watcher: _Watcher) -> Callable[..., None]:
    original = Member._lead

    def led(self: Member) -> None:
        watcher.step(self, "leads")
        original(self)

    return led


def _appended(watcher: _Watcher) -> Callable[..., int]:
    original = Member.append

    def appended(self: Member, entry: LogEntry) -> int:
        is_first = self.leading is not None and self.log.last + 1 == self.leading.first_of_term
        index = original(self, entry)
        if not is_first:  # that one belongs to `leads`
            watcher.step(self, "appends", () if entry.members is None else entry.members.groups)
        return index

    return appended


def _committed(watcher: _Watcher) -> Callable[..., None]:
    original = Member.commit_up_to

    def committed(self: Member, index: int) -> None:
        is_counted = self.leading is not None and index > self.commit
        original(self, index)
        if is_counted:
            watcher.step(self, "commits", index)

    return committed


def _followed(watcher: _Watcher, original: Callable[..., None]) -> Callable[..., None]:
    def followed(member: Member, leader: str, message: Any) -> None:
        before = _state(member), member.commit
        original(member, leader, message)
        watcher.followed(member, leader, message, before)

    return followed
