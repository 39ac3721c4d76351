"""The directory of a back-up. Everything here blocks: it is called in worker threads.

Ledger files never change once they have their name. The manifest is replaced by renaming, after all that it names is durable: a
killed back-up leaves the manifest of the one before, and complete files that the next one finds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

from replog.backup.format import (
    LEDGERS_NAME,
    MANIFEST_NAME,
    Block,
    LedgerFile,
    LedgerFileWriter,
    LedgerHead,
    Manifest,
    SavedSegment,
    decode_manifest,
    encode_manifest,
    ledger_file_name,
)
from replog.errors import BackupDamagedError, BackupError, ConfigError
from replog.runtime.disk_errors import ABSENT, trouble_of
from replog.runtime.platform import sync_all
from replog.runtime.threads import run_in_thread

Value = TypeVar("Value")

_LOCK_NAME = "lock"
_UNFINISHED = ".unfinished"


async def called(function: Callable[[], Value]) -> Value:
    """Returns the function's result, called in a worker thread. If cancelled, the call goes on."""
    results: list[Value] = []
    await run_in_thread(lambda: results.append(function()))
    return results[0]


class BackupDirectory:
    """One back-up."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not os.fspath(path):
            # `Path` would take it for the working directory.
            raise ConfigError(f"the directory of a back-up is {path!r}: name one; nothing was read or written")
        self.path = Path(path)
        self._ledgers = self.path / LEDGERS_NAME

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Makes the directory if need be, and keeps others from writing to it. Raises `BackupError`."""
        with _named(self.path):
            self._ledgers.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.path / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise BackupError(self.path, "another back-up is writing to it: wait for it to end") from error
            yield
        finally:
            os.close(fd)

    def manifest(self) -> Manifest | None:
        """The manifest; None if no back-up was ever finished here. Raises `BackupDamagedError`."""
        path = self.path / MANIFEST_NAME
        with _named(self.path):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                return None
        return decode_manifest(path, data)

    def existing_manifest(self) -> Manifest:
        """The manifest. Raises `BackupError` if there is none."""
        found = self.manifest()
        if found is None:
            raise BackupError(self.path, "there is no finished back-up in it")
        return found

    def write_manifest(self, manifest: Manifest) -> None:
        """Replaces the manifest, durably; then removes the files that it does not name."""
        path = self.path / MANIFEST_NAME
        unfinished = path.with_suffix(_UNFINISHED)
        with _named(self.path):
            with unfinished.open("wb") as file:
                file.write(encode_manifest(manifest))
                file.flush()
                sync_all(file.fileno())
            unfinished.rename(path)
            _sync_directory(self.path)
            # Only now: until this manifest is durable, the one before names files that must be there.
            self._remove_all_but({each.file_name for log in manifest.logs.values() for each in log.segments})

    def _remove_all_but(self, wanted: Collection[str]) -> None:
        for found in self._ledgers.iterdir():
            if found.name not in wanted:
                found.unlink()

    def begin(self, head: LedgerHead) -> UnfinishedFile:
        """Begins the file of a ledger."""
        with _named(self.path):
            path = self._ledgers / ledger_file_name(head.ledger_id)
            return UnfinishedFile(path, path.with_suffix(_UNFINISHED).open("wb"), head)

    def head(self, segment: SavedSegment) -> LedgerHead | None:
        """The head of the segment's file; None if the file is missing, of another length, or has a damaged head."""
        with contextlib.suppress(BackupDamagedError), _named(self.path), self.opened(segment) as ledger:
            # Only its head: to read all files would make each back-up as slow as the first. `check` reads them.
            if (self._ledgers / segment.file_name).stat().st_size == segment.size_bytes:
                return ledger.head
        return None

    def finished_before(self, number: int, head: LedgerHead) -> SavedSegment | None:
        """The segment, if an earlier back-up, that was killed afterwards, has finished exactly this file."""
        path = self._ledgers / ledger_file_name(head.ledger_id)
        try:
            with path.open("rb") as file:
                ledger = LedgerFile(path, file)
                for _ in ledger.blocks():
                    pass
        except (*ABSENT, BackupDamagedError):
            return None  # it is written again
        except OSError as error:
            raise _problem(self.path, error) from error
        # Another cluster may have had a ledger of this id: another creation (M5).
        if ledger.head != head:
            return None
        return SavedSegment(number, head.ledger_id, path.stat().st_size, ledger.sha256())

    @contextlib.contextmanager
    def opened(self, segment: SavedSegment) -> Iterator[LedgerFile]:
        """The segment's file, for reading. Raises `BackupDamagedError`, `BackupError`."""
        path = self._ledgers / segment.file_name
        try:
            file = path.open("rb")
        except ABSENT as error:
            raise BackupDamagedError(path, f"it can't be opened: {error.strerror}") from error
        except OSError as error:
            raise _problem(self.path, error) from error
        with file:
            yield LedgerFile(path, file)

    def check(self, segment: SavedSegment) -> None:
        """Reads the segment's file. Raises `BackupDamagedError`."""
        with self.opened(segment) as ledger:
            for _ in ledger.blocks():
                pass
            self.check_read(segment, ledger)

    def check_read(self, segment: SavedSegment, ledger: LedgerFile) -> None:
        """Checks that this file, of which all was read, is the one that the manifest names. Raises `BackupDamagedError`."""
        path = self._ledgers / segment.file_name
        if ledger.head.ledger_id != segment.ledger_id:
            raise BackupDamagedError(path, f"it is of ledger {ledger.head.ledger_id}")
        if ledger.sha256() != segment.sha256:
            raise BackupDamagedError(path, "it is not the file that the manifest names: it has another SHA-256")


class UnfinishedFile:
    """A ledger's file that is being written."""

    def __init__(self, path: Path, file: BinaryIO, head: LedgerHead) -> None:
        self._path = path
        self._file = file
        self._head = head
        self._writer = LedgerFileWriter(file, head)

    def add(self, blocks: Collection[Block]) -> None:
        """Writes these entries."""
        with _named(self._path):
            for block in blocks:
                self._writer.add(block)

    def finish(self, number: int) -> SavedSegment:
        """Ends the file, makes it durable, and gives it its name."""
        with _named(self._path):
            sha256 = self._writer.end()
            self._file.flush()
            sync_all(self._file.fileno())
            self._file.close()
            self._path.with_suffix(_UNFINISHED).rename(self._path)
            _sync_directory(self._path.parent)
        return SavedSegment(number, self._head.ledger_id, self._writer.size_bytes, sha256)

    def close(self) -> None:
        """Leaves it unfinished, if it is. Idempotent."""
        # Closing tries failed writes again, for a file that is not needed any more: their error is raised already.
        with contextlib.suppress(OSError):
            self._file.close()


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_all(fd)
    finally:
        os.close(fd)


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
