"""The records of log files, one after the other: the only parser of journals and entry logs.

A `Chain` knows what the next record must say to belong to the file. Its users differ in what they do at the end of the
chain: a read of a full file raises, replay looks for the next group that counts, and an inspection says what is wrong there
and goes on behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from replog.backends.disk import Disk
from replog.backends.files.log_file import JournalFile, Location, LogFile
from replog.backends.files.record import (
    ENTRY_LOG_MAGIC,
    EPOCH_BYTES,
    LAST_OF_GROUP,
    MAGIC,
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
from replog.backends.files.window import LogWindow, Window, damaged
from replog.errors import StorageIdentityError
from replog.protocol.batch import HEADER

_SIZE_FIELD = 4  # of a batch's header


class ScannedRecord(NamedTuple):
    """A record and the place of its header. The payload is valid until the window moves."""

    offset: int
    header: RecordHeader
    payload: memoryview
    is_intact: bool

    @property
    def is_last_of_group(self) -> bool:
        """True for the last record of a commit, and for the last one of an entry log."""
        return bool(self.header.flags & LAST_OF_GROUP)


class FoundBatch(NamedTuple):
    """A batch as its header describes it, and its place."""

    ledger_id: int
    stamp: int
    first: int
    last: int
    stride: int
    last_add_confirmed: int
    location: Location


class Group(NamedTuple):
    """The records of one commit: batches as found, the content of all others."""

    records: list[tuple[int, FoundBatch | bytes]]
    end: int
    epoch: int
    sequence: int


class Chain:
    """The place of a scan, and what the record at that place must say.

    In a journal a record has the current epoch, its group's sequence and its position in the group. In an entry log all
    have the file's epoch and the sequence 0, and positions count through the file. A sequence of None is not known yet: the
    first group tells."""

    __slots__ = ("epoch", "is_journal", "offset", "position", "seed", "sequence")

    def __init__(
        self, seed: int, epoch: int, sequence: int | None, *, offset: int = PAGE_BYTES, is_journal: bool = True
    ) -> None:
        assert offset >= PAGE_BYTES, "records stand behind the header page"
        self.seed = seed
        self.epoch = epoch
        self.sequence = sequence
        self.position = 0
        self.offset = offset
        self.is_journal = is_journal

    def next(self, window: Window) -> ScannedRecord | None:
        """The record at this place, or None if there is no intact header that belongs here. Its payload may be damaged."""
        offset = self.offset
        at = window.seek(offset, RECORD_HEADER_BYTES)
        header = unpack_record_header(window.data, at, self.seed) if at >= 0 else None
        if header is None or header.epoch != self.epoch or header.position != self.position:
            return None
        if header.sequence != self.sequence and (self.sequence is not None or header.position):
            return None
        at = window.seek(offset + RECORD_HEADER_BYTES, header.length)
        if at < 0:
            return ScannedRecord(offset, header, memoryview(b""), False)
        payload = memoryview(window.data)[at : at + header.length]
        return ScannedRecord(offset, header, payload, payload_checksum(payload) == header.payload_checksum)

    def advance(self, record: ScannedRecord) -> None:
        """Goes on behind this record, which `next` returned."""
        assert record.offset == self.offset, "records are passed in the order in which they stand"
        header = record.header
        self.offset += RECORD_HEADER_BYTES + header.length
        if record.is_intact and header.record_type == RecordType.EPOCH and header.length >= EPOCH_BYTES:
            # From here on only the process that wrote this record wrote anything.
            self.epoch = unpack_epoch(record.payload)
        self.sequence = header.sequence
        self.position = header.position + 1
        if self.is_journal and header.flags & LAST_OF_GROUP:
            self.sequence += 1
            self.position = 0


def find_header(window: Window, offset: int, seed: int) -> tuple[int, RecordHeader] | None:
    """The next intact header from here on, and its place, whatever life of the file it is from."""
    while (at := window.seek(offset, RECORD_HEADER_BYTES)) >= 0:
        at = window.data.find(MAGIC, at)
        if at < 0:
            # A header may begin in the last bytes of this window, and end in the next one.
            offset = window.end - RECORD_HEADER_BYTES + 1
            continue
        offset = window.offset_of(at)
        if at + RECORD_HEADER_BYTES > len(window.data):
            continue
        header = unpack_record_header(window.data, at, seed)
        if header is not None:
            assert window.offset_of(at) == offset, "the window stays where it is while it is searched"
            return offset, header
        offset += 1
    return None


def batch_places(payload: memoryview) -> Iterator[tuple[int, int]]:
    """Where the batches of a BATCH or RUN begin in its payload, and their sizes. Stops where no batch can be."""
    at = 0
    while at + HEADER.size <= len(payload):
        size = HEADER.unpack_from(payload, at)[_SIZE_FIELD]
        if size < HEADER.size or at + size > len(payload):
            return
        yield at, size
        at += size


def batches_of(record: ScannedRecord, file: LogFile) -> Iterator[FoundBatch]:
    """The batches of an intact BATCH or RUN."""
    payload, start = record.payload, record.offset + RECORD_HEADER_BYTES
    for at, size in batch_places(payload):
        _, _, _, _, _, count, stride, _, ledger_id, first, confirmed, stamp, _, _ = HEADER.unpack_from(payload, at)
        # The checksum of a BATCH's payload is the batch's. Of those in a RUN no place has one.
        is_alone = size == len(payload)
        checksum = record.header.payload_checksum if is_alone else payload_checksum(payload[at : at + size])
        last = first + (count - 1) * stride
        location = Location(file, start + at, size, checksum)
        yield FoundBatch(ledger_id, stamp, first, last, stride, confirmed, location)


def read_group(window: Window, file: JournalFile, offset: int, epoch: int, sequence: int) -> Group | None:
    """The group of this sequence at this place, or None if it isn't whole."""
    chain = Chain(file.seed, epoch, sequence, offset=offset)
    records: list[tuple[int, FoundBatch | bytes]] = []
    while True:
        record = chain.next(window)
        if record is None or not record.is_intact:
            return None
        record_type = record.header.record_type
        if record_type == RecordType.BATCH:
            records += [(record_type, batch) for batch in batches_of(record, file)]
        else:
            records.append((_known(record_type, file, record.offset), bytes(record.payload)))
        chain.advance(record)
        if record.is_last_of_group:
            assert chain.sequence == sequence + 1, "a group has one sequence"
            return Group(records, chain.offset, chain.epoch, sequence)


