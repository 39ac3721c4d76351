"""Scripted schedules: what random ones meet once in many thousands. Each breaks with the mutants that `SCRIPTS` names it for."""

from __future__ import annotations

from collections.abc import Callable

from replog.protocol.consensus.commands import Command, What
from replog.protocol.consensus.log import Kind
from replog.protocol.consensus.messages import Append, Appended, Ask, Copy, MayAsk, Message, Vote, VoteRequest
from tests.simulator.council.calls import Call, Client, token_of
from tests.simulator.council.process import Process
from tests.simulator.council.violation import Violation
from tests.simulator.council.world import Envelope, World


class Script(World):
    """A cluster in which nothing happens but what is written. Hosts are numbered from 0; the last ones are no members yet."""

    def __init__(self, size: int, together: int = 1, *, others: int = 0) -> None:
        super().__init__(0)
        self.hosts, self.together = size + others, together
        self.begin(size)
        self.clients = [Client()]

    def of(self, host: int) -> Process:
        return self.processes[self.names[host]]

    def clear(self) -> None:
        """Messages on their way get lost."""
        self.network = []

    def sync(self, *hosts: int) -> None:
        """Changes of these hosts are durable, and messages that waited for that leave."""
        for host in hosts:
            process = self.of(host)
            while process.writing is not None or process.begin_write():
                self.end_write(process)

    def move(self, kind: type[Message], source: int, target: int) -> bool:
        """Delivers the first message of this kind from the one to the other, which writes what follows from it."""
        for place, each in enumerate(self.network):
            if not isinstance(each, Envelope) or not isinstance(each.message, kind):
                continue
            if (self.where[each.sender], self.where[each.target]) == (source, target):
                self.deliver(self.network.pop(place), is_lossy=False)
                self.sync(target)
                return True
        return False

    def envelopes(self, kind: type[Message]) -> list[Envelope]:
        """The messages of this kind that are on their way."""
        return [each for each in self.network if isinstance(each, Envelope) and isinstance(each.message, kind)]

    def elect(self, host: int, *voters: int) -> bool:
        """Has a host elected by itself and these, if they may; a first attempt may only learn the term."""
        for _ in range(6):
            for each in (host, *voters):
                self.of(each).member.has_heard = False
                if each != host and self.of(each).member.leading is not None:
                    raise AssertionError("the script is wrong: a voter leads")
            self.of(host).member.election_timeout()
            self.carry(self.of(host))
            for each in voters:
                self.move(Ask, host, each)
                self.move(MayAsk, each, host)
            self.sync(host)
            for each in voters:
                self.move(VoteRequest, host, each)
                self.move(Vote, each, host)
            self.sync(host)
            self.network = [
                each
                for each in self.network
                if isinstance(each, Envelope) and isinstance(each.message, Append | Appended | Copy)
            ]
            if self.of(host).member.leading is not None:
                return True
        return False

    def replicate(self, leader: int, *followers: int, rounds: int = 6) -> None:
        for _ in range(rounds):
            self.of(leader).member.heartbeat_due()
            self.carry(self.of(leader))
            for each in followers:
                self.move(Append, leader, each)
                self.move(Copy, leader, each)
                self.move(Appended, each, leader)
            self.sync(leader)

    def put(self, leader: int, number: int) -> None:
        """The leader appends a command that nobody waits for."""
        command = Command(token_of(number), 0, What.CREATE, f"a{number}", b"v")
        self.calls[number] = Call(0, "a", command, 0, tries=9)
        self.of(leader).change(number, command)
        self.carry(self.of(leader))
        self.sync(leader)

    def send_from(self, leader: int, follower: int, first: int) -> None:
        """The leader sends a follower the entries from this one on."""
        process = self.of(leader)
        leading = process.member.leading
        assert leading is not None, "the script is wrong: it does not lead"
        known = leading.followers[self.names[follower]]
        known.next = first
        process.member._send(self.names[follower], known)
        self.carry(process)

    def compact(self, host: int) -> None:
        self.of(host).compact()

    def step_down(self, host: int) -> None:
        self.of(host).member.step_down()
        self.carry(self.of(host))

    def stop(self, host: int) -> None:
        self.crash(host)
        self.clear()

    def restart(self, host: int) -> None:
        self.start(host, self.disks[self.names[host]][-1])


def _two_candidates() -> Script:
    """Hosts 0 and 1 stand in the same term, and host 2 has told both that it would vote."""
    world = Script(3)
    for host in (0, 1):
        world.of(host).member.election_timeout()
        world.carry(world.of(host))
        world.move(Ask, host, 2)
        world.move(MayAsk, 2, host)
        world.sync(host)
    assert len(world.envelopes(VoteRequest)) == 4
    return world


