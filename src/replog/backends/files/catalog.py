"""The catalog: which log files there are, from where the journal is replayed, and all ledgers' marks up to there (B3).

It is the mark of seed 002 ("LastLogMark"), with all that it vouches for. One small file, `catalog`, replaced atomically: a
full journal file is replayed at each start until a catalog says that its index, or the entry log it was flushed to, is
durable; a log file is removed only when a catalog without it is. Little-endian (format 1):

    magic "rlogctlg", format, reserved, identity of the bookie (16 bytes), generation (counts catalogs), number of the
    first journal file to replay, sequence of the last group before it, a sequence that was durable when the catalog was
    written (replay must get that far), next number of an entry log, next: how many of each
        log files        kind (1 journal, 2 entry log), number, age, end in bytes; ascending by age
        deleted ledgers  first and last id of each range
        dropped entries  ledger id, stamp, first and last entry of each range, stride
        ledgers          id, fence term, last add confirmed, last entry id, revision, length of the key or
                         -1, length of the proof, key, proof
    CRC32C of all that
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import attrs
from crc32c import crc32c

from replog.backends.dropped import DroppedRange
from replog.protocol.mutations import Marks

FORMAT = 1
MAGIC = b"rlogctlg"
NAME = "catalog"

_HEADER = struct.Struct("<8sII16sQQQQQQQQQ")
_FILE = struct.Struct("<IQQQ")
_RANGE = struct.Struct("<qq")
_DROPPED = struct.Struct("<qqqqQ")
_LEDGER = struct.Struct("<qqqqqiI")
_CHECKSUM = struct.Struct("<I")


@attrs.frozen
class CatalogFile:
    """A full log file that is indexed: a journal file that was adopted, or an entry log."""

    is_journal: bool
    number: int
    age: int
    end_bytes: int


@attrs.frozen
class Catalog:
    """The contents of one catalog."""

    identity: bytes
    generation: int
    first_journal: int  # to be replayed
    sequence: int  # of the last group before it
    durable_sequence: int  # replay gets at least this far
    next_entry_log: int
    files: list[CatalogFile]
    deleted: list[tuple[int, int]]
    ledgers: Iterable[tuple[int, Marks]] = attrs.field(eq=False)
    dropped: list[tuple[int, DroppedRange]] = attrs.field(factory=list)
    format: int = FORMAT


def pack_catalog(catalog: Catalog, packed_ledgers: Sequence[bytes] | None = None) -> bytes:
    """The file's bytes. `packed_ledgers` are `catalog.ledgers`, each packed already."""
    if packed_ledgers is None:
        packed_ledgers = [pack_ledger(ledger_id, marks) for ledger_id, marks in catalog.ledgers]
    header = _HEADER.pack(
        MAGIC,
        FORMAT,
        0,
        catalog.identity,
        catalog.generation,
        catalog.first_journal,
        catalog.sequence,
        catalog.durable_sequence,
        catalog.next_entry_log,
        len(catalog.files),
        len(catalog.deleted),
        len(catalog.dropped),
        len(packed_ledgers),
    )
    files = [_FILE.pack(1 if file.is_journal else 2, file.number, file.age, file.end_bytes) for file in catalog.files]
    ranges = [_RANGE.pack(first, last) for first, last in catalog.deleted]
    dropped = [_DROPPED.pack(ledger_id, *entries) for ledger_id, entries in catalog.dropped]
    packed = b"".join((header, *files, *ranges, *dropped, *packed_ledgers))
    return packed + _CHECKSUM.pack(crc32c(packed))


def pack_ledger(ledger_id: int, marks: Marks) -> bytes:
    """The marks of a ledger, as the catalog has them."""
    key, proof = marks.key, marks.proof
    numbers = marks.fence_term, marks.last_add_confirmed, marks.last_entry_id, marks.revision
    size = -1 if key is None else len(key)
    return _LEDGER.pack(ledger_id, *numbers, size, len(proof)) + (key or b"") + proof


def unpack_catalog(data: bytes) -> Catalog | None:
    """The catalog, or None if these bytes are none, or damaged. Of another format only the header is read."""
    if len(data) < _HEADER.size + _CHECKSUM.size or not data.startswith(MAGIC):
        return None
    if crc32c(memoryview(data)[: -_CHECKSUM.size]) != _CHECKSUM.unpack_from(data, len(data) - _CHECKSUM.size)[0]:
        return None
    _, version, _, identity, generation, first, sequence, durable, next_log, *counts = _HEADER.unpack_from(data)
    if version != FORMAT:
        return Catalog(identity, generation, first, sequence, durable, next_log, [], [], [], [], version)
    file_count, range_count, dropped_count, ledger_count = counts
    start = _HEADER.size
    middle = start + file_count * _FILE.size
    files = [CatalogFile(kind == 1, *numbers) for kind, *numbers in _FILE.iter_unpack(data[start:middle])]
    end = middle + range_count * _RANGE.size
    deleted = list(_RANGE.iter_unpack(data[middle:end]))
    start, end = end, end + dropped_count * _DROPPED.size
    dropped = [(ledger_id, tuple(entries)) for ledger_id, *entries in _DROPPED.iter_unpack(data[start:end])]
    ledgers = []
    for _ in range(ledger_count):
        ledger_id, fence_term, confirmed, last_entry_id, revision, size, proof_size = _LEDGER.unpack_from(data, end)
        end += _LEDGER.size
        key = None if size < 0 else data[end : end + size]
        end += max(size, 0)
        proof = data[end : end + proof_size]
        end += proof_size
        ledgers.append((ledger_id, Marks(key, fence_term, confirmed, last_entry_id, proof, revision)))
    return Catalog(identity, generation, first, sequence, durable, next_log, files, deleted, ledgers, dropped)
