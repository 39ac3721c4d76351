"""Each rule of the metastore's members left out: what proves that the simulator would find it (Q1-Q14).

`seeds` is how many seeds from 0 on find it at most; 0 where chance finds it too seldom for a test: then a script does.
"""

from __future__ import annotations

from replog.protocol.consensus import following
from replog.protocol.consensus.groups import Membership
from replog.protocol.consensus.leading import Leading
from replog.protocol.consensus.log import EntryLog
from replog.protocol.consensus.member import Member
from replog.protocol.consensus.outbox import Outbox
from replog.protocol.consensus.registers import Registers
from tests.simulator.council.process import Process
from tests.simulator.council.world import World
from tests.simulator.mutation import Mutant, Patch


def _mutant(name: str, rule: str, story: str, seeds: int, *patches: tuple[object, str, str, str]) -> Mutant:
    return Mutant(name, rule, story, tuple(Patch(*each) for each in patches), seeds)  # type: ignore[arg-type]


MUTANTS = (
    _mutant(
        "vote-before-sync",
        "Q1",
        "a vote is sent before it is durable",
        0,
        (Member, "_vote_requested", "Vote(self.term, is_granted))", "Vote(self.term, is_granted), is_free=True)"),
    ),
    _mutant(
        "votes-twice",
        "Q1",
        "one member votes for two candidates in a term",
        0,
        (Member, "_vote_requested", "is_free = self._voted_for in (None, name)", "is_free = True"),
        (Member, "_vote_requested", 'assert self.leading is None, "a leader has voted for itself"', "self.step_down()"),
        (Member, "_set_term", "self._voted_for in (None, voted_for),", "True,"),
    ),
    _mutant(
        "answer-before-sync",
        "Q2",
        "acknowledgements and votes leave before the state is durable",
        300,
        (Outbox, "say", "if is_free or number <= self._written:", "if True:"),
    ),
    _mutant(
        "leader-counts-unsynced",
        "Q2",
        "the leader counts its own entry before it is durable",
        20,
        (Member, "_try_to_commit", "if self.outbox.durable_last >= index:", "if True:"),
    ),
    _mutant(
        "any-log-gets-vote",
        "Q3",
        "a candidate that lacks entries gets votes",
        50,
        (EntryLog, "is_older", "return (last_term, last) < (self.last_term, self.last)", "return False"),
    ),
    _mutant(
        "longer-log-wins",
        "Q3",
        "logs are compared by their length only",
        1000,
        (EntryLog, "is_older", "return (last_term, last) < (self.last_term, self.last)", "return last < self.last"),
    ),
    _mutant(
        "no-match-check",
        "Q4",
        "entries are appended without comparing the one before them",
        100,
        (following, "append", "if log.term_at(previous) != previous_term:", "if previous > log.last:"),
    ),
    _mutant(
        "acks-own-last",
        "Q4",
        "a follower acknowledges all that it has, not all that was compared",
        0,
        (following, "append", "True, matched, message.probe)", "True, log.last, message.probe)"),
    ),
    _mutant(
        "cuts-always",
        "Q5",
        "a late message cuts entries that are not in conflict",
        100,
        (
            following,
            "append",
            "for place, entry in enumerate(entries):",
            "if previous < log.last:\n        log.cut(previous + 1)\n        outbox.changed(previous + 1)\n"
            "    for place, entry in enumerate(entries):",
        ),
    ),
    _mutant(
        "commits-old-terms",
        "Q6",
        "entries of earlier terms are committed by counting",
        0,
        (Member, "_try_to_commit", "max(self.commit, leading.first_of_term - 1)", "self.commit"),
    ),
    _mutant(
        "commit-beyond-match",
        "Q7",
        "a follower commits entries that it has not compared",
        0,
        (following, "append", "min(message.commit, matched)", "min(message.commit, log.last)"),
    ),
    _mutant(
        "old-acks-count",
        "Q7",
        "acknowledgements of an earlier term count",
        0,
        (Member, "_appended", "if leading is None or message.term != self.term:", "if leading is None:"),
    ),
    _mutant(
        "minority",
        "Q8",
        "one member too few is enough",
        10,
        (Membership, "agree", "is_majority(group, names)", "sum(n in names for n in group) >= max(1, len(group) // 2)"),
    ),
    _mutant(
        "swap-at-once",
        "Q8",
        "the new members count alone from the entry on",
        1800,
        (Membership, "changed_to", "(self.newest, group)", "(group,)"),
    ),
    _mutant(
        "old-majority-only",
        "Q8",
        "the old members commit the change alone",
        0,
        (Membership, "agree", "for group in self.groups)", "for group in self.groups[:1])"),
    ),
    _mutant(
        "settles-early",
        "Q9",
        "the old members are let go before the change is committed",
        0,
        (
            Member,
            "change_members",
            "return self.append(LogEntry(self.term, Kind.CHANGE, members=self.members.changed_to(group, addresses)))",
            "self.append(LogEntry(self.term, Kind.CHANGE, members=self.members.changed_to(group, addresses)))\n"
            "    return self.append(LogEntry(self.term, Kind.SETTLE, members=self.members.settled()))",
        ),
    ),
    _mutant(
        "two-changes",
        "Q9",
        "a second change begins before the first is committed and settled",
        0,
        (Member, "why_no_change", "if self.members.is_changing or self.log.members_index > self.commit:", "if False:"),
        (Membership, "changed_to", 'assert not self.is_changing, "one change at a time (Q9)"', "pass"),
    ),
    _mutant(
        "let-go-is-silent",
        "Q9",
        "a member that an entry lets go does not stand for election any more",
        0,
        (Member, "may_lead", "return log.members_index > self.commit and", "return False and"),
    ),
    _mutant(
        "learners-run-ahead",
        "Q9",
        "a learner gets entries that are not committed",
        0,
        (
            Member,
            "_last_for",
            "return self.log.last if name in self.members.names else self.commit",
            "return self.log.last",
        ),
    ),
    _mutant(
        "reads-own-copy",
        "Q10",
        "a leader reads without asking",
        0,
        (Member, "begin_read", "self._confirm_reads()", "self.effects.append(ReadsConfirmed(leading.probe))"),
    ),
    _mutant(
        "reads-count-any-answer",
        "Q10",
        "answers to earlier messages confirm a read",
        0,
        (Leading, "answered", "follower.probe = max(follower.probe, probe)", "follower.probe = self.probe"),
    ),
    _mutant(
        "reads-before-own-term",
        "Q10",
        "a new leader reads before it has committed an entry",
        300,
        (Member, "begin_read", "if leading is None or not self.is_ready:", "if leading is None:"),
        (Member, "_confirm_reads", "leading is None or not self.is_ready or", "leading is None or"),
    ),
    _mutant(
        "wiped-keeps-name",
        "Q11",
        "a wiped disk comes back under its name",
        50,
        (World, "wipe", "self.rename(host)", "pass"),
        (World, "wipe", "Disk())", "Disk(base=attrs.evolve(Disk().base, members=self.members)))"),
    ),
    _mutant(
        "shortened-keeps-name",
        "Q11",
        "a shortened disk comes back under its name",
        500,
        (World, "shorten", "self.rename(host)", "pass"),
    ),
    _mutant(
        "copy-goes-back",
        "Q12",
        "a copy of an earlier state is taken over",
        0,
        (following, "take_copy", "if base.index > member.commit:", "if True:"),
        (EntryLog, "restart", "if continues and base.index < self.last else []", "if False else []"),
    ),
    _mutant(
        "copy-drops-suffix",
        "Q12",
        "a copy drops entries behind it that match, and were acknowledged",
        0,
        (EntryLog, "restart", "if continues and base.index < self.last else []", "if False else []"),
    ),
    _mutant(
        "copy-forgets-vote",
        "Q12",
        "a copy resets the vote",
        0,
        (following, "take_copy", "member.commit = base.index", "member.commit, member._voted_for = base.index, None"),
    ),
    _mutant(
        "copy-without-members",
        "Q12",
        "a copy does not say who the members are",
        0,
        (EntryLog, "restart", "self.base = base", "self.base = Base(base.index, base.term, self.base.members)"),
    ),
    _mutant(
        "copy-without-outcomes",
        "Q12",
        "a copy leaves the outcomes out",
        2400,
        (
            Process,
            "_send_copy",
            "dict(self.rows.content)",
            "{row: value for row, value in self.rows.content.items() if row[:1] not in b'to'}",
        ),
    ),
    _mutant(
        "base-without-members",
        "Q12",
        "entries are dropped, and what they said of members",
        0,
        (EntryLog, "drop", "members = self.members_at(index)", "members = self.base.members"),
    ),
    _mutant(
        "no-tokens",
        "Q13",
        "a repeated command is applied again",
        10,
        (Registers, "_once", "if remembered is not None:", "if False:"),
    ),
    _mutant(
        "no-horizon",
        "Q13",
        "a command is applied although its outcome may be forgotten",
        50,
        (Registers, "_once", "if command.known < self._number(FORGOTTEN_ROW):", "if False:"),
    ),
    _mutant(
        "answer-at-append",
        "Q14",
        "a change is answered before it is committed",
        10,
        (
            Process,
            "change",
            "self.waiting[self.member.append(entry)] = call",
            "index = self.member.append(entry)\n"
            "    rows = MemoryRows(dict(self.rows.content))\n"
            "    ((_, outcome),) = Registers(rows, outcomes_max=OUTCOMES_MAX, outcomes_ms=0).apply(index, entry.body)\n"
            "    self._world.answered(call, outcome, self.member.commit)",
        ),
    ),
)
