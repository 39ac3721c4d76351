"""A follower's reaction to messages of its leader: entries, and copies of the state.

- Entries are appended behind an entry whose index and term both sides have (Q4). The first one whose term differs cuts this log
  from there on; a message that ends earlier cuts nothing (Q5).
- A follower commits up to what the leader has committed, and no further than this message compared (Q7).
- A copy goes forward only, leaves term and vote, and keeps the entries that continue it (Q12).
"""

from __future__ import annotations

from typing import Protocol

from replog.protocol.consensus.effects import CopyTaken, Effect
from replog.protocol.consensus.leading import Leading
from replog.protocol.consensus.log import EntryLog
from replog.protocol.consensus.messages import Append, Appended, Copy
from replog.protocol.consensus.outbox import Outbox


class Following(Protocol):
    """The interface of a member that a follower needs."""

    term: int
    log: EntryLog
    commit: int
    leader: str | None
    has_heard: bool
    outbox: Outbox
    effects: list[Effect]
    leading: Leading | None

    def see_term(self, term: int) -> None:
        """Takes a term that was seen (`Member.see_term`)."""

    def step_down(self) -> None:
        """Becomes a follower (`Member.step_down`)."""

    def commit_up_to(self, index: int) -> None:
        """Commits up to this index (`Member.commit_up_to`)."""


def append(member: Following, leader: str, message: Append) -> None:
    """Compares, cuts what conflicts, appends, commits, and acknowledges."""
    if not _follows(member, leader, message):
        return
    log, outbox = member.log, member.outbox
    previous, previous_term, entries = message.previous, message.previous_term, message.entries
    if previous < log.base.index:  # what is before the base is committed: it matches
        entries = entries[log.base.index - previous :]
        matched = max(message.previous + len(message.entries), log.base.index)
        previous, previous_term = log.base.index, log.base.term
    else:
        matched = previous + len(entries)
    if log.term_at(previous) != previous_term:
        # No entry up to the commit index is asked for again: that is the leader's, too.
        again = max(member.commit, min(previous - 1, log.last))
        outbox.say(leader, Appended(member.term, False, again, message.probe), is_free=True)
        return
    for place, entry in enumerate(entries):
        index = previous + 1 + place
        if log.term_at(index) == entry.term:
            continue
        if index <= log.last:
            assert index > member.commit, "what is committed is never cut (Q5)"
            log.cut(index)
        log.append(entries[place:])
        outbox.changed(index)
        break
    member.commit_up_to(min(message.commit, matched))
    outbox.say(leader, Appended(member.term, True, matched, message.probe))


def take_copy(member: Following, leader: str, message: Copy) -> None:
    """Takes a copy of the state over if it is beyond what this member knows to be committed."""
    if not _follows(member, leader, message):
        return
    base = message.base
    if base.index > member.commit:
        member.log.restart(base)
        member.commit = base.index
        member.outbox.changed(base.index + 1, is_base=True)
        member.effects.append(CopyTaken(base))
    member.outbox.say(leader, Appended(member.term, True, base.index, message.probe))


def _follows(member: Following, leader: str, message: Append | Copy) -> bool:
    """Follows the sender if it leads in this member's term, or a later one; otherwise tells it the term."""
    member.see_term(message.term)
    if message.term < member.term:
        member.outbox.say(leader, Appended(member.term, False, 0, message.probe), is_free=True)
        return False
    assert member.leading is None, "a term has one leader (Q1)"
    member.step_down()
    member.leader, member.has_heard = leader, True
    return True
