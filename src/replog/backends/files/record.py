"""The bytes of journals and entry logs (format 1): file headers and records.

A journal file begins with a header page of 4096 bytes, little-endian like everything here:

    magic "rlogjrnl", format, reserved, number of the file, epoch, identity of the bookie (16 bytes), CRC32C of all that

An entry log begins with the same page, with the magic "rlogelog"; see `entry_log` for what follows there.

Records follow without gaps. The records of one commit are a *group*: valid only together.

    header (40 bytes)  magic "rlgr", type, flags (bit 0: last of its group), reserved, length of the payload, position
                       in the group, epoch, sequence of the group, checksum of the payload, checksum of the header
    payload            BATCH: a batch, verbatim
                       MARKS: ledger id, fence term, last add confirmed, revision, length of the key or -1, key,
                       proof
                       DROP: ledger id
                       EPOCH: the epoch of all records that follow, this group's included
                       RUN: batches of one ledger and stamp, back to back; in entry logs only
                       DROP_ENTRIES: ledger id, stamp, first and last entry, stride

The *sequence* counts groups over the storage's whole life. A group is written only when the one before is durable, so a
header with a higher sequence proves that everything before it was durable once. The *epoch* is random: a recycled file
gets a new one, and so does a file that an earlier process wrote to. A record counts only if it has the epoch that is
current at its place, so leftovers of an earlier life or a torn write never join a later group.

Checksums are CRC32C; that of a header starts from the file's number and the bookie's identity. That of a payload covers
its last four bytes and the CRC32C of all before them, in this order: most batches end with their own CRC32C, and a
plain one over such bytes is always the same.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

import attrs
from crc32c import crc32c

FORMAT = 1
PAGE_BYTES = 4096
JOURNAL_MAGIC = b"rlogjrnl"
ENTRY_LOG_MAGIC = b"rlogelog"
MAGIC = b"rlgr"
LAST_OF_GROUP = 1
RECORD_HEADER_BYTES = 40
IDENTITY_BYTES = 16
EPOCH_BYTES = 8  # of the payload of EPOCH

_FILE_HEADER = struct.Struct("<8sIIQQ16s")
_PREFIX = struct.Struct("<4sBBHIIQQI")  # a record's header but for its own checksum
_PREFIX_BYTES = _PREFIX.size
_CHECKSUM = struct.Struct("<I")
_pack_checksum = _CHECKSUM.pack
_SEED = struct.Struct("<Q16s")
_MARKS = struct.Struct("<qqqqi")
_DROP = struct.Struct("<q")
_DROP_ENTRIES = struct.Struct("<qqqqQ")
_EPOCH = struct.Struct("<Q")

assert _PREFIX_BYTES + _CHECKSUM.size == RECORD_HEADER_BYTES

# Ledger id, key, fence term, last add confirmed and its proof, revision: all marks that records set.
MarksOfLedger = tuple[int, bytes | None, int, int, bytes, int]


class RecordType(enum.IntEnum):
    """The types of a record's payload. The numbers are part of the format."""

    BATCH = 1
    MARKS = 2
    DROP = 3
    EPOCH = 4
    RUN = 5
    DROP_ENTRIES = 6


class RecordHeader(NamedTuple):
    """A record's header, as it stands in the file."""

    magic: bytes
    record_type: int
    flags: int
    reserved: int
    length: int
    position: int
    epoch: int
    sequence: int
    payload_checksum: int


@attrs.frozen
class FileHeader:
    """The first page of a journal file, or of an entry log."""

    number: int
    epoch: int
    identity: bytes
    format: int = FORMAT
    magic: bytes = JOURNAL_MAGIC


def pack_file_header(header: FileHeader) -> bytes:
    """The header page."""
    assert len(header.identity) == IDENTITY_BYTES, "struct would cut or pad it in silence"
    packed = _FILE_HEADER.pack(header.magic, header.format, 0, header.number, header.epoch, header.identity)
    return (packed + _CHECKSUM.pack(crc32c(packed))).ljust(PAGE_BYTES, b"\0")


def unpack_file_header(page: bytes) -> FileHeader | None:
    """The header, of any format, or None if these bytes are not one."""
    size = _FILE_HEADER.size
    if len(page) < size + _CHECKSUM.size or _CHECKSUM.unpack_from(page, size)[0] != crc32c(page[:size]):
        return None
    magic, version, _, number, epoch, identity = _FILE_HEADER.unpack_from(page)
    return FileHeader(number, epoch, identity, version, magic) if magic in (JOURNAL_MAGIC, ENTRY_LOG_MAGIC) else None


