"""Adding ledgers to a log that others wrote and closed: all of them by one CAS (rules L, M1).

It is a takeover (L1): before the CAS the last two ledgers of the list are fenced and closed, and all that may be open
(L8), so a writer of the log is deposed. The ledgers are looked at *after* the head was read, and the CAS is upon that
version: a sweep that condemns one of them changes the head afterwards, so either this CAS fails, or the sweep finds the
ledger in the list (`sweeping`).

Invariants:

- The head is read, then the ledgers are checked, then those of the list that may be open are closed, then the head is
  written (L1, L8).
- All ledgers are added by one change, in the order in which they were given, or none is.
- After a change whose answer was lost nothing is proposed again before it is known which ledger got its number (M1).
- From DONE on, every call changes nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

import attrs

from replog.errors import (
    CustomMismatchError,
    LedgerNotFoundError,
    LedgerRefusedError,
    MetastoreUncertainError,
    TransactionTableFullError,
)
from replog.protocol.chaining import (
    LogEffect,
    LogMachine,
    ReadLog,
    RecoverLedger,
)
from replog.protocol.contents import Contents, Known
from replog.protocol.model import PAGE_SEGMENTS, LogMetadata, LogPage, Segment, Transaction
from replog.protocol.stages import Transitions, after, from_each

_OLDEST_SHOWN = 5


class _Stage(enum.Enum):
    READING = enum.auto()  # the head is being read
    CHECKING = enum.auto()  # the ledgers that are to be added are being looked at
    RECOVERING = enum.auto()  # the last ledgers of the log are being closed
    WRITING = enum.auto()  # the head is being written
    FINDING = enum.auto()  # the answer to that was lost: the ledger that got the number is being looked up
    DONE = enum.auto()


TRANSITIONS: Transitions[_Stage] = {
    (_Stage.READING, "log read"): _Stage.CHECKING,
    (_Stage.CHECKING, "ledgers checked"): _Stage.RECOVERING,
    (_Stage.RECOVERING, "last ledgers closed"): _Stage.WRITING,
    (_Stage.RECOVERING, "a ledger is missing"): _Stage.READING,
    (_Stage.WRITING, "change lost"): _Stage.READING,
    (_Stage.READING, "in doubt"): _Stage.FINDING,
    **from_each((_Stage.READING, _Stage.FINDING), "not written", _Stage.READING),
    (_Stage.FINDING, "page gone"): _Stage.READING,
    **from_each((_Stage.READING, _Stage.WRITING, _Stage.FINDING), "change written", _Stage.DONE),
    **from_each((each for each in _Stage if each is not _Stage.DONE), "failed", _Stage.DONE),
}


@attrs.frozen
class Addition:
    """A change of a log: these ledgers at its end, in this order, this transaction committed, these pairs in its
    custom metadata. `job`: the job for which all the ledgers must have been made; "" for any."""

    log_name: str
    ledger_ids: tuple[int, ...]
    transaction: Transaction | None = None
    job: str = ""
    custom: Mapping[str, str] = attrs.field(factory=dict)


@attrs.define
class CheckLedgers(LogEffect):
    """Look whether all these ledgers exist, are closed, were made for this log and this job, and were not given up; and
    whether the record can be written as `metadata`. With `looks_into_pages`, also whether a page names one of them.
    Answer: `ledgers_checked` or `abandon`."""

    ledger_ids: tuple[int, ...]
    metadata: LogMetadata
    job: str
    looks_into_pages: bool


@attrs.define
class FindSegment(LogEffect):
    """Read which ledger has this number in the log, from its page. Answer: `segment_found`; None: the page is gone."""

    log_name: str
    segment_number: int
    page_number: int


class LogAppending(LogMachine):
    """One addition. When it is done, `is_new` is True if this machine made it; then `segments` are the ledgers' places.

    A log that it creates gets ledgers as `is_new_unbounded` says, once somebody leads it (L9)."""

    def __init__(
        self,
        addition: Addition,
        nonce: str,
        now_ms: int,
        page_segments: int = PAGE_SEGMENTS,
        *,
        is_new_unbounded: bool = False,
    ) -> None:
        absent = LogMetadata(addition.log_name, page_segments=page_segments, is_unbounded=is_new_unbounded)
        super().__init__(absent, None, nonce)
        self.is_new = False
        self.segments: tuple[Segment, ...] = ()
        self._addition = addition
        self._now_ms = now_ms
        self._stage = _Stage.READING
        self._ready_pages: tuple[LogPage, ...] = ()
        self._ready_head = self.metadata
        self._to_recover: list[int] = []
        self._missing: tuple[int, int | None] | None = None  # a ledger of the log that was not found, in which version
        self._is_uncertain = False  # whether the answer to a CAS was lost
        self._doubt: tuple[Segment, ...] = ()  # what a proposal named whose fate is not known

    @property
    def is_done(self) -> bool:
        """True if the machine finished or failed."""
        return self._stage is _Stage.DONE

    @property
    def is_in_doubt(self) -> bool:
        """True if the addition may have been made, but its outcome is not known."""
        return not self.is_done and (self._change.proposed is not None or bool(self._doubt))

    def start(self) -> None:
        """Begins."""
        self._effects.append(ReadLog(self.metadata.name))

    # -- before the CAS -----------------------------------------------------------------------------------------------

    def _start_over(self) -> None:
        assert self._stage is _Stage.READING, "what is to be done is decided upon a head that was just read"
        if self._doubt:
            self._settle_doubt()
            return
        log, wanted = self.metadata, self._addition
        is_log = self._change.version is not None and not log.is_deleted
        if is_log and wanted.transaction is not None and log.has_committed(wanted.transaction):
            self._finish(None)
            return
        named = {segment.ledger_id for segment in log.segments} & set(wanted.ledger_ids)
        if named:
            self._fail(LedgerRefusedError(min(named), f"it is in log {log.name!r} already; nothing was changed"))
            return
        pages, head = self._ready(self._now_ms)
        if wanted.transaction is not None and not head.has_room_for(wanted.transaction):
            self._fail(table_full(head, wanted.transaction))
            return
        different = {name for name, value in wanted.custom.items() if head.custom.get(name, value) != value}
        if different:
            self._fail(_mismatch(head, wanted.custom, different))
            return
        self._ready_pages = pages
        self._ready_head = self._with_addition(head)
        if is_log and not wanted.ledger_ids and self._ready_head == log:
            self.is_new = True
            # There is nothing to add: the log keeps its writer.
            self._finish(None)
            return
        self._move("log read")
        # With a transaction, a repeated call cannot add the ledgers twice. Without one, only looking for them prevents that.
        looks_into_pages = is_log and wanted.transaction is None and log.first_listed_number > log.first_segment_number
        self._effects.append(CheckLedgers(wanted.ledger_ids, self._ready_head, wanted.job, looks_into_pages))

    def _with_addition(self, head: LogMetadata) -> LogMetadata:
        wanted = self._addition
        if wanted.transaction is not None:
            head = head.with_transaction(attrs.evolve(wanted.transaction, committed_at_ms=self._now_ms))
        head = attrs.evolve(head, custom={**head.custom, **wanted.custom})
        added = head.with_ledgers(wanted.ledger_ids, self._now_ms)
        assert added.segment_count == head.segment_count + len(wanted.ledger_ids), "all ledgers are added"
        # The ledgers that are added were closed by the job, those before them are recovered (L8).
        return added.open_from(added.next_segment_number) if wanted.ledger_ids else added

    def ledgers_checked(self, known: Known | None = None) -> None:
        """All can be added to the log as it was read. `known` says what they hold."""
        if self._stage is not _Stage.CHECKING:
            return
        self._known.update(known or {})
        self._move("ledgers checked")
        self._to_recover = [each.ledger_id for each in self.metadata.to_recover()]
        if not self._addition.ledger_ids:
            # The list stays as it is, and so does its writer.
            self._to_recover = []
        self._effects += [RecoverLedger(ledger_id) for ledger_id in self._to_recover]
        self._write_when_recovered()

    def ledger_recovered(self, ledger_id: int, contents: Contents | None = None) -> None:
        """This ledger of the log is closed: nothing more is ever confirmed in it. `contents` is what it holds, if that is
        known."""
        if self._stage is _Stage.RECOVERING and ledger_id in self._to_recover:
            self._learn(ledger_id, contents)
            self._to_recover.remove(ledger_id)
            self._write_when_recovered()

    def ledger_missing(self, ledger_id: int) -> None:
        """This ledger of the log does not exist: somebody trimmed the log meanwhile, so the list must have changed."""
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
            self._propose(self._ready_head.with_contents(self._known), self._ready_pages)

    # -- after it -----------------------------------------------------------------------------------------------------

    def _won(self) -> None:
        self.is_new = True
        first = self._ready_head.next_segment_number - len(self._addition.ledger_ids)
        self.segments = tuple(
            Segment(number, ledger_id, self._now_ms)
            for number, ledger_id in enumerate(self._addition.ledger_ids, first)
        )
        assert all(self.metadata.listed(each.number) == each for each in self.segments), "the log names what was added"
        self._finish(None)

    def log_uncertain(self) -> None:
        """The answer to the CAS under way was lost (M1)."""
        self._is_uncertain = True
        super().log_uncertain()

    def _lost(self, proposed: LogMetadata) -> None:
        self._move("change lost")
        if self._is_uncertain and self._addition.ledger_ids:
            self._doubt = proposed.segments[-len(self._addition.ledger_ids) :]
        self._start_over()

    def _settle_doubt(self) -> None:
        """The answer was lost, and others changed the record since: the ledger that got the proposed number decides."""
        log, first = self.metadata, self._doubt[0]
        assert self._change.proposed is None, "who has the number is known once the proposal is settled"
        listed = log.listed(first.number)
        if listed is not None or first.number >= log.next_segment_number:
            self._settle(listed)
        elif first.number >= log.first_segment_number:
            self._move("in doubt")
            self._effects.append(FindSegment(log.name, first.number, log.page_of(first.number)))
        elif self._addition.transaction is not None and log.has_committed(self._addition.transaction):
            # Committed, by this call or by a repetition of it: only that is known once its segments are trimmed.
            self._finish(None)
        else:
            self._fail(
                MetastoreUncertainError(
                    f"log {log.name!r}: the answer to adding {len(self._doubt)} ledgers was lost, and the log was trimmed "
                    f"since beyond segment {first.number}, which they were to get: it is unknown whether they were added"
                )
            )

    def segment_found(self, segment: Segment | None) -> None:
        """The segment with the number in doubt; None if its page is gone, because it was trimmed."""
        if self._stage is not _Stage.FINDING:
            return
        if segment is None:
            self._move("page gone")
            self._effects.append(ReadLog(self.metadata.name))
        else:
            self._settle(segment)

    def _settle(self, segment: Segment | None) -> None:
        doubt, self._doubt = self._doubt, ()
        assert doubt, "only what is in doubt is settled"
        if segment is not None and segment.ledger_id == doubt[0].ledger_id:
            self.is_new, self.segments = True, doubt
            self._finish(None)
        else:
            self._move("not written")
            self._start_over()

    def _move(self, event: str) -> None:
        self._stage = after(TRANSITIONS, self._stage, event)


def table_full(log: LogMetadata, transaction: Transaction) -> TransactionTableFullError:
    """The error for a transaction that a log has no room for. It names the oldest ones."""
    table = log.table_of(transaction)
    oldest = [each.transaction_id for each in sorted(table, key=lambda each: each.committed_at_ms)[:_OLDEST_SHOWN]]
    kind = "streaming queries" if transaction.is_of_stream else "jobs"
    return TransactionTableFullError(
        log.name,
        f"it remembers the transactions of {len(table)} {kind}, and can't take {transaction.transaction_id!r} as well; nothing "
        f"was changed. Retire those that nobody repeats any more, by id or by age: replog log transactions; the oldest "
        f"are {', '.join(map(repr, oldest))}",
        oldest,
    )


def _mismatch(log: LogMetadata, wanted: Mapping[str, str], names: Sequence[str] | set[str]) -> CustomMismatchError:
    name = min(names)
    return CustomMismatchError(
        log.name,
        f"its custom metadata says {name}={log.custom[name]!r}, and {wanted[name]!r} was asked for; nothing was changed",
        tuple(sorted(names)),
    )
