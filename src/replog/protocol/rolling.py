"""The machine with which a log's leader goes on to its next ledger, and answers committers (rules L2, L10).

A committer that has closed ledgers for the log writes a request into the log's record. The leader answers it with a
roll: one CAS adds the committer's ledgers *and* the ledger in which the leader goes on, and takes the request out of
the record. The leader's ledger so far is before them, and is closed after. So the leader stays, and no writer is
fenced. Like every client that adds ledgers of others, the leader looks at them *after* it has read the head, and its
CAS is upon that version: a sweep that gives one of them up changes the head afterwards (L7). A committer that gives up
takes its request out of the record, also by a CAS, before it fences anybody: so a leader never answers a request that
was given up.

A request that can't be granted is taken out, too. Its committer finds that, looks for itself, and says why.

Invariants:

- One change of the head at a time is under way (M1).
- The head is read, then a request's ledgers are checked, then the next ledger is created, then the head is written (L10).
- A request is granted as a whole, once, and only while the record has it (L10).
- The record names the leader's ledger so far as the first one that may be open (L8).
- A ledger is added upon a head that was read before the ledger was written down as pending (L7).
- From DONE on, every call changes nothing.
"""

from __future__ import annotations

import enum

import attrs

from replog.errors import FencedError
from replog.protocol.additions import AppendRequest
from replog.protocol.admitting import refusal, with_addition
from replog.protocol.chaining import LogMachine
from replog.protocol.closed_contents import Known
from replog.protocol.log_effects import CheckLedgers, CreateLedger, ReadLog
from replog.protocol.model import LogMetadata
from replog.protocol.stages import Transitions, after, from_each


class _Stage(enum.Enum):
    READING = enum.auto()  # the head is being read
    CHECKING = enum.auto()  # the ledgers of a request are being looked at
    CREATING = enum.auto()  # the new ledger is being created
    WRITING = enum.auto()  # the head that names it is being written
    DONE = enum.auto()


TRANSITIONS: Transitions[_Stage] = {
    (_Stage.READING, "log read"): _Stage.CREATING,
    (_Stage.READING, "request found"): _Stage.CHECKING,
    (_Stage.CHECKING, "ledgers checked"): _Stage.CREATING,
    (_Stage.CHECKING, "request refused"): _Stage.READING,
    (_Stage.READING, "ledger of an earlier roll"): _Stage.WRITING,
    (_Stage.CREATING, "ledger created"): _Stage.WRITING,
    (_Stage.WRITING, "change lost"): _Stage.READING,
    (_Stage.WRITING, "change written"): _Stage.DONE,
    **from_each((each for each in _Stage if each is not _Stage.DONE), "failed", _Stage.DONE),
}


@attrs.frozen
class RollBase:
    """The base of a new ledger: the log's record with its version, the request that it answers, and the requests that
    are removed unanswered (L7, L10)."""

    metadata: LogMetadata
    version: int
    answered: AppendRequest | None = None
    refused: frozenset[str] = frozenset()