def _known(record_type: int, file: JournalFile, offset: int) -> int:
    try:
        return RecordType(record_type)
    except ValueError as error:
        raise StorageIdentityError(
            f"{file.path} has a record of type {record_type} at {offset}, unknown to this replog",
            "Nothing was touched: use the replog that wrote it, or a newer one",
        ) from error


def scan_journal(disk: Disk, file: JournalFile) -> Iterator[FoundBatch]:
    """The batches of a full journal file, up to `file.position` or to the first damage. Raises `StorageDamagedError`."""
    end = file.position
    window = LogWindow(disk, file)
    at = window.seek(0, PAGE_BYTES + RECORD_HEADER_BYTES)
    page = unpack_file_header(window.data[at : at + PAGE_BYTES]) if at >= 0 else None
    head = unpack_record_header(window.data, at + PAGE_BYTES, file.seed) if at >= 0 else None
    if page is None or head is None:
        raise damaged(file, 0, "its beginning is unreadable")
    offset, epoch, sequence = PAGE_BYTES, page.epoch, head.sequence
    while offset < end:
        group = read_group(window, file, offset, epoch, sequence)
        if group is None:
            raise damaged(file, offset, f"group {sequence} is unreadable")
        assert group.end > offset, "a group takes space"
        for _, content in group.records:
            if isinstance(content, FoundBatch):
                yield content
        offset, epoch, sequence = group.end, group.epoch, group.sequence + 1


def scan_entry_log(disk: Disk, file: LogFile, identity: bytes) -> Iterator[FoundBatch]:
    """The batches of an entry log, up to the first damage. Raises `StorageDamagedError`."""
    window = LogWindow(disk, file)
    at = window.seek(0, PAGE_BYTES)
    page = unpack_file_header(window.data[at : at + PAGE_BYTES]) if at >= 0 else None
    if page is None or page.magic != ENTRY_LOG_MAGIC or page.number != file.number:
        raise damaged(file, 0, "its header is unreadable")
    chain = Chain(checksum_seed(file.number, identity), page.epoch, 0, is_journal=False)
    is_whole = False
    while not is_whole:
        record = chain.next(window)
        if record is None or record.header.record_type != RecordType.RUN:
            raise damaged(file, chain.offset, f"run {chain.position} is unreadable")
        if not record.is_intact:
            raise damaged(file, chain.offset, f"run {chain.position} doesn't match its checksum")
        found = list(batches_of(record, file))
        # What `EntryLogWriter` asserts when it writes a run. Its checksum is right, so this is not damage.
        assert len({(batch.ledger_id, batch.stamp) for batch in found}) == 1, "a run is of one ledger and stamp"
        yield from found
        chain.advance(record)
        is_whole = record.is_last_of_group
    file.position = chain.offset
