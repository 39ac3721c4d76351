"""The machines that drop segments of a log: trimming and deleting (L3), and finishing what others left unfinished (L7).

Invariants:

- The list is cut first, by compare-and-set; only ledgers below its first number are deleted after that (L3).
- A log is deleted only when its last two ledgers are closed, and all that may be open (L8): its writer confirms nothing
  any more (L5).
- Pending ledgers are listed before the head is read, and deleted after it was changed (L7).
- From DONE on, every call changes nothing.
"""

from __future__ import annotations

import enum

import attrs

from replog.errors import LogNotFoundError
from replog.protocol.chaining import LogEffect, LogMachine, ReadLog, RecoverLedger
from replog.protocol.closed_contents import Contents
from replog.protocol.model import LogMetadata, PendingLedger, Segment
from replog.protocol.stages import Transitions, after, from_each


class _Stage(enum.Enum):
    LISTING = enum.auto()  # the pending ledgers are being listed
    READING = enum.auto()  # the head is being read
    RECOVERING = enum.auto()  # the last ledgers of a log that is deleted are being closed
    CUTTING = enum.auto()  # the head without the segments is being written
    DROPPING = enum.auto()  # their ledgers and pages are being deleted
    CLEARING = enum.auto()  # the head that says so is being written
    DELETING = enum.auto()  # pending ledgers that the log does not name are being deleted
    DONE = enum.auto()


# A change that was lost begins again with the head as another client left it.
_DECIDING = (_Stage.READING, _Stage.CUTTING, _Stage.CLEARING)

TRIMMING_TRANSITIONS: Transitions[_Stage] = {
    (_Stage.LISTING, "pending listed"): _Stage.READING,
    **from_each(_DECIDING, "cut", _Stage.CUTTING),
    **from_each(_DECIDING, "drop", _Stage.DROPPING),
    **from_each((*_DECIDING, _Stage.DROPPING), "clear", _Stage.CLEARING),
    **from_each((*_DECIDING, _Stage.DROPPING), "delete pending", _Stage.DELETING),
    **from_each((*_DECIDING, _Stage.DROPPING, _Stage.DELETING), "change written", _Stage.DONE),
    **from_each((each for each in _Stage if each not in (_Stage.RECOVERING, _Stage.DONE)), "failed", _Stage.DONE),
}

DELETING_TRANSITIONS: Transitions[_Stage] = {
    **TRIMMING_TRANSITIONS,
    **from_each(_DECIDING, "recover", _Stage.RECOVERING),
    (_Stage.RECOVERING, "cut"): _Stage.CUTTING,
    (_Stage.RECOVERING, "failed"): _Stage.DONE,
}


@attrs.define
class ListPending(LogEffect):
    """List the ledgers that are pending for this log (L7). Answer: `pending_listed` or `abandon`."""

    log_name: str


@attrs.define
class DeletePending(LogEffect):
    """Delete the ledgers of these that the log does not name; then the records that call them pending, unless a request to
    create one of them may still arrive. Answer: `pending_deleted` or `abandon`.

    `log` is the log's record as it was changed after these were listed. A ledger that is gone is not an error."""

    log: LogMetadata
    pending: tuple[PendingLedger, ...]


@attrs.define
class DropSegments(LogEffect):
    """Delete the ledgers of the segments from `first` to before `end`, which the log doesn't name any more; then the pages
    that lie wholly before `end`, after all ledgers that they name. Answer: `segments_dropped`, or `abandon`.

    `known` are those that the head named; the others are in pages of `page_segments`. A ledger or a page that is gone
    is not an error. List the pages to find leftover ones, if a page is left or nothing else is to do."""

    log_name: str
    first: int
    end: int
    page_segments: int
    known: tuple[Segment, ...]