class LogRolling(LogMachine):
    """The leader's change to a new ledger, while appends go on in the previous one (L2). When it is done, `answered` is the
    request whose ledgers were added before the new one, if any (L10).

    `base.metadata` is the log as the leader knows it: its last segment is the leader's. With `ledger_id`, it goes on with a
    ledger of an earlier roll that failed: then `base` is that of this roll, as it was when the ledger was created (L7).
    `known` says what closed ledgers of the log hold."""

    def __init__(
        self, base: RollBase, nonce: str, now_ms: int, ledger_id: int | None = None, known: Known | None = None
    ) -> None:
        super().__init__(base.metadata, base.version, nonce)
        self._known.update(known or {})
        self.base = base
        self._now_ms = now_ms
        assert base.metadata.segments, "a log that is rolled has a ledger"
        self._current = base.metadata.segments[-1]
        self._ledger_id = ledger_id
        self._request = base.answered
        self._refused = base.refused
        self._stage = _Stage.READING

    @property
    def is_done(self) -> bool:
        """True if the machine finished or failed."""
        return self._stage is _Stage.DONE

    @property
    def answered(self) -> AppendRequest | None:
        """The request that is granted with this roll; None if there is none."""
        return self._request

    def start(self) -> None:
        """Begins. When it is done, close the previous ledger before the next roll: the record will say that it is closed.

        Nothing is sent to the new ledger before everything in the previous one is confirmed: else a takeover could find
        a later entry and not the one before it."""
        if self._ledger_id is None:
            # Somebody may have trimmed the log since: a CAS on the old version would only fail.
            self._effects.append(ReadLog(self.metadata.name))
        else:
            self._move("ledger of an earlier roll")
            self._propose_next(self._ledger_id)

    def _start_over(self) -> None:
        log, segments = self.metadata, self.metadata.segments
        self._ledger_id, self._request = None, None
        # The leader's own segment is still the last one: only a trim, or a request, has changed the record.
        if segments and segments[-1] == self._current:
            self._prepare(log)
        else:
            problem = f"another client took over log {log.name!r} while it was rolled (L5): this writer is deposed"
            self._fail(FencedError(self._current.ledger_id, problem))

    def _prepare(self, log: LogMetadata) -> None:
        _, head = self._ready(self._now_ms)
        self._request = next((each for each in log.requests if self._may_grant(head, each)), None)
        if self._request is None:
            self._move("log read")
            self._effects.append(CreateLedger(log.name, log.next_segment_number, log.is_unbounded))
            return
        self._move("request found")
        wanted = self._request.addition
        added = with_addition(head, wanted, self._now_ms)
        # With a transaction, ledgers cannot be added twice. Without one, only looking for them prevents that.
        looks_into_pages = wanted.transaction is None and log.first_listed_number > log.first_segment_number
        self._effects.append(CheckLedgers(wanted.ledger_ids, added, wanted.job, looks_into_pages))

    def _may_grant(self, head: LogMetadata, request: AppendRequest) -> bool:
        log, wanted = self.metadata, request.addition
        is_repeated = wanted.transaction is not None and log.has_committed(wanted.transaction)
        if request.token not in self._refused and not is_repeated and refusal(log, head, wanted) is None:
            return True
        self._refused |= {request.token}
        return False

    def ledgers_checked(self, known: Known | None = None) -> None:
        """The ledgers of the request can be added to the log as it was read. `known` says what they hold."""
        if self._stage is _Stage.CHECKING:
            assert self._request is not None, "only a request's ledgers are checked"
            self._known.update(known or {})
            self._move("ledgers checked")
            log = self.metadata
            # The number that it will get: a pending ledger that has another is taken for one that lost its CAS (L7).
            number = log.next_segment_number + len(self._request.addition.ledger_ids)
            self._effects.append(CreateLedger(log.name, number, log.is_unbounded))

    def ledgers_refused(self) -> None:
        """One of the request's ledgers must not be added: it is missing, open, another job's or given up."""
        if self._stage is _Stage.CHECKING:
            assert self._request is not None, "only a request's ledgers are checked"
            self._refused |= {self._request.token}
            self._move("request refused")
            self._start_over()

    def ledger_created(self, ledger_id: int) -> None:
        """The new ledger exists; the log does not name it yet."""
        if self._stage is _Stage.CREATING:
            self._move("ledger created")
            self._ledger_id = ledger_id
            assert self._change.version is not None, "a log that is rolled has a record"
            self.base = RollBase(self.metadata, self._change.version, self._request, self._refused)
            self._propose_next(ledger_id)

    def _propose_next(self, ledger_id: int) -> None:
        assert all(each.ledger_id != ledger_id for each in self.metadata.segments), "a ledger is added once"
        pages, head = self._ready(self._now_ms)
        ended = self._refused
        if self._request is not None:
            head = with_addition(head, self._request.addition, self._now_ms)
            ended |= {self._request.token}
        added = head.without_requests(ended).with_contents(self._known).with_ledger(ledger_id, self._now_ms)
        # The leader closes its previous ledger before it rolls, and goes on to write to the current one (L8).
        self._propose(added.open_from(self._current.number), pages)

    def _won(self) -> None:
        assert self.metadata.segments[-1].ledger_id == self._ledger_id, "the log names the new ledger (L2)"
        self._finish(self._ledger_id)

    def _lost(self, proposed: LogMetadata) -> None:
        segments = self.metadata.segments
        if segments and segments[-1] == proposed.segments[-1]:
            # The change was written, and then another client trimmed the log, or left a request.
            self._won()
        else:
            # Even if the log was only trimmed: that trim may have deleted this ledger (L7).
            self._give_back(proposed.segments[-1])
            self._move("change lost")
            self._start_over()

    def _move(self, event: str) -> None:
        self._stage = after(TRANSITIONS, self._stage, event)
