"""Finding the batches of a read and fetching them, while other threads commit, rewrite files and close them (B3, R4).

A read looks its places up in the index under the lock, and pins their files so that they are not closed or recycled.
The bytes are read without the lock. A page of the index that is not in memory is loaded without the lock, and the
look-up begins again, because the index may have changed meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import trio
from crc32c import crc32c

from replog.backends.files.fetching import DamagedBatch, fetch, fetch_one
from replog.backends.files.index import SectionGone
from replog.backends.files.index_page import IndexPage
from replog.backends.files.log_file import Location, LogFile, Section
from replog.backends.files.open_parts import Contents
from replog.backends.files.stamp_sections import PageMissing
from replog.backends.lifecycle import Lifecycle, State
from replog.errors import StorageUncertainError
from replog.protocol.batch import Batch, decode_stored
from replog.protocol.digest import CRC32C_RESIDUE

SMALL_BYTES = 128 << 10


class Lookup:
    """Reads of batches. Any thread may read, at any time until the storage is closed."""

    def __init__(self, contents: Contents, lifecycle: Lifecycle) -> None:
        self._contents = contents
        self._disk = contents.disk
        self._index = contents.index
        self._lock = contents.lock
        self._lifecycle = lifecycle

    def read(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int, *, wait: bool) -> list[Batch]:
        """The batches from the entry on (`Storage.read`); without `wait`, from memory and the page cache alone
        (`Storage.read_nowait`)."""
        locations, files = self._locate(ledger_id, entry_id, stamp, bytes_max, wait)
        if not locations:
            return []
        try:
            if len(locations) == 1:
                return [fetch_one(self._disk, locations[0], wait=wait)]
            return fetch(self._disk, locations, wait=wait)
        except DamagedBatch as error:
            self._contents.damages.find(error, ledger_id, stamp)
            raise
        finally:
            with self._lock:
                self._contents.descriptors.unpin(files)

    def read_small(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> Batch | None:
        """A small batch, if it is the only answer, in the page cache and intact; else None.

        Copying so little under the lock takes less time than pinning its file would."""
        try:
            with self._lock:
                place = self._index.locate_lone(ledger_id, entry_id, stamp)
                if place is None:
                    return None
                file, offset, size, checksum = place
                if not bytes_max <= size <= SMALL_BYTES or file.fd < 0:
                    return None
                data = self._disk.pread_cached(file.fd, size, offset)
        except OSError:
            # Not in memory, or unreadable: the longer way finds out which.
            return None
        code = data[-4:]
        # For a batch that ends with its own CRC32C, this one pass proves all of it. Other batches take the longer way.
        if crc32c(data) == CRC32C_RESIDUE and crc32c(code, crc32c(code)) == checksum and len(data) == size:
            return decode_stored(data)
        return None

    def _locate(
        self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int, wait: bool
    ) -> tuple[list[Location], Sequence[LogFile]]:
        """The places of the batches, and their files, pinned. An answer ends before a batch whose place is unknown."""
        loaded: dict[Section, IndexPage] = {}
        while True:
            try:
                with self._lock:
                    locations = self._index.locate(ledger_id, entry_id, stamp, bytes_max, loaded)
                    return locations, self._pin(locations, wait) if locations else ()
            except PageMissing as missing:
                if not wait:
                    raise trio.WouldBlock from None
                section = missing.section
            except StorageUncertainError:
                # A file can't be opened. The batch that was asked for may be in another one than those behind it.
                if bytes_max <= 0:
                    raise
                bytes_max = 0
                continue
            try:
                with suppress(SectionGone):  # rewritten or deleted meanwhile: look again
                    loaded[section] = self._contents.load_page(section)
            except StorageUncertainError:
                # The index of an intact file is written again soon, and a later read gets a full answer.
                if bytes_max <= 0 or not section.file.is_damaged:
                    raise
                bytes_max = 0

    def _pin(self, locations: list[Location], wait: bool) -> Sequence[LogFile]:
        """Opens the files of these places and keeps them open until they are unpinned."""
        if self._lifecycle.state in (State.CLOSING, State.CLOSED):
            # `close` waits only for files that were pinned before it looked, under the same lock.
            raise self._lifecycle.refusal()
        files = (locations[0].file,) if len(locations) == 1 else tuple({location.file for location in locations})
        self._contents.descriptors.pin(files, wait=wait)
        return files
