"""A leader's clock for announced keys: whose holder was not heard of for its lease (Q15).

Only the leader counts, in its memory, from the moment when it has committed an entry of its own term: so a new leader gives
each holder a whole lease. However late a tick is, it counts for two at most: a leader that hung could hear no beats, and blames
nobody for that time. What has run out is expired by an entry that carries the term. Leases stay advice (M3).
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from replog.protocol.consensus.registers import Registers


@attrs.define
class _Lease:
    version: int
    left_s: float


class LeaseClock:
    """The time that is left to each announced key."""

    def __init__(self, tick_s: float) -> None:
        self.term = 0  # in which it counts
        self._counted_max_s = 2 * tick_s
        self._counted_at_s = 0.0
        self._leases: dict[str, _Lease] = {}

    def begin(self, term: int, announcements: Iterable[tuple[str, int, int]], now_s: float) -> None:
        """This member leads in this term: all of these have a whole lease."""
        self.term, self._counted_at_s = term, now_s
        self._leases = {key: _Lease(version, lease_ms / 1000) for key, version, lease_ms in announcements}

    def changed(self, state: Registers, key: str) -> None:
        """A command about this key was applied: a new announcement has a whole lease, and what is no more has none."""
        found = _announced(state, key)
        if found is None:
            self._leases.pop(key, None)
        elif key not in self._leases or self._leases[key].version != found[0]:
            self.renew(key, *found)

    def beat(self, state: Registers, key: str, version: int) -> bool:
        """The holder of this version lives; False if that is gone. To be called as a read that was confirmed: else a leader of
        the past would say that a key exists which others have let expire."""
        found = _announced(state, key)
        if found is None or found[0] != version:
            return False
        self.renew(key, *found)
        return True

    def renew(self, key: str, version: int, lease_ms: int) -> None:
        """Gives this version so much time, from now on."""
        self._leases[key] = _Lease(version, lease_ms / 1000)

    def tick(self, now_s: float) -> list[tuple[str, int]]:
        """Counts the time since the last tick. Returns the keys that have none left, with their versions, and forgets them."""
        passed_s = min(now_s - self._counted_at_s, self._counted_max_s)
        self._counted_at_s = now_s
        for each in self._leases.values():
            each.left_s -= passed_s
        expired = [(key, each.version) for key, each in self._leases.items() if each.left_s <= 0]
        for key, _ in expired:
            del self._leases[key]
        return expired


def _announced(state: Registers, key: str) -> tuple[int, int] | None:
    """The version of an announced key, and its lease in ms."""
    found, lease_ms = state.get(key), state.lease_ms(key)
    return None if found is None or lease_ms is None else (found[0], lease_ms)