def checksum_seed(number: int, identity: bytes) -> int:
    """Where the checksums of a file's record headers start."""
    assert len(identity) == IDENTITY_BYTES, "struct would cut or pad it in silence"
    return int(crc32c(_SEED.pack(number, identity)))


def payload_checksum(payload: bytes | memoryview) -> int:
    """The checksum of a payload: over its last four bytes and the CRC32C of what is before them."""
    checksum: int = crc32c(_pack_checksum(crc32c(memoryview(payload)[:-4])), crc32c(payload[-4:]))
    return checksum


def sealed_checksum(payload: bytes) -> int:
    """The checksum of a payload that is known to end with its own CRC32C, without another pass over it. If the payload
    has changed since, memory is faulty, and reads will find the damage."""
    code = payload[-4:]
    return int(crc32c(code, crc32c(code)))


def pack_record_header(
    seed: int, record_type: int, payload: bytes, position: int, is_last: bool, epoch: int, sequence: int, checksum: int
) -> bytes:
    """The 40 bytes that stand before a payload."""
    flags = LAST_OF_GROUP if is_last else 0
    # The checksum starts from the file's seed: a header that was copied from another file or bookie is not intact here.
    prefix = _PREFIX.pack(MAGIC, record_type, flags, 0, len(payload), position, epoch, sequence, checksum)
    return prefix + _pack_checksum(crc32c(prefix, seed))


def unpack_record_header(data: bytes, at: int, seed: int) -> RecordHeader | None:
    """The header at this place, or None if there is no intact one."""
    end = at + _PREFIX_BYTES
    if not data.startswith(MAGIC, at) or end + 4 > len(data):
        return None
    if crc32c(data[at:end], seed) != int.from_bytes(data[end : end + 4], "little"):
        return None
    return RecordHeader._make(_PREFIX.unpack_from(data, at))


def pack_marks(
    ledger_id: int, key: bytes | None, fence_term: int, last_add_confirmed: int, proof: bytes, revision: int
) -> bytes:
    """The payload of MARKS: always all marks of the ledger, so that the newest record alone tells."""
    assert fence_term >= 0, "marks only rise from where they begin"
    assert last_add_confirmed >= -1, "marks only rise from where they begin"
    assert revision >= 0, "marks only rise from where they begin"
    key_length = -1 if key is None else len(key)
    return _MARKS.pack(ledger_id, fence_term, last_add_confirmed, revision, key_length) + (key or b"") + proof


def unpack_marks(payload: bytes | memoryview) -> MarksOfLedger:
    """Ledger id, key, fence term, last add confirmed and its proof, revision."""
    ledger_id, fence_term, last_add_confirmed, revision, key_length = _MARKS.unpack_from(payload)
    key = None if key_length < 0 else bytes(payload[_MARKS.size : _MARKS.size + key_length])
    proof_at = _MARKS.size + max(key_length, 0)
    return ledger_id, key, fence_term, last_add_confirmed, bytes(payload[proof_at:]), revision


def pack_drop(ledger_id: int) -> bytes:
    """The payload of DROP."""
    return _DROP.pack(ledger_id)


def unpack_drop(payload: bytes | memoryview) -> int:
    """The ledger id."""
    return int(_DROP.unpack_from(payload)[0])


def pack_drop_entries(ledger_id: int, stamp: int, first_entry_id: int, last_entry_id: int, stride: int) -> bytes:
    """The payload of DROP_ENTRIES."""
    assert first_entry_id <= last_entry_id, "a range has entries"
    assert stride >= 1, "entries have a distance"
    return _DROP_ENTRIES.pack(ledger_id, stamp, first_entry_id, last_entry_id, stride)


def unpack_drop_entries(payload: bytes | memoryview) -> tuple[int, int, int, int, int]:
    """Ledger id, stamp, first and last entry, stride."""
    return _DROP_ENTRIES.unpack_from(payload)


def pack_epoch(epoch: int) -> bytes:
    """The payload of EPOCH."""
    assert 0 <= epoch < 1 << 64, "an epoch has 64 bits"
    return _EPOCH.pack(epoch)


def unpack_epoch(payload: bytes | memoryview) -> int:
    """The epoch that begins."""
    return int(_EPOCH.unpack_from(payload)[0])
