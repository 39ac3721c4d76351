"""The machine that makes a log forget transactions: only an operator asks for that (M1).

A log's record remembers each transaction that was committed, so that a repetition of it changes nothing. None is ever forgotten
by itself. A transaction that was retired is new again: a repetition of it would be committed a second time.

Invariants:

- Nothing but the table of transactions changes.
- From DONE on, every call changes nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Collection

import attrs

from replog.errors import LogNotFoundError
from replog.protocol.chaining import LogMachine, ReadLog
from replog.protocol.model import LogMetadata
from replog.protocol.stages import Transitions, after, from_each


class _Stage(enum.Enum):
    READING = enum.auto()  # the head is being read
    WRITING = enum.auto()  # the head without the transactions is being written
    DONE = enum.auto()


TRANSITIONS: Transitions[_Stage] = {
    **from_each((_Stage.READING, _Stage.WRITING), "retire", _Stage.WRITING),
    **from_each((_Stage.READING, _Stage.WRITING), "change written", _Stage.DONE),
    **from_each((_Stage.READING, _Stage.WRITING), "failed", _Stage.DONE),
}


class LogRetiring(LogMachine):
    """One retirement: of these ids, and of all that were committed before a time. `retired` are their ids, once it is done."""

    def __init__(self, name: str, transaction_ids: Collection[str], before_ms: int, nonce: str) -> None:
        super().__init__(LogMetadata(name), None, nonce)
        self.retired: tuple[str, ...] = ()
        self._transaction_ids = transaction_ids
        self._before_ms = before_ms
        self._stage = _Stage.READING

    @property
    def is_done(self) -> bool:
        """True if the machine finished or failed."""
        return self._stage is _Stage.DONE

    def start(self) -> None:
        """Begins."""
        self._effects.append(ReadLog(self.metadata.name))

    def _start_over(self) -> None:
        log = self.metadata
        if self._change.version is None or log.is_deleted:
            self._fail(LogNotFoundError(log.name, "there is no such log: it remembers no transactions"))
            return
        changed = log.without_transactions(self._transaction_ids, self._before_ms)
        assert attrs.evolve(changed, transactions=log.transactions) == log, "nothing but the table changes"
        kept = {each.transaction_id for each in changed.transactions}
        # What an earlier attempt retired, whose answer was lost, counts as well.
        left = [each.transaction_id for each in log.transactions if each.transaction_id not in kept]
        self.retired = tuple(dict.fromkeys((*self.retired, *left)))
        if changed == log:
            self._finish(None)
        else:
            self._move("retire")
            self._propose(changed)

    def _won(self) -> None:
        self._finish(None)

    def _lost(self, proposed: LogMetadata) -> None:
        self._start_over()

    def _move(self, event: str) -> None:
        self._stage = after(TRANSITIONS, self._stage, event)
