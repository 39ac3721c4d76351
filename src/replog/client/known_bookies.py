"""A client's knowledge of bookies, for its placement policy: labels, free space, state. Advice, never safety (M3)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from replog.abc import BookieState, Candidate
from replog.records.bookies import BookieAddress, Cookie

_ENSEMBLES_MAX = 1000  # whose members are remembered
_FREE_BYTES_OLD_AFTER_S = 60.0  # bookies report them as often


class KnownBookies:
    """All bookies that this client has read an announcement or a cookie of."""

    def __init__(self) -> None:
        self._announced: Mapping[str, BookieAddress] = {}
        self._labels: dict[str, Mapping[str, str]] = {}
        self._free_bytes: dict[str, int | None] = {}
        self._cookie_read_at_s: dict[str, float] = {}
        self._members: dict[tuple[str, ...], list[Candidate]] = {}  # of ensembles, until more is known

    def announced(self, found: Mapping[str, BookieAddress]) -> None:
        """These are announced now, and no others."""
        self._announced = found
        self._members.clear()
        self._labels.update((bookie_id, address.labels) for bookie_id, address in found.items())

    def cookie_read(self, bookie_id: str, cookie: Cookie | None, now_s: float) -> None:
        """The bookie has this cookie; its announcement knows its labels better."""
        self._cookie_read_at_s[bookie_id] = now_s
        self._members.clear()
        if cookie is not None:
            self._free_bytes[bookie_id] = cookie.free_bytes
            if bookie_id not in self._announced:
                self._labels[bookie_id] = cookie.labels

    def candidate(self, bookie_id: str) -> Candidate:
        """The known facts about this bookie."""
        labels, free_bytes = self._labels.get(bookie_id, {}), self._free_bytes.get(bookie_id)
        return Candidate(bookie_id, labels, free_bytes, self._state(bookie_id))

    def members(self, ensemble: tuple[str, ...]) -> list[Candidate]:
        """The known facts about these bookies, as the policy gets them for each read."""
        found = self._members.get(ensemble)
        if found is None:
            if len(self._members) >= _ENSEMBLES_MAX:
                self._members.clear()
            found = self._members[ensemble] = [self.candidate(bookie_id) for bookie_id in ensemble]
        return found

    def _state(self, bookie_id: str) -> BookieState:
        address = self._announced.get(bookie_id)
        if address is None:
            return BookieState.AWAY
        if address.read_only:
            return BookieState.READ_ONLY
        return BookieState.DRAINING if address.is_draining else BookieState.WRITABLE

    def without_labels(self, bookie_ids: Iterable[str]) -> list[str]:
        """Bookies whose labels were never read."""
        return [bookie_id for bookie_id in bookie_ids if bookie_id not in self._labels]

    def without_free_bytes(self, bookie_ids: Iterable[str], now_s: float) -> list[str]:
        """Bookies whose free space is not known, or was read long ago."""
        oldest_s = now_s - _FREE_BYTES_OLD_AFTER_S
        return [each for each in bookie_ids if self._cookie_read_at_s.get(each, -math.inf) < oldest_s]
