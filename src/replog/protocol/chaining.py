"""The machine that takes a log over, and what all machines of logs have in common (rules L).

Rolling is in `rolling`, adding ledgers of others in `appending`, trimming and deleting in `dropping`.

A log is a list of ledgers, changed by CAS. Taking over fences the last *two* of them, since the leader may be writing
to the last but one while it adds the last (L1). A leader may also add closed ledgers of others between its own two. So
the record names the first segment that may still be open, and a takeover fences all from there (L8). Nothing is served
before the CAS that names the new ledger.

The last ledger of an unbounded log is not closed by a takeover, which goes on with it in a term of its own (L9). The log's
record names that term: so the CAS deposes a leader that has nothing to append, and would only roll.

The log's record, its head, names only the last ledgers; pages name the others. A page is written before the CAS of
the head that leaves its segments out. A crash in between leaves a page that repeats what the head says, and the next
change of the head finds it there. So one CAS decides, however long the log is.

Every ledger that a log named, or was about to name, is deleted in the end (L7). Before a ledger is created for a log,
it is written down as *pending*; it is added to the log only upon a head that was read before that. Before ledgers are
deleted that a log named, its head says so. So any later trim, deletion, takeover or sweep can finish the unfinished
work.

Invariants:

- One change of the head at a time is under way (M1), and nothing is served before it is written (L1).
- A takeover adds its ledger only when the last two of the list as it was read are closed (L1), and all from the first
  that may be open (L8).
- The ledgers of all segments before `first_open_number` are closed, in every version of the head (L8).
- A ledger is added upon a head that was read before the ledger was written down as pending (L7).
- Pages are written before the head that leaves their segments out (L3).
- From DONE on, every call changes nothing.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod

import attrs

from replog.errors import LedgerNotFoundError, ReplogError, TakeoverFailedError
from replog.protocol.closed_contents import Contents
from replog.protocol.compare_and_set import Change, Settled
from replog.protocol.log_effects import ContinueLedger as ContinueLedger
from replog.protocol.log_effects import CreateLedger as CreateLedger
from replog.protocol.log_effects import DeleteLedger as DeleteLedger
from replog.protocol.log_effects import LogChanged as LogChanged
from replog.protocol.log_effects import LogEffect as LogEffect
from replog.protocol.log_effects import LogFailed as LogFailed
from replog.protocol.log_effects import ReadLog as ReadLog
from replog.protocol.log_effects import RecoverLedger as RecoverLedger
from replog.protocol.log_effects import WriteLog as WriteLog
from replog.protocol.log_effects import WritePage as WritePage
from replog.protocol.model import PAGE_SEGMENTS, LogMetadata, LogPage, Segment
from replog.protocol.stages import Transitions, after, from_each


class _Stage(enum.Enum):
    READING = enum.auto()  # the head is being read
    RECOVERING = enum.auto()  # the last ledgers are being closed
    CREATING = enum.auto()  # the new ledger is being created
    WRITING = enum.auto()  # the head that names it is being written
    DONE = enum.auto()


TAKEOVER_TRANSITIONS: Transitions[_Stage] = {
    (_Stage.READING, "log read"): _Stage.RECOVERING,
    (_Stage.RECOVERING, "last ledgers closed"): _Stage.CREATING,
    (_Stage.RECOVERING, "last ledger goes on"): _Stage.WRITING,
    (_Stage.RECOVERING, "a ledger is missing"): _Stage.READING,
    (_Stage.RECOVERING, "a ledger is contested"): _Stage.READING,
    (_Stage.CREATING, "ledger created"): _Stage.WRITING,
    (_Stage.WRITING, "change lost"): _Stage.RECOVERING,
    (_Stage.WRITING, "change written"): _Stage.DONE,
    **from_each((each for each in _Stage if each is not _Stage.DONE), "failed", _Stage.DONE),
}


class LogMachine(ABC):
    """A change of a log, and what all of them have in common: one change of the log's record, and the answers about it."""

    def __init__(self, metadata: LogMetadata, version: int | None, nonce: str) -> None:
        self._change: Change[LogMetadata] = Change(metadata, version, nonce)
        self._absent = metadata  # taken for the record while there is none
        self._effects: list[LogEffect] = []
        self._pages: dict[int, LogPage] = {}  # that must be written before the proposal
        self._reads_back = False
        self._known: dict[int, Contents] = {}  # of closed ledgers, by id

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """True if the machine finished or failed."""

    @property
    def metadata(self) -> LogMetadata:
        """The log's record, as far as this machine knows it."""
        return self._change.record

    def take_effects(self) -> list[LogEffect]:
        """Returns the effects to perform, in their order, and forgets them."""
        effects, self._effects = self._effects, []
        return effects

    def page_written(self, page_number: int) -> None:
        """This page is written."""
        if not self.is_done and self._pages.pop(page_number, None) is not None and not self._pages:
            self._write()

    def log_written(self, version: int) -> None:
        """The CAS under way succeeded."""
        if not self.is_done:
            assert not self._pages, "pages are written before the head that leaves them out (L3)"
            self._change.written(version)
            self._won()

    def log_conflict(self) -> None:
        """The CAS under way met another version, or would."""
        # One reading serves all pages and the head: several of them may meet the same conflict.
        if not self.is_done and not self._reads_back:
            self._reads_back = True
            self._effects.append(ReadLog(self.metadata.name))

    def log_uncertain(self) -> None:
        """The answer to the CAS under way was lost (M1)."""
        self.log_conflict()

    def log_read(self, metadata: LogMetadata | None, version: int | None) -> None:
        """Takes the log's record that the shell has read."""
        if self.is_done:
            return
        self._reads_back = False
        record = self._absent if metadata is None else metadata
        # Only the token in the record tells whose change it shows (M1): the own one may have succeeded.
        proposed = self._change.proposed
        if proposed is None:
            self._change.record, self._change.version = record, version
            self._start_over()
            return
        settled = self._change.read_back(record, version)
        if settled is Settled.REPEAT:
            self._write()
            return
        # They were the pages of a proposal that is settled now.
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
        assert not self._reads_back, "nothing is proposed while the record is being read"
        assert all(page.segments for page in pages), "a page that leaves the head names segments"
        self._change.propose(metadata)
        self._pages = {page.number: page for page in pages}
        self._write()

    def _write(self) -> None:
        """Writes the pages first: what a record leaves out must be in pages."""
        proposed, version = self._change.proposed, self._change.version
        assert proposed is not None, "there is something to write"
        if self._pages:
            assert version is not None, "a record that does not exist names nothing"
            self._effects += [WritePage(page, version) for page in self._pages.values()]
        else:
            self._effects.append(WriteLog(proposed, version))

    def _ready(self, now_ms: int) -> tuple[tuple[LogPage, ...], LogMetadata]:
        """The pages that must be written before something is added, and the head to add it to."""
        pages, head = self.metadata.split()
        is_new = self._change.version is None or head.is_deleted
        return pages, head.begun(now_ms, is_unbounded=self._absent.is_unbounded) if is_new else head

    def _learn(self, ledger_id: int, contents: Contents | None) -> None:
        if contents is not None:
            self._known[ledger_id] = contents

    def _finish(self, ledger_id: int | None) -> None:
        self._move("change written")
        assert self._change.version is not None, "a change that is done has a version"
        self._effects.append(LogChanged(self.metadata, self._change.version, ledger_id))

    def _fail(self, error: ReplogError) -> None:
        self._move("failed")
        self._effects.append(LogFailed(error))

    def _give_back(self, segment: Segment) -> None:
        """Deletes the ledger of a segment that was proposed, unless the log names it (L1).

        A number at or above the next one can't be written any more: its CAS expects an older record. A ledger whose number is
        below the first one is deleted by the trim that removed it."""
        log, number = self.metadata, segment.number
        assert self._change.proposed is None, "who has the number is known once the proposal is settled"
        listed = log.listed(number)
        if listed is not None and listed.ledger_id == segment.ledger_id:
            # It was written, and another client has changed the record since: the log owns it.
            return
        in_page = log.first_segment_number <= number < log.first_listed_number
        page_number = log.page_of(number) if in_page else None
        self._effects.append(DeleteLedger(segment.ledger_id, log.name, number, page_number))

    @abstractmethod
    def start(self) -> None:
        """Begins."""

    @abstractmethod
    def _start_over(self) -> None:
        """The record was read, and nothing is proposed: decides what to do with it."""

    @abstractmethod
    def _won(self) -> None:
        """Applies the proposed record, which is now written."""

    @abstractmethod
    def _lost(self, proposed: LogMetadata) -> None:
        """Somebody else changed the record first."""

    @abstractmethod
    def _move(self, event: str) -> None:
        """Goes to the stage that follows when this happens."""


