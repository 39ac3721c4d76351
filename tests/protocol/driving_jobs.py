"""Drives the machines by which jobs add ledgers to a log, and by which what they left is swept: one small step at a time."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from replog.errors import JobAbandonedError, LedgerNotFoundError, LedgerRefusedError
from replog.protocol.additions import Addition, AppendRequest, Transaction
from replog.protocol.appending import AwaitAnswer, AwaitClosed, FindLeader, FindSegments, LogAppending
from replog.protocol.chaining import LogMachine
from replog.protocol.dropping import LogDeleting, LogTrimming
from replog.protocol.log_effects import CheckLedgers, LogEffect, WriteLog
from replog.protocol.model import LedgerState
from replog.protocol.rolling import LogRolling, RollBase
from replog.protocol.sweeping import CondemnLedgers, DeleteUnnamed, LogSweeping
from tests.protocol.driving import Cluster, Tell
from tests.protocol.driving_logs import NAME, LogActor, cas, segments


def write_ledger(cluster: Cluster, job: str, *, is_closed: bool = True) -> int:
    """A ledger that a job wrote for the log. Returns its id."""
    ledger_id = next(cluster.ledger_ids)
    metadata = attrs.evolve(cluster.create_ledger(ledger_id), custom={"log": NAME, "job": job})
    cluster.records[ledger_id] = (metadata.closed_at(-1) if is_closed else metadata, 1)
    return ledger_id


@attrs.define
class _Check:
    """Look at the next of these ledgers."""

    left: list[int]
    named: frozenset[int]


@attrs.define
class _Condemn:
    """Mark the next of these ledgers."""

    left: list[int]


@attrs.define
class _Delete:
    """Delete the next of these ledgers."""

    left: list[int]
    done: list[int]


@attrs.define
class _Wait:
    """Nothing follows, or that the same effect is tried again later."""

    effect: LogEffect | None


class JobActor(LogActor):
    """A driver that commits, a leader that rolls, or somebody who sweeps. What touches many ledgers is as many steps.

    A committer is told that somebody leads if `is_led`, and has patience for as many steps as `patience` says."""

    was_written = False  # the ledgers of an addition
    is_led = True
    patience = 0

    def __init__(self, cluster: Cluster, machine: LogMachine) -> None:
        self.fenced: list[int] = []  # the log's ledgers that it closed, to add its own
        self.closed_late: list[int] = []  # those that it closed because the leader that had added its own did not
        super().__init__(cluster, machine)

    def _cas(self, effect: WriteLog) -> int | None:
        version = super()._cas(effect)
        if version is not None and isinstance(self.machine, LogRolling) and self.machine.answered is not None:
            request = self.machine.answered
            self.cluster.answered[request.token] = request.addition.ledger_ids
        before = self.machine.metadata.next_segment_number
        adds = isinstance(self.machine, LogAppending) and effect.metadata.next_segment_number > before
        self.was_written = self.was_written or (adds and version is not None)
        return version

    def _recover(self, ledger_id: int) -> Tell:
        is_added = isinstance(self.machine, LogAppending) and self.machine.is_new
        (self.closed_late if is_added else self.fenced).append(ledger_id)
        return super()._recover(ledger_id)

    def step(self) -> None:
        """The next of what waits; of something long, a part."""
        effect = self.waiting.pop(0)
        follows = self._begin(effect) if isinstance(effect, LogEffect) else effect
        if isinstance(follows, _Wait):
            if follows.effect is not None:
                self.waiting.insert(0, follows.effect)
            return
        if follows is None:
            self.waiting.insert(0, effect)
            self.deliver(type(effect))
        elif follows.left:
            self._advance(follows)
        else:
            self._end(follows)

    def finish(self) -> JobActor:
        """To its end, with nobody in between."""
        for _ in range(1000):
            if not self.waiting:
                return self
            self.step()
        raise AssertionError("this never ends")

    def until(self, kind: type) -> JobActor:
        """Until something of this kind waits."""
        while not self.find(kind):
            assert self.waiting, f"it never came to {kind.__name__}"
            self.step()
        return self

    def _begin(self, effect: LogEffect) -> _Check | _Condemn | _Delete | _Wait | None:
        if isinstance(effect, CheckLedgers):
            paged = frozenset(each for _, each in segments(self.cluster)) if effect.looks_into_pages else frozenset()
            return _Check(list(effect.ledger_ids), paged)
        if isinstance(effect, CondemnLedgers):
            return _Condemn(list(effect.ledger_ids))
        if isinstance(effect, DeleteUnnamed):
            named = {each for _, each in segments(self.cluster)} if NAME in self.cluster.logs else set()
            return _Delete([each for each in effect.ledger_ids if each not in named], [])
        if isinstance(effect, AwaitAnswer) and self.cluster.logs[NAME][1] == effect.version and self.patience:
            self.patience -= 1
            return _Wait(effect)
        if isinstance(effect, AwaitClosed) and self._open_of(effect) and self.patience:
            self.patience -= 1
            return _Wait(effect)
        if isinstance(effect, FindSegments | FindLeader | AwaitAnswer | AwaitClosed):
            self._look(effect)
            return _Wait(None)
        return None

    def _open_of(self, effect: AwaitClosed) -> list[int]:
        known = [each for each in effect.ledger_ids if each in self.cluster.records]
        return [each for each in known if self.cluster.metadata(each).state is not LedgerState.CLOSED]

    def _look(self, effect: FindSegments | FindLeader | AwaitAnswer | AwaitClosed) -> None:
        if isinstance(effect, FindLeader):
            self.machine.leader_found(is_led=self.is_led)
        elif isinstance(effect, AwaitAnswer):
            self.machine.answer_awaited(is_patient=self.cluster.logs[NAME][1] != effect.version)
        elif isinstance(effect, AwaitClosed):
            self.machine.closing_awaited(self._open_of(effect))
        else:
            first = self.cluster.logs[NAME][0].first_segment_number
            paged = [each for _, page in sorted(self.cluster.log_pages.items()) for each in page]
            start = max(first, effect.first)
            self.machine.segments_found([each for each in paged if start <= each.number < effect.end])
        self.collect()

    def _advance(self, what: _Check | _Condemn | _Delete) -> None:
        ledger_id = what.left.pop(0)
        if isinstance(what, _Check):
            problem = self._problem(ledger_id, what.named)
            if problem is not None:
                if isinstance(self.machine, LogRolling):
                    self.machine.ledgers_refused()
                else:
                    self.machine.abandon(problem)
                self.collect()
                return
        elif isinstance(what, _Condemn):
            if ledger_id in self.cluster.records:
                metadata, version = self.cluster.records[ledger_id]
                custom = {**metadata.custom, "condemned": "yes"}
                self.cluster.records[ledger_id] = (attrs.evolve(metadata, custom=custom), version + 1)
        else:
            self.cluster.records.pop(ledger_id, None)
            what.done.append(ledger_id)
        self.waiting.insert(0, what)

    def _problem(self, ledger_id: int, named: frozenset[int]) -> Exception | None:
        metadata, _ = self.cluster.records.get(ledger_id, (None, 0))
        if metadata is None:
            return LedgerNotFoundError(ledger_id, "gone")
        if "condemned" in metadata.custom:
            return JobAbandonedError(NAME, "condemned", metadata.custom["job"], ledger_id)
        if ledger_id in named:
            return LedgerRefusedError(ledger_id, "in a page")
        return None if metadata.state is LedgerState.CLOSED else LedgerRefusedError(ledger_id, "not closed")

    def _end(self, what: _Check | _Condemn | _Delete) -> None:
        if isinstance(what, _Check):
            if isinstance(self.machine, LogAppending | LogRolling):
                self.machine.ledgers_checked()
        elif isinstance(what, _Condemn):
            self.machine.ledgers_condemned()
        else:
            self.machine.ledgers_deleted(tuple(what.done))
        self.collect()


class DroppingActor(LogActor):
    """Somebody who trims or deletes: what jobs handed in is swept, since somebody may be about to add it once more."""

    def __init__(
        self, cluster: Cluster, machine: LogTrimming | LogDeleting, sweep: Callable[[list[int]], None]
    ) -> None:
        self._sweep = sweep
        super().__init__(cluster, machine)

    def _delete_dropped(self, ledger_ids: tuple[int, ...]) -> None:
        known = [each for each in ledger_ids if each in self.cluster.records]
        handed_in = [each for each in known if "job" in self.cluster.metadata(each).custom]
        LogActor._delete_dropped(self, tuple(each for each in known if each not in handed_in))
        if handed_in:
            self._sweep(handed_in)


def adding(
    cluster: Cluster,
    ledger_ids: list[int],
    transaction: tuple[str, int] | None = None,
    nonce: str = "a1",
    page_segments: int = 2,
    patience: int | None = None,
) -> JobActor:
    """A committer; with `patience`, one that asks the leader."""
    wanted = Addition(tuple(ledger_ids), None if transaction is None else Transaction(*transaction))
    actor = JobActor(cluster, LogAppending(NAME, wanted, nonce, 8, page_segments, asks_leader=patience is not None))
    actor.patience = patience or 0
    return actor


def answering(cluster: Cluster, nonce: str = "r1") -> JobActor:
    """The leader rolls the log as it is now, and answers the first request in it."""
    metadata, version = cluster.logs[NAME]
    return JobActor(cluster, LogRolling(RollBase(metadata, version), nonce, 6))


def splicing(cluster: Cluster, ledger_ids: list[int], nonce: str = "s1") -> JobActor:
    """The leader rolls, and adds these ledgers before its next one: somebody asked for it, and is gone."""
    metadata, version = cluster.logs[NAME]
    asked = metadata.with_request(AppendRequest(f"{nonce} asks", Addition(tuple(ledger_ids))))
    cas(cluster, attrs.evolve(asked, token=f"{nonce} asks"), version)
    return answering(cluster, nonce)


def sweeping(cluster: Cluster, ledger_ids: list[int], nonce: str = "s1") -> JobActor:
    return JobActor(cluster, LogSweeping(NAME, tuple(ledger_ids), nonce, 9))
