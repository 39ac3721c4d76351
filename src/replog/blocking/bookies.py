"""Bookies as an administrator without trio sees them."""

from __future__ import annotations

from replog.abc import Damage
from replog.blocking.portal import Portal
from replog.client.administration import (
    COMPACT_TIMEOUT_S,
    GARBAGE_TIMEOUT_S,
    SCRUB_TIMEOUT_S,
    STATISTICS_TIMEOUT_S,
    BookieStatistics,
)
from replog.client.administration import RemoteBookie as AsyncRemoteBookie


class RemoteBookie:
    """A bookie as it was announced when this was made, with the methods of `Client.remote_bookies`' objects as plain calls."""

    def __init__(self, portal: Portal, bookie: AsyncRemoteBookie) -> None:
        self.bookie_id = bookie.bookie_id
        self.endpoints = bookie.endpoints
        self.read_only = bookie.read_only
        self._portal = portal
        self._bookie = bookie

    def __repr__(self) -> str:
        return repr(self._bookie)

    def statistics(self, *, timeout_s: float = STATISTICS_TIMEOUT_S) -> BookieStatistics:
        """What it says of itself now. Any client may ask. Raises `BookieError`, `MetastoreError`."""
        return self._portal.call(self._bookie.statistics, timeout_s=timeout_s)

    def collect_garbage(self, *, timeout_s: float = GARBAGE_TIMEOUT_S) -> list[int]:
        """Has it drop ledgers that were deleted, now, and returns their ids (B6). Raises `BookieError`, `MetastoreError`."""
        return self._portal.call(self._bookie.collect_garbage, timeout_s=timeout_s)

    def compact(self, *, is_major: bool = False, timeout_s: float = COMPACT_TIMEOUT_S) -> None:
        """Has it give back space that nothing needs, now. Raises `BookieError`, `MetastoreError`."""
        self._portal.call(self._bookie.compact, is_major=is_major, timeout_s=timeout_s)

    def scrub(self, *, timeout_s: float = SCRUB_TIMEOUT_S) -> list[Damage]:
        """Has it read and check all that it has, and returns what it knows to be damaged. Raises `BookieError`,
        `MetastoreError`."""
        return self._portal.call(self._bookie.scrub, timeout_s=timeout_s)
