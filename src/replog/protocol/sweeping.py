"""Deleting ledgers that were written for a log and never added to it: losers of retries, zombies, jobs that were given up.

First the ledgers are tombstoned: their own records say so, and no log takes them from then on. Then the log's record is
changed, in any case. A client that looked at the ledgers before that, to add them, loses its CAS (`appending`), or has
won it already. So what the log's list does not name *after* that change it never will, and only that is deleted.

A sweep keeps no record: one that was cut short leaves tombstoned ledgers, which the next sweep deletes.

Invariants:

- Ledgers are condemned before the head is read, and the head is changed before any is deleted (L7).
- From DONE on, every call changes nothing.
"""

from __future__ import annotations

import enum

import attrs

from replog.protocol.chaining import LogEffect, LogMachine, ReadLog
from replog.protocol.model import LogMetadata
from replog.protocol.stages import Transitions, after, from_each


class _Stage(enum.Enum):
    CONDEMNING = enum.auto()
    READING = enum.auto()  # the head is being read
    WRITING = enum.auto()  # the head is being changed, whatever it says
    DELETING = enum.auto()
    DONE = enum.auto()


TRANSITIONS: Transitions[_Stage] = {
    (_Stage.CONDEMNING, "ledgers condemned"): _Stage.READING,
    (_Stage.READING, "log read"): _Stage.WRITING,
    (_Stage.WRITING, "change lost"): _Stage.WRITING,
    (_Stage.WRITING, "log changed"): _Stage.DELETING,
    (_Stage.DELETING, "change written"): _Stage.DONE,
    **from_each((each for each in _Stage if each is not _Stage.DONE), "failed", _Stage.DONE),
}


@attrs.define
class CondemnLedgers(LogEffect):
    """Mark these ledgers' records: no log takes them from now on. Answer: `ledgers_condemned` or `abandon`. A ledger that is gone
    is not an error."""

    ledger_ids: tuple[int, ...]


@attrs.define
class DeleteUnnamed(LogEffect):
    """Read the log's list, and delete those of these ledgers that it does not name. Answer: `ledgers_deleted`, or
    `abandon`."""

    log_name: str
    ledger_ids: tuple[int, ...]


class LogSweeping(LogMachine):
    """One sweep. `deleted` are the ledgers that are gone, once it is done."""

    def __init__(self, name: str, ledger_ids: tuple[int, ...], nonce: str, now_ms: int) -> None:
        super().__init__(LogMetadata(name), None, nonce)
        self.deleted: tuple[int, ...] = ()
        self._ledger_ids = ledger_ids
        self._now_ms = now_ms
        self._stage = _Stage.CONDEMNING

    @property
    def is_done(self) -> bool:
        """True if the machine finished or failed."""
        return self._stage is _Stage.DONE

    def start(self) -> None:
        """Begins."""
        self._effects.append(CondemnLedgers(self._ledger_ids))

    def ledgers_condemned(self) -> None:
        """No log takes them any more, unless it was about to."""
        if self._stage is _Stage.CONDEMNING:
            self._move("ledgers condemned")
            self._effects.append(ReadLog(self.metadata.name))

    def _start_over(self) -> None:
        # A log that is not there may be about to be created with these ledgers: what a deleted one leaves behind forbids it.
        self._move("log read" if self._stage is _Stage.READING else "change lost")
        log = self.metadata
        self._propose(log.deleted(self._now_ms) if self._change.version is None else log)

    def _won(self) -> None:
        self._move("log changed")
        assert self._change.version is not None, "the head was changed"
        self._effects.append(DeleteUnnamed(self.metadata.name, self._ledger_ids))

    def _lost(self, proposed: LogMetadata) -> None:
        self._start_over()

    def ledgers_deleted(self, ledger_ids: tuple[int, ...]) -> None:
        """Notes that ledgers which the log does not name are deleted."""
        if self._stage is _Stage.DELETING:
            assert set(ledger_ids) <= set(self._ledger_ids), "only what was condemned is deleted"
            self.deleted = ledger_ids
            self._finish(None)

    def _move(self, event: str) -> None:
        self._stage = after(TRANSITIONS, self._stage, event)
