"""The bytes on the disk: what was written once is read for ever.

The golden files were written by the first version that had the format; a difference means a new format, with a number of
its own. `tests/formats/test_files_storage.py` reads them without the library."""

import contextlib
import itertools

import pytest

from replog.abc import DropLedger, Marks, PutBatch, SetMarks
from replog.backends.files import record
from replog.backends.files.background_pace import no_rest
from replog.backends.files.catalog import Catalog, CatalogFile, pack_catalog, unpack_catalog
from replog.backends.files.directory import journal_name, write_format, write_journal_cookie
from replog.backends.files.entry_log import EntryLogWriter
from replog.backends.files.index import Index
from replog.backends.files.indexing import read_directory, read_page, write_index
from replog.backends.files.log_file import EntryLogFile, JournalFile, Location, LogFile, Section
from replog.backends.files.scanning import FoundBatch, scan_entry_log
from replog.backends.memory import MemoryStorage
from replog.protocol.batch import Batch
from replog.protocol.digest import Digest, DigestType
from replog.protocol.proofs import prove
from replog.testing.disk import MemoryDisk
from replog.testing.storage_conformance import make_batch
from tests.backends.files.golden import FORMATS, as_hex, disk_with, files_from_hex
from tests.backends.files.small_storage import PARTS, SmallStorage, commits, small_options
from tests.backends.files.small_storage import small_files as small_files
from tests.backends.files.workload import FIRST_FILE, open_small

BOOKIE_ID = "bookie-01010101010141018101010101010101"
IDENTITY = bytes.fromhex("01010101010141018101010101010101")
FIRST, SECOND = make_batch(7, 0, 2), make_batch(7, 2, 1, stride=3, stamp=2, digest_type=DigestType.HMAC_SHA256)
THIRD = make_batch(8, 0, 3, stride=2)
DROPPED = [(7, (1, 0, 5, 1)), (7, (2, 3, 18, 3)), (9, (1, 0, (1 << 63) - 1, 1))]
PROOF = prove(Digest(DigestType.CRC32C, 7, b""), 7, 1, 0)


def golden(name: str) -> str:
    return (FORMATS / f"files-storage-{name}").read_text()


def fixed_disk() -> MemoryDisk:
    """Random bytes are 01, 02, 03, ..."""
    disk = MemoryDisk(seed=1)
    numbers = itertools.count(1)
    disk.random_bytes = lambda size: bytes([next(numbers)]) * size  # type: ignore[method-assign]
    disk.make_directory("/d")
    return disk


# -- the journal and the format files -----------------------------------------------------------------------------


def test_the_same_journal_is_written() -> None:
    disk = fixed_disk()
    with contextlib.closing(open_small(disk)) as storage:
        storage.commit([PutBatch(FIRST), SetMarks(7, b"key", 3, 0, PROOF), SetMarks(8, None, 5, revision=6)])
        storage.commit([DropLedger(9), PutBatch(SECOND)])
        storage.drop(7, 1, 0, 5)
    assert as_hex(disk.content(FIRST_FILE)) == golden("v1-journal.hex")
    assert disk.content("/st/storage.json").decode() == golden("v1-storage.json")


def test_the_same_format_files_are_written() -> None:
    disk = fixed_disk()
    write_format(disk, "/d", BOOKIE_ID, is_journal_elsewhere=True)
    assert disk.content("/d/storage.json").decode() == golden("v1-storage-elsewhere.json")
    write_journal_cookie(disk, "/d", BOOKIE_ID)
    assert disk.content("/d/journal.json").decode() == golden("v1-journal.json")


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_storage_of_version_1_is_read(elsewhere: bool) -> None:
    """An entry log, full journal files and a current one, as `small_storage` makes them."""
    made = SmallStorage(MemoryDisk(), small_options(elsewhere=elsewhere), MemoryStorage())
    for mutations in (mutations for part in PARTS for mutations in commits(part)):
        made.acknowledged.commit(mutations)
    files = files_from_hex(golden(f"v1-directory-{'elsewhere' if elsewhere else 'inside'}.hex"))
    assert {name.rpartition(".")[2] for name in files} == {
        "json",
        "st/catalog",
        "st/doubt",
        "st/durable-mark",
        "log",
        "index",
        "journal",
        "st/reserve",
    }
    assert made.examine(disk_with(files, ""), ()) == "right"


# -- indexes, entry logs, the catalog -----------------------------------------------------------------------------


