"""The machines of a log made of ledgers: taking over, rolling, trimming (rules L).

A log is a list of ledgers, changed by CAS. Taking over fences the last *two* of them, since the leader may be writing
to the last but one while it adds the last (L1). Nothing is served before the CAS that names the new ledger.

The log's record, its head, names only the last ledgers; the others stand in pages. A page is written before the CAS of
the head that leaves its segments out: a crash in between leaves a page that says what the head says too, and whoever
changes the head next finds it there. So one CAS decides, however long the log is.
"""

from __future__ import annotations

import enum

import attrs

from replog.errors import FencedError, LedgerNotFoundError, LogNotFoundError, ReplogError
from replog.protocol.change import Change, Settled
from replog.protocol.model import PAGE_SEGMENTS, LogMetadata, LogPage, Segment

RECOVERED_AT_TAKEOVER = 2  # ledgers at the end of the list


class LogEffect:
    """What a machine wants done."""


@attrs.define
class ReadLog(LogEffect):
    """Read the log's record. Answer: `log_read`, with None for a record that does not exist."""

    name: str


@attrs.define
class WritePage(LogEffect):
    """Create this page of the log. Answer: `page_written`, also if it exists with all these segments in it, or `abandon`.

    If it exists without one of them, the head's version is not `head_version` any more: then `log_conflict`."""

    page: LogPage
    head_version: int


@attrs.define
class WriteLog(LogEffect):
    """CAS the log's record on this version, or create it if that is None.
    Answer: `log_written`, `log_conflict` or `log_uncertain`."""

    metadata: LogMetadata
    expected: int | None


@attrs.define
class RecoverLedger(LogEffect):
    """Fence the ledger and close it. Answer: `ledger_recovered`, `ledger_missing` or `abandon`."""

    ledger_id: int


@attrs.define
class CreateLedger(LogEffect):
    """Create a ledger for this log. Answer: `ledger_created` or `abandon`."""

    log_name: str


@attrs.define
class DeleteLedger(LogEffect):
    """Delete a ledger that lost its CAS. No answer; a ledger that is gone is no error.

    `segment_number` is the one that it was to get: with `page_number`, another ledger or this one has it, and the page tells
    which. Only if that names another, or is gone because its segments were trimmed, the ledger is deleted."""

    ledger_id: int
    log_name: str
    segment_number: int
    page_number: int | None = None


@attrs.define
class DropSegments(LogEffect):
    """Delete the ledgers of the segments from `first` to before `end`, which the log doesn't name any more; then the pages
    that lie wholly before `end`, after all ledgers that they name. Answer: `segments_dropped`, or `abandon`.

    `known` are those that stood in the head; the others are in pages of `page_segments`. A ledger or a page that is gone
    is no error. Pages that somebody left behind are found by listing them, when a page is left or nothing else is to do."""

    log_name: str
    first: int
    end: int
    page_segments: int
    known: tuple[Segment, ...]


@attrs.define
class LogChanged(LogEffect):
    """Done: the log's record is this now. `ledger_id` is the new ledger, None for a trim or a deletion."""

    metadata: LogMetadata
    version: int
    ledger_id: int | None


@attrs.define
class LogFailed(LogEffect):
    """Done, in vain."""

    error: ReplogError


