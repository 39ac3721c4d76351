"""Jobs that commit and are swept, leaders, trims and deletions at once, in random schedules; and each wrong order of it."""

from __future__ import annotations

import random

import pytest

from replog.errors import (
    FencedError,
    JobAbandonedError,
    LedgerNotFoundError,
    LedgerRefusedError,
    LogNotFoundError,
    MetastoreUncertainError,
)
from replog.protocol.appending import FindSegments, LogAppending
from replog.protocol.chaining import LogChanged, LogTakeover, ReadLog, RecoverLedger, WriteLog
from replog.protocol.dropping import LogDeleting, LogTrimming
from replog.protocol.model import LedgerState, LogMetadata, Position
from replog.protocol.rolling import LogRolling
from replog.protocol.sweeping import LogSweeping
from tests.lanes.seeds import seeds
from tests.protocol.driving import Cluster
from tests.protocol.driving_jobs import DroppingActor, JobActor, adding, answering, sweeping, write_ledger
from tests.protocol.driving_logs import NAME, LogActor, segments, takeover, trimming
from tests.simulator.hunting import hunt
from tests.simulator.mutation import Mutant, Patch

EXPECTED = (
    FencedError,
    JobAbandonedError,
    LedgerNotFoundError,
    LedgerRefusedError,
    LogNotFoundError,
    MetastoreUncertainError,
)


class Broken(AssertionError):
    """Something that must never be."""


def require(condition: object, problem: str) -> None:
    if not condition:
        raise Broken(problem)


def asked_of(actor: LogActor) -> str:
    """The token of the last request of a committer; "" if it asked nobody."""
    request = actor.machine._request
    return "" if request is None else request.token