def journal_index(disk: MemoryDisk) -> JournalFile:
    """The index of a journal file with three batches."""
    file = JournalFile(3, f"/d/{journal_name(3)}", -1, IDENTITY, 0, 0)
    index = Index()
    offset = record.PAGE_BYTES
    for batch in (FIRST, THIRD, SECOND):
        offset += record.RECORD_HEADER_BYTES
        place = Location(file, offset, len(batch.data), record.payload_checksum(batch.data))
        index.put_batch(
            batch.ledger_id, batch.stamp, batch.first_entry_id, batch.last_entry_id, batch.stride, -1, place
        )
        offset += len(batch.data)
    file.position = offset
    write_index(disk, file, IDENTITY, file.sections, no_rest)
    return file


def test_the_same_index_is_written_and_read() -> None:
    disk = fixed_disk()
    file = journal_index(disk)
    assert as_hex(disk.content(file.index_path)) == golden("index-v1.hex")
    again = JournalFile(3, file.path, -1, IDENTITY, 0, 0)
    sections = read_directory(disk, again, IDENTITY)
    assert sections is not None
    assert (again.position, again.switches) == (file.position, 3)
    assert [(each.ledger_id, each.stamp, each.first, each.last, each.count) for each in sections] == [
        (7, 1, 0, 1, 1),
        (7, 2, 2, 2, 1),
        (8, 1, 0, 4, 1),
    ]
    expect_places(disk, sections, {FIRST: 4136, SECOND: 4136 + sum(map(size_of, (FIRST, THIRD))) + 80, THIRD: 4304})


def size_of(batch: Batch) -> int:
    return len(batch.data)


def expect_places(disk: MemoryDisk, sections: list[Section], offsets: dict[Batch, int]) -> None:
    found = {}
    for section in sections:
        page = read_page(disk, section)
        assert page is not None
        for at in range(len(page)):
            key = (section.ledger_id, section.stamp, *page.identity(at))
            found[key] = section.location(page, at)[1:]
    assert found == {
        (each.ledger_id, each.stamp, each.first_entry_id, each.last_entry_id, each.stride): (
            offset,
            len(each.data),
            record.payload_checksum(each.data),
        )
        for each, offset in offsets.items()
    }


def test_the_same_entry_log_is_written_and_read() -> None:
    disk = fixed_disk()
    writer = EntryLogWriter(disk, "/d", 5, IDENTITY)
    for batches in ((FIRST, make_batch(7, 2, 2)), (SECOND,), (THIRD,)):
        writer.begin_section(batches[0].ledger_id, batches[0].stamp)
        for batch in batches:
            checksum = record.payload_checksum(batch.data)
            writer.add(batch.first_entry_id, batch.last_entry_id, batch.stride, batch.data, checksum)
    file: LogFile = writer.finish()
    assert as_hex(disk.content(file.path)) == golden("entry-log-v1.hex")
    assert as_hex(disk.content(file.index_path)) == golden("entry-log-index-v1.hex")
    again = EntryLogFile(5, file.path, -1)
    batches_found = list(scan_entry_log(disk, again, IDENTITY))
    assert again.position == file.position == len(disk.content(file.path))
    assert [_identity(each) for each in batches_found] == [
        (7, 1, 0, 1, 1),
        (7, 1, 2, 3, 1),
        (7, 2, 2, 2, 3),
        (8, 1, 0, 4, 2),
    ]
    for found, batch in zip(batches_found, (FIRST, make_batch(7, 2, 2), SECOND, THIRD), strict=True):
        _, offset, size, checksum = found.location
        assert bytes(disk.content(file.path)[offset : offset + size]) == batch.data
        assert checksum == record.payload_checksum(batch.data)


def _identity(found: FoundBatch) -> tuple[int, ...]:
    return found.ledger_id, found.stamp, found.first, found.last, found.stride


def test_the_same_catalog_is_written_and_read() -> None:
    files = [CatalogFile(True, 3, 3, 9000), CatalogFile(False, 5, 4, 70_000)]
    ledgers = [(7, Marks(b"key", 3, 0, 2, b"proof")), (8, Marks(None, 5, revision=6)), (9, Marks(b"", 0, 4, 4))]
    catalog = Catalog(IDENTITY, 12, 6, 40, 44, 6, files, [(0, 6), (10, 11)], ledgers, DROPPED)
    packed = pack_catalog(catalog)
    assert as_hex(packed) == golden("catalog-v1.hex")
    found = unpack_catalog(packed)
    assert found == catalog
    assert list(found.ledgers) == ledgers


def test_headers_and_payloads_come_back() -> None:
    header = record.FileHeader(3, 1 << 63, b"0123456789abcdef")
    page = record.pack_file_header(header)
    assert len(page) == record.PAGE_BYTES
    assert record.unpack_file_header(page) == header
    assert record.unpack_file_header(page[:40]) is None
    for key in (None, b"", b"a key"):
        for proof in (b"", b"proof"):
            assert record.unpack_marks(record.pack_marks(1, key, 2, -1, proof, 3)) == (1, key, 2, -1, proof, 3)


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
