"""The shells of a simulated log: a leader that takes over, appends, rolls and is deposed, and whoever trims or deletes.

The boundary at a roll: records for the new ledger wait until everything in the previous one is confirmed, and a next
roll waits until that one is closed. Otherwise a crash could keep a later record and drop an earlier one (O4), or leave
three ledgers open (I11).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import attrs

from replog.errors import FencedError, LedgerFinishedError, LedgerNotFoundError, ReplogError, TakeoverFailedError
from replog.protocol.chaining import (
    ContinueLedger,
    CreateLedger,
    DeleteLedger,
    LogChanged,
    LogEffect,
    LogFailed,
    LogTakeover,
    ReadLog,
    RecoverLedger,
    WriteLog,
    WritePage,
)
from replog.protocol.dropping import DeletePending, DropSegments, ListPending, LogDeleting, LogTrimming
from replog.protocol.model import LedgerMetadata, LedgerState, LogMetadata, PendingLedger
from replog.protocol.rolling import LogRolling, RollBase
from tests.simulator.clients import Client, WriterShell, new_ledger
from tests.simulator.dropping import DeletingPending, Dropping
from tests.simulator.metastore import Outcome, page_key, pending_key
from tests.simulator.pages import LOG_NAME, WritingPage
from tests.simulator.plan import CHUNKS_LOG, UNBOUNDED_LOG
from tests.simulator.recoveries import RecoveryShell

_RETRY = 150
_RECOVERY_ATTEMPTS = 4
_PAGE_SEGMENTS = 2  # so that few rolls do what thousands do in life
LogMachine = LogTakeover | LogRolling | LogTrimming | LogDeleting


class LogShell:
    """Does the effects of machines that change the log's list."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.world = client.world
        self.owner = client.name
        self._created_records: dict[int, tuple[LedgerMetadata, int]] = {}
        self._opened: dict[int, tuple[LedgerMetadata, int, int]] = {}  # unbounded ledgers that were taken over
        self._in_doubt: set[int] = set()  # ledgers of which another request to create them may still be under way

    def pump(self, machine: LogMachine) -> None:
        """Does what the machine wants done."""
        effects = machine.take_effects()
        while effects:
            for effect in effects:
                self._perform(machine, effect)
            effects = machine.take_effects()

    def _perform(self, machine: LogMachine, effect: LogEffect) -> None:
        metastore = self.client.metastore
        if isinstance(effect, ReadLog):
            metastore.get(self.client, LOG_NAME, partial(self._log_read, machine))
        elif isinstance(effect, WritePage):
            WritingPage(self.client, effect, partial(self._page_settled, machine, effect)).start()
        elif isinstance(effect, WriteLog):
            self.write_log(machine, effect)
        elif isinstance(effect, RecoverLedger):
            self._recover(machine, effect.ledger_id)
        elif isinstance(effect, ContinueLedger):
            assert isinstance(machine, LogTakeover)
            self._continue(machine, effect.ledger_id)
        elif isinstance(effect, CreateLedger):
            self._announce(machine, self._new_pending(effect.segment_number), effect.is_unbounded)
        elif isinstance(effect, DeleteLedger):
            self._give_back(effect)
        elif isinstance(effect, DropSegments):
            assert isinstance(machine, LogTrimming | LogDeleting)
            Dropping(self.client, effect, partial(self._dropped, machine)).go_on()
        elif isinstance(effect, ListPending):
            assert isinstance(machine, LogTrimming | LogDeleting)
            metastore.list_pending(self.client, partial(self._pending_listed, machine))
        elif isinstance(effect, DeletePending):
            assert isinstance(machine, LogTrimming | LogDeleting)
            DeletingPending(self.client, effect, partial(self._pending_deleted, machine)).go_on()
        elif isinstance(effect, LogChanged):
            self.changed(machine, effect)
        else:
            assert isinstance(effect, LogFailed)
            self.failed(machine, effect)

    def write_log(self, machine: LogMachine, effect: WriteLog) -> None:
        """Sends the CAS."""
        written = partial(self._log_written, machine)
        self.client.metastore.cas(self.client, LOG_NAME, effect.expected, effect.metadata, written)

    def _page_settled(self, machine: LogMachine, effect: WritePage, is_written: bool) -> None:
        if is_written:
            machine.page_written(effect.page.number)
        else:
            machine.log_conflict()
        self.pump(machine)

    def _dropped(self, machine: LogTrimming | LogDeleting, ledger_ids: tuple[int, ...]) -> None:
        machine.segments_dropped(ledger_ids)
        self.pump(machine)

    def _pending_listed(self, machine: LogTrimming | LogDeleting, outcome: Outcome, record: Any, version: int) -> None:
        if outcome is Outcome.UNCERTAIN:
            self.client.after(_RETRY, self._perform, machine, ListPending(LOG_NAME))
            return
        machine.pending_listed(tuple(record))
        self.pump(machine)

    def _pending_deleted(self, machine: LogTrimming | LogDeleting) -> None:
        machine.pending_deleted()
        self.pump(machine)

    def _log_read(self, machine: LogMachine, outcome: Outcome, record: Any, version: int) -> None:
        if outcome is Outcome.UNCERTAIN:
            self.client.after(_RETRY, self._perform, machine, ReadLog(LOG_NAME))
            return
        if outcome is Outcome.MISSING:
            machine.log_read(None, None)
        else:
            machine.log_read(record, version)
        self.pump(machine)

    def _log_written(self, machine: LogMachine, outcome: Outcome, record: Any, version: int) -> None:
        if outcome is Outcome.DONE:
            machine.log_written(version)
        elif outcome is Outcome.UNCERTAIN:
            self.world.count("the log's CAS was ambiguous")
            machine.log_uncertain()
        else:
            self.world.count("the log's CAS met a conflict")
            machine.log_conflict()
        self.pump(machine)

    def _recover(self, machine: LogMachine, ledger_id: int, contests: int = 0) -> None:
        assert isinstance(machine, LogTakeover | LogDeleting)

        def done(metadata: LedgerMetadata | None) -> None:
            if metadata is not None:
                machine.ledger_recovered(ledger_id)
            elif shell.is_missing:
                if isinstance(machine, LogTakeover):
                    self.world.count("takeover met a ledger that was trimmed")
                machine.ledger_missing(ledger_id)
            elif isinstance(shell.error, FencedError):
                self.world.count("closing a ledger was contested")
                self.client.after(self._contested_pause(contests), self._recover, machine, ledger_id, contests + 1)
                return
            else:
                machine.abandon(shell.error or TakeoverFailedError(LOG_NAME, "simulated"))
            self.pump(machine)

        shell = RecoveryShell(self.client, ledger_id, _RECOVERY_ATTEMPTS, done)
        shell.start()

    def _continue(self, machine: LogTakeover, ledger_id: int) -> None:
        """Takes the log's last ledger over, if it is unbounded and open (L9)."""

        def found(outcome: Outcome, record: Any, version: int) -> None:
            if outcome is Outcome.UNCERTAIN:
                self.client.after(_RETRY, self._continue, machine, ledger_id)
            elif outcome is Outcome.DONE and record.is_unbounded and record.state is not LedgerState.CLOSED:
                shell.begin(record, version)
            else:
                self._recover(machine, ledger_id)

        def done(metadata: LedgerMetadata | None) -> None:
            if metadata is not None:
                self._opened[ledger_id] = metadata, shell.machine.version, shell.machine.missing
                self.client.setting.oracle.facts.ledgers[ledger_id].owner = self.owner
                machine.ledger_continued(ledger_id, metadata.term)
            elif shell.is_missing:
                machine.ledger_missing(ledger_id)
            elif isinstance(shell.error, LedgerFinishedError):
                self.world.count("takeover met a finished ledger")
                machine.ledger_recovered(ledger_id)
            elif isinstance(shell.error, FencedError):
                self.world.count("takeover was contested")
                self.client.after(self._contested_pause(machine.contests), self._contested, machine, ledger_id)
                return
            else:
                machine.abandon(shell.error or TakeoverFailedError(LOG_NAME, "simulated"))
            self.pump(machine)

        shell = RecoveryShell(self.client, ledger_id, 1, done, takes_over=True)
        self.client.metastore.get(self.client, ledger_id, found)

    def _contested_pause(self, contests: int) -> int:
        """Rivals that fence each other pause for random times that soon outlast a recovery, as in the real driver."""
        bits, _ = self.world.draw(self.client.number, self.client.number, "order", 1)
        return 1 + bits % (_RETRY << min(contests + 1, 6))

    def _contested(self, machine: LogTakeover, ledger_id: int) -> None:
        machine.ledger_contested(ledger_id)
        self.pump(machine)

    def _new_pending(self, segment_number: int) -> PendingLedger:
        ledger_id = self.client.metastore.new_ledger_id()
        return PendingLedger(LOG_NAME, ledger_id, segment_number, self.world.now)

    def _announce(self, machine: LogMachine, pending: PendingLedger, is_unbounded: bool) -> None:
        """Writes down that the ledger is pending, and only then creates it (L7)."""

        def answered(outcome: Outcome, record: Any, version: int) -> None:
            if outcome is Outcome.UNCERTAIN:
                self.client.after(_RETRY, self._announce, machine, pending, is_unbounded)
            else:
                owner = self.client.new_nonce() if is_unbounded else ""
                record = new_ledger(self.world.plan, self._ensemble(), pending.ledger_id)
                self._create(machine, attrs.evolve(record, is_unbounded=is_unbounded, owner=owner))

        self.client.metastore.cas(self.client, pending_key(pending.ledger_id), None, pending, answered)

    def _create(self, machine: LogMachine, record: LedgerMetadata) -> None:
        self.client.metastore.create(self.client, record, partial(self._created, machine, record))

    def settle(self, ledger_id: int, then: Callable[[], object]) -> None:
        """The log names this ledger, so it is pending no more."""

        def answered(outcome: Outcome, record: Any, version: int) -> None:
            if outcome is Outcome.UNCERTAIN:
                self.world.count("whoever comes next settles what is pending")
            then()

        if ledger_id in self._opened:  # whether it is in doubt knows its creator
            then()
            return
        if ledger_id in self._in_doubt:
            self.world.count("ledger stays pending because its creation was in doubt")
            then()
            return
        self.client.metastore.delete(self.client, pending_key(ledger_id), answered)

    def _ensemble(self) -> tuple[str, ...]:
        bits, _ = self.world.draw(self.client.number, self.client.number, "order", 0)
        names = list(self.client.setting.bookies)
        names = [names.pop((bits >> 7 * turn) % len(names)) for turn in range(len(names))]
        names.sort(key=lambda name: self.client.suspects.get(name, 0) > self.world.now)
        return tuple(names[: self.world.plan.quorum.ensemble])

    def _created(
        self, machine: LogMachine, ledger: LedgerMetadata, outcome: Outcome, record: Any, version: int
    ) -> None:
        assert isinstance(machine, LogTakeover | LogRolling)
        if outcome is Outcome.UNCERTAIN:
            self._in_doubt.add(ledger.ledger_id)
            self.client.after(_RETRY, self._create, machine, ledger)
            return
        self._created_records[ledger.ledger_id] = ledger, version or 1  # on a conflict: by an earlier request
        self.client.setting.oracle.facts.ledgers[ledger.ledger_id].owner = self.owner
        machine.ledger_created(ledger.ledger_id)
        self.pump(machine)

    def _give_back(self, effect: DeleteLedger) -> None:
        if effect.page_number is None:
            self._delete(effect.ledger_id)
            return
        self.world.count("lost ledger looked up in a page")

        def answered(outcome: Outcome, record: Any, version: int) -> None:
            if outcome is Outcome.UNCERTAIN:
                self.client.after(_RETRY, self._give_back, effect)
            elif outcome is Outcome.MISSING or all(each.ledger_id != effect.ledger_id for each in record.segments):
                self._delete(effect.ledger_id)

        self.client.metastore.get(self.client, page_key(effect.page_number), answered)

    def _delete(self, ledger_id: int) -> None:
        def answered(outcome: Outcome, record: Any, version: int) -> None:
            if outcome is Outcome.UNCERTAIN:
                self.client.after(_RETRY, self._delete, ledger_id)

        self.client.metastore.delete(self.client, ledger_id, answered)

    def changed(self, machine: LogMachine, effect: LogChanged) -> None:
        """The machine is done."""
        raise NotImplementedError

    def failed(self, machine: LogMachine, effect: LogFailed) -> None:
        """The machine is done, in vain."""
        raise NotImplementedError