class Schedule:
    """A few jobs with several drivers each, and all others, in an order that follows from the seed."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.asks = seed % 3 == 0  # leaders, before they are fenced
        self.cluster = Cluster()
        self.actors: list[LogActor] = []
        self.jobs: dict[str, list[int]] = {}
        self.transactions: dict[str, tuple[str, int] | None] = {}
        self.numbers: dict[int, int] = {}  # which ledger a number ever meant
        self.counts = dict.fromkeys(("committed", "repeated", "refused", "swept"), 0)
        self._names = (f"n{number}" for number in range(10_000))

    def run(self, steps: int) -> None:
        if self.dice.random() < 0.7:
            takeover(self.cluster, "first", 2).run()
        for _ in range(self.dice.randint(1, 3)):
            self.new_job()
        for _ in range(steps):
            if len(self.actors) < (6 if self.asks else 4):
                self.actors.append(self.begun())
            self.advance(self.dice.choice(self.actors))
            self.look()
        for actor in list(self.actors):
            while actor in self.actors:
                self.advance(actor, is_calm=True)
                self.look()
        self.conclude()

    def new_job(self) -> str:
        job = next(self._names)
        self.jobs[job] = [write_ledger(self.cluster, job) for _ in range(self.dice.randint(1, 3))]
        # Several jobs may be runs of one transaction, and some have none.
        self.transactions[job] = self.dice.choice([None, ("t", self.dice.randint(0, 4)), (job, 0)])
        return job

    def begun(self) -> LogActor:
        kind, log = self.dice.randrange(12), self.cluster.logs.get(NAME)
        job = self.dice.choice(list(self.jobs)) if self.dice.random() < 0.7 else self.new_job()
        if self.asks and log is not None and self.dice.random() < 0.5:
            # Somebody leads, and answers.
            kind = 9 if log[0].requests else 8 if log[0].first_open_number == log[0].next_segment_number else kind
        if kind < 5:
            patience = self.dice.choice([0, 10, 100]) if self.asks else None
            return adding(self.cluster, self.jobs[job], self.transactions[job], next(self._names), patience=patience)
        if kind < 8:
            named = {ledger_id for _, ledger_id in segments(self.cluster)} if log else set()
            return sweeping(self.cluster, [each for each in self.jobs[job] if each not in named], next(self._names))
        if kind < 9 or log is None or not log[0].segments:
            return takeover(self.cluster, next(self._names), 2)
        states = [self.cluster.metadata(segment.ledger_id).state for segment in log[0].segments[:-1]]
        if kind < 10 and (self.asks or LedgerState.OPEN not in states):
            for segment, state in zip(log[0].segments, states, strict=False):
                if state is LedgerState.OPEN:  # the leader closes it before the next roll
                    self.cluster.recovery(segment.ledger_id, nonce=next(self._names)).recover()
            return answering(self.cluster, next(self._names))
        if kind < 11:
            before = self.dice.randint(1, log[0].next_segment_number)
            return DroppingActor(self.cluster, LogTrimming(NAME, before, next(self._names)), self.swept)
        return DroppingActor(self.cluster, LogDeleting(NAME, next(self._names), 7), self.swept)

    def swept(self, ledger_ids: list[int]) -> None:
        self.actors.append(sweeping(self.cluster, ledger_ids, next(self._names)))

    def advance(self, actor: LogActor, *, is_calm: bool = False) -> None:
        is_late = actor.find(WriteLog) and not is_calm
        if is_late and self.dice.random() < 0.2:
            actor.write_loses_answer()
        elif is_late and self.dice.random() < 0.1:
            actor.write_loses_request()
        elif not is_calm and self.dice.random() < 0.01:
            self.actors.remove(actor)  # killed
            return
        elif isinstance(actor, JobActor):
            actor.step()
        else:
            actor.deliver(type(actor.waiting[0]))
        if not actor.waiting:
            self.actors.remove(actor)
            self.look()
            self.ended(actor)

    def ended(self, actor: LogActor) -> None:
        require(actor.changed is not None or isinstance(actor.error, EXPECTED), f"it ended with {actor.error!r}")
        is_answered = isinstance(actor.machine, LogAppending) and asked_of(actor) in self.cluster.answered
        if isinstance(actor.machine, LogTakeover | LogAppending) and actor.changed is not None:
            self.closed_before(actor.changed, actor.machine)
        if isinstance(actor.machine, LogSweeping):
            self.counts["swept"] += len(actor.machine.deleted)
        elif isinstance(actor.machine, LogAppending):
            outcome = "refused" if actor.error else "committed" if actor.machine.is_new else "repeated"
            self.counts[outcome] += 1
            assert isinstance(actor, JobActor)
            if is_answered:
                require(not actor.fenced, "a leader that answered was fenced (L10)")
                require(actor.machine.is_new, f"it was answered, and ended with {actor.error!r} (L10)")
            is_unknown = isinstance(actor.error, MetastoreUncertainError)
            require(is_unknown or actor.error is None or not actor.was_written, f"it was written, and {actor.error!r}")
            for segment in actor.machine.segments:
                require(
                    self.numbers.get(segment.number) == segment.ledger_id, f"{segment} is said, and was never there"
                )

    def closed_before(self, changed: LogChanged, machine: LogTakeover | LogAppending) -> None:
        """L1, L8, L10: nothing before is open any more, once a takeover or a job's commit is done."""
        segments = machine.segments if isinstance(machine, LogAppending) else ()
        added = [each.number for each in segments]
        added = added or [number for number, ledger_id in self.numbers.items() if ledger_id == changed.ledger_id]
        for number, ledger_id in self.numbers.items():
            if ledger_id in self.cluster.records and number < min(added, default=0):
                state = self.cluster.metadata(ledger_id).state
                require(state is LedgerState.CLOSED, f"segment {number} is {state}, before one of {added} (L8, L10)")

    def look(self) -> None:
        """The invariants at every moment."""
        if NAME not in self.cluster.logs:
            return
        found = segments(self.cluster)
        for number, ledger_id in found:
            require(ledger_id in self.cluster.records, f"ledger {ledger_id} is named and was deleted (L3)")
            require(self.numbers.setdefault(number, ledger_id) == ledger_id, f"number {number} means two ledgers (L4)")
        first_open = self.cluster.logs[NAME][0].first_open_number
        for number, ledger_id in found:
            state = self.cluster.metadata(ledger_id).state
            require(
                number >= first_open or state is LedgerState.CLOSED,
                f"ledger {ledger_id} is {state}, and the log says that it is closed (L8)",
            )
        ids = [ledger_id for _, ledger_id in found]
        require(len(set(ids)) == len(ids), "a ledger stands in the log twice")
        first = self.cluster.logs[NAME][0].first_segment_number
        for job, ledger_ids in self.jobs.items():
            places = [(number, ledger_id) for number, ledger_id in found if ledger_id in ledger_ids]
            whole = list(enumerate(ledger_ids, places[-1][0] - len(ledger_ids) + 1)) if places else []
            kept = [(number, ledger_id) for number, ledger_id in whole if number >= first]
            require(places == kept, f"job {job} stands there in part, or out of order: {places}")

    def conclude(self) -> None:
        """Each transaction is in the log once, whoever repeated it. The last sweep leaves only named ledgers."""
        ever = list(self.numbers.values())
        jobs = [(job, ever.count(ledger_ids[0])) for job, ledger_ids in self.jobs.items()]
        known = [self.transactions[job] for job, times in jobs for _ in range(times) if self.transactions[job]]
        log = self.cluster.logs.get(NAME)
        if log is None or not log[0].deletions:  # one that was deleted forgets them
            require(len(set(known)) == len(known), f"a transaction was committed twice: {known}")
        written = [ledger_id for ledger_ids in self.jobs.values() for ledger_id in ledger_ids]
        sweeping(self.cluster, written, "last").finish()
        named = {ledger_id for _, ledger_id in segments(self.cluster)}
        require(not set(written) & (set(self.cluster.records) - named), "a sweep left a ledger that nobody names")
        DroppingActor(self.cluster, LogTrimming(NAME, None, "last trim"), self.swept).run()
        require(set(self.cluster.records) == named, "a ledger is left that nobody names, and no job wrote (L7)")


