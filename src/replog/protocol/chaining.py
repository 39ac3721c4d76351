"""The machines of a log made of ledgers: taking over, rolling, trimming (rules L).

A log is a list of ledgers, changed by CAS. Taking over fences the last *two* of them, since the leader may be writing
to the last but one while it adds the last (L1). Nothing is served before the CAS that names the new ledger.
"""

from __future__ import annotations

import enum

import attrs

from replog.errors import FencedError, LedgerNotFoundError, LogNotFoundError, ReplogError
from replog.protocol.change import Change, Settled
from replog.protocol.model import LogMetadata

RECOVERED_AT_TAKEOVER = 2  # ledgers at the end of the list


@attrs.define
class ReadLog:
    """Read the log's record. Answer: `log_read`, with None for a record that does not exist."""

    name: str


@attrs.define
class WriteLog:
    """CAS the log's record on this version, or create it if that is None.
    Answer: `log_written`, `log_conflict` or `log_uncertain`."""

    metadata: LogMetadata
    expected: int | None


@attrs.define
class RecoverLedger:
    """Fence the ledger and close it. Answer: `ledger_recovered`, `ledger_missing` or `abandon`."""

    ledger_id: int


@attrs.define
class CreateLedger:
    """Create a ledger for this log. Answer: `ledger_created` or `abandon`."""

    log_name: str


@attrs.define
class DeleteLedger:
    """Delete a ledger that the log doesn't name (any more). No answer; a ledger that is gone is no error."""

    ledger_id: int


@attrs.define
class LogChanged:
    """Done: the log's record is this now. `ledger_id` is the new ledger, None for a trim."""

    metadata: LogMetadata
    version: int
    ledger_id: int | None


@attrs.define
class LogFailed:
    """Done, in vain."""

    error: ReplogError


LogEffect = ReadLog | WriteLog | RecoverLedger | CreateLedger | DeleteLedger | LogChanged | LogFailed


class _LogMachine:
    """What the three have in common: one change of the log's record, and the answers about it."""

    def __init__(self, metadata: LogMetadata, version: int | None, nonce: str) -> None:
        self._change: Change[LogMetadata] = Change(metadata, version, nonce)
        self._effects: list[LogEffect] = []
        self.is_done = False

    @property
    def metadata(self) -> LogMetadata:
        """What is known of the log."""
        return self._change.record

    def take_effects(self) -> list[LogEffect]:
        """Drains what is to be done, in the order in which it must be."""
        effects, self._effects = self._effects, []
        return effects

    def log_written(self, version: int) -> None:
        """The CAS under way succeeded."""
        if not self.is_done:
            self._change.written(version)
            self._won()

    def log_conflict(self) -> None:
        """The CAS under way met another version."""
        if not self.is_done:
            self._effects.append(ReadLog(self.metadata.name))

    def log_uncertain(self) -> None:
        """The answer to the CAS under way was lost (M1)."""
        self.log_conflict()

    def log_read(self, metadata: LogMetadata | None, version: int | None) -> None:
        """What the record says."""
        if self.is_done:
            return
        record = LogMetadata(self.metadata.name) if metadata is None else metadata
        proposed = self._change.proposed
        if proposed is None:
            self._change.record, self._change.version = record, version
            self._start_over()
            return
        settled = self._change.read_back(record, version)
        if settled is Settled.REPEAT:
            self._effects.append(WriteLog(proposed, self._change.version))
        elif settled is Settled.WRITTEN:
            self._won()
        else:
            self._lost(proposed)

    def abandon(self, error: ReplogError) -> None:
        """The shell gives up, or something that was asked for failed."""
        if not self.is_done:
            self._fail(error)

    def _propose(self, metadata: LogMetadata) -> None:
        self._effects.append(WriteLog(self._change.propose(metadata), self._change.version))

    def _finish(self, ledger_id: int | None) -> None:
        self.is_done = True
        assert self._change.version is not None
        self._effects.append(LogChanged(self.metadata, self._change.version, ledger_id))

    def _fail(self, error: ReplogError) -> None:
        self.is_done = True
        self._effects.append(LogFailed(error))

    def _names(self, ledger_id: int) -> bool:
        return any(segment.ledger_id == ledger_id for segment in self.metadata.segments)

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


class LogTakeover(_LogMachine):
    """Becoming the log's writer (L1). `nonce` is unique to this attempt."""

    def __init__(self, name: str, nonce: str, now_ms: int) -> None:
        super().__init__(LogMetadata(name), None, nonce)
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
        metadata = self.metadata if self.metadata.segments else attrs.evolve(self.metadata, created_at_ms=self._now_ms)
        self._propose(metadata.with_ledger(ledger_id, self._now_ms))

    def _won(self) -> None:
        self._finish(self._ledger_id)

    def _lost(self, proposed: LogMetadata) -> None:
        assert self._ledger_id is not None
        if not self._names(self._ledger_id):  # else ours was written, and somebody has taken over since: fenced again
            self._effects.append(DeleteLedger(self._ledger_id))
        self._ledger_id = None
        self._start_over()


class LogRolling(_LogMachine):
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
            self._propose(self.metadata.with_ledger(ledger_id, self._now_ms))

    def _won(self) -> None:
        self._finish(self._ledger_id)

    def _lost(self, proposed: LogMetadata) -> None:
        assert self._ledger_id is not None
        segments = self.metadata.segments
        if segments and segments[-1] == proposed.segments[-1]:
            self._won()  # ours was written, and then somebody trimmed
        elif segments and segments[-1] == self._current:
            self._propose(self.metadata.with_ledger(self._ledger_id, self._now_ms))  # somebody trimmed: still ours
        else:
            if not self._names(self._ledger_id):
                self._effects.append(DeleteLedger(self._ledger_id))
            problem = f"somebody took over log {self.metadata.name!r} while it was rolled (L5): this writer is deposed"
            self._fail(FencedError(self._current.ledger_id, problem))


class LogTrimming(_LogMachine):
    """Dropping whole ledgers from the front: from the list first, from the world after (L3)."""

    def __init__(self, name: str, before_segment: int, nonce: str) -> None:
        super().__init__(LogMetadata(name), None, nonce)
        self._before_segment = before_segment
        self._dropped: list[int] = []

    def start(self) -> None:
        """Begins."""
        self._effects.append(ReadLog(self.metadata.name))

    def _start_over(self) -> None:
        if self._change.version is None:
            self._fail(LogNotFoundError(self.metadata.name, "there is no such log to trim"))
            return
        trimmed = self.metadata.trimmed_before(self._before_segment)
        kept = {segment.number for segment in trimmed.segments}
        self._dropped += [segment.ledger_id for segment in self.metadata.segments if segment.number not in kept]
        if trimmed == self.metadata:
            self._won()
        else:
            self._propose(trimmed)

    def _won(self) -> None:
        self._effects += [DeleteLedger(ledger_id) for ledger_id in self._dropped if not self._names(ledger_id)]
        self._finish(None)

    def _lost(self, proposed: LogMetadata) -> None:
        self._start_over()