class LogMachine:
    """A change of a log, and what all of them have in common: one change of the log's record, and the answers about it."""

    def __init__(self, metadata: LogMetadata, version: int | None, nonce: str) -> None:
        self._change: Change[LogMetadata] = Change(metadata, version, nonce)
        self._absent = metadata  # what a record that does not exist stands for
        self._effects: list[LogEffect] = []
        self._pages: dict[int, LogPage] = {}  # that must be written before the proposal
        self._reads_back = False
        self.is_done = False

    @property
    def metadata(self) -> LogMetadata:
        """What is known of the log."""
        return self._change.record

    def take_effects(self) -> list[LogEffect]:
        """Drains what is to be done, in the order in which it must be."""
        effects, self._effects = self._effects, []
        return effects

    def page_written(self, page_number: int) -> None:
        """This page stands in the metastore."""
        if not self.is_done and self._pages.pop(page_number, None) is not None and not self._pages:
            self._write()

    def log_written(self, version: int) -> None:
        """The CAS under way succeeded."""
        if not self.is_done:
            self._change.written(version)
            self._won()

    def log_conflict(self) -> None:
        """The CAS under way met another version, or would."""
        if not self.is_done and not self._reads_back:
            self._reads_back = True
            self._effects.append(ReadLog(self.metadata.name))

    def log_uncertain(self) -> None:
        """The answer to the CAS under way was lost (M1)."""
        self.log_conflict()

    def log_read(self, metadata: LogMetadata | None, version: int | None) -> None:
        """What the record says."""
        if self.is_done:
            return
        self._reads_back = False
        record = self._absent if metadata is None else metadata
        proposed = self._change.proposed
        if proposed is None:
            self._change.record, self._change.version = record, version
            self._start_over()
            return
        settled = self._change.read_back(record, version)
        if settled is Settled.REPEAT:
            self._write()
            return
        self._pages.clear()
        if settled is Settled.WRITTEN:
            self._won()
        else:
            self._lost(proposed)

    def abandon(self, error: ReplogError) -> None:
        """The shell gives up, or something that was asked for failed."""
        if not self.is_done:
            self._fail(error)

    def _propose(self, metadata: LogMetadata, pages: tuple[LogPage, ...] = ()) -> None:
        """Writes these pages, then the record."""
        self._change.propose(metadata)
        self._pages = {page.number: page for page in pages}
        self._write()

    def _write(self) -> None:
        """The pages first: what a record leaves out stands in pages."""
        proposed, version = self._change.proposed, self._change.version
        assert proposed is not None
        if self._pages:
            assert version is not None, "a record that does not exist names nothing"
            self._effects += [WritePage(page, version) for page in self._pages.values()]
        else:
            self._effects.append(WriteLog(proposed, version))

    def _propose_ledger(self, ledger_id: int, now_ms: int) -> None:
        """The log with this ledger at its end; what is complete leaves the head for pages."""
        pages, head = self._ready(now_ms)
        self._propose(head.with_ledger(ledger_id, now_ms), pages)

    def _ready(self, now_ms: int) -> tuple[tuple[LogPage, ...], LogMetadata]:
        """The pages that must be written before something is added, and the head to add it to."""
        pages, head = self.metadata.split()
        is_new = self._change.version is None or head.is_deleted
        return pages, head.begun(now_ms) if is_new else head

    def _finish(self, ledger_id: int | None) -> None:
        self.is_done = True
        assert self._change.version is not None
        self._effects.append(LogChanged(self.metadata, self._change.version, ledger_id))

    def _fail(self, error: ReplogError) -> None:
        self.is_done = True
        self._effects.append(LogFailed(error))

    def _give_back(self, segment: Segment) -> None:
        """Deletes the ledger of a segment that was proposed, unless the log names it (L1).

        What the number tells: at or above the next one, it can't be written any more, since its CAS expects an older record.
        Below the first one, whoever trimmed it away deletes it too."""
        log, number = self.metadata, segment.number
        listed = log.listed(number)
        if listed is not None and listed.ledger_id == segment.ledger_id:
            return  # it was written, and somebody has changed the record since
        in_page = log.first_segment_number <= number < log.first_listed_number
        page_number = log.page_of(number) if in_page else None
        self._effects.append(DeleteLedger(segment.ledger_id, log.name, number, page_number))

    def start(self) -> None:
        """Begins."""
        raise NotImplementedError

    def _start_over(self) -> None:
        raise NotImplementedError

    def _won(self) -> None:
        raise NotImplementedError

    def _lost(self, proposed: LogMetadata) -> None:
        raise NotImplementedError


class _Stage(enum.Enum):
    READING = enum.auto()
    RECOVERING = enum.auto()
    CREATING = enum.auto()
    WRITING = enum.auto()


