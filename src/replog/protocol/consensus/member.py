"""One member of the cluster that keeps the metastore: elections, the log, commits, reads and changes of members.

It does no I/O, reads no clock and draws no random number. Each event is a call; its results are in `outbox` (messages,
and the write before them) and in `effects`. It is Raft, with pre-votes, joint changes of members, and reads that ask a
majority.

Invariants:

- Term and vote are durable before they are told, and so is what is acknowledged (Q1, Q2): `outbox` holds back what says
  more.
- A member votes once a term, and only for a log that lacks nothing that its own has, as far as terms and indices tell
  (Q3).
- Committed entries are never cut (Q5). `commit` never sinks.
- A leader commits by counting entries of its own term only; earlier ones are committed with them (Q6). It needs not
  have them on its own disk: what it answers from is in its memory once it is committed.
- Entries are applied once they are committed, in their order: `Committed` has each exactly once.
- Which members must agree is read off the log, committed or not (Q8). One change at a time (Q9).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from replog.protocol.consensus import following
from replog.protocol.consensus.effects import Committed, CopyWanted, Deposed, Effect, Elected, ReadsConfirmed
from replog.protocol.consensus.groups import Group, Membership
from replog.protocol.consensus.leading import Follower, Leading
from replog.protocol.consensus.log import EntryLog, Kind, LogEntry
from replog.protocol.consensus.messages import (
    Append,
    Appended,
    Ask,
    Copy,
    MayAsk,
    Message,
    Vote,
    VoteRequest,
)
from replog.protocol.consensus.outbox import Outbox
from replog.protocol.stages import Transitions, after, from_each

_NO_ADDRESSES: Mapping[str, str] = {}


class Role(enum.Enum):
    """The roles of a member in its term."""

    FOLLOWER = enum.auto()
    ASKING = enum.auto()  # whether it would be elected
    CANDIDATE = enum.auto()
    LEADER = enum.auto()


TRANSITIONS: Transitions[Role] = {
    **from_each((Role.FOLLOWER, Role.ASKING, Role.CANDIDATE), "election timeout", Role.ASKING),
    (Role.ASKING, "a majority would vote"): Role.CANDIDATE,
    (Role.CANDIDATE, "elected"): Role.LEADER,
    **from_each(Role, "step down", Role.FOLLOWER),
}


class Member:
    """One member, under one name. It begins with what its disk has: `term`, `voted_for` and `log`. It knows that entries up to
    `commit` are committed, because it has applied them. One message has at most `entries_max`."""

    def __init__(
        self,
        name: str,
        term: int,
        voted_for: str | None,
        log: EntryLog,
        *,
        commit: int = 0,
        entries_max: int = 256,
    ) -> None:
        self.name = name
        self.term = term
        self.log = log
        self.commit = max(commit, log.base.index)
        self.role = Role.FOLLOWER
        self.leader: str | None = None  # of this term, as far as it is known
        self.outbox = Outbox(log)
        self.effects: list[Effect] = []
        self.leading: Leading | None = None  # while it leads
        self.has_heard = False  # of a leader or a candidate that it voted for, since the last election timeout
        self._voted_for = voted_for
        self._votes: set[str] = set()
        self._entries_max = entries_max
        self._confirmed_probe = 0

    # -- looking ----------------------------------------------------------------------------------------------------

    @property
    def members(self) -> Membership:
        """The members that must agree (Q8)."""
        return self.log.members

    @property
    def is_ready(self) -> bool:
        """True if it leads and has committed an entry of its own term: it knows all that is committed (Q6, Q10)."""
        return self.leading is not None and self.commit >= self.leading.first_of_term

    def may_lead(self) -> bool:
        """True for a member; and for one that an entry lets go which it does not know to be committed: the others may lack that
        entry, and could not lead without it (Q9)."""
        if self.name in self.members.names:
            return True
        log = self.log
        return log.members_index > self.commit and self.name in log.members_at(log.members_index - 1).names

    def take_effects(self) -> list[Effect]:
        """Returns the effects to perform, in their order, and forgets them."""
        effects, self.effects = self.effects, []
        return effects

    # -- time -------------------------------------------------------------------------------------------------------

    def election_timeout(self) -> None:
        """So much time has passed that a leader should have been heard of. The shell draws it anew each time."""
        if self.leading is not None:
            # A leader that hears from no majority can do nothing, and others may know a newer one (Q17).
            if not self.members.agree({*self.leading.heard, self.name}):
                self.step_down()
            else:
                self.leading.heard = set()
            return
        if self.has_heard:
            self.has_heard = False
            return
        self.leader = None
        if not self.may_lead():
            return
        self._enter("election timeout")
        self._votes = {self.name}
        for name in self._others():
            self._say(name, Ask(self.term, self.term + 1, self.log.last, self.log.last_term), is_free=True)
        self._count_asked()

    def leader_is_gone(self, name: str) -> None:
        """The process of this leader seems to have ended: stands at once, unless another one leads. Others agree once they have
        seen it, too: a leader that only this member does not reach stays (Q17). Called again while nobody leads, as after two
        members stood at one moment, it is a timeout as any other: whoever it has voted for gets time."""
        if self.leader == name:
            self.has_heard = False
        if self.leader in (None, name):
            self.election_timeout()

    def heartbeat_due(self) -> None:
        """So much time has passed that followers should hear from their leader."""
        if self.leading is None:
            return
        self._send_to_all()
        for name in self.leading.targets(self.members, self.name):
            if self.leading.followers[name].next <= self.log.base.index:
                self._beat(name)

    # -- elections --------------------------------------------------------------------------------------------------

    def _count_asked(self) -> None:
        if self.role is Role.ASKING and self.members.agree(self._votes):
            self._enter("a majority would vote")
            self._set_term(self.term + 1, self.name)
            self._votes = set()
            # Its own vote counts once it is durable, as any other does (Q1).
            self._say(self.name, Vote(self.term, True))
            for name in self._others():
                self._say(name, VoteRequest(self.term, self.log.last, self.log.last_term))

    def _asked(self, name: str, message: Ask) -> None:
        would_vote = message.next_term > self.term and not self.log.is_older(message.last_term, message.last)
        # Who has just heard from a leader keeps it. A leader was heard of by all that matter to it.
        is_granted = would_vote and not self.has_heard and self.leading is None
        self._say(name, MayAsk(self.term, message.next_term, is_granted), is_free=True)

    def _may_ask(self, name: str, message: MayAsk) -> None:
        if not message.is_granted:
            self.see_term(message.term)
        elif self.role is Role.ASKING and message.next_term == self.term + 1:
            self._votes.add(name)
            self._count_asked()

    def _vote_requested(self, name: str, message: VoteRequest) -> None:
        self.see_term(message.term)
        is_free = self._voted_for in (None, name)
        is_granted = message.term == self.term and is_free and not self.log.is_older(message.last_term, message.last)
        if is_granted:
            assert self.leading is None, "a leader has voted for itself"
            self._set_term(self.term, name)
            self.has_heard = True
        self._say(name, Vote(self.term, is_granted))

    def _voted(self, name: str, message: Vote) -> None:
        self.see_term(message.term)
        if self.role is Role.CANDIDATE and message.term == self.term and message.is_granted:
            self._votes.add(name)
            if self.members.agree(self._votes):
                self._lead()

    def _lead(self) -> None:
        self._enter("elected")
        self.leader = self.name
        self.leading = Leading(self._others(), self.log.last, set(self._votes))
        self._confirmed_probe = 0
        self.effects.append(Elected(self.term))
        self.append(LogEntry(self.term, Kind.NOOP))

    def step_down(self) -> None:
        """Follows the present leader. Its entries that were appended and not committed have an unknown outcome (Q14)."""
        if self.leading is not None:
            self.leading, self.leader = None, None
            self.effects.append(Deposed(self.term))
        if self.role is not Role.FOLLOWER:
            self._enter("step down")
        self.has_heard = False

    def see_term(self, term: int) -> None:
        """A message has this term: a higher one than this member's is adopted."""
        if term > self.term:
            self.step_down()
            self.leader = None
            self._set_term(term, None)

    def _set_term(self, term: int, voted_for: str | None) -> None:
        assert term >= self.term, "terms never sink (Q1)"
        assert term > self.term or self._voted_for in (None, voted_for), "one vote a term (Q1)"
        self.term, self._voted_for = term, voted_for
        self.outbox.changed()

    # -- messages ---------------------------------------------------------------------------------------------------

    def receive(self, name: str, message: Message) -> None:
        """A message of this member has arrived; late, twice or not at all is all the same."""
        match message:
            case Append():
                following.append(self, name, message)
            case Copy():
                following.take_copy(self, name, message)
            case Appended():
                self._appended(name, message)
            case Ask():
                self._asked(name, message)
            case MayAsk():
                self._may_ask(name, message)
            case VoteRequest():
                self._vote_requested(name, message)
            case Vote():
                self._voted(name, message)

    def _say(self, name: str, message: Message, *, is_free: bool = False) -> None:
        self.outbox.say(name, message, is_free=is_free)

    def _others(self) -> tuple[str, ...]:
        return tuple(name for name in self.members.names if name != self.name)

    def _enter(self, event: str) -> None:
        self.role = after(TRANSITIONS, self.role, event)

    # -- writing ----------------------------------------------------------------------------------------------------

    def begin_write(self) -> object:
        """Takes what is to be made durable in one step: a `Write`, or None. The shell calls `written` when it is."""
        return self.outbox.begin_write(self.term, self._voted_for)

    def written(self, number: int) -> None:
        """A write is durable. Messages to this member itself arrive now."""
        self.outbox.written(number)
        own = [message for name, message in self.outbox.sent if name == self.name]
        self.outbox.sent = [each for each in self.outbox.sent if each[0] != self.name]
        for message in own:
            self.receive(self.name, message)
        self._try_to_commit()

    # -- leading ----------------------------------------------------------------------------------------------------

    def append(self, entry: LogEntry) -> int:
        """Appends an entry of this leader's term, and sends it. Returns its index."""
        leading = self.leading
        assert leading is not None, "only a leader appends"
        assert entry.term == self.term, "a leader appends entries of its term"
        self.log.append((entry,))
        self.outbox.changed(self.log.last)
        if entry.members is not None:
            leading.follow_all(self.members, self.name, self.log.last - 1)
        self._send_to_all()
        return self.log.last

    def _send_to_all(self) -> None:
        assert self.leading is not None, "a leader sends"
        for name in self.leading.targets(self.members, self.name):
            self._send(name, self.leading.followers.setdefault(name, Follower(self.log.last + 1)))

    def _beat(self, name: str) -> None:
        """Has a follower hear that there is a leader, while a copy of the state is on its way to it."""
        assert self.leading is not None, "a leader beats"
        log = self.log
        beat = Append(self.term, log.last, log.last_term, (), self.commit, self.leading.probe)
        self._say(name, beat, is_free=True)

    def _send(self, name: str, follower: Follower) -> None:
        log, leading = self.log, self.leading
        assert leading is not None, "a leader sends"
        previous, last = follower.next - 1, self._last_for(name)
        if previous < log.base.index:
            self.effects.append(CopyWanted(name))
            return
        term = log.term_at(previous)
        assert term is not None, "what is sent next is in the log"
        entries = log.entries_from(previous + 1, min(self._entries_max, last - previous)) if previous < last else ()
        # It says nothing of this disk: the follower's own is what counts.
        self._say(name, Append(self.term, previous, term, entries, self.commit, leading.probe), is_free=True)

    def _last_for(self, name: str) -> int:
        """The last entry that is sent to this name. A learner gets what is committed only: with more, its log could be newer than
        that of everybody who may lead without this leader, and a lost change may make them need its vote (Q9)."""
        return self.log.last if name in self.members.names else self.commit

    def copy_sent(self, name: str, message: Copy) -> None:
        """The state that `CopyWanted` asked for was sent, up to the base that was current when it began; this follows it."""
        if self.leading is not None and message.term == self.term:
            self._say(name, message, is_free=True)

    def _appended(self, name: str, message: Appended) -> None:
        self.see_term(message.term)
        leading = self.leading
        if leading is None or message.term != self.term:
            return  # what is acknowledged of another term may be cut by now (Q7)
        follower = leading.answered(name, message.probe)
        is_target = name in leading.targets(self.members, self.name)
        if message.is_matched:
            follower.matched = max(follower.matched, message.index)
            follower.next = max(follower.next, message.index + 1)
            self._try_to_commit()
            if self.leading is leading and is_target and follower.next <= self._last_for(name):
                self._send(name, follower)
        elif is_target:
            follower.next = max(1, min(follower.next - 1, message.index + 1))
            self._send(name, follower)
        self._confirm_reads()

    # -- committing -------------------------------------------------------------------------------------------------

    def _try_to_commit(self) -> None:
        leading = self.leading
        if leading is None:
            return
        for index in range(self.log.last, max(self.commit, leading.first_of_term - 1), -1):
            names = leading.matched(index)
            if self.outbox.durable_last >= index:
                names.append(self.name)  # its own disk counts by the same rule (Q2)
            if self.members.agree(names):
                self.commit_up_to(index)
                self._committed_more()
                return

    def commit_up_to(self, index: int) -> None:
        """Everything up to this entry is committed, as a leader has counted."""
        if index > self.commit:
            assert index <= self.log.last, "what is committed is in the log (Q7)"
            first, self.commit = self.commit + 1, index
            self.effects.append(Committed(first, self.log.entries_from(first, index - first + 1)))

    def _committed_more(self) -> None:
        assert self.leading is not None, "a leader commits by counting"
        members, index = self.members, self.log.members_index
        for name in self.leading.learners:
            if name not in members.names:  # members have it already
                self._send(name, self.leading.followers[name])
        if members.is_changing and index <= self.commit:
            self.append(LogEntry(self.term, Kind.SETTLE, members=members.settled()))
        elif index <= self.commit and self.name not in members.names:
            self._send_to_all()  # so that the others learn that they may do without this one
            self.step_down()
            return
        self._confirm_reads()

    # -- reading ----------------------------------------------------------------------------------------------------

    def begin_read(self) -> int | None:
        """A question has come: returns the probe that confirms it, or None if this member can't answer. When `ReadsConfirmed`
        names this probe, or a later one, the state is looked up (Q10)."""
        leading = self.leading
        if leading is None or not self.is_ready:
            return None
        leading.probe += 1
        self._send_to_all()
        self._confirm_reads()
        return leading.probe

    def _confirm_reads(self) -> None:
        leading = self.leading
        if leading is None or not self.is_ready or self._confirmed_probe == leading.probe:
            return
        for probe in range(leading.probe, self._confirmed_probe, -1):
            if self.members.agree([*leading.have_answered(probe), self.name]):
                self._confirmed_probe = probe
                self.effects.append(ReadsConfirmed(probe))
                return

    # -- changing the members, and dropping what was applied -----------------------------------------------------------

    def learn(self, name: str) -> None:
        """Sends the log to a name that is no member yet, so that it can be let in."""
        if self.leading is not None and name != self.name and name not in self.members.names:
            self.leading.learners[name] = None
            self._send(name, self.leading.followers.setdefault(name, Follower(self.log.last + 1)))

    def why_no_change(self, group: Group, addresses: Mapping[str, str] = _NO_ADDRESSES) -> str:
        """Why the members can't be changed to this group at these addresses now; "" if they can (Q9)."""
        if not self.is_ready:
            return "this member does not lead, or does not know yet what is committed"
        if self.members.is_changing or self.log.members_index > self.commit:
            return "another change is under way"
        is_moved = any(self.members.addresses.get(name) != address for name, address in addresses.items())
        if not group or (set(group) == set(self.members.newest) and not is_moved):
            return "these are the members already" if group else "a cluster has members"
        assert self.leading is not None, "a ready member leads"
        for name in group:
            follower = self.leading.followers.get(name)
            # It hears of commits a message later than members do: what one message has it may lack.
            enough = max(1, self.commit - self._entries_max + 1)
            is_behind = follower is None or follower.matched < enough
            if is_behind and name not in self.members.names and name != self.name:
                return f"{name} does not have all that is committed yet"
        return ""

    def change_members(self, group: Group, addresses: Mapping[str, str]) -> int:
        """Begins a change to this group; returns the index of its CHANGE. Allowed if `why_no_change` says nothing."""
        assert not self.why_no_change(group, addresses), "the change is allowed (Q9)"
        return self.append(LogEntry(self.term, Kind.CHANGE, members=self.members.changed_to(group, addresses)))

    def drop(self, index: int) -> None:
        """Drops the entries up to this one, whose effects are in the state on the disk."""
        assert index <= self.commit, "what may still be cut is not dropped (Q12)"
        if index > self.log.base.index:
            self.log.drop(index)
            self.outbox.changed(is_base=True)
