"""A writer and several recoveries at once, in random schedules. Single rules: test_spec_recovery.py.

Small worlds, many seeds; the simulator (`tests.simulator`) does the same with crashes and time."""

from __future__ import annotations

import random

import attrs
import pytest

from replog.errors import FencedError, LedgerNotFoundError, NotEnoughBookiesError, RecoveryUndecidedError
from replog.protocol.effects import (
    ChooseReplacements,
    ReadMetadata,
    SendAdd,
    SendFence,
    SendRecoveryRead,
    WriteMetadata,
)
from replog.protocol.model import LedgerState
from replog.protocol.quorum import Quorum
from tests.lanes.seeds import seeds
from tests.protocol.driving import Actor, Cluster, Recovery, Tell, Writer, fenced

QUORUMS = [Quorum(2, 2, 2), Quorum(3, 3, 2), Quorum(3, 2, 2), Quorum(4, 3, 2), Quorum(5, 3, 2), Quorum(4, 2, 2)]
LOSABLE = (SendAdd, SendFence, SendRecoveryRead)


class World:
    """One schedule: everything that may happen next, happens by chance."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.cluster = Cluster(self.random.choice(QUORUMS), bookies=9)
        self.writer: Writer = self.cluster.writer()
        self.recoveries: list[Recovery] = []
        self.answers: list[Tell] = []  # on their way back
        self.payloads: list[bytes] = []
        self.seen: dict[int, bytes] = {}  # what any reader has ever read

    def step(self) -> None:
        actors: list[Actor] = [self.writer, *self.recoveries]
        busy = [actor for actor in actors if actor.waiting]
        dice = self.random.random()
        if dice < 0.12 and len(self.payloads) < 12:
            self.add()
        elif dice < 0.15 and len(self.recoveries) < 3 and self.payloads:
            self.recoveries.append(self.cluster.recovery(nonce=f"r{len(self.recoveries)}"))
            self.recoveries[-1].start()
        elif dice < 0.18:
            self.read()
        elif dice < 0.5 and self.answers:
            self.answers.pop(self.random.randrange(len(self.answers)))()
        elif busy:
            self.advance(self.random.choice(busy))

    def add(self) -> None:
        if self.writer.error is None and self.writer.finished is None:
            new = [b"%d" % (len(self.payloads) + more) for more in range(self.random.randint(1, 4))]
            self.payloads += new
            self.writer.add(*new)

    def advance(self, actor: Actor) -> None:
        """One of the actor's effects is lost, fails, arrives, or arrives and its answer with it."""
        effect = self.random.choice(actor.waiting)
        fate = self.random.random()
        actor.waiting.remove(effect)
        if isinstance(effect, WriteMetadata) and fate < 0.3:
            if fate < 0.15:
                self.cluster.cas(effect.metadata, effect.expected)
            actor.machine.metadata_uncertain()
            actor.collect()
        elif isinstance(effect, LOSABLE) and fate < 0.08:
            actor.waiting.insert(0, effect)
            actor.fail(type(effect), effect.bookie_id)
        else:
            answer = actor._arrive(effect)
            if isinstance(effect, ChooseReplacements | WriteMetadata | ReadMetadata) or fate < 0.5:
                answer()
            else:
                self.answers.append(answer)

    def read(self) -> None:
        """O1, O2: a reader sees what every other reader has seen, and will."""
        reader = self.cluster.reader()
        reader.poll()
        for entry_id, payload in enumerate(reader.read_all()):
            assert self.seen.setdefault(entry_id, payload) == payload == self.payloads[entry_id]

    def check_closed(self) -> None:
        """I1, I2, I3, R6, R7: once closed, for whoever thinks that it was him."""
        metadata = self.cluster.metadata()
        assert metadata.state is LedgerState.CLOSED
        assert metadata.last_entry_id is not None
        last = metadata.last_entry_id
        assert all(confirmed <= last for confirmed in self.writer.confirmed)  # I1: nothing confirmed is cut
        assert all(entry_id <= last for entry_id in self.seen)  # O2: nor anything that was read
        for actor in (self.writer, *self.recoveries):
            assert actor.finished is None or actor.finished.last_entry_id == last  # R6
        for entry_id in range(last + 1):
            assert self.cluster.copies(entry_id) >= self.cluster.quorum.ack  # I3
        firsts = [fragment.first_entry_id for fragment in metadata.fragments]
        assert firsts == sorted(set(firsts))  # I5
        self.read()
        reader = self.cluster.reader()
        assert reader.read_all() == self.payloads[: last + 1]  # I2, I4
        assert reader.machine.is_at_end


@pytest.mark.parametrize("chunk", seeds(10, few=3))
def test_random_schedules_of_a_writer_and_recoveries(chunk: int) -> None:
    """R2-R9, C1-C6, W2 together: 40 schedules each, every one ended by a recovery that nothing disturbs."""
    interesting = 0
    for seed in range(40 * chunk, 40 * chunk + 40):
        world = World(seed)
        for _ in range(world.random.randint(20, 160)):
            world.step()
        failures = [actor.error for actor in world.recoveries if actor.error is not None]
        assert all(isinstance(error, RecoveryUndecidedError | NotEnoughBookiesError) for error in failures)
        last = world.cluster.recovery(nonce="last")
        last.recover()
        world.recoveries.append(last)
        world.check_closed()
        for answer in world.answers:  # whatever comes late changes nothing
            answer()
        for actor in (world.writer, *world.recoveries):
            actor.run()
        world.check_closed()
        interesting += bool(world.writer.confirmed) and last.machine.recovered_entries > 0
    assert interesting > 0, "no schedule had anything to lose"


