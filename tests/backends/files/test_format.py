"""The bytes on the disk (format 1): what was written once is read for ever.

The golden files were written by the first version; a difference means a new format, with a number of its own.
"""

import contextlib
import itertools
from pathlib import Path

from replog.abc import DropLedger, Marks, PutBatch, SetMarks
from replog.backends.files import record
from replog.backends.files.disk import write_all
from replog.backends.ranges import LedgerRanges
from replog.protocol.digest import DigestType
from replog.protocol.mutations import DELETED_TERM
from replog.testing.disk import MemoryDisk
from replog.testing.storage_exam import make_batch
from tests.backends.files.workload import FIRST_FILE, open_small

FORMATS = Path(__file__).parents[2] / "formats"
GOLDEN_JOURNAL = FORMATS / "files-storage-v1-journal.hex"
GOLDEN_FORMAT_FILE = FORMATS / "files-storage-v1-storage.json"

FIRST, SECOND = make_batch(7, 0, 2), make_batch(7, 2, 1, stride=3, stamp=2, digest_type=DigestType.HMAC_SHA256)


def write_storage() -> MemoryDisk:
    disk = MemoryDisk(seed=1)
    numbers = itertools.count(1)
    disk.random_bytes = lambda size: bytes([next(numbers)]) * size  # type: ignore[method-assign]
    with contextlib.closing(open_small(disk)) as storage:
        storage.commit([PutBatch(FIRST), SetMarks(7, b"key", 3, 0), SetMarks(8, None, 5)])
        storage.commit([DropLedger(9), PutBatch(SECOND)])
    return disk


def as_hex(content: bytes | bytearray) -> str:
    """Lines of 32 bytes, without the zeros at the end; lines of zeros only are counted."""
    lines = [content[at : at + 32].ljust(32, b"\0").hex() for at in range(0, len(content.rstrip(b"\0")), 32)]
    folded = [(line, sum(1 for _ in same)) for line, same in itertools.groupby(lines)]
    return "".join(f"{line} x{count}\n" if count > 1 else f"{line}\n" for line, count in folded)


def from_hex(text: str) -> bytes:
    pieces = []
    for line in text.splitlines():
        digits, _, count = line.partition(" x")
        pieces.append(bytes.fromhex(digits) * int(count or 1))
    return b"".join(pieces)


def test_the_same_bytes_are_written() -> None:
    disk = write_storage()
    assert as_hex(disk.content(FIRST_FILE)) == GOLDEN_JOURNAL.read_text()
    assert disk.content("/st/storage.json").decode() == GOLDEN_FORMAT_FILE.read_text()


def test_the_golden_bytes_are_read() -> None:
    disk = MemoryDisk()
    for directory in ("/st", "/st/journal"):
        disk.make_directory(directory)
    for path, content in (
        (FIRST_FILE, from_hex(GOLDEN_JOURNAL.read_text()).ljust(64 << 10, b"\0")),
        ("/st/storage.json", GOLDEN_FORMAT_FILE.read_bytes()),
    ):
        fd = disk.open(path, create=True)
        write_all(disk, fd, (content,), 0)
        disk.close(fd)
    with contextlib.closing(open_small(disk)) as storage:
        assert storage.bookie_id == "bookie-01010101010141018101010101010101"
        assert storage.ledger_ids() == [7, 8]
        assert storage.read(7, 0, 1, 10_000) == [FIRST]
        assert storage.read(7, 2, 2, 10_000) == [SECOND]
        assert storage.marks(7) == Marks(b"key", 3, 0, 2)
        assert storage.marks(8) == Marks(None, 5)
        assert storage.marks(9) == Marks(fence_term=DELETED_TERM)


def test_headers_and_payloads_come_back() -> None:
    header = record.FileHeader(3, 1 << 63, b"0123456789abcdef")
    page = record.pack_file_header(header)
    assert len(page) == record.PAGE_BYTES
    assert record.unpack_file_header(page) == header
    assert record.unpack_file_header(page[:40]) is None
    for key in (None, b"", b"a key"):
        assert record.unpack_marks(record.pack_marks(1, key, 2, -1)) == (1, key, 2, -1)
    files = [record.FileRange(1, 2, 3, 4), record.FileRange(9, 9, 50, 60)]
    ranges = [(1, 5), (9, (1 << 63) - 1)]
    packed = record.pack_checkpoint(files, LedgerRanges(ranges))
    assert record.unpack_checkpoint(packed) == (files, ranges)
    assert record.unpack_checkpoint(record.pack_checkpoint([], LedgerRanges())) == ([], [])


def test_a_record_belongs_to_its_file_and_its_bookie() -> None:
    seed = record.checksum_seed(1, b"0123456789abcdef")
    header = record.pack_record_header(seed, record.RecordType.DROP, b"payload!", 2, True, 77, 88, 99)
    assert len(header) == record.RECORD_HEADER_BYTES
    unpacked = record.unpack_record_header(b".." + header, 2, seed)
    assert unpacked is not None
    assert unpacked[1:] == (record.RecordType.DROP, record.LAST_OF_GROUP, 0, 8, 2, 77, 88, 99)
    for other in (record.checksum_seed(2, b"0123456789abcdef"), record.checksum_seed(1, b"0123456789abcdeF")):
        assert record.unpack_record_header(header, 0, other) is None
    assert record.unpack_record_header(header[:-1], 0, seed) is None


def test_batches_of_one_length_have_different_checksums() -> None:
    batches = [make_batch(1, first, 1, size_bytes=100) for first in range(50)]
    assert len({record.payload_checksum(batch.data) for batch in batches}) == 50
    data = bytearray(batches[0].data)
    whole = record.payload_checksum(bytes(data))
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        assert record.payload_checksum(bytes(data)) != whole
        data[bit // 8] ^= 1 << bit % 8
