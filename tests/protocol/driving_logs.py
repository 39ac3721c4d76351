"""Drives the machines of logs: taking over, rolling, trimming, deleting, over a `Cluster`'s ledgers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from replog.errors import FencedError, ReplogError
from replog.protocol.chaining import (
    ContinueLedger,
    CreateLedger,
    DeleteLedger,
    LogChanged,
    LogFailed,
    LogMachine,
    LogTakeover,
    ReadLog,
    RecoverLedger,
    WriteLog,
    WritePage,
)
from replog.protocol.dropping import DeletePending, DropSegments, ListPending, LogDeleting, LogTrimming
from replog.protocol.model import PAGE_SEGMENTS, LedgerState, LogMetadata, PendingLedger
from replog.protocol.rolling import LogRolling, RollBase
from tests.protocol.driving import Cluster, Recovery, Tell, Writer

NAME = "orders"


class LogActor:
    """One client that changes the log, and what its machine waits for. Ledger ids are 1, 2, ... in order of creation."""

    def __init__(self, cluster: Cluster, machine: LogMachine) -> None:
        self.cluster = cluster
        self.machine: Any = machine
        self.waiting: list[Any] = []
        self.opened: dict[int, Recovery] = {}  # by ledger: its last takeover, if this client goes on with it
        self.changed: LogChanged | None = None
        self.error: ReplogError | None = None
        self.machine.start()
        self.collect()

    def collect(self) -> None:
        for effect in self.machine.take_effects():
            if isinstance(effect, LogChanged):
                self.changed = effect
                if effect.ledger_id is not None and not self.cluster.keeps_pending:
                    self.cluster.pending.pop(effect.ledger_id, None)
            elif isinstance(effect, LogFailed):
                self.error = effect.error
            else:
                self.waiting.append(effect)

    def find(self, kind: type) -> list[Any]:
        return [effect for effect in self.waiting if isinstance(effect, kind)]

    def take(self, kind: type) -> Any:
        found = self.find(kind)
        assert found, f"nothing waits like {kind.__name__}; waiting: {self.waiting}"
        self.waiting.remove(found[0])
        return found[0]

    def deliver(self, kind: type) -> None:
        self._tell(self._handle(self.take(kind)))

    def run(self) -> LogActor:
        for _ in range(1000):
            if not self.waiting:
                return self
            self._tell(self._handle(self.waiting.pop(0)))
        raise AssertionError("this never ends")

    def run_until(self, kind: type) -> None:
        """Delivers everything until something of this kind waits."""
        while not self.find(kind):
            assert self.waiting, f"it never came to {kind.__name__}"
            self._tell(self._handle(self.waiting.pop(0)))

    def write_loses_answer(self) -> None:
        """The CAS happens, and its answer is lost."""
        self._cas(self.take(WriteLog))
        self.machine.log_uncertain()
        self.collect()

    def write_loses_request(self) -> Callable[[], int | None]:
        """The CAS is lost on its way, or merely late: then the returned function lets it happen."""
        effect = self.take(WriteLog)
        self.machine.log_uncertain()
        self.collect()
        return lambda: self._cas(effect)

    def _tell(self, tell: Tell) -> None:
        tell()
        self.collect()

    def _cas(self, effect: WriteLog) -> int | None:
        return cas(self.cluster, effect.metadata, effect.expected)

    def _handle(self, effect: Any) -> Tell:
        machine, cluster = self.machine, self.cluster
        if isinstance(effect, ReadLog):
            metadata, version = cluster.logs.get(effect.name, (None, None))
            return lambda: machine.log_read(metadata, version)
        if isinstance(effect, WriteLog):
            written = self._cas(effect)
            return machine.log_conflict if written is None else lambda: machine.log_written(written)
        if isinstance(effect, RecoverLedger):
            return self._recover(effect.ledger_id)
        if isinstance(effect, CreateLedger):
            ledger_id = next(cluster.ledger_ids)
            cluster.pending[ledger_id] = PendingLedger(effect.log_name, ledger_id, effect.segment_number)
            cluster.create_ledger(ledger_id, unbounded=effect.is_unbounded)
            return lambda: machine.ledger_created(ledger_id)
        if isinstance(effect, ContinueLedger):
            return self._continue(effect.ledger_id)
        if isinstance(effect, WritePage):
            return self._write_page(effect)
        if isinstance(effect, DropSegments):
            return self._drop(effect)
        if isinstance(effect, ListPending):
            pending = tuple(cluster.pending.values())
            return lambda: machine.pending_listed(pending)
        if isinstance(effect, DeletePending):
            self._delete_pending(effect)
            return machine.pending_deleted
        assert isinstance(effect, DeleteLedger)
        page = () if effect.page_number is None else cluster.log_pages.get(effect.page_number, ())
        if all(segment.ledger_id != effect.ledger_id for segment in page):
            cluster.records.pop(effect.ledger_id, None)
        return lambda: None

    def _write_page(self, effect: WritePage) -> Tell:
        machine, pages = self.machine, self.cluster.log_pages
        page = pages.setdefault(effect.page.number, effect.page.segments)
        if set(effect.page.segments) <= set(page):
            return lambda: machine.page_written(effect.page.number)
        assert self.cluster.logs[effect.page.log_name][1] != effect.head_version, (
            "the record's page is not the record's"
        )
        return machine.log_conflict

    def _drop(self, effect: DropSegments) -> Tell:
        machine, cluster = self.machine, self.cluster
        emptied = [each for each in cluster.log_pages if (each + 1) * effect.page_segments <= effect.end]
        named = {segment for page in cluster.log_pages.values() for segment in page if effect.first <= segment.number}
        named |= {*effect.known, *(segment for each in emptied for segment in cluster.log_pages.pop(each))}
        dropped = sorted((each for each in named if each.number < effect.end), key=lambda each: each.number)
        ledger_ids = tuple(segment.ledger_id for segment in dropped)
        self._delete_dropped(ledger_ids)
        return lambda: machine.segments_dropped(ledger_ids)

    def _delete_pending(self, effect: DeletePending) -> None:
        """As in life: what the log names is told by the record of the effect, and by its pages."""
        for each in effect.pending:
            if not self._names(effect.log, each):
                self.cluster.records.pop(each.ledger_id, None)
            self.cluster.pending.pop(each.ledger_id, None)

    def _names(self, log: LogMetadata, pending: PendingLedger) -> bool:
        if not log.first_segment_number <= pending.segment_number < log.next_segment_number:
            return False
        page = self.cluster.log_pages.get(log.page_of(pending.segment_number), ())
        found = (*log.segments, *page)
        return any((each.number, each.ledger_id) == (pending.segment_number, pending.ledger_id) for each in found)

    def _delete_dropped(self, ledger_ids: tuple[int, ...]) -> None:
        for ledger_id in ledger_ids:
            self.cluster.records.pop(ledger_id, None)

    def _recover(self, ledger_id: int) -> Tell:
        if ledger_id not in self.cluster.records:
            return lambda: self.machine.ledger_missing(ledger_id)
        try:
            self.cluster.recovery(ledger_id, nonce=f"recovery {id(self)}").recover()
        except ReplogError as error:
            failure = error
            return lambda: self.machine.abandon(failure)
        return lambda: self.machine.ledger_recovered(ledger_id)

    def _continue(self, ledger_id: int) -> Tell:
        metadata, _ = self.cluster.records.get(ledger_id, (None, 0))
        if metadata is None or not metadata.is_unbounded or metadata.state is LedgerState.CLOSED:
            return self._recover(ledger_id)
        takeover = self.cluster.takeover(f"takeover {id(self)} {metadata.term}", ledger_id)
        try:
            takeover.recover()
        except FencedError:
            return lambda: self.machine.ledger_contested(ledger_id)
        self.opened[ledger_id] = takeover
        return lambda: self.machine.ledger_continued(ledger_id, takeover.machine.term)

    def writer(self) -> Writer:
        """The writer of the ledger to append to, once this client leads the log."""
        assert self.changed is not None, f"it does not lead: {self.error}"
        ledger_id = self.changed.ledger_id
        assert ledger_id is not None
        opened = self.opened.get(ledger_id)
        return self.cluster.writer(ledger_id, f"w{id(self)}") if opened is None else opened.writer_of_term()


def cas(cluster: Cluster, metadata: LogMetadata, expected: int | None) -> int | None:
    """The metastore: creates if nothing is expected."""
    version = cluster.logs[metadata.name][1] if metadata.name in cluster.logs else None
    if version != expected:
        return None
    new = 0 if version is None else version + 1
    cluster.logs[metadata.name] = (metadata, new)
    return new


def takeover(
    cluster: Cluster, nonce: str = "t1", page_segments: int = PAGE_SEGMENTS, unbounded: bool | None = None
) -> LogActor:
    return LogActor(cluster, LogTakeover(NAME, nonce, 5, page_segments, is_unbounded=unbounded))


def rolling(cluster: Cluster, nonce: str = "r1") -> LogActor:
    """The leader rolls the log as it knows it: as it is now."""
    metadata, version = cluster.logs[NAME]
    return LogActor(cluster, LogRolling(RollBase(metadata, version), nonce, now_ms=6))


def trimming(cluster: Cluster, before_segment: int, nonce: str = "x1") -> LogActor:
    return LogActor(cluster, LogTrimming(NAME, before_segment, nonce))


def finish(cluster: Cluster, nonce: str = "y1") -> LogActor:
    """Somebody passes by, and finishes what others left unfinished."""
    return LogActor(cluster, LogTrimming(NAME, None, nonce, now_ms=8)).run()


def deleting(cluster: Cluster, nonce: str = "d1") -> LogActor:
    return LogActor(cluster, LogDeleting(NAME, nonce, now_ms=7))


def segments(cluster: Cluster) -> list[tuple[int, int]]:
    """(segment number, ledger id) of the log, from its pages and its head."""
    head = cluster.logs[NAME][0]
    paged = [segment for _, page in sorted(cluster.log_pages.items()) for segment in page]
    first, listed = head.first_segment_number, head.first_listed_number
    found = [*(each for each in paged if first <= each.number < listed), *head.segments]
    assert [each.number for each in found] == list(range(first, head.next_segment_number)), "the log has a hole"
    return [(segment.number, segment.ledger_id) for segment in found]
