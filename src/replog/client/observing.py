"""How long batches take, for observers. Writers have these parts only while there are observers: otherwise nothing is
measured."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import attrs

from replog.client.backlog import Backlog
from replog.client.channel import Answer
from replog.hookspecs import BatchConfirmed
from replog.protocol.effects import SendAdd
from replog.protocol.messages import Response, Status


@attrs.define
class _Sent:
    """One gathering in flight: the batches that were built together."""

    first_entry_id: int
    last_entry_id: int
    size_bytes: int
    sent_at: float
    answered_s: dict[str, float]  # by bookie: that of the last of its batches


class ObservedBacklog(Backlog):
    """A backlog that tells what it knows of each gathering, once it is confirmed."""

    def __init__(
        self,
        bytes_max: int,
        last_entry_id: int,
        check_usable: Callable[[], None],
        ledger_id: int,
        observe: Callable[[BatchConfirmed], None],
    ) -> None:
        super().__init__(bytes_max, last_entry_id, check_usable)
        self._ledger_id = ledger_id
        self._observe = observe
        self._observed: deque[_Sent] = deque()
        self._next_first = last_entry_id + 1

    def sent(self, last_entry_id: int, size_bytes: int) -> None:
        """Counts the sent entries (`Backlog.sent`)."""
        super().sent(last_entry_id, size_bytes)
        self._observed.append(_Sent(self._next_first, last_entry_id, size_bytes, self.now(), {}))
        self._next_first = last_entry_id + 1

    def answered(self, then: Callable[[Answer, SendAdd], None], answer: Answer, effect: Any) -> None:
        """Notes when a bookie acknowledged a batch; then the writer goes on with the answer."""
        if isinstance(answer, Response) and answer.status is Status.OK:
            for sent in self._observed:
                if sent.first_entry_id <= effect.batch.first_entry_id <= sent.last_entry_id:
                    sent.answered_s[effect.bookie_id] = self.now() - sent.sent_at
                    break
        then(answer, effect)

    def advance(self, confirmed: int) -> float:
        """Observes the confirmed entries (`Backlog.advance`). Observers are called before the waiting tasks go on."""
        observed = self._observed
        while observed and observed[0].last_entry_id <= confirmed:
            sent = observed.popleft()
            duration_s = self.now() - sent.sent_at
            entries = sent.first_entry_id, sent.last_entry_id
            self._observe(BatchConfirmed(self._ledger_id, *entries, sent.size_bytes, duration_s, sent.answered_s))
        return super().advance(confirmed)
