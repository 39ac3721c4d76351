"""Reading log files forward, group by group or run by run, as replay and the repair of an index need it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from replog.backends.disk import UNREADABLE, Disk, named_error, read_all
from replog.backends.files.log_file import JournalFile, Location, LogFile
from replog.backends.files.record import (
    ENTRY_LOG_MAGIC,
    LAST_OF_GROUP,
    PAGE_BYTES,
    RECORD_HEADER_BYTES,
    RecordHeader,
    RecordType,
    checksum_seed,
    payload_checksum,
    unpack_epoch,
    unpack_file_header,
    unpack_record_header,
)
from replog.errors import StorageDamagedError, StorageIdentityError
from replog.protocol.batch import HEADER

RECOVER = "Recover this bookie's copies from the others, into a new directory"
_WINDOW_BYTES = 4 << 20
_UNREADABLE_PAGES_MAX = 64  # of one file: a disk that refuses more has failed
_SIZE_AT = 8  # where a batch has its size


class Group(NamedTuple):
    """The records of one commit: of each its type, its content (a batch's header unpacked) and where that stands."""

    records: list[tuple[int, tuple[int, ...] | bytes, Location]]
    end: int
    epoch: int
    sequence: int


class FoundBatch(NamedTuple):
    """A batch as its header has it, and where it stands."""

    ledger_id: int
    stamp: int
    first: int
    last: int
    stride: int
    last_add_confirmed: int
    location: Location


class Window:
    """A file read forward in large pieces.

    With `passes_over`, pages that the disk refuses to read (EIO) count as zeros, and `unreadable` has their places; else
    they are damage. Raises `StorageDamagedError`, `StorageFailedError`."""

    def __init__(self, disk: Disk, file: LogFile, *, passes_over: bool = False) -> None:
        self._disk = disk
        self._file = file
        self._passes_over = passes_over
        self._start = 0
        self.data = b""
        self.unreadable: list[int] = []
        if file.fd < 0:
            try:
                file.fd = disk.open(file.path)
            except OSError as error:
                raise damaged(file, 0, f"it cannot be opened: {error}") from error

    @property
    def end(self) -> int:
        """Where `data` ends in the file."""
        return self._start + len(self.data)

    def offset_of(self, at: int) -> int:
        """Where this place in `data` is in the file."""
        return self._start + at

    def seek(self, offset: int, length: int) -> int:
        """Where in `data` this place is, or -1 if the file ends before these bytes do."""
        at = offset - self._start
        if at < 0 or at + length > len(self.data):
            self.data = self._read(offset, max(length, _WINDOW_BYTES))
            self._start = offset
            at = 0
        return at if at + length <= len(self.data) else -1

    def _read(self, offset: int, size: int) -> bytes:
        try:
            return read_all(self._disk, self._file.fd, size, offset)
        except OSError as error:
            if not self._passes_over or error.errno not in UNREADABLE:
                raise damaged(self._file, offset, f"it cannot be read: {error}") from error
        return b"".join(self._pages(offset, offset + size))

    def _pages(self, offset: int, end: int) -> Iterator[bytes]:
        """What stands there, page by page."""
        while offset < end:
            stop = min(end, (offset // PAGE_BYTES + 1) * PAGE_BYTES)
            try:
                piece = read_all(self._disk, self._file.fd, stop - offset, offset)
            except OSError as error:
                if error.errno not in UNREADABLE or len(self.unreadable) >= _UNREADABLE_PAGES_MAX:
                    raise named_error(f"read {self._file.path} at {offset}", error) from error
                if offset not in self.unreadable:
                    self.unreadable.append(offset)
                piece = bytes(stop - offset)
                if self._disk.size(self._file.fd) <= offset:
                    return
            yield piece
            if len(piece) < stop - offset:
                return
            offset = stop


def damaged(file: LogFile, offset: int, reason: str) -> StorageDamagedError:
    """The error that says where a file is damaged."""
    return StorageDamagedError(f"{file.path} is damaged at {offset}: {reason}", RECOVER)


def found_batch(header: tuple[int, ...], location: Location) -> FoundBatch:
    """What an unpacked header says of a batch."""
    _, _, _, _, _, count, stride, _, ledger_id, first, confirmed, stamp, _, _ = header
    return FoundBatch(ledger_id, stamp, first, first + (count - 1) * stride, stride, confirmed, location)


def head_of(window: Window, file: JournalFile) -> RecordHeader | None:
    """The header of a journal file's first record, or None if there is no intact one."""
    at = window.seek(PAGE_BYTES, RECORD_HEADER_BYTES)
    return unpack_record_header(window.data, at, file.seed) if at >= 0 else None


def read_group(window: Window, file: JournalFile, offset: int, epoch: int, sequence: int) -> Group | None:
    """The group of this sequence at this place, or None if it isn't whole."""
    records: list[tuple[int, tuple[int, ...] | bytes, Location]] = []
    while True:
        at = window.seek(offset, RECORD_HEADER_BYTES)
        header = unpack_record_header(window.data, at, file.seed) if at >= 0 else None
        if header is None or header.epoch != epoch or header.sequence != sequence or header.position != len(records):
            return None
        offset += RECORD_HEADER_BYTES
        at = window.seek(offset, header.length)
        if at < 0:
            return None
        payload = memoryview(window.data)[at : at + header.length]
        if payload_checksum(payload) != header.payload_checksum:
            return None
        location = Location(file, offset, header.length, header.payload_checksum)
        if header.record_type == RecordType.BATCH:
            records.append((RecordType.BATCH, HEADER.unpack_from(payload), location))
        else:
            records.append((_known(header, file, offset), bytes(payload), location))
            if header.record_type == RecordType.EPOCH:
                epoch = unpack_epoch(payload)
        offset += header.length
        if header.flags & LAST_OF_GROUP:
            return Group(records, offset, epoch, sequence)


def _known(header: RecordHeader, file: JournalFile, offset: int) -> int:
    try:
        return RecordType(header.record_type)
    except ValueError as error:
        raise StorageIdentityError(
            f"{file.path} has a record of type {header.record_type} at {offset}, unknown to this replog",
            "Nothing was touched: use the replog that wrote it, or a newer one",
        ) from error


def scan_journal(disk: Disk, file: JournalFile) -> Iterator[FoundBatch]:
    """The batches of a full journal file, up to `file.position` or to the first damage. Raises `StorageDamagedError`."""
    end = file.position
    window = Window(disk, file)
    at = window.seek(0, PAGE_BYTES)
    page = unpack_file_header(window.data[at : at + PAGE_BYTES]) if at >= 0 else None
    head = head_of(window, file)
    if page is None or head is None:
        raise damaged(file, 0, "its beginning is unreadable")
    offset, epoch, sequence = PAGE_BYTES, page.epoch, head.sequence
    while offset < end:
        group = read_group(window, file, offset, epoch, sequence)
        if group is None:
            raise damaged(file, offset, f"group {sequence} is unreadable")
        for record_type, content, location in group.records:
            if record_type == RecordType.BATCH:
                assert not isinstance(content, bytes)
                yield found_batch(content, location)
        offset, epoch, sequence = group.end, group.epoch, group.sequence + 1


def scan_entry_log(disk: Disk, file: LogFile, identity: bytes) -> Iterator[FoundBatch]:
    """The batches of an entry log, up to the first damage. Raises `StorageDamagedError`."""
    window = Window(disk, file)
    at = window.seek(0, PAGE_BYTES)
    page = unpack_file_header(window.data[at : at + PAGE_BYTES]) if at >= 0 else None
    if page is None or page.magic != ENTRY_LOG_MAGIC or page.number != file.number:
        raise damaged(file, 0, "its header is unreadable")
    seed = checksum_seed(file.number, identity)
    offset = PAGE_BYTES
    position = 0
    while True:
        at = window.seek(offset, RECORD_HEADER_BYTES)
        header = unpack_record_header(window.data, at, seed) if at >= 0 else None
        if header is None or (header.epoch, header.position, header.record_type) != (
            page.epoch,
            position,
            RecordType.RUN,
        ):
            raise damaged(file, offset, f"run {position} is unreadable")
        offset += RECORD_HEADER_BYTES
        at = window.seek(offset, header.length)
        payload = memoryview(window.data)[at : at + header.length] if at >= 0 else memoryview(b"")
        if at < 0 or payload_checksum(payload) != header.payload_checksum:
            raise damaged(file, offset, f"run {position} doesn't match its checksum")
        yield from _batches_of(file, payload, offset)
        offset += header.length
        position += 1
        if header.flags & LAST_OF_GROUP:
            file.position = offset
            return


def _batches_of(file: LogFile, run: memoryview, start: int) -> Iterator[FoundBatch]:
    at = 0
    while at < len(run):
        size = int.from_bytes(run[at + _SIZE_AT : at + _SIZE_AT + 4], "little")
        yield found_batch(
            HEADER.unpack_from(run, at), Location(file, start + at, size, payload_checksum(run[at : at + size]))
        )
        at += size
