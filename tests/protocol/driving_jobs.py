"""Drives the machines by which jobs add ledgers to a log, and by which what they left is swept: one small step at a time."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from replog.errors import JobAbandonedError, LedgerNotFoundError, LedgerRefusedError
from replog.protocol.appending import Addition, CheckLedgers, FindSegment, LogAppending
from replog.protocol.chaining import CreateLedger, LogEffect, LogRolling, WriteLog
from replog.protocol.dropping import LogDeleting, LogTrimming
from replog.protocol.model import LedgerState, LogMetadata, LogPage, Transaction
from replog.protocol.sweeping import CondemnLedgers, DeleteUnnamed, LogSweeping
from tests.protocol.driving import Cluster
from tests.protocol.driving_logs import NAME, LogActor, segments


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


class JobActor(LogActor):
    """A driver that commits, or somebody who sweeps. What touches many ledgers is as many steps."""

    was_written = False

    def _cas(self, effect: WriteLog) -> int | None:
        version = super()._cas(effect)
        self.was_written = self.was_written or version is not None
        return version

    def step(self) -> None:
        """The next of what waits; of something long, a part."""
        effect = self.waiting.pop(0)
        follows = self._begin(effect) if isinstance(effect, LogEffect) else effect
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

    def _begin(self, effect: LogEffect) -> _Check | _Condemn | _Delete | None:
        if isinstance(effect, CheckLedgers):
            paged = frozenset(each for _, each in segments(self.cluster)) if effect.looks_into_pages else frozenset()
            return _Check(list(effect.ledger_ids), paged)
        if isinstance(effect, CondemnLedgers):
            return _Condemn(list(effect.ledger_ids))
        if isinstance(effect, DeleteUnnamed):
            named = {each for _, each in segments(self.cluster)} if NAME in self.cluster.logs else set()
            return _Delete([each for each in effect.ledger_ids if each not in named], [])
        if isinstance(effect, FindSegment):
            page = self.cluster.log_pages.get(effect.page_number, ())
            found = next((each for each in page if each.number == effect.segment_number), None)
            self.machine.segment_found(found)
            self.collect()
            return _Check([], frozenset())  # nothing is left to do
        return None

    def _advance(self, what: _Check | _Condemn | _Delete) -> None:
        ledger_id = what.left.pop(0)
        if isinstance(what, _Check):
            problem = self._problem(ledger_id, what.named)
            if problem is not None:
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
            if isinstance(self.machine, LogAppending | Splicing):
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
) -> JobActor:
    wanted = Addition(NAME, tuple(ledger_ids), None if transaction is None else Transaction(*transaction))
    return JobActor(cluster, LogAppending(wanted, nonce, 8, page_segments))


class Splicing(LogRolling):
    """A roll that adds closed ledgers of a job before the ledger in which the leader goes on (L8)."""

    def __init__(self, metadata: LogMetadata, version: int, nonce: str, ledger_ids: tuple[int, ...]) -> None:
        super().__init__(metadata, version, nonce, 6)
        self._spliced = ledger_ids

    def _start_over(self) -> None:
        super()._start_over()
        if not self.is_done:
            # After the head was read, as for any addition: a sweep changes the head once it has condemned them.
            self._effects[-1] = CheckLedgers(self._spliced, self.metadata, "", looks_into_pages=True)
            # The number that it will get: a pending ledger that has another is taken for one that lost its CAS (L7).
            number = self.metadata.next_segment_number + len(self._spliced)
            self._effects.append(CreateLedger(NAME, number))

    def ledgers_checked(self) -> None:
        """The job's ledgers may be added."""

    def _ready(self, now_ms: int) -> tuple[tuple[LogPage, ...], LogMetadata]:
        pages, head = super()._ready(now_ms)
        return pages, head.with_ledgers(self._spliced, now_ms)


def splicing(cluster: Cluster, ledger_ids: list[int], nonce: str = "s1") -> JobActor:
    """The leader rolls, and adds these ledgers before its next one."""
    metadata, version = cluster.logs[NAME]
    return JobActor(cluster, Splicing(metadata, version, nonce, tuple(ledger_ids)))


def sweeping(cluster: Cluster, ledger_ids: list[int], nonce: str = "s1") -> JobActor:
    return JobActor(cluster, LogSweeping(NAME, tuple(ledger_ids), nonce, 9))