def two_votes() -> None:
    """Q1. A member is asked for its vote twice in a term."""
    world = _two_candidates()
    for host in (0, 1):
        world.move(VoteRequest, host, 2)
        world.move(Vote, 2, host)


def forgotten_vote() -> None:
    """Q1. A member votes, loses power, and is asked by another one."""
    world = _two_candidates()
    (request,) = [each for each in world.envelopes(VoteRequest) if (each.sender, each.target) == ("0.0", "2.0")]
    world.deliver(request, is_lossy=False)
    world.move(Vote, 2, 0)
    world.crash(2)
    world.restart(2)
    world.move(VoteRequest, 1, 2)
    world.move(Vote, 2, 1)


def dropped_members() -> None:
    """Q12. The entry that let a member go is dropped, and the program restarted."""
    world = Script(4, together=4)
    assert world.elect(0, 1, 2)
    world.replicate(0, 1, 2)
    assert world.change_members(world.of(0), ("0.0", "1.0", "3.0"))
    world.carry(world.of(0))
    world.replicate(0, 1, 3, rounds=20)
    world.compact(0)
    world.sync(0)
    world.stop(0)
    world.restart(0)
    if world.of(0).member.members.newest != ("0.0", "1.0", "3.0"):
        raise Violation("Q12", "a member that was let go counts again after a restart")


def figure_8() -> None:
    """Q6. An entry of term 2 is on a majority in term 4, and a leader of term 5 does not have it."""
    world = Script(5)
    assert world.elect(0, 1, 2)
    world.sync(0)
    world.network = [each for each in world.envelopes(Append) if each.target == "1.0"]
    world.move(Append, 0, 1)
    world.stop(0)
    assert world.elect(4, 2, 3)
    world.stop(4)
    world.restart(0)
    assert world.elect(0, 1, 2)
    world.clear()
    for each in (2, 1):
        world.send_from(0, each, 2)
    for each in (2, 1):
        world.move(Append, 0, each)
        world.move(Appended, each, 0)
    world.stop(0)
    world.restart(4)
    assert world.elect(4, 2, 3)


def own_last() -> None:
    """Q4. A follower has more entries than the leader, of another one; a late refusal makes the leader compare an earlier one."""
    world = Script(3)
    assert world.elect(0, 1, 2)
    world.put(0, 1)
    world.put(0, 2)
    world.replicate(0, 1, 2)
    world.clear()
    world.put(0, 3)  # entry 5, on this disk only
    world.stop(0)
    assert world.elect(1, 2)
    world.clear()
    world.put(1, 4)
    world.put(1, 5)
    world.clear()
    world.step_down(1)
    world.restart(0)
    assert world.elect(0, 2)
    world.clear()
    world.send_from(0, 1, 3)  # two refusals of one message: the leader goes back one entry too far
    world.move(Append, 0, 1)
    world.move(Appended, 1, 0)
    world.stop(0)
    world.elect(1, 2)


def old_acknowledgement() -> None:
    """Q7. An acknowledgement of term 2 arrives in term 4; what it acknowledged was cut in term 3."""
    world = Script(5, together=4)
    assert world.elect(0, 1, 2)
    world.replicate(0, 1, 2, 3, 4)
    world.clear()
    world.put(0, 1)
    world.put(0, 2)  # entries 3 and 4
    world.clear()
    world.send_from(0, 1, 3)
    world.move(Append, 0, 1)
    late = world.envelopes(Appended)
    assert late
    assert isinstance(late[-1].message, Appended)
    assert late[-1].message.index == 4
    world.clear()
    world.step_down(0)
    assert world.elect(2, 3, 4)
    world.replicate(2, 0, 1, rounds=1)
    for each in (0, 1):
        world.send_from(2, each, 3)
    for each in (0, 1):
        while world.move(Append, 2, each):
            pass
    world.clear()
    world.step_down(2)
    assert world.of(0).member.log.last == world.of(1).member.log.last == 3
    assert world.elect(0, 1, 3)
    world.clear()
    world.send_from(0, 3, 3)
    world.move(Append, 0, 3)
    world.move(Appended, 3, 0)
    world.deliver(late[-1], is_lossy=False)
    world.sync(0)
    world.stop(0)
    world.elect(1, 2, 4)


