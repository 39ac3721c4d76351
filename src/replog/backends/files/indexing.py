"""Writing the index of a full log file, and reading it back."""

from __future__ import annotations

from collections.abc import Iterable

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


def write_index(disk: Disk, file: LogFile, identity: bytes, sections: Iterable[Section]) -> None:
    """Writes the index of a full file, durably, and notes in the sections where their pages are. May raise OSError.

    The sections' pages are in memory, and don't change any more."""
    ordered = sorted(sections, key=lambda section: (section.ledger_id, section.stamp, section.first))
    pairs = [(_entry_of(section), _columns_of(section)) for section in ordered]
    header = IndexHeader(file.is_journal, file.number, identity, file.position, file.switches)
    pieces, entries = pack_index(header, pairs)
    directory, _, name = file.index_path.rpartition("/")
    write_file_atomically(disk, directory, name, pieces)
    for section, entry in zip(ordered, entries, strict=True):
        section.page_offset = entry.page_offset
        section.page_checksum = entry.page_checksum


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
    assert section.page is not None, "only pages that were never written may be evicted"
    return [column.tobytes() for column in section.page.columns]


def read_directory(disk: Disk, file: LogFile, identity: bytes) -> list[Section] | None:
    """The sections of a file by its index, without their pages, and sets what else the index says of the file.

    None if the index is missing or damaged. May raise OSError."""
    try:
        fd = disk.open(file.index_path)
    except FileNotFoundError:
        return None
    try:
        header = unpack_index_header(read_all(disk, fd, HEADER_BYTES, 0))
        if header is None or header.format != FORMAT:
            return None
        if (header.is_journal, header.number, header.identity) != (file.is_journal, file.number, identity):
            return None
        entries = unpack_directory(header, read_all(disk, fd, header.directory_bytes, HEADER_BYTES))
    finally:
        disk.close(fd)
    if entries is None:
        return None
    file.position = header.end_bytes
    file.switches = header.switches
    file.is_indexed = True
    return [_section_of(file, entry) for entry in entries]


def _section_of(file: LogFile, entry: SectionEntry) -> Section:
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
        data = read_all(disk, fd, section.count * BATCH_BYTES, section.page_offset)
    finally:
        disk.close(fd)
    if len(data) != section.count * BATCH_BYTES or crc32c(data) != section.page_checksum:
        return None
    return IndexPage.from_bytes(data, section.count)
