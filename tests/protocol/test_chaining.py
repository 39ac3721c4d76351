"""Leaders that depose, roll, trim and delete at once, in random schedules. Single rules: test_spec_logs.py."""

from __future__ import annotations

import random

import pytest

from replog.errors import FencedError, LogNotFoundError, ReplogError
from replog.protocol.chaining import WriteLog
from replog.protocol.effects import SendAdd
from replog.protocol.model import LedgerState
from replog.protocol.rolling import LogRolling, RollBase
from tests.protocol.driving import Cluster, Writer
from tests.protocol.driving_logs import NAME, LogActor, deleting, finish, rolling, segments, takeover, trimming


class Leader:
    """One client: takes over, appends, rolls, appends on, until somebody deposes it."""

    def __init__(self, name: str, cluster: Cluster) -> None:
        self.name = name
        self.cluster = cluster
        self.change: LogActor | None = takeover(cluster, name, 2)
        self.writers: list[Writer] = []  # the previous ledger's, until it is closed, and the current one's
        self.appended = 0
        self.confirmed: list[bytes] = []
        self.told: dict[int, int] = {}  # by ledger: how much of it is in `confirmed`
        self.is_deposed = False

    def step(self, dice: random.Random) -> None:
        if self.change is not None:
            self.advance(self.change, dice)
        if self.is_deposed or not self.writers:
            return
        # Across a roll the order of the calls is kept by sending to the new ledger only once all of the previous is
        # confirmed: else a takeover could find a later entry, and not the one before it.
        is_drained = len(self.writers) == 1 or not self.writers[0].machine.unconfirmed
        if is_drained and dice.random() < 0.3 and self.appended < 8:
            self.writers[-1].add(b"%s:%d" % (self.name.encode(), self.appended))
            self.appended += 1
        for writer in list(self.writers):
            if writer.waiting:
                writer._arrive(writer.waiting.pop(dice.randrange(len(writer.waiting))))()
        self.collect()
        # The previous ledger is closed before the next roll: a takeover recovers two.
        if self.change is None and len(self.writers) == 1 and dice.random() < 0.1 and not self.is_deposed:
            self.roll()

    def roll(self) -> None:
        metadata, version = self.known
        actor = LogActor(self.cluster, LogRolling(RollBase(metadata, version), f"{self.name} rolls {version}", 6))
        self.change = actor

    def advance(self, actor: LogActor, dice: random.Random) -> None:
        if actor.waiting:
            effect = actor.waiting[0]
            if isinstance(effect, WriteLog) and dice.random() < 0.4:
                if dice.random() < 0.5:
                    actor.write_loses_answer()
                else:
                    actor.write_loses_request()
            else:
                actor.deliver(type(effect))
        if actor.changed is not None:
            assert actor.changed.ledger_id is not None
            self.known = (actor.changed.metadata, actor.changed.version)
            self.writers.append(self.cluster.writer(actor.changed.ledger_id, f"{self.name} {actor.changed.ledger_id}"))
            self.change = None
        elif actor.error is not None:
            assert isinstance(actor.error, FencedError), actor.error
            self.is_deposed = True
            self.change = None

    def collect(self) -> None:
        """The confirmed entries, in the order of the appends: first all of the previous ledger, which is closed then."""
        previous, current = self.writers[0], self.writers[-1]
        if previous is not current and not previous.machine.unconfirmed and previous.error is None:
            previous.close()
            previous.run()
            if previous.finished is not None:
                self.writers.remove(previous)
        for writer in dict.fromkeys((previous, current)):
            for entry_id in range(self.told.get(writer.ledger_id, 0), writer.machine.last_add_confirmed + 1):
                self.confirmed.append(b"%d/%d" % (writer.ledger_id, entry_id))
            self.told[writer.ledger_id] = writer.machine.last_add_confirmed + 1
            if writer.error is not None:
                assert isinstance(writer.error, ReplogError)
                self.is_deposed = True


def contents(cluster: Cluster) -> dict[bytes, bytes]:
    """Everything in the log, in its order: b"ledger/entry" and payload."""
    found = {}
    for _, ledger_id in segments(cluster):
        for entry_id, payload in enumerate(cluster.reader(ledger_id).read_all()):
            found[b"%d/%d" % (ledger_id, entry_id)] = payload
    return found