def late_commit() -> None:
    """Q7. A follower has entries of a lost leader behind those that a message compares; the leader has committed further."""
    world = Script(3, together=1)
    assert world.elect(0, 1, 2)
    world.replicate(0, 1, 2)
    world.clear()
    world.put(0, 1)
    world.put(0, 2)  # on this disk only
    world.clear()
    world.step_down(0)
    assert world.elect(1, 2)
    world.put(1, 3)
    world.replicate(1, 2)
    world.clear()
    world.send_from(1, 0, 2)
    world.move(Append, 1, 0)


def two_changes() -> None:
    """Q9. A second change names the members of the first, which is not committed, as those that must agree."""
    world = Script(5, together=4)
    assert world.elect(0, 1, 2)
    world.replicate(0, 1, 2, 3, 4)
    world.clear()
    assert world.change_members(world.of(0), ("0.0",))
    world.of(0).member.outbox.take_sent()
    world.change_members(world.of(0), ("0.0", "4.0"))
    world.carry(world.of(0))
    world.sync(0)
    world.clear()
    world.replicate(0, 4)
    world.clear()
    world.elect(1, 2, 3)


def settles_early() -> None:
    """Q9. The old members do not know of the change, and elect a leader; the new one commits alone."""
    world = Script(3, together=4)
    assert world.elect(0, 1, 2)
    world.replicate(0, 1, 2)
    world.clear()
    assert world.change_members(world.of(0), ("0.0",))
    world.carry(world.of(0))
    world.sync(0)
    world.clear()
    world.put(0, 1)
    world.elect(1, 2)


def deposed_read() -> None:
    """Q10. A leader that is deposed and does not know it gets an answer that was sent before."""
    world = Script(3, together=4)
    assert world.elect(0, 1, 2)
    world.replicate(0, 1, 2)
    old = world.of(0)
    world.clear()
    old.member.heartbeat_due()
    world.carry(old)
    world.move(Append, 0, 1)
    late = world.envelopes(Appended)
    world.clear()
    assert late
    assert world.elect(1, 2)
    world.put(1, 1)
    world.replicate(1, 2)
    assert world.of(1).member.commit == world.of(1).member.log.last
    world.clear()
    world.calls[2] = Call(0, "a1", None, 0)
    world.clients[0].call = 2
    assert old.read(2, "a1")
    world.carry(old)
    world.network = [each for each in world.network if not isinstance(each, Envelope)]
    for each in late:
        world.deliver(each, is_lossy=False)
    for answer in [each for each in world.network if not isinstance(each, Envelope)]:
        world.deliver(answer, is_lossy=False)
    if world.calls[2].version is not None:
        raise Violation("Q10", "a deposed leader answers a read with the past")


def late_copy() -> None:
    """Q12. A copy comes to a member that has acknowledged more than it, and does not know how far that is committed."""
    world = Script(3, together=1)
    assert world.elect(0, 1, 2)
    for number in (1, 2, 3):  # entries 3 to 5
        world.put(0, number)
    world.clear()
    for index in (2, 3, 4, 5):
        world.send_from(0, 1, index)
        world.move(Append, 0, 1)
    answers = world.envelopes(Appended)
    world.clear()
    world.deliver(answers[2], is_lossy=False)
    assert world.of(0).member.commit == 4
    world.compact(0)
    world.send_from(0, 1, 1)
    copies = world.envelopes(Copy)
    world.clear()
    world.deliver(answers[3], is_lossy=False)
    assert copies
    assert world.of(0).member.commit == 5
    world.network = list(copies)
    world.move(Copy, 0, 1)
    world.stop(0)
    world.elect(1, 2)


def copy_twice() -> None:
    """Q12. A copy comes again, late, to a member that has committed and acknowledged more by now."""
    world = Script(3, together=4)
    assert world.elect(0, 1, 2)
    world.put(0, 1)
    world.replicate(0, 2)
    world.clear()
    world.compact(0)
    world.send_from(0, 1, 1)
    copies = world.envelopes(Copy)
    assert copies
    world.move(Copy, 0, 1)
    world.move(Appended, 1, 0)
    world.clear()
    world.put(0, 2)
    world.replicate(0, 1)
    world.clear()
    world.network = list(copies)
    world.move(Copy, 0, 1)
    world.stop(0)
    world.elect(1, 2)


