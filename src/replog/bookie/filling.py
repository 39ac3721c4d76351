"""Copies that repairers store on this bookie, beside what it is about to drop itself (F5)."""

from __future__ import annotations

from replog.protocol.messages import CopyRequest, Response, Status
from replog.protocol.releasing import Release

_FILLED_MAX = 100_000  # ledgers that are remembered; of others, copies may be dropped too early, and are made again


class Filling:
    """Which ledgers are filled, and which entries are leaving: about to be dropped."""

    def __init__(self) -> None:
        self.leaving: dict[int, Release] = {}  # by ledger
        self._filled: set[int] = set()  # ledgers of which copies came since `was_filled` was asked

    def refuse(self, request: CopyRequest) -> Response | None:
        """Refuses a copy that would be dropped at once."""
        release = self.leaving.get(request.ledger_id)
        if release is not None and release.refuses(request.batch):
            return Response(request.request_id, Status.TOO_BUSY, detail="this bookie is dropping these entries")
        if len(self._filled) < _FILLED_MAX:
            self._filled.add(request.ledger_id)
        return None

    def was_filled(self, ledger_id: int) -> bool:
        """True if copies of this ledger came since this was asked last: somebody is filling it, and may name this bookie."""
        if ledger_id not in self._filled:
            return False
        self._filled.remove(ledger_id)
        return True
