"""The healing of a simulated bookie: what the real one in `replog.bookie.healing` does, done with events (B8)."""

from __future__ import annotations

from functools import partial
from typing import Any

from replog.protocol import healing
from replog.protocol.messages import Response, Status
from replog.protocol.model import LedgerMetadata, LedgerState
from tests.simulator.bookies import SimulatedBookie
from tests.simulator.metastore import Outcome, SimulatedMetastore


class HealingPass:
    """One look at the records of all ledgers in doubt. It ends without a change if a record can't be read, or the bookie
    crashes or loses something meanwhile."""

    def __init__(self, bookie: SimulatedBookie, metastore: SimulatedMetastore) -> None:
        self._bookie = bookie
        self._metastore = metastore
        self._found = bookie.doubt
        self._epoch = bookie.epoch
        self._waited_for: set[int] = set()
        self._undecided: list[int] = []
        self._fenced: list[int] = []
        self._has_failed = False

    def begin(self) -> None:
        """Asks for the records."""
        below = self._found.doubted_below
        ledger_ids = [key for key in self._metastore.records if isinstance(key, int) and key < below]
        self._waited_for.update(ledger_ids)
        for ledger_id in ledger_ids:
            self._metastore.get(self._bookie, ledger_id, partial(self._answered, ledger_id))
        self._end_if_done()

    @property
    def _is_over(self) -> bool:
        return self._has_failed or self._bookie.epoch != self._epoch or self._bookie.doubt != self._found

    def _answered(self, ledger_id: int, outcome: Outcome, record: Any, _: int) -> None:
        if outcome is Outcome.UNCERTAIN:
            self._has_failed = True
        if self._is_over:
            return
        if outcome is Outcome.DONE and self._is_waiting_for_fence(ledger_id, record):
            return
        self._waited_for.remove(ledger_id)
        self._end_if_done()

    def _is_waiting_for_fence(self, ledger_id: int, record: LedgerMetadata) -> bool:
        seen_term = self._bookie.seen_terms.setdefault(ledger_id, record.last_fragment.term)
        term = healing.fence_to_vouch(record, self._bookie.name, seen_term)
        if term is None:
            self._undecided.append(ledger_id)
            return False
        if record.state is not LedgerState.OPEN:
            return False
        self._bookie.fence(ledger_id, term, partial(self._fence_answered, ledger_id))
        return True

    def _fence_answered(self, ledger_id: int, response: Response | None) -> None:
        if response is None or response.status is Status.READ_ONLY:
            self._has_failed = True
        if self._is_over:
            return
        self._fenced.append(ledger_id)
        self._waited_for.remove(ledger_id)
        self._end_if_done()

    def _end_if_done(self) -> None:
        below = max(self._undecided, default=-1) + 1
        if self._waited_for or below >= self._found.doubted_below:
            return
        self._bookie.settle_doubt(self._found.settled(below, self._fenced))
        self._bookie.world.count("bookie healed")
        if self._fenced:
            self._bookie.world.count("bookie fenced an open ledger again")
