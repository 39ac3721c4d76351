"""Copies that repairers store on this bookie, beside entries that it is about to drop itself (F5)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from replog.protocol.messages import CopyRequest, Response, Status
from replog.protocol.releasing import Release

_FILLED_MAX = 100_000  # ledgers that are remembered; of others, copies may be dropped too early, and are made again


class _Look:
    """A look at what is stored, and the releases that were under way at some time since it began."""

    def __init__(self) -> None:
        self.releases: list[Release] = []


class Filling:
    """Which ledgers are filled, and which entries are leaving: about to be dropped."""

    def __init__(self) -> None:
        self.leaving: dict[int, Release] = {}  # by ledger
        self._looks: dict[int, list[_Look]] = {}  # by ledger: under way
        self._filled: set[int] = set()  # ledgers of which copies came since `was_filled` was asked

    @contextmanager
    def releasing(self, ledger_id: int, release: Release) -> Iterator[None]:
        """These entries are about to be dropped, until the block ends."""
        self.leaving[ledger_id] = release
        for look in self._looks.get(ledger_id, ()):
            look.releases.append(release)
        try:
            yield
        finally:
            del self.leaving[ledger_id]

    @contextmanager
    def looking(self, ledger_id: int) -> Iterator[list[Release]]:
        """For a look at what is stored of this ledger. The list gets each release that is under way at some time during
        the block: the entries seen may be gone, even if the release is over when the look is."""
        look = _Look()
        if ledger_id in self.leaving:
            self.leaving[ledger_id].asked()
            look.releases.append(self.leaving[ledger_id])
        looks = self._looks.setdefault(ledger_id, [])
        looks.append(look)
        try:
            yield look.releases
        finally:
            looks.remove(look)
            if not looks:
                del self._looks[ledger_id]

    def refuse(self, request: CopyRequest) -> Response | None:
        """Refuses a copy that would be dropped at once."""
        release = self.leaving.get(request.ledger_id)
        if release is not None and release.refuses(request.batch):
            return Response(request.request_id, Status.TOO_BUSY, detail="this bookie is dropping these entries")
        if len(self._filled) < _FILLED_MAX:
            self._filled.add(request.ledger_id)
        return None

    def was_filled(self, ledger_id: int) -> bool:
        """True if copies of this ledger came since this was asked last: a repairer is filling it, and may name this bookie."""
        if ledger_id not in self._filled:
            return False
        self._filled.remove(ledger_id)
        return True
