"""Reading the journal at the start: the index, where writing goes on, and telling a torn tail from damage (B3).

A power loss may keep any part of the last group, which nobody was told of: such a *torn tail* ends the replay. All
groups before it were durable. So an invalid place is *damage* if anything proves that the group there was followed by
another: an intact record header with a higher sequence, a later file, or a checkpoint.
Replaying changes nothing on the disk, and the same records twice give the same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from replog.backends.files.disk import Disk
from replog.backends.files.index import Index, Location
from replog.backends.files.pool import JournalFile
from replog.backends.files.record import (
    LAST_OF_GROUP,
    MAGIC,
    PAGE_BYTES,
    RECORD_HEADER_BYTES,
    FileRange,
    RecordHeader,
    RecordType,
    payload_checksum,
    unpack_checkpoint,
    unpack_drop,
    unpack_epoch,
    unpack_marks,
    unpack_record_header,
)
from replog.errors import StorageDamagedError, StorageIdentityError
from replog.protocol.batch import HEADER

_WINDOW_BYTES = 4 << 20
_RECOVER = "Recover this bookie's copies from the others, into a new directory"


class _Group(NamedTuple):
    records: list[tuple[int, tuple[int, ...] | bytes, Location]]
    end: int
    epoch: int
    sequence: int


class _Window:
    """A file read forward in large pieces."""

    def __init__(self, disk: Disk, file: JournalFile) -> None:
        self._disk = disk
        self._file = file
        self._start = 0
        self.data = b""
        if file.fd < 0:
            try:
                file.fd = disk.open(file.path)
            except OSError as error:
                raise damaged(file, 0, f"it cannot be opened: {error}") from error

    def seek(self, offset: int, length: int) -> int:
        """Where in `data` this place is, or -1 if the file ends before these bytes do."""
        at = offset - self._start
        if at < 0 or at + length > len(self.data):
            self.data = self._read(offset, max(length, _WINDOW_BYTES))
            self._start = offset
            at = 0
        return at if at + length <= len(self.data) else -1

    def _read(self, offset: int, size: int) -> bytes:
        file = self._file
        pieces: list[bytes] = []
        try:
            while size > 0:
                piece = self._disk.pread(file.fd, size, offset)
                if not piece:
                    break
                pieces.append(piece)
                offset += len(piece)
                size -= len(piece)
        except OSError as error:
            raise damaged(file, offset, f"it cannot be read: {error}") from error
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def damaged(file: JournalFile, offset: int, reason: str) -> StorageDamagedError:
    """The error that says where the journal is damaged."""
    return StorageDamagedError(f"{file.path} is damaged at {offset}: {reason}", _RECOVER)


class Replay:
    """One reading of all files, ascending by number. Raises `StorageDamagedError`, `StorageIdentityError`."""

    def __init__(self, disk: Disk, files: Sequence[JournalFile], open_files_max: int) -> None:
        self._disk = disk
        self._files = files
        self._open_files_max = open_files_max
        self._checkpoint: tuple[JournalFile, list[FileRange]] | None = None
        self.index = Index()
        self.sequence = 0  # of the last group
        self.tail = files[0]  # where writing goes on
        self.last_group_start = PAGE_BYTES  # in the tail; the end is the tail's position
        self.unused: list[JournalFile] = []  # after the tail: prepared, never used
        self.dead: list[JournalFile] = []  # a checkpoint says that nobody needs them

    def run(self) -> None:
        """Reads everything."""
        for at, file in enumerate(self._files):
            before = self._files[at - 1] if at else None
            if not self._joins(before, file):
                self.unused = list(self._files[at:])
                break
            if before is not None and at > self._open_files_max:
                self._disk.close(before.fd)
                before.fd = -1
            self.tail = file
            self._replay_file(file)
        self._check_tail()
        self._check_files()

    # -- the files' order -----------------------------------------------------------------------------------------

    def _joins(self, before: JournalFile | None, file: JournalFile) -> bool:
        """Whether this file holds what comes next. If not, the tail is before it."""
        head = self._head(file)
        follows = file.number == (before.number + 1 if before else 1)
        if not follows:  # what was between was recycled; a file behind a recycled one is never empty
            if head is None or head <= self.sequence:
                raise damaged(file, PAGE_BYTES, "its first record is unreadable, or files before it are missing")
            self.sequence = head - 1
            return True
        if before is None:
            return True
        if head is not None and head > self.sequence + 1:
            raise damaged(before, before.position, f"group {self.sequence + 1} is unreadable, and {file.path} follows")
        return head == self.sequence + 1

    def _head(self, file: JournalFile) -> int | None:
        window = _Window(self._disk, file)
        at = window.seek(PAGE_BYTES, RECORD_HEADER_BYTES)
        header = unpack_record_header(window.data, at, file.seed) if at >= 0 else None
        return header.sequence if header else None

    def _check_tail(self) -> None:
        """Damage, not a torn tail, if anything behind it is of a later group than the one that is missing there."""
        for file in (self.tail, *self.unused):
            found = self._find_later(file, self.sequence + 1)
            if found < 0:
                continue
            place = self.tail if file is self.tail or found == PAGE_BYTES else file
            raise damaged(
                place,
                place.position,
                f"group {self.sequence + 1} is unreadable, and a later one stands at {found} in {file.path}",
            )

    def _find_later(self, file: JournalFile, sequence: int) -> int:
        window = _Window(self._disk, file)
        offset = file.position
        while window.seek(offset, RECORD_HEADER_BYTES) >= 0:
            data = window.data
            at = data.find(MAGIC)
            while at >= 0:
                header = unpack_record_header(data, at, file.seed)
                if header is not None and header.sequence > sequence:
                    return offset + at
                at = data.find(MAGIC, at + 1)
            offset += len(data) - RECORD_HEADER_BYTES + 1
            window = _Window(self._disk, file)
        return -1

    def _check_files(self) -> None:
        """Every file that should be there is, and ends where it should."""
        present = {file.number: file for file in self._files}
        expected: set[int] = set()
        start = 1
        if self._checkpoint is not None:
            keeper, ranges = self._checkpoint
            for each in ranges:
                self._check_range(present, each, keeper)
                expected.update(range(each.first_number, each.last_number + 1))
            start = keeper.number + 1
            self.dead = [file for file in self._files if file.number <= keeper.number and file.number not in expected]
        for number in range(start, self._files[-1].number + 1):
            if number not in present:
                raise self._missing(number)

    def _check_range(self, present: dict[int, JournalFile], each: FileRange, keeper: JournalFile) -> None:
        for number in range(each.first_number, each.last_number + 1):
            if number not in present:
                raise self._missing(number)
        first, last = present[each.first_number], present[each.last_number]
        if first.first_sequence != each.first_sequence:
            raise damaged(first, PAGE_BYTES, f"it begins with group {first.first_sequence}, not {each.first_sequence}")
        if last.last_sequence < each.last_sequence or (last is not keeper and last.last_sequence > each.last_sequence):
            raise damaged(last, last.position, f"it ends with group {last.last_sequence}, not {each.last_sequence}")

    def _missing(self, number: int) -> StorageDamagedError:
        near = next((file for file in self._files if file.number > number), self._files[-1])
        return StorageDamagedError(f"journal file {number} is missing beside {near.path}", _RECOVER)

    # -- one file -------------------------------------------------------------------------------------------------

    def _replay_file(self, file: JournalFile) -> None:
        window = _Window(self._disk, file)
        while True:
            group = self._read_group(window, file)
            if group is None:
                return
            self._apply(file, group)
            self.last_group_start = file.position
            file.position = group.end
            file.epoch = group.epoch
            file.first_sequence = file.first_sequence or group.sequence
            file.last_sequence = self.sequence = group.sequence

    def _read_group(self, window: _Window, file: JournalFile) -> _Group | None:
        """The group at the file's position, or None if it isn't whole."""
        records: list[tuple[int, tuple[int, ...] | bytes, Location]] = []
        offset, epoch, sequence = file.position, file.epoch, self.sequence + 1
        while True:
            at = window.seek(offset, RECORD_HEADER_BYTES)
            header = unpack_record_header(window.data, at, file.seed) if at >= 0 else None
            if (
                header is None
                or header.epoch != epoch
                or header.sequence != sequence
                or header.position != len(records)
            ):
                return None
            offset += RECORD_HEADER_BYTES
            at = window.seek(offset, header.length)
            if at < 0:
                return None
            payload = memoryview(window.data)[at : at + header.length]
            if payload_checksum(payload) != header.payload_checksum:
                return None
            location = Location(file.number, offset, header.length, header.payload_checksum)
            if header.record_type == RecordType.BATCH:
                records.append((RecordType.BATCH, HEADER.unpack_from(payload), location))
            else:
                records.append((_known(header, file, offset), bytes(payload), location))
                if header.record_type == RecordType.EPOCH:
                    epoch = unpack_epoch(payload)
            offset += header.length
            if header.flags & LAST_OF_GROUP:
                return _Group(records, offset, epoch, sequence)

    def _apply(self, file: JournalFile, group: _Group) -> None:
        index = self.index
        for record_type, content, location in group.records:
            if record_type == RecordType.BATCH:
                _, _, _, _, _, count, stride, _, ledger_id, first, confirmed, stamp, _, _ = content
                last = first + (count - 1) * stride
                index.put_batch(ledger_id, stamp, first, last, stride, confirmed, location)
                continue
            assert isinstance(content, bytes)
            if record_type == RecordType.MARKS:
                index.put_marks(*unpack_marks(content), file.number)
            elif record_type == RecordType.DROP:
                index.drop(unpack_drop(content))
            elif record_type == RecordType.CHECKPOINT:
                ranges, deleted = unpack_checkpoint(content)
                index.drop_ranges(deleted)
                self._checkpoint = (file, ranges)


def _known(header: RecordHeader, file: JournalFile, offset: int) -> int:
    try:
        return RecordType(header.record_type)
    except ValueError as error:
        raise StorageIdentityError(
            f"{file.path} has a record of type {header.record_type} at {offset}, unknown to this replog",
            "Nothing was touched: use the replog that wrote it, or a newer one",
        ) from error