@pytest.mark.parametrize("chunk", range(5))
def test_random_leaders(chunk: int) -> None:
    """L1, L2, L5, O6: whatever a leader confirmed is in the log, in its order; nothing of it after its deposition."""
    deposed = rolled = 0
    for seed in range(20 * chunk, 20 * chunk + 20):
        dice = random.Random(seed)
        cluster = Cluster()
        leaders = [Leader(f"t{number}", cluster) for number in range(dice.randint(1, 3))]
        frozen: dict[str, list[bytes]] = {}
        for _ in range(dice.randint(10, 120)):
            leader = dice.choice(leaders)
            was_leading = bool(leader.writers)
            leader.step(dice)
            if not was_leading and leader.writers:  # it serves now: nobody before it may confirm anything more
                frozen = {other.name: list(other.confirmed) for other in leaders if other is not leader}
            for other in leaders:
                assert other.confirmed == frozen.get(other.name, other.confirmed)  # L5, O6
        last = takeover(cluster, "last").run()
        assert last.changed is not None
        numbers = [number for number, _ in segments(cluster)]
        assert numbers == sorted(set(numbers))
        assert all(cluster.metadata(ledger_id).state is LedgerState.CLOSED for _, ledger_id in segments(cluster)[:-1])
        found = contents(cluster)
        order = list(found)
        for leader in leaders:
            places = [order.index(entry) for entry in leader.confirmed]  # nothing confirmed is lost ...
            assert places == sorted(places)  # ... or out of order
            payloads = [payload for payload in found.values() if payload.startswith(leader.name.encode() + b":")]
            assert payloads == [b"%s:%d" % (leader.name.encode(), place) for place in range(len(payloads))]  # O4
            deposed += leader.is_deposed
            rolled += len(leader.confirmed) > 0 and len({entry.split(b"/")[0] for entry in leader.confirmed}) > 1
    assert deposed > 0
    assert rolled > 0


def begun(cluster: Cluster, number: int, dice: random.Random) -> LogActor:
    log = cluster.logs[NAME][0]
    kind = dice.randrange(7)
    if kind < 2 or log.is_deleted:
        return takeover(cluster, f"t{number}", 2)
    if kind < 5:
        return rolling(cluster, f"r{number}")
    if kind == 5:
        return trimming(cluster, dice.randint(1, log.next_segment_number), f"x{number}")
    return deleting(cluster, f"d{number}")


@pytest.mark.parametrize("seed", range(60))
def test_random_trims_and_deletions_between_takeovers_and_rolls(seed: int) -> None:
    """L3: whatever comes between, no ledger is deleted that is named, none is left that is not, numbers only grow.

    Pages hold two segments, and somebody is killed now and then: what that leaves behind the next trim deletes (L7)."""
    dice = random.Random(seed)
    cluster = Cluster()
    cluster.keeps_pending = seed % 2 == 0
    takeover(cluster, "first", 2).run()
    actors: list[LogActor] = []
    numbers = {1: 1}  # which ledger a number ever meant
    for number in range(120):
        if sum(bool(actor.waiting) for actor in actors) < 3:
            actors.append(begun(cluster, number, dice))
        actor = dice.choice(actors)
        if actor.waiting:
            if actor.find(WriteLog) and dice.random() < 0.3:
                actor.write_loses_answer()
            elif dice.random() < 0.02:
                actors.remove(actor)
            else:
                actor.deliver(type(actor.waiting[0]))
        for segment_number, ledger_id in segments(cluster):
            assert ledger_id in cluster.records
            assert numbers.setdefault(segment_number, ledger_id) == ledger_id  # L4
    for actor in actors:
        actor.run()
        assert actor.changed is not None or isinstance(actor.error, FencedError | LogNotFoundError)
    finish(cluster)
    assert {ledger_id for _, ledger_id in segments(cluster)} == set(cluster.records)
    assert cluster.pending == {}
    assert cluster.logs[NAME][0].dropped == ()


def test_calls_after_the_end_change_nothing() -> None:
    """A machine that is done, or was abandoned, leaves no effects."""
    cluster = Cluster()
    actor = takeover(cluster).run()
    failed, trimmed, deleted = takeover(cluster, "t2"), trimming(cluster, 1).run(), deleting(cluster)
    for given_up in (failed, deleted):
        given_up.machine.abandon(FencedError(1, "given up"))
        given_up.collect()
        assert isinstance(given_up.error, FencedError)
    for machine in (trimmed.machine, deleted.machine):
        machine.segments_dropped((1,))
        assert machine.take_effects() == []
    for machine in (actor.machine, failed.machine):
        machine.ledger_created(9)
        machine.ledger_recovered(1)
        machine.ledger_missing(1)
        machine.log_conflict()
        machine.log_uncertain()
        machine.log_written(9)
        machine.page_written(0)
        machine.log_read(*cluster.logs[NAME])
        machine.abandon(FencedError(1, "again"))
        assert machine.take_effects() == []
    assert not [effect for effect in actor.waiting if isinstance(effect, SendAdd)]
