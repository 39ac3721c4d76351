"""Errors of a bookie's storage."""

from __future__ import annotations

from replog.errors.base import ReplogError


class StorageError(ReplogError):
    """A bookie's storage failed. Has `hint`, the remedy. Retry: as the hint says. Outcome: unknown for calls under way."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message}. {hint}" if hint else message)
        self.hint = hint


class StorageFailedError(StorageError):
    """A write or a sync failed: the storage has stopped permanently (B1). Retry: restart the bookie. Outcome: unknown."""


class StorageUncertainError(StorageError):
    """The entry may exist, but cannot be read: damage or an I/O error (R4). Never means absence. Retry: another bookie."""


class StorageFullError(StorageError):
    """No space for a write; nothing of it was kept, reads go on (B5). Retry: after space was made. Outcome: not written."""


class StorageDamagedError(StorageError):
    """A file is damaged before its tail (B3). Names file and offset. Retry: no: recover this bookie's copies from the others."""


class StorageInUseError(StorageError):
    """Another process has this directory open, or serves a copy of it. Retry: when it is gone, or by connecting to it, if `hint`
    names where it listens. Outcome: not written."""

    lock: str | None = None  # the name of the lock that the other one holds, as bookies announce it


class StorageIdentityError(StorageError):
    """A directory holds another version, format or identity than expected (B4). Retry: no. Outcome: nothing was touched."""