@pytest.mark.parametrize("chunk", seeds(5, few=1))
def test_random_jobs_and_sweeps(chunk: int) -> None:
    """M1, L1-L4: no ledger is named and gone, none is added twice, no job or transaction in part or twice."""
    counts: dict[str, int] = {}
    for seed in range(60 * chunk, 60 * chunk + 60):
        schedule = Schedule(seed)
        schedule.run(150)
        counts = {kind: counts.get(kind, 0) + count for kind, count in schedule.counts.items()}
    assert all(count > 20 for count in counts.values()), counts


MUTANTS = [
    Mutant(
        "drop-does-not-sweep",
        "L3",
        "a ledger that was handed in is deleted when it is trimmed, though somebody may be about to add it once more",
        (Patch(DroppingActor, "_delete_dropped", "if each not in handed_in", ""),),
        600,
    ),
    Mutant(
        "sweep-without-change",
        "L3",
        "what is not named now is deleted, though somebody who looked before may be about to name it",
        (
            Patch(
                LogSweeping,
                "ledgers_condemned",
                "self._effects.append(ReadLog(self.metadata.name))",
                "self._change.version, self._stage = 0, _Stage.WRITING\n        self._won()",
            ),
        ),
        200,
    ),
    Mutant(
        "sweep-changes-first",
        "L3",
        "the head is changed before the ledgers are condemned",
        (
            Patch(
                LogSweeping,
                "start",
                "self._effects.append(CondemnLedgers(self._ledger_ids))",
                "self._stage = _Stage.READING\n    self._effects.append(ReadLog(self.metadata.name))",
            ),
            Patch(LogSweeping, "_won", 'self._move("log changed")', "self._stage = _Stage.CONDEMNING"),
            Patch(
                LogSweeping,
                "_won",
                "DeleteUnnamed(self.metadata.name, self._ledger_ids)",
                "CondemnLedgers(self._ledger_ids)",
            ),
            Patch(LogSweeping, "ledgers_condemned", 'self._move("ledgers condemned")', "self._stage = _Stage.DELETING"),
            Patch(
                LogSweeping,
                "ledgers_condemned",
                "ReadLog(self.metadata.name)",
                "DeleteUnnamed(self.metadata.name, self._ledger_ids)",
            ),
        ),
        200,
    ),
    Mutant(
        "sweep-leaves-no-tombstone",
        "L3",
        "a log that is not there is not changed, though somebody may be about to create it with these ledgers",
        (
            Patch(
                LogSweeping,
                "_start_over",
                "log = self.metadata\n",
                "log = self.metadata\n    if self._change.version is None:\n        self._change.version = 0\n"
                "        self._won()\n        return\n",
            ),
        ),
        600,
    ),
    Mutant(
        "add-looks-once",
        "L3",
        "after a lost race the ledgers are not looked at again",
        (
            Patch(
                LogAppending,
                "_start_over",
                'self._move("log read")',
                'self._move("log read")\n'
                "    if vars(self).setdefault('mutant_checks', []):\n        self.ledgers_checked()\n        return\n"
                "    self.mutant_checks.append(1)",
            ),
        ),
        400,
    ),
    Mutant(
        "add-forgets-doubt",
        "M1",
        "a lost answer counts as not written",
        (Patch(LogAppending, "_lost", "and self._is_uncertain and", "and False and"),),
        200,
    ),
    Mutant(
        "add-does-not-fence",
        "L1",
        "ledgers are added behind a leader's that is still open",
        (
            Patch(
                LogAppending,
                "_recover",
                "if not self._addition.ledger_ids:",
                "if True:",
            ),
        ),
        100,
    ),
    Mutant(
        "add-fences-one",
        "L1",
        "X19: only the last ledger is fenced",
        (Patch(LogAppending, "_recover", "self.metadata.to_recover()]", "self.metadata.to_recover()[-1:]]"),),
        400,
    ),
    Mutant(
        "takeover-recovers-two",
        "L8",
        "a takeover fences the last two ledgers only: a leader that others' ledgers were added behind goes on",
        (
            Patch(
                LogMetadata,
                "to_recover",
                "first = min(self.first_open_number, ",
                "first = min(self.next_segment_number, ",
            ),
        ),
        100,
    ),
    Mutant(
        "roll-forgets-open",
        "L8",
        "the record says that all before the leader's next ledger are closed, and the leader still writes to the one before",
        (Patch(LogRolling, "_propose_next", "self._current.number", "self.metadata.next_segment_number"),),
        100,
    ),
    Mutant(
        "request-is-not-withdrawn",
        "L10",
        "a committer out of patience fences the leader while the record has its request: the leader answers, and is fenced",
        (
            Patch(
                LogAppending,
                "_seek",
                "if self._request in log.requests:",
                "if self._request in log.requests and self._requests_left is not None:",
            ),
        ),
        400,
    ),
    Mutant(
        "answer-is-not-sought",
        "L10",
        "a committer whose request is gone does not look whether a leader has added its ledgers",
        (Patch(LogAppending, "_seek", "elif self._claim(log.segments):", "elif False:"),),
        100,
    ),
    Mutant(
        "told-while-open",
        "L10",
        "a committer is told while the leader that added its ledgers may not know, and appends before them",
        (Patch(LogAppending, "_settle", "if before:", "if False:"),),
        100,
    ),
    Mutant(
        "add-forgets-transaction",
        "M1",
        "a transaction is looked for only at first",
        (
            Patch(
                LogAppending,
                "_start_over",
                "if is_log and wanted.transaction is not None",
                "vars(self).setdefault('mutant_reads', []).append(1)\n"
                "    if is_log and len(self.mutant_reads) == 1 and wanted.transaction is not None",
            ),
        ),
        300,
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_wrong_order_is_found(mutant: Mutant) -> None:
    def breaks(seed: int) -> bool:
        try:
            Schedule(seed).run(150)
        except Broken:
            return True
        return False

    with mutant.applied():
        assert hunt("jobs", mutant, breaks) is not None, f"not within {mutant.seeds} seeds: {mutant.story}"


# -- single schedules ---------------------------------------------------------------------------------------------


def test_commit_older_than_the_sweep_loses_its_cas() -> None:
    cluster = Cluster()
    takeover(cluster).run()
    ledger_ids = [write_ledger(cluster, "a") for _ in range(2)]
    commit, sweep = adding(cluster, ledger_ids).until(WriteLog), sweeping(cluster, ledger_ids)
    sweep.finish()
    assert sweep.machine.deleted == tuple(ledger_ids)
    commit.finish()
    assert isinstance(commit.error, LedgerNotFoundError)


def test_a_commit_before_the_sweep_changes_the_head_is_spared() -> None:
    cluster = Cluster()
    takeover(cluster).run()
    ledger_ids = [write_ledger(cluster, "a") for _ in range(2)]
    commit, sweep = adding(cluster, ledger_ids).until(WriteLog), sweeping(cluster, ledger_ids).until(WriteLog)
    assert commit.finish().machine.is_new
    assert sweep.finish().machine.deleted == ()
    assert set(ledger_ids) < set(cluster.records)


def test_a_commit_with_a_tombstoned_ledger_is_refused() -> None:
    cluster = Cluster()
    ledger_ids = [write_ledger(cluster, "a") for _ in range(2)]
    sweep = sweeping(cluster, ledger_ids[:1])
    sweep.until(ReadLog)  # and whoever sweeps is killed
    for _ in range(2):
        commit = adding(cluster, ledger_ids).finish()
        assert isinstance(commit.error, JobAbandonedError)
        assert (commit.error.job, commit.error.ledger_id) == ("a", ledger_ids[0])
    assert NAME not in cluster.logs


def test_no_writer_is_fenced_before_the_ledgers_are_looked_at() -> None:
    cluster = Cluster()
    leader = takeover(cluster).run()
    assert leader.changed is not None
    commit = adding(cluster, [write_ledger(cluster, "a", is_closed=False)])
    assert [type(effect) for effect in commit.waiting] == [ReadLog]
    commit.finish()
    assert isinstance(commit.error, LedgerRefusedError)
    assert leader.changed.ledger_id is not None
    assert cluster.metadata(leader.changed.ledger_id).state is LedgerState.OPEN
    good = adding(cluster, [write_ledger(cluster, "a")]).until(RecoverLedger)
    assert len(good.find(RecoverLedger)) == 1


@pytest.mark.parametrize("was_trimmed", [False, True])
@pytest.mark.parametrize("transaction", [None, ("t", 1)])
def test_m1_a_lost_answer_is_settled_by_a_page_if_not_trimmed(
    was_trimmed: bool, transaction: tuple[str, int] | None
) -> None:
    cluster = Cluster()
    ledger_ids = [write_ledger(cluster, "a") for _ in range(2)]
    commit = adding(cluster, ledger_ids, transaction).until(WriteLog)
    commit.write_loses_answer()
    for number in range(6):
        adding(cluster, [write_ledger(cluster, "b")], nonce=f"b{number}").finish()
    if was_trimmed:
        trimming(cluster, 6).run()
    else:
        commit.until(FindSegments)
    commit.finish()
    if was_trimmed and transaction is None:
        assert isinstance(commit.error, MetastoreUncertainError)
    else:
        assert commit.changed is not None
        assert commit.machine.is_new is not was_trimmed
        assert [Position(each.number, 0) for each in commit.machine.segments] == [
            Position(1, 0),
            Position(2, 0),
        ] * (not was_trimmed)
    assert [ledger_id for _, ledger_id in segments(cluster)][:2] == ledger_ids or was_trimmed


def test_m1_a_page_trimmed_during_the_look_is_read_again() -> None:
    cluster = Cluster()
    commit = adding(cluster, [write_ledger(cluster, "a")]).until(WriteLog)
    commit.write_loses_answer()
    for number in range(6):
        adding(cluster, [write_ledger(cluster, "b")], nonce=f"b{number}").finish()
    commit.until(FindSegments)
    trimming(cluster, 6).run()
    commit.step()
    assert [type(effect) for effect in commit.waiting] == [ReadLog]
    assert isinstance(commit.finish().error, MetastoreUncertainError)


def test_calls_after_the_end_change_nothing() -> None:
    cluster = Cluster()
    done = [adding(cluster, [write_ledger(cluster, "a")]).finish(), sweeping(cluster, [99]).finish()]
    for actor in done:
        machine = actor.machine
        before = vars(machine).copy()
        machine.log_read(None, None)
        machine.log_written(9)
        machine.log_conflict()
        machine.log_uncertain()
        machine.abandon(FencedError(1, "late"))
        if isinstance(machine, LogAppending):
            machine.ledgers_checked()
            machine.ledger_recovered(1)
            machine.ledger_missing(1)
            machine.segments_found([])
            machine.leader_found(is_led=True)
            machine.answer_awaited(is_patient=True)
            machine.closing_awaited([1])
        else:
            machine.ledgers_condemned()
            machine.ledgers_deleted((1,))
        assert machine.take_effects() == []
        assert (machine.is_done, vars(machine)["_change"]) == (True, before["_change"])
    assert not [effect for actor in done for effect in actor.waiting]