class DroppingShell(LogShell):
    """One trim or deletion."""

    def __init__(self, client: Client, machine: LogTrimming | LogDeleting) -> None:
        super().__init__(client)
        self.is_done = False
        self.machine = machine

    def start(self) -> None:
        """Begins."""
        self.machine.start()
        self.pump(self.machine)

    def changed(self, machine: LogMachine, effect: LogChanged) -> None:
        """Trimmed, or deleted."""
        self.is_done = True
        if isinstance(machine, LogDeleting):
            self.world.count("log deleted")

    def failed(self, machine: LogMachine, effect: LogFailed) -> None:
        """There was nothing to trim or to delete, or a ledger could not be recovered."""
        self.is_done = True


class LeaderShell(LogShell):
    """One session of a would-be leader: from its takeover until it is deposed."""

    def __init__(self, client: Client, owner: str, finish: Callable[[], object]) -> None:
        super().__init__(client)
        self.owner = owner
        self._finish = finish  # what others left unfinished (L7)
        self.error: ReplogError | None = None
        self.writer: WriterShell | None = None
        self.is_over = False
        self.is_busy = True  # taking over or rolling
        self._previous: WriterShell | None = None
        self._held: list[list[bytes]] = []
        self._submitted = 0
        self._metadata = LogMetadata(LOG_NAME)
        self._version = 0
        self._wants_close = False

    # -- taking over and rolling -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Takes over."""
        is_unbounded = True if self.world.plan.scenario in (UNBOUNDED_LOG, CHUNKS_LOG) else None
        nonce = self.client.new_nonce()
        machine = LogTakeover(LOG_NAME, nonce, self.world.wall_ms, _PAGE_SEGMENTS, is_unbounded=is_unbounded)
        machine.start()
        self.pump(machine)

    def roll(self) -> None:
        """Goes on in a new ledger."""
        if self.writer is None or self.is_busy or self.is_over or self._previous is not None:
            return
        self.is_busy = True
        machine = LogRolling(RollBase(self._metadata, self._version), self.client.new_nonce(), self.world.wall_ms)
        machine.start()
        self.pump(machine)

    def changed(self, machine: LogMachine, effect: LogChanged) -> None:
        """The log names the new ledger: append to it."""
        assert effect.ledger_id is not None
        self.is_busy = False
        self._metadata, self._version = effect.metadata, effect.version
        if isinstance(machine, LogTakeover):
            self.world.count("takeover served")
            self.client.setting.oracle.log.took_over(effect.ledger_id, self.owner)
        elif self.is_over:
            return
        else:
            self.world.count("leader rolled")
            self._previous = self.writer
        self.serve(effect.ledger_id)
        is_takeover = isinstance(machine, LogTakeover)
        self.settle(effect.ledger_id, self._finish if is_takeover else int)
        self._watch()

    def serve(self, ledger_id: int) -> None:
        """Begins to write to this ledger."""
        record, version, missing = self._opened.get(ledger_id) or (*self._created_records[ledger_id], None)
        self.writer = WriterShell(self.client, record, version, self.client.new_nonce(), missing)
        self.writer.on_changed = self._watch

    def failed(self, machine: LogMachine, effect: LogFailed) -> None:
        """Taken over by somebody else, or no takeover at all."""
        self.is_busy = False
        if isinstance(machine, LogRolling) and isinstance(effect.error, FencedError) and not self.is_over:
            self.world.count("leader deposed on a roll")
        self._end(effect.error)

    # -- appending ---------------------------------------------------------------------------------------------------

    def append(self, count: int) -> None:
        """Submits records."""
        if self.writer is None or self.is_over or self._wants_close:
            return
        payloads = [f"{self.owner}:{number}".encode() for number in range(self._submitted, self._submitted + count)]
        self._submitted += count
        if self._previous is not None and self.holds_back():
            self.world.count("append held back over a roll")
            self._held.append(payloads)
        else:
            self.writer.append(payloads)

    def holds_back(self) -> bool:
        """Whether records for the new ledger must wait: something in the previous one is unconfirmed."""
        assert self._previous is not None
        return bool(self._held) or bool(self._previous.machine.unconfirmed)

    def _watch(self) -> None:
        """Something was confirmed, or a writer ended."""
        if self.is_over or self.writer is None:
            return
        for writer in (self._previous, self.writer):
            if writer is not None and writer.is_done and writer.error is not None and not _is_trimmed(writer):
                if isinstance(writer.error, FencedError):
                    self.world.count("leader deposed on an append")
                self._end(writer.error)
                return
        if self._previous is not None:
            self._finish_previous(self._previous)
        if self._wants_close and self.is_settled and not self.writer.machine.unconfirmed:
            self.writer.close()
            if self.writer.is_done:
                self.is_over = True

    def _finish_previous(self, previous: WriterShell) -> None:
        if previous.is_done:
            self._previous = None
        elif not previous.machine.unconfirmed and not previous.is_closing:
            previous.close()
        assert self.writer is not None
        if not previous.machine.unconfirmed:
            held, self._held = self._held, []
            for payloads in held:
                self.writer.append(payloads)

    @property
    def is_settled(self) -> bool:
        """Whether no roll is under way and nothing is held back."""
        return not self.is_busy and self._previous is None and not self._held

    def finish(self) -> None:
        """Closes the log's last ledger once all is confirmed."""
        self._wants_close = True
        self._watch()

    def _end(self, error: ReplogError) -> None:
        self.error = error
        self.is_over = True
        for writer in (self._previous, self.writer):
            if writer is not None and not writer.is_done:
                writer.abandon()


def _is_trimmed(writer: WriterShell) -> bool:
    """Whether a previous ledger, all of it confirmed, was trimmed before it was closed."""
    return isinstance(writer.error, LedgerNotFoundError) and not writer.machine.unconfirmed and writer.is_closing
