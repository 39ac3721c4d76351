"""The seam of back-ups: a place with a manifest, which is replaced, and ledger files, which never change."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Protocol


class ReadFile(Protocol):
    """A complete file, from its beginning."""

    def read(self, size: int, /) -> bytes:
        """As many bytes, fewer only at the end."""

    def close(self) -> None:
        """Idempotent."""


class WrittenFile(Protocol):
    """A file that is being written. Until `finish`, nobody finds it."""

    def write(self, data: bytes, /) -> object:
        """Adds these bytes."""

    def finish(self) -> str:
        """Makes the file durable, and returns its name."""

    def close(self) -> None:
        """Leaves it unfinished, if it is. Idempotent."""


class BackupPlace(ABC):
    """Where one back-up is. Every method blocks, for as long as its store takes with its own retries: it is called in worker
    threads. Whatever fails raises `BackupError`, or `BackupDamagedError` if a file that must be there is not."""

    @abstractmethod
    def shown(self, name: str = "") -> object:
        """The place, or a ledger file there, as errors and reports name it: without credentials."""

    @abstractmethod
    def exists(self) -> bool:
        """True if the place can be looked into; it may be empty."""

    @abstractmethod
    def locked(self) -> AbstractContextManager[None]:
        """Makes the place if need be. Of two back-ups that are in such a block at once, one is refused: when it enters, or by
        `write_manifest`."""

    @abstractmethod
    def read_manifest(self) -> bytes | None:
        """The manifest; None if there is none yet."""

    @abstractmethod
    def write_manifest(self, data: bytes) -> None:
        """Replaces the manifest, at once and durably. Raises `BackupError` if it is not the one that was read in this block."""

    @abstractmethod
    def begin(self, file_name: str) -> WrittenFile:
        """Begins a ledger file. It gets this name, or one that begins so if another back-up could have the same one."""

    @abstractmethod
    def finished_before(self, file_name: str) -> Sequence[str]:
        """The names of complete files that `begin` was given this name for, and that `remove_all_but` will not remove soon."""

    @abstractmethod
    def size_bytes(self, name: str) -> int | None:
        """The size of a ledger file; None if there is none."""

    @abstractmethod
    def open(self, name: str, read_ahead_bytes: int) -> ReadFile:
        """A ledger file. Raises `BackupDamagedError` if there is none."""

    @abstractmethod
    def remove_all_but(self, names: Collection[str]) -> None:
        """Removes other ledger files, unless another back-up could be writing or adopting them. Called once a manifest is
        durable that names these."""
