"""Adding ledgers to a log that others wrote and closed: all of them by one CAS (rules L, M1).

A log that is led keeps its leader: the committer writes a request into the log's record, and waits until the leader has
answered it with a roll (L10, `rolling`). It asks only if a client announces that it leads the log; that announcement is
advice, and so is the time that it waits (M3). If nobody leads, or the leader does not answer in time, the addition is a
takeover (L1): before the CAS the last two ledgers of the list are fenced and closed, and all that may be open (L8), so
a writer of the log is deposed. Before that, the request is taken out of the record, by a CAS: so either the leader has
answered, or it never will.

The answer of the metastore to the leader's roll may come late, and until then the leader appends to its ledger before the
added ones. So the addition is not done before that ledger is closed: by the leader, or, once patience is over, by the committer.

The ledgers are looked at *after* the head was read, and the CAS is upon that version: a sweep that condemns one of them
changes the head afterwards, so either this CAS fails, or the sweep finds the ledger in the list (`sweeping`).

Invariants:

- The head is read, then the ledgers are checked, then those of the list that may be open are closed, then the head is
  written (L1, L8).
- All ledgers are added by one change, in the order in which they were given, or none is.
- After a change whose answer was lost, and after a request, nothing is added before it is known whether the log names the
  ledgers already (M1, L10).
- No ledger of the log is closed while the record may have the request (L10).
- When it is done, no entry is confirmed any more before the added ledgers that was not before (L10).
- From DONE on, every call changes nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence

import attrs

from replog.errors import (
    ConfigError,
    LedgerNotFoundError,
    MetastoreUncertainError,
    ReplogError,
    TakeoverFailedError,
)
from replog.protocol.additions import Addition as Addition
from replog.protocol.additions import AppendRequest
from replog.protocol.admitting import refusal, with_addition
from replog.protocol.chaining import LogEffect, LogMachine, ReadLog, RecoverLedger
from replog.protocol.closed_contents import Contents, Known
from replog.protocol.log_effects import CheckLedgers as CheckLedgers
from replog.protocol.model import PAGE_SEGMENTS, LogCursor, LogMetadata, LogPage, Position, Segment
from replog.protocol.stages import Transitions, after, from_each

_REQUESTS_MAX = (
    3  # takeovers and refusals end requests: the addition must not ask one leader after the other without end
)


class _Stage(enum.Enum):
    READING = enum.auto()  # the head is being read
    CHECKING = enum.auto()  # the ledgers that are to be added are being looked at
    SEEKING = enum.auto()  # whether somebody leads the log is being looked up
    ASKING = enum.auto()  # the head with the request is being written
    WAITING = enum.auto()  # the log's leader may answer the request
    WITHDRAWING = enum.auto()  # the head without the request is being written
    RECOVERING = enum.auto()  # the last ledgers of the log are being closed
    WRITING = enum.auto()  # the head is being written
    FINDING = enum.auto()  # whether the ledgers were added is being looked up in the log's pages
    SETTLING = enum.auto()  # they are in the log; the ledger of the leader that added them is being closed
    DONE = enum.auto()


TRANSITIONS: Transitions[_Stage] = {
    (_Stage.READING, "log read"): _Stage.CHECKING,
    (_Stage.CHECKING, "ledgers checked"): _Stage.RECOVERING,
    (_Stage.CHECKING, "there may be a leader"): _Stage.SEEKING,
    (_Stage.SEEKING, "nobody leads"): _Stage.RECOVERING,
    (_Stage.SEEKING, "leader found"): _Stage.ASKING,
    (_Stage.ASKING, "request written"): _Stage.WAITING,
    (_Stage.READING, "not answered yet"): _Stage.WAITING,
    (_Stage.WAITING, "waited"): _Stage.READING,
    (_Stage.READING, "out of patience"): _Stage.WITHDRAWING,
    (_Stage.WITHDRAWING, "request withdrawn"): _Stage.READING,
    (_Stage.RECOVERING, "last ledgers closed"): _Stage.WRITING,
    (_Stage.RECOVERING, "a ledger is missing"): _Stage.READING,
    **from_each((_Stage.ASKING, _Stage.WITHDRAWING, _Stage.WRITING), "change lost", _Stage.READING),
    (_Stage.READING, "in doubt"): _Stage.FINDING,
    **from_each((_Stage.READING, _Stage.FINDING), "not added", _Stage.READING),
    (_Stage.FINDING, "page gone"): _Stage.READING,
    **from_each((_Stage.READING, _Stage.FINDING), "open before", _Stage.SETTLING),
    **from_each((_Stage.READING, _Stage.WRITING, _Stage.FINDING, _Stage.SETTLING), "change written", _Stage.DONE),
    **from_each((each for each in _Stage if each is not _Stage.DONE), "failed", _Stage.DONE),
}


@attrs.define
class FindLeader(LogEffect):
    """Look whether a client announces that it leads the log. Answer: `leader_found`."""

    log_name: str


@attrs.define
class AwaitAnswer(LogEffect):
    """Wait until the log's record has another version than this, or for as long as the committer has patience with the leader,
    counted from the first such effect. Answer: `answer_awaited`."""

    log_name: str
    version: int


@attrs.define
class AwaitClosed(LogEffect):
    """Wait until these ledgers are closed or gone, or for as long as the committer has patience with the leader. Answer:
    `closing_awaited`, with those that are still open."""

    ledger_ids: tuple[int, ...]


@attrs.define
class FindSegments(LogEffect):
    """Read the segments of the log that are numbered from `first` to before `end`, from its pages. Answer: `segments_found`,
    without those that were trimmed."""

    log_name: str
    first: int
    end: int


@attrs.frozen
class Claim:
    """The record of a deleted log with this token: the caller wrote it, and no other client uses it. The log that is
    made upon it is not new: it was trimmed up to there, began with that number once, and has these metadata and
    cursors."""

    token: str
    trimmed_to: Position
    begun_with_number: int
    custom: Mapping[str, str]
    cursors: tuple[LogCursor, ...]

    def upon(self, head: LogMetadata) -> LogMetadata:
        """The record that just began, as that of the log that is not new."""
        return attrs.evolve(
            head,
            trimmed_to=self.trimmed_to,
            begun_with_number=self.begun_with_number,
            custom=self.custom,
            cursors=self.cursors,
        )


class LogAppending(LogMachine):
    """One addition. When it is done, `is_new` is True if this machine made it; then `segments` are the ledgers' places.

    With `asks_leader`, a leader of the log that is announced is asked to make it, and stays (L10). A log that the addition
    creates gets ledgers as `is_new_unbounded` says, once somebody leads it (L9). With `makes_log`, a log that is there by
    then is an error: the change of its record alone decides which of several makes it.

    With a `Claim` for that, it makes the log of any number of ledgers, but only upon that record of a deleted log. The pages are
    tentative until the log's record counts on them. No two may write pages upon the same version of the record, or one could
    count on the pages of the other."""

    def __init__(
        self,
        log_name: str,
        addition: Addition,
        nonce: str,
        now_ms: int,
        page_segments: int = PAGE_SEGMENTS,
        *,
        is_new_unbounded: bool = False,
        asks_leader: bool = False,
        makes_log: bool | Claim = False,
    ) -> None:
        absent = LogMetadata(log_name, page_segments=page_segments, is_unbounded=is_new_unbounded)
        super().__init__(absent, None, nonce)
        self.is_new = False
        self.segments: tuple[Segment, ...] = ()
        self._nonce = nonce
        self._addition = addition
        self._now_ms = now_ms
        self._stage = _Stage.READING
        self._prepared: tuple[LogMetadata, tuple[LogPage, ...]] = (self.metadata, ())  # what is to be written
        self._to_recover: list[int] = []
        self._missing: tuple[int, int | None] | None = None  # a ledger of the log that was not found, in which version
        self._is_uncertain = False  # whether the answer to a CAS was lost
        self._sought_from: int | None = None  # from this segment on the log may have come to name the ledgers
        self._requests_left = _REQUESTS_MAX if asks_leader else None  # None: it asks no leader, or is out of patience
        self._request: AppendRequest | None = None  # the last one
        self._makes_log = makes_log

    @property
    def is_done(self) -> bool:
        """True if the machine finished or failed."""
        return self._stage is _Stage.DONE

    @property
    def is_added(self) -> bool:
        """True if the log is known to have the addition, though ledgers before it may still be open."""
        return self._stage is _Stage.SETTLING

    @property
    def is_in_doubt(self) -> bool:
        """True if the addition may have been made, or still be made by the log's leader."""
        return not self.is_done and (self._change.proposed is not None or self._sought_from is not None)

    @property
    def _upon(self) -> Claim | None:
        """The record upon which alone it makes the log, if there is one."""
        return self._makes_log if isinstance(self._makes_log, Claim) else None

    def start(self) -> None:
        """Begins."""
        self._effects.append(ReadLog(self.metadata.name))

    # -- before the CAS -----------------------------------------------------------------------------------------------

    def _start_over(self) -> None:
        assert self._stage is _Stage.READING, "what is to be done is decided upon a head that was just read"
        if self._sought_from is not None:
            self._seek(self._sought_from)
            return
        log, wanted = self.metadata, self._addition
        is_log = self._change.version is not None and not log.is_deleted
        if is_log and wanted.transaction is not None and log.has_committed(wanted.transaction):
            self._settle(log.next_segment_number - 1)
            return
        if is_log and self._makes_log:
            self._fail(ConfigError(f"there is a log {log.name!r} already: nothing was changed, choose another name"))
            return
        if self._upon is not None and log.token != self._upon.token:
            self._fail(TakeoverFailedError(log.name, "another client began it meanwhile: nothing was added"))
            return
        pages, head = self._ready(self._now_ms)
        head = head if self._upon is None else self._upon.upon(head)
        problem = refusal(log, head, wanted)
        if problem is not None:
            self._fail(problem)
            return
        added = self._with_addition(head)
        if self._upon is not None:
            assert log.is_deleted, "only a log that is made gets pages of segments that it does not name yet"
            pages, added = added.split(is_tentative=True)
        self._prepared = added, pages
        if is_log and not wanted.ledger_ids and added == log:
            self.is_new = True
            # There is nothing to add: the log keeps its writer.
            self._finish(None)
            return
        self._move("log read")
        # With a transaction, a repeated call cannot add the ledgers twice. Without one, only looking for them prevents that.
        looks_into_pages = is_log and wanted.transaction is None and log.first_listed_number > log.first_segment_number
        self._effects.append(CheckLedgers(wanted.ledger_ids, added, wanted.job, looks_into_pages))

    def _with_addition(self, head: LogMetadata) -> LogMetadata:
        added = with_addition(head, self._addition, self._now_ms)
        if not self._addition.ledger_ids:
            return added
        # The ledgers that are added were closed by the job, those before them are recovered (L8). Then nobody leads, and
        # requests end with the leader (L10).
        return attrs.evolve(added.open_from(added.next_segment_number), requests=())

    def ledgers_checked(self, known: Known | None = None) -> None:
        """All can be added to the log as it was read. `known` says what they hold."""
        if self._stage is not _Stage.CHECKING:
            return
        self._known.update(known or {})
        log = self.metadata
        # A log whose ledgers are all closed has no leader that could be deposed.
        if self._requests_left and self._addition.ledger_ids and log.first_open_number < log.next_segment_number:
            self._move("there may be a leader")
            self._effects.append(FindLeader(log.name))
            return
        self._move("ledgers checked")
        self._recover()

    def _recover(self) -> None:
        assert self._sought_from is None, "no ledger is closed while the record may have the request (L10)"
        self._to_recover = [each.ledger_id for each in self.metadata.to_recover()]
        if not self._addition.ledger_ids:
            # The list stays as it is, and so does its writer.
            self._to_recover = []
        self._effects += [RecoverLedger(ledger_id) for ledger_id in self._to_recover]
        self._write_when_recovered()

    def ledger_recovered(self, ledger_id: int, contents: Contents | None = None) -> None:
        """This ledger of the log is closed: nothing more is ever confirmed in it. `contents` is what it holds, if that is
        known."""
        if self._stage is _Stage.SETTLING:
            self._closed_before(ledger_id)
        elif self._stage is _Stage.RECOVERING and ledger_id in self._to_recover:
            self._learn(ledger_id, contents)
            self._to_recover.remove(ledger_id)
            self._write_when_recovered()

    def ledger_missing(self, ledger_id: int) -> None:
        """This ledger of the log does not exist: another client trimmed the log meanwhile, so the list must have changed."""
        if self._stage is _Stage.SETTLING:
            self._closed_before(ledger_id)
            return
        if self._stage is not _Stage.RECOVERING or ledger_id not in self._to_recover:
            return
        if self._missing == (ledger_id, self._change.version):
            problem = f"log {self.metadata.name!r} names it, but it does not exist: it was deleted by hand"
            self._fail(LedgerNotFoundError(ledger_id, f"{problem}, and with it the log's end"))
            return
        self._missing = (ledger_id, self._change.version)
        self._move("a ledger is missing")
        self._effects.append(ReadLog(self.metadata.name))

    def _write_when_recovered(self) -> None:
        if not self._to_recover:
            self._move("last ledgers closed")
            assert self._change.proposed is None, "one change at a time"
            self._is_uncertain = False
            head, pages = self._prepared
            if self._upon is not None:
                pages = tuple(page.with_contents(self._known) for page in pages)
                self._prepared = head, pages
            self._propose(head.with_contents(self._known), pages)

    # -- a leader that stays (L10) --------------------------------------------------------------------------------------

    def leader_found(self, *, is_led: bool) -> None:
        """Whether a client announces that it leads the log."""
        if self._stage is not _Stage.SEEKING:
            return
        if not is_led:
            self._move("nobody leads")
            self._recover()
            return
        self._move("leader found")
        assert self._requests_left, "it asks a leader no more often than it may"
        self._requests_left -= 1
        self._request = AppendRequest(f"{self._nonce}?{self._requests_left}", self._addition)
        # Before it is known that the request was written: the leader may answer it as soon as it is.
        self._sought_from = self.metadata.next_segment_number
        self._propose(self.metadata.with_request(self._request))

    def answer_awaited(self, *, is_patient: bool) -> None:
        """The log's record may have changed, or the patience is over."""
        if self._stage is not _Stage.WAITING:
            return
        self._move("waited")
        if not is_patient:
            self._requests_left = None
        self._effects.append(ReadLog(self.metadata.name))

    def _wait(self) -> None:
        assert self._change.version is not None, "a log that has a request has a record"
        self._effects.append(AwaitAnswer(self.metadata.name, self._change.version))

    # -- after the CAS --------------------------------------------------------------------------------------------------

    def _won(self) -> None:
        if self._stage is _Stage.ASKING:
            self._move("request written")
            self._wait()
        elif self._stage is _Stage.WITHDRAWING:
            self._move("request withdrawn")
            self._sought_from = None
            self._start_over()
        else:
            paged = (each for page in self._prepared[1] if page.is_tentative for each in page.segments)
            is_named = self._claim((*paged, *self.metadata.segments))
            assert is_named, "the log names what was added"

    def log_uncertain(self) -> None:
        """The answer to the CAS under way was lost (M1)."""
        self._is_uncertain = True
        super().log_uncertain()

    def _lost(self, proposed: LogMetadata) -> None:
        if self._stage is _Stage.WRITING and self._is_uncertain and self._addition.ledger_ids:
            self._sought_from = proposed.next_segment_number - len(self._addition.ledger_ids)
        self._move("change lost")
        self._start_over()

    def _seek(self, first: int) -> None:
        """A leader may have added the ledgers, or a CAS whose answer was lost; others may have changed the record since."""
        log = self.metadata
        assert self._change.proposed is None, "who has the number is known once the proposal is settled"
        if self._request in log.requests:
            self._go_on_asking()
        elif self._claim(log.segments):
            return
        elif log.first_listed_number <= first or log.next_segment_number == first:
            self._not_added()
        elif log.first_segment_number <= first:
            self._move("in doubt")
            self._effects.append(FindSegments(log.name, first, log.first_listed_number))
        elif self._addition.transaction is not None and log.has_committed(self._addition.transaction):
            # Committed, by this call or by a repetition of it: only that is known once its segments are trimmed.
            self._finish(None)
        else:
            self._fail(
                MetastoreUncertainError(
                    f"log {log.name!r}: it is unknown whether {len(self._addition.ledger_ids)} ledgers were added: the "
                    f"answer was lost or came late, and the log was trimmed since beyond segment {first}, where they would be"
                )
            )

    def _go_on_asking(self) -> None:
        if self._requests_left is not None:
            self._move("not answered yet")
            self._wait()
        else:
            assert self._request is not None, "the record has it"
            self._move("out of patience")
            self._propose(self.metadata.without_requests({self._request.token}))

    def segments_found(self, segments: Sequence[Segment]) -> None:
        """The segments that were sought, in order; some are missing if they were trimmed."""
        if self._stage is not _Stage.FINDING:
            return
        if not segments or segments[0].number != self._sought_from:
            self._move("page gone")
            self._effects.append(ReadLog(self.metadata.name))
        elif not self._claim((*segments, *self.metadata.segments)):
            self._not_added()

    def _not_added(self) -> None:
        self._move("not added")
        self._sought_from = None
        self._start_over()

    def _claim(self, segments: Sequence[Segment]) -> bool:
        """Finishes if the ledgers are among these segments of the log."""
        wanted = self._addition.ledger_ids
        first = next((place for place, each in enumerate(segments) if (each.ledger_id,) == wanted[:1]), None)
        if wanted and first is None:
            return False
        first = first or 0
        self.is_new, self.segments = True, tuple(segments[first : first + len(wanted)])
        assert tuple(each.ledger_id for each in self.segments) == wanted, "all ledgers are added, in one piece"
        self._settle(self.segments[0].number if self.segments else 0)
        return True

    def _settle(self, end: int) -> None:
        """Finishes once nothing is open before this segment."""
        log = self.metadata
        before = tuple(each.ledger_id for each in log.segments if log.first_open_number <= each.number < end)
        if before:
            self._move("open before")
            self._effects.append(AwaitClosed(before))
        else:
            self._finish(None)

    def closing_awaited(self, still_open: Collection[int]) -> None:
        """Which of the ledgers before the added ones are still open."""
        if self._stage is not _Stage.SETTLING:
            return
        # A repetition has changed nothing, so it fences nobody either.
        self._to_recover = list(still_open) if self.is_new else []
        self._effects += [RecoverLedger(ledger_id) for ledger_id in self._to_recover]
        if not self._to_recover:
            self._finish(None)

    def _closed_before(self, ledger_id: int) -> None:
        if ledger_id in self._to_recover:
            self._to_recover.remove(ledger_id)
            if not self._to_recover:
                self._finish(None)

    def abandon(self, error: ReplogError) -> None:
        """Ends the machine with this error. Ledgers that the log names are added, even if a later step fails."""
        if self._stage is _Stage.SETTLING:
            self._finish(None)
        else:
            super().abandon(error)

    def _move(self, event: str) -> None:
        self._stage = after(TRANSITIONS, self._stage, event)
