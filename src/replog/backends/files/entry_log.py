"""Entry logs: files with batches in the order of their ledgers, written by flushing and compaction.

An entry log begins with a page as journal files do, with a magic of its own and a random epoch. RUN records follow, laid
out as in a journal: each has batches of one ledger and stamp back to back, verbatim, in the order of their first ids. Small
batches share a record of up to 64 KiB, so that batches which were scattered over the journal are read in one piece. They are
not made into one batch, since the code of each covers it as it is, with its writer's timestamp (W3). All records have the
file's epoch and the sequence 0. Their positions count through the file, and the last one has the flag: without it the file is
not whole.

A file gets its name when all of it and its index are durable, and never changes afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from replog.backends.disk import Disk, write_all
from replog.backends.files.background_pace import no_rest
from replog.backends.files.directory import entry_log_name
from replog.backends.files.index_page import PAGE_BATCHES
from replog.backends.files.indexing import write_index
from replog.backends.files.log_file import EntryLogFile, Section
from replog.backends.files.record import (
    ENTRY_LOG_MAGIC,
    PAGE_BYTES,
    RECORD_HEADER_BYTES,
    FileHeader,
    RecordType,
    checksum_seed,
    pack_file_header,
    pack_record_header,
    payload_checksum,
)

RUN_BYTES = 64 << 10
_PIECE_BYTES = 1 << 20
# Synced in pieces of this size: a commit's sync on the same disk would wait for all that is not written back yet.
_SYNC_BYTES = 8 << 20


class EntryLogWriter:
    """Writes one entry log. Methods may raise OSError; then, or if the file is not needed, call `abandon`."""

    def __init__(self, disk: Disk, directory: str, number: int, identity: bytes) -> None:
        self._disk = disk
        self._directory = directory
        self._identity = identity
        self._seed = checksum_seed(number, identity)
        self._epoch = int.from_bytes(disk.random_bytes(8), "little")
        self._path = f"{directory}/{entry_log_name(number)}"
        self._buffers: list[bytes] = [
            pack_file_header(FileHeader(number, self._epoch, identity, magic=ENTRY_LOG_MAGIC))
        ]
        self._buffered_bytes = PAGE_BYTES
        self._written_bytes = self._synced_bytes = 0
        self._run: list[bytes] = []
        self._run_bytes = 0
        self._records = 0
        self.file = EntryLogFile(number, self._path, disk.open(self._path + ".tmp", create=True))
        self.sections: list[Section] = []

    def begin_section(self, ledger_id: int, stamp: int) -> None:
        """Begins the batches of this ledger and stamp."""
        assert not self.sections or self.sections[-1].count, (
            "the section before holds nothing: an index has no page for it"
        )
        self._end_run(is_last=False)
        self._begin_section(ledger_id, stamp)

    def _begin_section(self, ledger_id: int, stamp: int) -> None:
        section = Section(self.file, ledger_id, stamp, 0, -1, 0)
        self.sections.append(section)

    def add(self, first: int, last: int, stride: int, data: bytes, checksum: int) -> None:
        """Adds a batch that was checked, in the order of first ids."""
        if self._run and self._run_bytes + len(data) > RUN_BYTES:
            self._end_run(is_last=False)
        section = self.sections[-1]
        if section.count >= PAGE_BATCHES and first > section.last_first:
            self._begin_section(section.ledger_id, section.stamp)
            section = self.sections[-1]
        assert not section.count or first >= section.last_first, "a section's batches come in the order of first ids"
        offset = self._written_bytes + self._buffered_bytes + RECORD_HEADER_BYTES + self._run_bytes
        self._run.append(data)
        self._run_bytes += len(data)
        section.first = first if not section.count else min(first, section.first)
        is_new = section.put(first, last, stride, offset, len(data), checksum)
        assert is_new, "one copy of a batch goes into a file: the directory counts them"
        section.last = max(last, section.last)
        section.last_first = max(first, section.last_first)
        section.count += 1
        section.data_bytes += len(data)
        self.file.batch_bytes += len(data)

    def _end_run(self, *, is_last: bool) -> None:
        if not self._run:
            return
        payload = self._run[0] if len(self._run) == 1 else b"".join(self._run)
        # The index already has the places of these batches, computed from `_run_bytes`.
        assert len(payload) == self._run_bytes, "the index points beside the batches"
        header = pack_record_header(
            self._seed, RecordType.RUN, payload, self._records, is_last, self._epoch, 0, payload_checksum(payload)
        )
        self._records += 1
        self._buffers += (header, payload)
        self._buffered_bytes += RECORD_HEADER_BYTES + len(payload)
        self._run.clear()
        self._run_bytes = 0
        if self._buffered_bytes >= _PIECE_BYTES:
            self._write()

    def _write(self) -> None:
        write_all(self._disk, self.file.fd, self._buffers, self._written_bytes)
        self._written_bytes += self._buffered_bytes
        self._buffers.clear()
        self._buffered_bytes = 0
        if self._written_bytes - self._synced_bytes >= _SYNC_BYTES:
            self._sync()

    def _sync(self) -> None:
        self._disk.fdatasync(self.file.fd)
        self._synced_bytes = self._written_bytes

    @property
    def size_bytes(self) -> int:
        """How long the file is so far."""
        return self._written_bytes + self._buffered_bytes + self._run_bytes

    def finish(self, rest: Callable[[], None] = no_rest) -> EntryLogFile:
        """Makes the file and its index durable, under their names. At least one batch was added. `rest` as in `write_index`."""
        assert self._run, "the last run says that the file is whole"
        self._end_run(is_last=True)
        self._write()
        self._sync()
        # The name comes last: a start removes what has no name in a catalog, and takes nothing that is not whole.
        file = self.file
        file.position = self._written_bytes
        assert file.batch_bytes == sum(section.data_bytes for section in self.sections), "each batch is in one section"
        # In the order of ledgers each of them begins once: compaction has nothing to put in order here.
        file.switches = len({(section.ledger_id, section.stamp) for section in self.sections})
        write_index(self._disk, file, self._identity, self.sections, rest)
        self._disk.rename(self._path + ".tmp", self._path)
        self._disk.sync_directory(self._directory)
        return file

    def abandon(self) -> None:
        """Removes the parts that were written, as far as the disk allows; the next start removes the rest."""
        with suppress(OSError):
            self._disk.close(self.file.fd)
        for path in (self._path + ".tmp", self._path, self.file.index_path):
            with suppress(OSError):
                self._disk.unlink(path)