class LogTakeover(LogMachine):
    """Becoming the log's writer (L1). `nonce` is unique to this attempt."""

    def __init__(self, name: str, nonce: str, now_ms: int, page_segments: int = PAGE_SEGMENTS) -> None:
        super().__init__(LogMetadata(name, page_segments=page_segments), None, nonce)
        self._now_ms = now_ms
        self._stage = _Stage.READING
        self._to_recover: list[int] = []
        self._ledger_id: int | None = None
        self._missing: tuple[int, int | None] | None = None  # a ledger that was not found, in which version

    def start(self) -> None:
        """Begins."""
        self._effects.append(ReadLog(self.metadata.name))

    def _start_over(self) -> None:
        self._stage = _Stage.RECOVERING
        self._to_recover = [segment.ledger_id for segment in self.metadata.segments[-RECOVERED_AT_TAKEOVER:]]
        self._effects += [RecoverLedger(ledger_id) for ledger_id in self._to_recover]
        self._create_when_recovered()

    def ledger_recovered(self, ledger_id: int) -> None:
        """This ledger is closed: nothing more is ever confirmed in it."""
        if self._stage is _Stage.RECOVERING and ledger_id in self._to_recover:
            self._to_recover.remove(ledger_id)
            self._create_when_recovered()

    def ledger_missing(self, ledger_id: int) -> None:
        """This ledger does not exist: somebody trimmed the log meanwhile, so the list must have changed."""
        if self._stage is not _Stage.RECOVERING or ledger_id not in self._to_recover or self.is_done:
            return
        if self._missing == (ledger_id, self._change.version):
            name = self.metadata.name
            problem = f"log {name!r} names it, but it does not exist: it was deleted by hand, and with it the log's end"
            self._fail(LedgerNotFoundError(ledger_id, problem))
            return
        self._missing = (ledger_id, self._change.version)
        self._stage = _Stage.READING
        self._effects.append(ReadLog(self.metadata.name))

    def _create_when_recovered(self) -> None:
        if not self._to_recover and not self.is_done:
            self._stage = _Stage.CREATING
            self._effects.append(CreateLedger(self.metadata.name))

    def ledger_created(self, ledger_id: int) -> None:
        """The new ledger exists; the log does not name it yet."""
        if self._stage is not _Stage.CREATING or self.is_done:
            return
        self._stage = _Stage.WRITING
        self._ledger_id = ledger_id
        self._propose_ledger(ledger_id, self._now_ms)

    def _won(self) -> None:
        self._finish(self._ledger_id)

    def _lost(self, proposed: LogMetadata) -> None:
        self._give_back(proposed.segments[-1])
        self._ledger_id = None
        self._start_over()


class LogRolling(LogMachine):
    """The leader's change to a new ledger, while appends go on in the previous one (L2)."""

    def __init__(self, metadata: LogMetadata, version: int, nonce: str, now_ms: int) -> None:
        super().__init__(metadata, version, nonce)
        self._now_ms = now_ms
        self._current = metadata.segments[-1]
        self._ledger_id: int | None = None

    def start(self) -> None:
        """Begins. When it is done, close the previous ledger, and that before the next roll: a takeover recovers two.

        Nothing is sent to the new ledger before everything in the previous one is confirmed: else a takeover could find
        a later entry and not the one before it."""
        self._effects.append(CreateLedger(self.metadata.name))

    def ledger_created(self, ledger_id: int) -> None:
        """The new ledger exists; the log does not name it yet."""
        if not self.is_done and self._ledger_id is None:
            self._ledger_id = ledger_id
            self._propose_ledger(ledger_id, self._now_ms)

    def _won(self) -> None:
        self._finish(self._ledger_id)

    def _lost(self, proposed: LogMetadata) -> None:
        assert self._ledger_id is not None
        segments = self.metadata.segments
        if segments and segments[-1] == proposed.segments[-1]:
            self._won()  # ours was written, and then somebody trimmed
        elif segments and segments[-1] == self._current:
            self._propose_ledger(self._ledger_id, self._now_ms)  # somebody trimmed: still ours
        else:
            self._give_back(proposed.segments[-1])
            problem = f"somebody took over log {self.metadata.name!r} while it was rolled (L5): this writer is deposed"
            self._fail(FencedError(self._current.ledger_id, problem))