class LogTakeover(LogMachine):
    """Becoming the log's writer (L1). `nonce` is unique to this attempt.

    `is_unbounded` is the kind of the log's ledgers from now on; None: as the log's record says, and `is_new_unbounded`
    of a new log (L9). With `yields`, it fails when another client took over or deleted the log meanwhile, and sets
    `was_overtaken`; otherwise it starts over."""

    def __init__(
        self,
        name: str,
        nonce: str,
        now_ms: int,
        page_segments: int = PAGE_SEGMENTS,
        *,
        yields: bool = False,
        is_unbounded: bool | None = None,
        is_new_unbounded: bool = False,
    ) -> None:
        absent = LogMetadata(name, page_segments=page_segments, is_unbounded=is_unbounded or is_new_unbounded)
        super().__init__(absent, None, nonce)
        self.was_overtaken = False
        self.contests = 0  # how often another client claimed a term of the last ledger meanwhile
        self.recovered: tuple[int, ...] = ()  # the ledgers that are closed, once it is done
        self._yields = yields
        self._now_ms = now_ms
        self._stage = _Stage.READING
        self._to_recover: list[int] = []
        self._ledger_id: int | None = None
        self._wished = is_unbounded
        self._term: int | None = None  # in which the last ledger goes on, if it does
        self._last_read: tuple[Segment, ...] = ()  # the last segment, as the record had it that this is based on
        # A ledger that was not found, and the version that named it
        self._missing: tuple[int, int | None] | None = None

    @property
    def is_done(self) -> bool:
        """True if the machine finished or failed."""
        return self._stage is _Stage.DONE

    def start(self) -> None:
        """Begins."""
        self._effects.append(ReadLog(self.metadata.name))

    def _start_over(self) -> None:
        self._move("log read" if self._stage is _Stage.READING else "change lost")
        self._last_read, self._term = self.metadata.segments[-1:], None
        self.recovered = tuple(segment.ledger_id for segment in self.metadata.to_recover())
        self._to_recover = list(self.recovered)
        self._effects += [RecoverLedger(ledger_id) for ledger_id in self._to_recover]
        # Only the last: behind any other one there is a ledger already, and readers have gone on to that (L9).
        if self._is_unbounded and self._to_recover:
            self._effects[-1] = ContinueLedger(self._to_recover[-1])
        self._go_on_when_recovered()

    @property
    def _is_unbounded(self) -> bool:
        log = self._absent if self._change.version is None or self.metadata.is_deleted else self.metadata
        return log.is_unbounded if self._wished is None else self._wished

    def ledger_recovered(self, ledger_id: int, contents: Contents | None = None) -> None:
        """This ledger is closed: nothing more is ever confirmed in it. `contents` is what it holds, if that is known."""
        if self._stage is _Stage.RECOVERING and ledger_id in self._to_recover:
            self._learn(ledger_id, contents)
            self._to_recover.remove(ledger_id)
            self._go_on_when_recovered()

    def ledger_continued(self, ledger_id: int, term: int) -> None:
        """The log's last ledger is open for this client, in this term: no earlier writer confirms anything more in it."""
        if self._stage is _Stage.RECOVERING and ledger_id in self._to_recover:
            assert ledger_id == self.metadata.segments[-1].ledger_id, "only the last ledger goes on (L9)"
            self.recovered = tuple(each for each in self.recovered if each != ledger_id)
            self._term = term
            self.ledger_recovered(ledger_id)

    def ledger_contested(self, ledger_id: int) -> None:
        """Somebody else claimed a term of this ledger meanwhile: a takeover, or a job that closes it."""
        if self._stage is not _Stage.RECOVERING or ledger_id not in self._to_recover:
            return
        self.contests += 1
        if self._yields:
            self._fail_overtaken()
        else:
            self._move("a ledger is contested")
            self._effects.append(ReadLog(self.metadata.name))

    def ledger_missing(self, ledger_id: int) -> None:
        """This ledger does not exist: another client trimmed the log meanwhile, so the list must have changed."""
        if self._stage is not _Stage.RECOVERING or ledger_id not in self._to_recover:
            return
        # Missing twice under the same version: nobody trimmed it, so reading the list again would never end.
        if self._missing == (ledger_id, self._change.version):
            name = self.metadata.name
            problem = f"log {name!r} names it, but it does not exist: it was deleted by hand, and with it the log's end"
            self._fail(LedgerNotFoundError(ledger_id, problem))
            return
        self._missing = (ledger_id, self._change.version)
        self._move("a ledger is missing")
        self._effects.append(ReadLog(self.metadata.name))

    def _go_on_when_recovered(self) -> None:
        if self._to_recover:
            return
        log = self.metadata
        if self._term is None:
            self._move("last ledgers closed")
            self._effects.append(CreateLedger(log.name, log.next_segment_number, self._is_unbounded))
            return
        self._move("last ledger goes on")
        self._ledger_id = log.segments[-1].ledger_id
        pages, head = self._ready(self._now_ms)
        led = attrs.evolve(head.with_contents(self._known).led_in(self._term), is_unbounded=True, requests=())
        # All before the last one were recovered now, or were closed before the head was read (L8).
        self._propose(led.open_from(log.next_segment_number - 1), pages)

    def ledger_created(self, ledger_id: int) -> None:
        """The new ledger exists; the log does not name it yet."""
        if self._stage is not _Stage.CREATING:
            return
        self._move("ledger created")
        assert self._ledger_id is None, "one new ledger for each attempt"
        self._ledger_id = ledger_id
        # All before the new ledger were recovered now, or were closed before the head was read (L8).
        log = self.metadata
        assert all(each.ledger_id != ledger_id for each in log.segments), "a ledger is added once"
        pages, head = self._ready(self._now_ms)
        added = head.with_contents(self._known).with_ledger(ledger_id, self._now_ms)
        # Requests end with the leader that was asked: their committers find that, and ask again (L10).
        added = attrs.evolve(added, is_unbounded=self._is_unbounded, requests=())
        self._propose(added.open_from(log.next_segment_number), pages)

    def _won(self) -> None:
        assert self.metadata.segments[-1].ledger_id == self._ledger_id, "the log names the ledger (L1)"
        self._finish(self._ledger_id)

    def _lost(self, proposed: LogMetadata) -> None:
        if self._term is None:
            self._give_back(proposed.segments[-1])
        self._ledger_id = None
        # Compared by the last ledger: a trim changes the record, too, and deposes nobody.
        if self._yields and self.metadata.segments[-1:] != self._last_read:
            self._fail_overtaken()
        else:
            self._start_over()

    def _fail_overtaken(self) -> None:
        self.was_overtaken = True
        self._fail(TakeoverFailedError(self.metadata.name, "another client has taken it over meanwhile"))

    def _move(self, event: str) -> None:
        self._stage = after(TAKEOVER_TRANSITIONS, self._stage, event)
