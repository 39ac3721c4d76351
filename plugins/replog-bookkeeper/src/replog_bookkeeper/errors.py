"""Errors that only clients of BookKeeper raise."""

from __future__ import annotations

from replog.errors import ConfigError


class NotInBookKeeperError(ConfigError):
    """BookKeeper has no place for this: terms, unbounded ledgers, compression, envelopes, a guaranteed write quorum. Retry: no.
    Outcome: nothing was done."""


def lacks(what: str, instead: str) -> NotInBookKeeperError:
    """The error for what only replog's own bookies have."""
    return NotInBookKeeperError(f"BookKeeper has no {what}: {instead}. Nothing was done")