def test_many_batches_are_written_back_a_few_at_a_time() -> None:
    """W6: what a recovery holds in memory is bounded: it reads on only when batches have been written back."""
    for quorum in (Quorum(3, 3, 2), Quorum(5, 3, 2)):
        cluster = Cluster(quorum)
        writer = cluster.writer()
        for _ in range(40):
            writer.add(*[b"x"] * quorum.stride)
        writer.waiting = [effect for effect in writer.waiting if not isinstance(effect, SendAdd) or effect.index != 0]
        while writer.waiting:
            writer._arrive(writer.waiting.pop(0))  # stored; no answer comes back
        recovery = cluster.recovery()
        recovery.claim()
        held: list[SendAdd] = []
        while recovery.waiting:
            effect = recovery.waiting.pop(0)
            if isinstance(effect, SendAdd):
                held.append(effect)
            else:
                recovery._arrive(effect)()
        batches = {effect.batch.first_entry_id for effect in held}
        assert 1 < len(batches) <= 5 * quorum.stride + 1
        for effect in held:
            recovery._arrive(effect)()
        recovery.run()
        assert cluster.metadata().last_entry_id == 40 * quorum.stride - 1
        assert recovery.machine.recovered_entries == 40 * quorum.stride


def test_a_repair_of_an_older_fragment_does_not_hinder_the_close() -> None:
    """R6: the record changed, but not what this recovery is about: the close is proposed upon it."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    writer.run()
    cluster.down = {"b3"}
    writer.add(b"b")
    writer.run()
    recovery = cluster.recovery()
    recovery.start()
    while not recovery.find(WriteMetadata) or recovery.find(WriteMetadata)[0].metadata.last_entry_id is None:
        recovery._arrive(recovery.waiting.pop(0))()
    metadata = cluster.metadata()
    repaired = attrs.evolve(metadata.fragments[0], ensemble=("b1", "b2", "b8"))
    cluster.change(attrs.evolve(metadata, fragments=(repaired, *metadata.fragments[1:])))
    recovery.run()
    assert recovery.finished == cluster.metadata()
    assert cluster.metadata().fragments[0] == repaired
    assert cluster.metadata().last_entry_id == 1


def test_a_changed_last_fragment_leaves_recovery_undecided() -> None:
    """R9: nobody may change what it fences and reads: then it must not close by what it has read."""
    cluster = Cluster()
    cluster.writer()
    recovery = fenced(cluster, "b1", "b2")
    recovery.deliver(SendRecoveryRead, "b1", 0)
    recovery.deliver(SendRecoveryRead, "b2", 0)
    foreign = attrs.evolve(cluster.metadata().last_fragment, ensemble=("b1", "b2", "b8"))
    cluster.change(cluster.metadata().with_fragment(foreign))
    recovery.run()
    assert isinstance(recovery.error, RecoveryUndecidedError)
    assert cluster.metadata().state is LedgerState.IN_RECOVERY


def test_a_ledger_deleted_during_its_recovery_is_an_error() -> None:
    """R4: no end can be reported of what is gone."""
    cluster = Cluster()
    cluster.writer()
    recovery = fenced(cluster, "b1", "b2")
    del cluster.records[7]
    recovery.run()
    assert isinstance(recovery.error, LedgerNotFoundError)
    recovery.machine.metadata_read(cluster.created[7], 5)
    recovery.machine.metadata_missing()
    recovery.machine.abandon(RecoveryUndecidedError(7, "late"))
    recovery.machine.refused(9)
    assert recovery.machine.is_done
    assert recovery.machine.take_effects() == []


def test_a_fence_above_recoverys_ends_it() -> None:
    """T1: a bookie that holds a higher term, as of a deleted ledger, is not argued with."""
    for kind in (SendFence, SendRecoveryRead):
        cluster = Cluster()
        cluster.writer()
        recovery = fenced(cluster, *(("b1", "b2") if kind is SendRecoveryRead else ()))
        cluster["b3"].finish(cluster["b3"].ledger(7).drop())
        recovery.deliver(kind, "b3")
        assert isinstance(recovery.error, FencedError)


def test_an_abandoned_recovery_leaves_the_ledger_to_the_next() -> None:
    """W6: the deadline passes while entry 0 is on its way back."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    writer.deliver(SendAdd, "b1")
    recovery = fenced(cluster, "b1", "b2")
    recovery.deliver(SendRecoveryRead, "b1", 0)
    recovery.deliver(SendAdd, "b2")
    recovery.machine.abandon(RecoveryUndecidedError(7, "the deadline passed"))
    recovery.run()
    assert isinstance(recovery.error, RecoveryUndecidedError)
    assert cluster.metadata().state is LedgerState.IN_RECOVERY
    assert cluster.recovery(nonce="next").recover().last_entry_id == 0
