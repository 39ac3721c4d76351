"""One back-up, wherever it is: its manifest and its ledger files. The methods of `Backup` block: they are called in worker
threads.

Ledger files never change once they have their name. The manifest is replaced after all that it names is durable: a killed back-up
leaves the manifest of the one before, and complete files that the next one finds.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

from replog.abc import BackupPlace, WrittenFile
from replog.backup.directory import BackupDirectory
from replog.backup.format import (
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
from replog.registry import Registry
from replog.runtime.threads import run_in_thread

Value = TypeVar("Value")

_URL = re.compile(r"[a-z][a-z0-9+.-]*://.+", re.DOTALL)
_HEAD_BYTES = 4 << 10  # usually enough for a file's head
_READ_AHEAD_BYTES = 4 << 20


async def called(function: Callable[[], Value]) -> Value:
    """Returns the function's result, called in a worker thread. If cancelled, the call goes on."""
    results: list[Value] = []
    await run_in_thread(lambda: results.append(function()))
    return results[0]


def open_backup(where: str | os.PathLike[str], plugins: Registry) -> Backup:
    """The back-up in this directory, or at this URL of a plugin; nothing is read yet. Raises `ConfigError`."""
    text = os.fspath(where)
    if not text:
        # `Path` would take it for the working directory.
        raise ConfigError(f"the directory of a back-up is {where!r}: name one; nothing was read or written")
    return Backup(plugins.open_backup_place(text) if _URL.fullmatch(text) else BackupDirectory(text))


class Backup:
    """One back-up."""

    def __init__(self, place: BackupPlace) -> None:
        self._place = place
        self.shown = place.shown()
        self.locked = place.locked
        self.exists = place.exists

    def manifest(self) -> Manifest | None:
        """The manifest; None if no back-up was ever finished here. Raises `BackupDamagedError`."""
        data = self._place.read_manifest()
        return None if data is None else decode_manifest(self._place.shown("manifest.json"), data)

    def existing_manifest(self) -> Manifest:
        """The manifest. Raises `BackupError` if there is none."""
        found = self.manifest()
        if found is None:
            raise BackupError(self.shown, "there is no finished back-up in it")
        return found

    def write_manifest(self, manifest: Manifest) -> None:
        """Replaces the manifest, durably; then removes the files that it does not name."""
        self._place.write_manifest(encode_manifest(manifest))
        # Only now: until this manifest is durable, the one before names files that must be there.
        self._place.remove_all_but({each.file_name for log in manifest.logs.values() for each in log.segments})

    def begin(self, head: LedgerHead) -> UnfinishedLedger:
        """Begins the file of a ledger."""
        file = self._place.begin(ledger_file_name(head.ledger_id))
        try:
            return UnfinishedLedger(file, head)
        except BaseException:
            file.close()
            raise

    def head(self, segment: SavedSegment) -> LedgerHead | None:
        """The head of the segment's file; None if the file is missing, of another length, or has a damaged head."""
        # Only its head: to read all files would make each back-up as slow as the first. `check` reads them.
        if self._place.size_bytes(segment.file_name) != segment.size_bytes:
            return None
        with contextlib.suppress(BackupDamagedError), self._opened(segment.file_name, _HEAD_BYTES) as ledger:
            return ledger.head
        return None

    def finished_before(self, number: int, head: LedgerHead) -> SavedSegment | None:
        """The segment, if an earlier back-up, that was killed afterwards, has finished exactly this file."""
        for name in self._place.finished_before(ledger_file_name(head.ledger_id)):
            with contextlib.suppress(BackupDamagedError), self._opened(name) as ledger:
                # Another cluster may have had a ledger of this id: another creation (M5).
                if ledger.head != head:
                    continue
                for _ in ledger.blocks():
                    pass
                return SavedSegment(number, head.ledger_id, ledger.size_bytes, ledger.sha256(), name)
        return None  # it is written again

    @contextlib.contextmanager
    def opened(self, segment: SavedSegment) -> Iterator[LedgerFile]:
        """The segment's file, for reading. Raises `BackupDamagedError`, `BackupError`."""
        with self._opened(segment.file_name) as ledger:
            yield ledger

    @contextlib.contextmanager
    def _opened(self, name: str, read_ahead_bytes: int = _READ_AHEAD_BYTES) -> Iterator[LedgerFile]:
        with contextlib.closing(self._place.open(name, read_ahead_bytes)) as file:
            yield LedgerFile(self._place.shown(name), file)

    def check(self, segment: SavedSegment) -> None:
        """Reads the segment's file. Raises `BackupDamagedError`."""
        with self.opened(segment) as ledger:
            for _ in ledger.blocks():
                pass
            self.check_read(segment, ledger)

    def check_read(self, segment: SavedSegment, ledger: LedgerFile) -> None:
        """Checks that this file, of which all was read, is the one that the manifest names. Raises `BackupDamagedError`."""
        path = self._place.shown(segment.file_name)
        if ledger.head.ledger_id != segment.ledger_id:
            raise BackupDamagedError(path, f"it is of ledger {ledger.head.ledger_id}")
        if ledger.sha256() != segment.sha256:
            raise BackupDamagedError(path, "it is not the file that the manifest names: it has another SHA-256")


class UnfinishedLedger:
    """A ledger's file that is being written."""

    def __init__(self, file: WrittenFile, head: LedgerHead) -> None:
        self._file = file
        self._head = head
        self._writer = LedgerFileWriter(file, head)
        self.close = file.close

    def add(self, blocks: Collection[Block]) -> None:
        """Writes these entries."""
        for block in blocks:
            self._writer.add(block)

    def finish(self, number: int) -> SavedSegment:
        """Ends the file, makes it durable, and gives it its name."""
        sha256 = self._writer.end()
        name = self._file.finish()
        return SavedSegment(number, self._head.ledger_id, self._writer.size_bytes, sha256, name)