class _LogDropping(LogMachine):
    """What trimming and deleting have in common: segments leave the log by a CAS, and only then their ledgers go (L3)."""

    def __init__(self, name: str, nonce: str) -> None:
        super().__init__(LogMetadata(name), None, nonce)
        self.dropped: tuple[int, ...] = ()  # ledgers, once it is done
        self._first: int | None = None  # the lowest number that this may drop
        self._end = 1  # all that was proposed to be dropped is below
        self._known: dict[int, Segment] = {}
        self._failure: LogNotFoundError | None = None

    def start(self) -> None:
        """Begins."""
        self._effects.append(ReadLog(self.metadata.name))

    def segments_dropped(self, ledger_ids: tuple[int, ...]) -> None:
        """Their ledgers are deleted."""
        if self.is_done:
            return
        self.dropped = ledger_ids
        if self._failure is None:
            self._finish(None)
        else:
            self._fail(self._failure)

    def _propose_dropping(self, metadata: LogMetadata) -> None:
        first, self._end = self.metadata.first_segment_number, max(self._end, metadata.first_segment_number)
        self._first = first if self._first is None else min(self._first, first)
        self._known.update((each.number, each) for each in self.metadata.segments if each.number < self._end)
        self._propose(metadata)

    def _drop(self) -> None:
        """Only what is below the first number of a record that is true: no log names it any more, and none will again."""
        end = min(self._end, self.metadata.first_segment_number)
        first = end if self._first is None else min(self._first, end)
        known = tuple(segment for number, segment in sorted(self._known.items()) if first <= number < end)
        self._effects.append(DropSegments(self.metadata.name, first, end, self.metadata.page_segments, known))

    def _lost(self, proposed: LogMetadata) -> None:
        self._start_over()


class LogTrimming(_LogDropping):
    """Dropping the ledgers at the beginning of a log: the list first, the ledgers after (L3). The last always stays."""

    def __init__(self, name: str, before_segment: int, nonce: str) -> None:
        super().__init__(name, nonce)
        self._before_segment = before_segment

    def _start_over(self) -> None:
        if self._change.version is None:
            self._fail(LogNotFoundError(self.metadata.name, "there is no such log to trim"))
            return
        if self.metadata.is_deleted:
            self._failure = LogNotFoundError(self.metadata.name, "it was deleted: there is nothing to trim")
            self._drop()
            return
        trimmed = self.metadata.trimmed_before(self._before_segment)
        if trimmed == self.metadata:
            self._end = max(self._end, trimmed.first_segment_number)
            self._drop()
        else:
            self._propose_dropping(trimmed)

    def _won(self) -> None:
        self._drop()


class LogDeleting(_LogDropping):
    """Deleting a log: its writer is fenced, then all its segments leave it by a CAS, and then the ledgers go.

    What stays is the record of a deleted log, with its numbers: see `LogMetadata`. Deleting one that is deleted, or was never
    there, fails with `LogNotFoundError`, after it has removed what an interrupted deletion left in pages."""

    def __init__(self, name: str, nonce: str, now_ms: int) -> None:
        super().__init__(name, nonce)
        self._now_ms = now_ms
        self._deletions: int | None = None  # of the log that is meant: not one that is made anew meanwhile
        self._to_recover: set[int] | None = None

    def _start_over(self) -> None:
        log = self.metadata
        if self._change.version is None:
            self._fail(LogNotFoundError(log.name, "there is no such log to delete"))
        elif self._deletions is not None and log.deletions != self._deletions:
            self._drop()  # by this, and the answer was lost; or by somebody else
        elif log.is_deleted:
            self._failure = LogNotFoundError(log.name, "it is deleted")
            self._end = log.first_segment_number
            self._drop()
        else:
            self._deletions = log.deletions
            self._to_recover = {segment.ledger_id for segment in log.segments[-RECOVERED_AT_TAKEOVER:]}
            self._effects += [RecoverLedger(each.ledger_id) for each in log.segments[-RECOVERED_AT_TAKEOVER:]]
            self._delete_when_recovered()

    def ledger_recovered(self, ledger_id: int) -> None:
        """This ledger is closed: its writer confirms nothing any more."""
        if self.is_done or self._to_recover is None or ledger_id not in self._to_recover:
            return
        self._to_recover.remove(ledger_id)
        self._delete_when_recovered()

    def _delete_when_recovered(self) -> None:
        if self._to_recover is not None and not self._to_recover:
            self._to_recover = None
            self._propose_dropping(self.metadata.deleted(self._now_ms))

    def ledger_missing(self, ledger_id: int) -> None:
        """This ledger does not exist: somebody trims or deletes at the same time."""
        self.ledger_recovered(ledger_id)

    def _won(self) -> None:
        self._drop()
