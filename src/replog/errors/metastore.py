"""Errors of the metastore."""

from __future__ import annotations

from replog.errors.base import ReplogError, TransientError


class MetastoreError(ReplogError):
    """The metastore failed, or refused: a value is too large, a password is wrong, its space is used up. Retry: after correcting
    the cause, unless a subclass says otherwise. Outcome: not written, unless it says otherwise."""


class MetastoreUnavailableError(MetastoreError, TransientError):
    """The metastore cannot be reached, did not answer in time, or could not do it just now. Retry: yes. Outcome: not written."""


class MetastoreUncertainError(MetastoreError, TransientError):
    """A change was sent and its answer lost (M1). Retry: only after reading back. Outcome: unknown."""


class MetastoreFullError(MetastoreError):
    """The metastore has no space for a change: its disk is full, or its own limit is reached. Reads go on. Retry: after space was
    made. Outcome: not written."""


class MetastoreCorruptError(MetastoreError):
    """A record has an unknown format or does not parse. Names the key. Retry: no. Outcome: not written."""


class MetastoreDoubtedError(MetastoreError, TransientError):
    """A bookie's metastore was emptied, went back to an older state, or is another cluster's (B6a). The bookie drops nothing,
    takes no new ledgers and recovers none. Retry: when its metastore is right again, or an operator has confirmed the one that
    is there. Outcome: not written."""


class MetastoreKeyError(MetastoreError):
    """Something about one key. Has `key`."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"key {key!r}: {message}")
        self.key = key


class KeyExistsError(MetastoreKeyError):
    """The key exists already. Retry: no. Outcome: not written."""


class KeyNotFoundError(MetastoreKeyError):
    """The key does not exist. Retry: no. Outcome: not written."""


class VersionConflictError(MetastoreKeyError):
    """The key has another version than expected: another client changed it. Retry: after rereading. Outcome: not written."""

    def __init__(self, key: str, expected: int, actual: int | None = None) -> None:
        found = "another" if actual is None else str(actual)
        super().__init__(key, f"expected version {expected}, found {found}: reread it, then decide again")
        self.expected = expected