def copy_of_members() -> None:
    """Q12. The members changed in what a copy stands for: who takes it over must know the new ones."""
    world = Script(4, together=4)
    assert world.elect(0, 1, 2)
    world.replicate(0, 1, 2)
    assert world.change_members(world.of(0), ("0.0", "1.0", "3.0"))
    world.carry(world.of(0))
    world.replicate(0, 1, 3, rounds=20)
    assert world.members.newest == ("0.0", "1.0", "3.0")
    assert not world.members.is_changing
    world.compact(0)
    world.clear()
    world.of(0).member.learn("2.0")
    world.clear()
    world.send_from(0, 2, 1)
    world.move(Copy, 0, 2)
    if world.of(2).member.members.newest != ("0.0", "1.0", "3.0"):
        raise Violation("Q12", "a copy leaves its receiver with members that were let go")


def copy_after_vote() -> None:
    """Q12. A copy comes to a member that voted in this term; the vote that another candidate had asked it for comes after it."""
    world = Script(5, together=4)
    assert world.elect(0, 1, 2)
    world.put(0, 1)
    world.replicate(0, 2, 3, 4)
    leader = world.of(0).member
    assert leader.commit == 3
    world.step_down(0)
    world.clear()
    for host in range(5):
        member = world.of(host).member
        member.has_heard = False
        member.see_term(leader.term)
        world.sync(host)
    for host in (4, 0):
        world.of(host).member.election_timeout()
        world.carry(world.of(host))
        for voter in (2, 3):
            world.move(Ask, host, voter)
            world.move(MayAsk, voter, host)
        world.sync(host)
    world.move(VoteRequest, 4, 3)
    world.move(Vote, 3, 4)
    for voter in (1, 2):
        world.move(VoteRequest, 0, voter)
        world.move(Vote, voter, 0)
    assert leader.leading is not None
    world.compact(0)
    world.send_from(0, 1, 1)
    world.move(Copy, 0, 1)
    world.move(VoteRequest, 4, 1)
    world.move(Vote, 1, 4)


def let_go() -> None:
    """Q9. Only the member that is let go has the entry that says so."""
    world = Script(2)
    assert world.elect(0, 1)
    world.replicate(0, 1)
    assert world.change_members(world.of(0), ("1.0",))
    world.carry(world.of(0))
    world.sync(0)
    for _ in range(4):
        world.move(Append, 0, 1)
        world.move(Appended, 1, 0)
        if world.of(0).member.log[world.of(0).member.log.last].kind is Kind.SETTLE:
            break
    world.sync(0)
    assert world.of(0).member.log[world.of(0).member.log.last].kind is Kind.SETTLE
    world.clear()
    world.step_down(0)
    world.heal()


def learner_ahead() -> None:
    """Q9. A learner has an entry that is not committed; its leader's disk is lost, and the lost change of another leader needs
    the learner's vote."""
    world = Script(3, others=1)
    assert world.elect(0, 1, 2)
    world.of(0).member.learn("3.0")
    world.replicate(0, 1, 2, 3)
    assert world.change_members(world.of(0), ("0.0", "1.0", "3.0"))
    world.carry(world.of(0))
    world.sync(0)
    world.clear()
    assert world.elect(1, 2)
    world.of(1).member.learn("3.0")
    world.replicate(1, 3)
    world.clear()
    world.wipe(1)
    world.heal()


def old_majority() -> None:
    """Q8. A member that was let go, and does not know it, is elected by the old members."""
    world = Script(3, together=4, others=2)
    assert world.elect(2, 0, 1)
    for name in ("3.0", "4.0"):
        world.of(2).member.learn(name)
    world.replicate(2, 0, 1, 3, 4)
    world.clear()
    assert world.change_members(world.of(2), ("2.0", "3.0", "4.0"))
    world.carry(world.of(2))
    world.replicate(2, 0, 3, rounds=30)
    assert world.members.groups == (("2.0", "3.0", "4.0"),)
    world.stop(2)
    world.elect(0, 1)


SCRIPTS: dict[str, Callable[[], None]] = {
    "votes-twice": two_votes,
    "vote-before-sync": forgotten_vote,
    "base-without-members": dropped_members,
    "commits-old-terms": figure_8,
    "acks-own-last": own_last,
    "old-acks-count": old_acknowledgement,
    "commit-beyond-match": late_commit,
    "two-changes": two_changes,
    "old-majority-only": old_majority,
    "settles-early": settles_early,
    "let-go-is-silent": let_go,
    "learners-run-ahead": learner_ahead,
    "reads-own-copy": deposed_read,
    "reads-count-any-answer": deposed_read,
    "copy-drops-suffix": late_copy,
    "copy-goes-back": copy_twice,
    "copy-without-members": copy_of_members,
    "copy-forgets-vote": copy_after_vote,
}
