"""The bytes of an index file (format 1): the places of the batches of one full journal file, or of one entry log.

It is written once, when its log file is full, and never changes. All that it says can be read from the log file, too, so a
damaged index is written again. Little-endian:

    header (72 bytes)   magic "rlogindx", format, kind of the log file (1 journal, 2 entry log), its number, identity of
                        the bookie (16 bytes), its end in bytes, its switches (how often a batch is not of the ledger of
                        the one before it), number of sections, CRC32C of the directory, CRC32C of all that
    directory           of each section 64 bytes: ledger id, stamp, lowest first id, highest last id, highest first id,
                        where its page begins, bytes of its batches, number of its batches, CRC32C of its page
    pages               of each section, in the order of first ids, as columns: first ids, last ids, offsets, strides,
                        sizes, checksums of all its batches: 36 bytes for each batch

Sections are ordered by ledger, stamp and lowest first id.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

import attrs
from crc32c import crc32c

FORMAT = 1
MAGIC = b"rlogindx"
HEADER_BYTES = 72
SECTION_BYTES = 64
BATCH_BYTES = 36

_HEADER = struct.Struct("<8sIIQ16sQQII")
_HEADER_PREFIX_BYTES = _HEADER.size
_CHECKSUM = struct.Struct("<I")
_SECTION = struct.Struct("<qqqqqQQII")

assert _HEADER_PREFIX_BYTES + _CHECKSUM.size <= HEADER_BYTES
assert _SECTION.size == SECTION_BYTES


@attrs.frozen
class IndexHeader:
    """The identity of an index file: the log file and ledger that it belongs to."""

    is_journal: bool
    number: int
    identity: bytes
    end_bytes: int
    switches: int
    sections: int = 0
    directory_checksum: int = 0
    format: int = FORMAT

    @property
    def directory_bytes(self) -> int:
        """The size of the directory behind the header."""
        return self.sections * SECTION_BYTES


class SectionEntry(NamedTuple):
    """One section, as the directory has it."""

    ledger_id: int
    stamp: int
    first: int
    last: int
    last_first: int
    page_offset: int
    data_bytes: int
    batches: int
    page_checksum: int


def pack_index(
    header: IndexHeader, sections: Sequence[tuple[SectionEntry, Sequence[bytes]]], rest: Callable[[], None]
) -> tuple[list[bytes], list[SectionEntry]]:
    """The file in pieces, and the directory with its places filled in. Each section comes with its page's columns.

    `rest` is called after each of them."""
    offset = HEADER_BYTES + len(sections) * SECTION_BYTES
    entries: list[SectionEntry] = []
    pages: list[bytes] = []
    for entry, columns in sections:
        page = b"".join(columns)
        entries.append(entry._replace(page_offset=offset, page_checksum=crc32c(page)))
        pages.append(page)
        offset += len(page)
        rest()
    directory = b"".join(_SECTION.pack(*entry) for entry in entries)
    packed = _HEADER.pack(
        MAGIC,
        FORMAT,
        1 if header.is_journal else 2,
        header.number,
        header.identity,
        header.end_bytes,
        header.switches,
        len(sections),
        crc32c(directory),
    )
    packed += _CHECKSUM.pack(crc32c(packed))
    return [packed.ljust(HEADER_BYTES, b"\0"), directory, *pages], entries


def unpack_index_header(data: bytes) -> IndexHeader | None:
    """The header, of any format, or None if these bytes are not one."""
    size = _HEADER_PREFIX_BYTES
    if len(data) < HEADER_BYTES or _CHECKSUM.unpack_from(data, size)[0] != crc32c(data[:size]):
        return None
    magic, version, kind, number, identity, end, switches, sections, checksum = _HEADER.unpack_from(data)
    if magic != MAGIC or kind not in (1, 2):
        return None
    return IndexHeader(kind == 1, number, identity, end, switches, sections, checksum, version)


def unpack_directory(header: IndexHeader, data: bytes) -> list[SectionEntry] | None:
    """The directory, or None if these bytes are not the one that belongs to the header."""
    if len(data) != header.directory_bytes or crc32c(data) != header.directory_checksum:
        return None
    return [SectionEntry._make(fields) for fields in _SECTION.iter_unpack(data)]
