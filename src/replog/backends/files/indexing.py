"""Writing the index of a full log file, and reading it back: for the storage, and for inspections."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from crc32c import crc32c

from replog.backends.disk import Disk, read_all, write_file_atomically
from replog.backends.files.index_file import (
    BATCH_BYTES,
    FORMAT,
    HEADER_BYTES,
    IndexHeader,
    SectionEntry,
    pack_index,
    unpack_directory,
    unpack_index_header,
)
from replog.backends.files.index_page import IndexPage
from replog.backends.files.log_file import LogFile, Section


def write_index(
    disk: Disk, file: LogFile, identity: bytes, sections: Iterable[Section], rest: Callable[[], None]
) -> None:
    """Writes the index of a full file, durably, and notes in the sections where their pages are. May raise OSError.

    The sections' pages are in memory, and don't change any more. `rest` is called for each of them: a file may have 100,000."""
    # Sorted, so that an index that is written again is the same, byte for byte.
    ordered = sorted(sections, key=lambda section: (section.ledger_id, section.stamp, section.first))
    pairs = []
    for section in ordered:
        pairs.append((_entry_of(section), _columns_of(section)))
        rest()
    header = IndexHeader(file.is_journal, file.number, identity, file.position, file.switches)
    pieces, entries = pack_index(header, pairs, rest)
    directory, _, name = file.index_path.rpartition("/")
    write_file_atomically(disk, directory, name, pieces)
    assert len(entries) == len(ordered), "the index has each section once"
    for section, entry in zip(ordered, entries, strict=True):
        section.page_offset = entry.page_offset
        section.page_checksum = entry.page_checksum
        rest()


def _entry_of(section: Section) -> SectionEntry:
    return SectionEntry(
        section.ledger_id,
        section.stamp,
        section.first,
        section.last,
        section.last_first,
        0,
        section.data_bytes,
        section.count,
        0,
    )


def _columns_of(section: Section) -> list[bytes]:
    page = section.page
    assert page is not None, "a page that was never written may not be evicted"
    assert section.count == len(page), "a section counts its page's batches"
    assert _extent(page) == (section.first, section.last, section.last_first), "a section reaches as far as its page"
    return [column.tobytes() for column in page.columns]


def _extent(page: IndexPage) -> tuple[int, int, int]:
    """The extent of a page, for its section: the lowest first id, the highest last id, the highest first id."""
    return page.firsts[0], page.reaches[-1], page.firsts[-1]


class DamagedIndex(Exception):
    """The fault of an index file, and its place."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.offset = offset
        self.reason = reason


class IndexFile:
    """An index file that is open, its header and directory checked: the only parser of indexes.

    The constructor raises OSError and `DamagedIndex`; `number` and `identity` are checked if they are known."""

    def __init__(self, disk: Disk, path: str, *, number: int | None, identity: bytes | None) -> None:
        self.path = path
        self._disk = disk
        self._fd = disk.open(path)
        try:
            self.size_bytes = disk.size(self._fd)
            self.header = self._read_header(number, identity)
            self.entries = self._read_entries()
        except BaseException:
            self.close()
            raise

    def _read_header(self, number: int | None, identity: bytes | None) -> IndexHeader:
        header = unpack_index_header(read_all(self._disk, self._fd, HEADER_BYTES, 0))
        if header is None:
            raise DamagedIndex(0, "its header is unreadable")
        if header.format != FORMAT:
            raise DamagedIndex(0, f"it has format {header.format}: use a newer replog")
        if identity is not None and header.identity != identity:
            raise DamagedIndex(0, f"it is of bookie-{header.identity.hex()}")
        if number is not None and header.number != number:
            raise DamagedIndex(0, f"it is the index of file {header.number}, misnamed")
        return header

    def _read_entries(self) -> list[SectionEntry]:
        size = self.header.directory_bytes
        # A file that was cut says more of its damage than a checksum does.
        if HEADER_BYTES + size > self.size_bytes:
            raise DamagedIndex(HEADER_BYTES, "it ends within its directory")
        entries = unpack_directory(self.header, read_all(self._disk, self._fd, size, HEADER_BYTES))
        if entries is None:
            raise DamagedIndex(HEADER_BYTES, "its directory doesn't match its checksum")
        return entries

    def page(self, entry: SectionEntry) -> IndexPage | None:
        """The page of a section, or None if it is damaged. May raise OSError."""
        assert entry.page_offset >= HEADER_BYTES + self.header.directory_bytes, "pages stand behind the directory"
        return _page_at(self._disk, self._fd, entry.page_offset, entry.batches, entry.page_checksum)

    def close(self) -> None:
        """Gives the descriptor back."""
        self._disk.close(self._fd)


def read_directory(disk: Disk, file: LogFile, identity: bytes) -> list[Section] | None:
    """The sections of a file by its index, without their pages, and sets what else the index says of the file.

    None if the index is missing or damaged. May raise OSError."""
    try:
        index = IndexFile(disk, file.index_path, number=file.number, identity=identity)
    except (FileNotFoundError, DamagedIndex):
        return None
    index.close()
    if index.header.is_journal != file.is_journal:
        return None
    file.position = index.header.end_bytes
    file.switches = index.header.switches
    file.is_indexed = True
    return [_section_of(file, entry) for entry in index.entries]


def _section_of(file: LogFile, entry: SectionEntry) -> Section:
    assert entry.first <= entry.last_first <= entry.last, "as the writer of the index asserted of its page"
    section = Section(file, entry.ledger_id, entry.stamp, entry.first, entry.last, entry.last_first)
    section.count = entry.batches
    section.data_bytes = entry.data_bytes
    section.page_offset = entry.page_offset
    section.page_checksum = entry.page_checksum
    return section


def read_page(disk: Disk, section: Section) -> IndexPage | None:
    """The page of a section from its index file, or None if it is damaged. May raise OSError."""
    fd = disk.open(section.file.index_path)
    try:
        page = _page_at(disk, fd, section.page_offset, section.count, section.page_checksum)
    finally:
        disk.close(fd)
    # What `write_index` asserted. Both checksums are right, so this is not damage.
    assert page is None or _extent(page) == (section.first, section.last, section.last_first), "another section's page"
    return page


def _page_at(disk: Disk, fd: int, offset: int, count: int, checksum: int) -> IndexPage | None:
    data = read_all(disk, fd, count * BATCH_BYTES, offset)
    if len(data) != count * BATCH_BYTES or crc32c(data) != checksum:
        return None
    return IndexPage.from_bytes(data, count)
