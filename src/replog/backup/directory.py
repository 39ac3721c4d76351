"""A back-up in a directory: its files are durable before renaming gives them their names."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from replog.abc import BackupPlace, ReadFile, WrittenFile
from replog.backup.format import LEDGERS_NAME, MANIFEST_NAME
from replog.errors import BackupDamagedError, BackupError
from replog.runtime.disk_errors import ABSENT, is_directory, trouble_of
from replog.runtime.platform import sync_all, sync_directory

_LOCK_NAME = "lock"
_UNFINISHED = ".unfinished"


class BackupDirectory(BackupPlace):
    """A directory. A lock on a file in it keeps two back-ups apart."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._ledgers = self._path / LEDGERS_NAME

    def shown(self, name: str = "") -> Path:
        """The path of the directory, or of a file."""
        if not name:
            return self._path
        return self._path / name if name == MANIFEST_NAME else self._ledgers / name

    def exists(self) -> bool:
        """True if there is such a directory."""
        with _named(self._path):
            return is_directory(self._path)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Makes the directory if need be, and keeps others from writing to it. Raises `BackupError`."""
        with _named(self._path):
            self._ledgers.mkdir(parents=True, exist_ok=True)
            fd = os.open(self._path / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise BackupError(self._path, "another back-up is writing to it: wait for it to end") from error
            yield
        finally:
            os.close(fd)

    def read_manifest(self) -> bytes | None:
        """The manifest; None if there is none yet."""
        with _named(self._path):
            try:
                return (self._path / MANIFEST_NAME).read_bytes()
            except FileNotFoundError:
                return None

    def write_manifest(self, data: bytes) -> None:
        """Replaces the manifest, durably."""
        path = self._path / MANIFEST_NAME
        unfinished = path.with_suffix(_UNFINISHED)
        with _named(self._path):
            with unfinished.open("wb") as file:
                file.write(data)
                file.flush()
                sync_all(file.fileno())
            unfinished.rename(path)
            sync_directory(self._path)

    def begin(self, file_name: str) -> WrittenFile:
        """Begins a file with another name."""
        path = self._ledgers / file_name
        with _named(self._path):
            return _Unfinished(path, path.with_suffix(_UNFINISHED).open("wb"))

    def finished_before(self, file_name: str) -> Sequence[str]:
        """This name, if there is such a file."""
        return [file_name] if self.size_bytes(file_name) is not None else []

    def size_bytes(self, name: str) -> int | None:
        """The size of a ledger file; None if there is none."""
        with _named(self._path):
            try:
                return (self._ledgers / name).stat().st_size
            except ABSENT:
                return None

    def open(self, name: str, read_ahead_bytes: int) -> ReadFile:
        """A ledger file. Raises `BackupDamagedError` if there is none."""
        path = self._ledgers / name
        try:
            return _Readable(self._path, path.open("rb"))
        except ABSENT as error:
            raise BackupDamagedError(path, f"it can't be opened: {error.strerror}") from error
        except OSError as error:
            raise _problem(self._path, error) from error

    def remove_all_but(self, names: Collection[str]) -> None:
        """Removes other ledger files, finished or not."""
        with _named(self._path):
            for found in self._ledgers.iterdir():
                if found.name not in names:
                    found.unlink()


class _Readable:
    """A file that raises `BackupError`."""

    def __init__(self, directory: Path, file: BinaryIO) -> None:
        self._directory = directory
        self._file = file
        self.close = file.close

    def read(self, size: int, /) -> bytes:
        with _named(self._directory):
            return self._file.read(size)


class _Unfinished:
    """A ledger's file that is being written."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file

    def write(self, data: bytes, /) -> object:
        with _named(self._path):
            return self._file.write(data)

    def finish(self) -> str:
        with _named(self._path):
            self._file.flush()
            sync_all(self._file.fileno())
            self._file.close()
            self._path.with_suffix(_UNFINISHED).rename(self._path)
            sync_directory(self._path.parent)
        return self._path.name

    def close(self) -> None:
        # Closing tries failed writes again, for a file that is not needed any more: their error is raised already.
        with contextlib.suppress(OSError):
            self._file.close()


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _problem(path, error) from error


def _problem(path: Path, error: OSError) -> BackupError:
    where = f": {error.filename}" if error.filename else ""
    advice = trouble_of(error).value
    return BackupError(path, f"{error.strerror or error}{where}. {advice[0].upper()}{advice[1:]}, then try again")