class _LogDropping(LogMachine):
    """The common part of trimming and deleting: segments leave the log by a CAS, and only then their ledgers are deleted (L3).

    The record names the ledgers to delete; another CAS removes them once they are deleted. Unfinished work of others is
    finished, too: ledgers that were dropped and not deleted, and pending ones (L7)."""

    def __init__(self, name: str, nonce: str, now_ms: int) -> None:
        super().__init__(LogMetadata(name), None, nonce)
        self.dropped: tuple[int, ...] = ()  # ledgers, once it is done
        self._now_ms = now_ms
        self._pending: tuple[PendingLedger, ...] = ()
        self._end: int | None = None  # once the ledgers of all segments below are deleted
        self._has_changed = False  # the record, since the pending ledgers were listed
        self._failure: LogNotFoundError | None = None
        self._stage = _Stage.LISTING

    @property
    def is_done(self) -> bool:
        """True if the machine finished or failed."""
        return self._stage is _Stage.DONE

    def start(self) -> None:
        """Begins."""
        self._effects.append(ListPending(self.metadata.name))

    def pending_listed(self, pending: tuple[PendingLedger, ...]) -> None:
        """These ledgers were created for the log, or are being created."""
        if self._stage is _Stage.LISTING:
            self._move("pending listed")
            self._pending = pending
            self._effects.append(ReadLog(self.metadata.name))

    def segments_dropped(self, ledger_ids: tuple[int, ...]) -> None:
        """Their ledgers are deleted."""
        if self._stage is not _Stage.DROPPING:
            return
        assert self._end is None, "segments are dropped once"
        self.dropped = ledger_ids
        self._end = self.metadata.first_segment_number
        self._clear()

    def pending_deleted(self) -> None:
        """The pending ledgers that the log does not name are deleted."""
        if self._stage is _Stage.DELETING:
            self._end_machine()

    def _end_machine(self) -> None:
        if self._failure is None:
            self._finish(None)
        else:
            self._fail(self._failure)

    def _drop(self) -> None:
        """Drops only segments below the first number of a durable record: no log will name them again."""
        self._move("drop")
        log = self.metadata
        assert log.deleted_before_number <= log.first_segment_number, "only what left the list is dropped (L3)"
        self._effects.append(
            DropSegments(log.name, log.deleted_before_number, log.first_segment_number, log.page_segments, log.dropped)
        )

    def _clear(self) -> None:
        """Records that the ledgers are deleted. If there are pending ledgers, changes the record in any case: a writer that is
        about to add one of them then loses its CAS."""
        log = self.metadata
        cleared = log if self._end is None else log.cleared_before(self._end)
        assert cleared.segments == log.segments, "clearing takes nothing from the list"
        if cleared == log and (self._has_changed or not self._pending):
            self._delete_pending()
            return
        self._move("clear")
        # A log that does not exist may be about to be created.
        self._propose(log.deleted(self._now_ms) if self._change.version is None else cleared)

    def _delete_pending(self) -> None:
        if self._pending:
            self._move("delete pending")
            self._effects.append(DeletePending(self.metadata, self._pending))
        else:
            self._end_machine()

    def _won(self) -> None:
        self._has_changed = True
        if self._end is None and self._failure is None:
            self._drop()
        else:
            self._clear()

    def _lost(self, proposed: LogMetadata) -> None:
        # Nothing was deleted yet: what is to be dropped follows from the record as it is now.
        if self._end is None:
            self._failure = None
            self._start_over()
        else:
            self._clear()


class LogTrimming(_LogDropping):
    """Dropping the ledgers at the beginning of a log: the list first, the ledgers after (L3). The last always stays.

    With `before_segment=None` it only finishes what others have left unfinished (L7)."""

    def __init__(self, name: str, before_segment: int | None, nonce: str, now_ms: int = 0) -> None:
        super().__init__(name, nonce, now_ms)
        self._before_segment = before_segment

    def _start_over(self) -> None:
        log, before = self.metadata, self._before_segment
        if self._change.version is None:
            self._failure = LogNotFoundError(log.name, "there is no such log to trim")
            self._clear()
        elif log.is_deleted:
            self._failure = LogNotFoundError(log.name, "it was deleted: there is nothing to trim")
            self._drop()
        # Nothing was left unfinished: one reading, and no write.
        elif before is None and log.deleted_before_number == log.first_segment_number:
            self._end = log.first_segment_number
            self._clear()
        else:
            trimmed = log if before is None else log.trimmed_before(before)
            assert trimmed.first_segment_number >= log.first_segment_number, "a trim takes only from the beginning (L3)"
            if trimmed == log:
                self._drop()
            else:
                self._move("cut")
                self._propose(trimmed)

    def _move(self, event: str) -> None:
        self._stage = after(TRIMMING_TRANSITIONS, self._stage, event)


class LogDeleting(_LogDropping):
    """Deleting a log: its writer is fenced, then all its segments leave it by a CAS, and then the ledgers go.

    The record of the deleted log stays, with its numbers: see `LogMetadata`. Deleting a log that is deleted, or never
    existed, fails with `LogNotFoundError`, after it has removed what an interrupted deletion left in pages."""

    def __init__(self, name: str, nonce: str, now_ms: int) -> None:
        super().__init__(name, nonce, now_ms)
        self._deletions: int | None = None  # of the log to delete, as opposed to one that is created again meanwhile
        self._to_recover: set[int] = set()

    def _start_over(self) -> None:
        log = self.metadata
        if self._change.version is None:
            self._failure = LogNotFoundError(log.name, "there is no such log to delete")
            self._clear()
        elif self._deletions is not None and log.deletions != self._deletions:
            # It is deleted: by this machine, whose answer was lost, or by another client.
            self._drop()
        elif log.is_deleted:
            self._failure = LogNotFoundError(log.name, "it is deleted")
            self._drop()
        else:
            self._deletions = log.deletions
            self._to_recover = {segment.ledger_id for segment in log.to_recover()}
            self._move("recover")
            self._effects += [RecoverLedger(each.ledger_id) for each in log.to_recover()]
            self._delete_when_recovered()

    def ledger_recovered(self, ledger_id: int, _contents: Contents | None = None) -> None:
        """This ledger is closed: its writer confirms nothing any more."""
        if self._stage is _Stage.RECOVERING and ledger_id in self._to_recover:
            self._to_recover.remove(ledger_id)
            self._delete_when_recovered()

    def _delete_when_recovered(self) -> None:
        if not self._to_recover:
            assert self._deletions == self.metadata.deletions, "the log is deleted whose writer was fenced (L5)"
            self._move("cut")
            self._propose(self.metadata.deleted(self._now_ms))

    def ledger_missing(self, ledger_id: int) -> None:
        """This ledger does not exist: another client trims or deletes at the same time."""
        self.ledger_recovered(ledger_id)

    def _move(self, event: str) -> None:
        self._stage = after(DELETING_TRANSITIONS, self._stage, event)
