"""The batch: consecutive entries of one write set as one piece of bytes (format 1).

One batch is one wire payload, one journal record, one stored and one read unit. Its bytes are built once and copied
verbatim ever after (W3), so every replica is byte-identical. Little-endian throughout:

    header (72 bytes)  magic "rlog", format, digest type, flags, size of the whole batch, count, stride, reserved,
                       ledger id, first entry id, last add confirmed when first sent, stamp (term of the writer that
                       first wrote it), timestamp (ns since the epoch), cumulative payload length of the ledger
                       up to and including the gathering that this batch belongs to
    offsets            int32 x (count + 1), from 0 to the length of the payloads: Arrow's BinaryArray layout
    payloads           in one piece
    code               authentication code over all the bytes before it: 4 bytes of CRC32C, or 64 bytes: the SHA-256 of
                       offsets and payloads, then the HMAC-SHA256 of the header and that SHA-256. So the header and these
                       64 bytes alone prove the last add confirmed in the header (R11, `replog.protocol.proofs`)

The ids of a batch are first, first + stride, ...: stride is E when entries stripe over more bookies than the write
quorum (W1), else 1. Flags of the low byte may be ignored by a reader that doesn't know them; those of the high byte may not.

With the flag 0x0100 offsets and payloads are one zstd frame, and the reserved field has how long they are without it. The code
covers the bytes as they are stored: copying or checking a batch never expands it (`replog.protocol.compression`).
With the flag 0x0200 each payload is an envelope: data with a key, headers or an id (`replog.protocol.envelope`).
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, overload

from replog.errors import PayloadTooLargeError, RemoteProtocolError
from replog.protocol.compression import Compressor, expand
from replog.protocol.digest import CODE_SIZES, Bytes, Digest, DigestType, is_crc32c_sealed
from replog.protocol.envelope import Enveloped

FORMAT = 1
MAGIC = b"rlog"
HEADER = struct.Struct("<4sBBHIIIIqqqqqQ")
ENTRY_BYTES_MAX = 16 << 20
BATCH_BYTES_MAX = 32 << 20
BATCH_COUNT_MAX = 1 << 20
ENTRY_ID_MAX = (1 << 63) - 1
COMPRESSED = 0x0100  # flag: offsets and payloads are one zstd frame
ENVELOPES = 0x0200  # flag: each payload is an envelope
_REQUIRED_FLAGS = 0xFF00
_UNKNOWN_FLAGS = _REQUIRED_FLAGS & ~(COMPRESSED | ENVELOPES)  # that a reader may not ignore
_FLAGS_FIELD, _SIZE_FIELD, _PLAIN_SIZE_FIELD = 3, 4, 7  # of a header's fields
HIGH_FLAGS = 7  # where the flags' high byte is in a batch; nearly always 0
_CACHED_COUNT_MAX = 4096  # of larger batches little is cached: it would keep much memory
_RECENT_COUNT_MAX = 65_536  # up to this many, the offsets of the last shapes are: bulk loads repeat one
_DIGEST_TYPES = {int(digest_type): digest_type for digest_type in DigestType}


class Batch:
    """The decoded header of a batch, and its bytes. Immutable by convention; equal if the bytes are.

    `decode` has checked every header field against the bytes' length, but not yet the authentication code:
    ask `verify`, or on a bookie `check_damage`.
    """

    is_compressed = False  # its offsets and payloads are one zstd frame

    __slots__ = (
        "count",
        "cumulative_length",
        "data",
        "digest_type",
        "first_entry_id",
        "is_sealed",
        "last_add_confirmed",
        "last_entry_id",
        "ledger_id",
        "stamp",
        "stride",
        "timestamp_ns",
    )

    def __init__(
        self,
        data: bytes,
        digest_type: DigestType,
        count: int,
        stride: int,
        ledger_id: int,
        first_entry_id: int,
        last_add_confirmed: int,
        stamp: int,
        timestamp_ns: int,
        cumulative_length: int,
    ) -> None:
        self.data = data
        self.digest_type = digest_type
        self.count = count
        self.stride = stride
        self.ledger_id = ledger_id
        self.first_entry_id = first_entry_id
        self.last_entry_id = first_entry_id + (count - 1) * stride
        self.last_add_confirmed = last_add_confirmed
        self.stamp = stamp
        self.timestamp_ns = timestamp_ns
        self.cumulative_length = cumulative_length
        # It is known to end with the CRC32C of all before it: built so, or seen by `check_damage`
        self.is_sealed = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Batch) and self.data == other.data

    def __hash__(self) -> int:
        return hash(self.data)

    def __repr__(self) -> str:
        return f"<batch {self.ledger_id}/{self.first_entry_id}..{self.last_entry_id}/{self.stride} stamp {self.stamp}>"

    def plain(self) -> Batch:
        """The same entries without compression."""
        return self

    @property
    def entry_ids(self) -> range:
        """The ids of the entries held."""
        return range(self.first_entry_id, self.last_entry_id + 1, self.stride)

    @property
    def has_envelopes(self) -> bool:
        """True if each payload is an envelope."""
        return bool(self.data[HIGH_FLAGS] << 8 & ENVELOPES)

    def holds(self, entry_id: int) -> bool:
        """True if this entry is one of them."""
        first = self.first_entry_id
        return first <= entry_id <= self.last_entry_id and not (entry_id - first) % self.stride

    def verify(self, digest: Digest) -> bool:
        """True if a writer with the password wrote these bytes."""
        return self.digest_type is digest.digest_type and digest.verifies(self.data, HEADER.size)

    def payloads(self) -> list[bytes]:
        """The entries' payloads as they are stored, in the order of their ids.

        Raises `RemoteProtocolError` if the offsets are not in order: then the writer was broken or hostile."""
        data = self.data
        start = HEADER.size + 4 * (self.count + 1)
        # Entries of one size are the usual case. Then the offsets are known, and one `unpack` cuts all of them.
        length = len(data) - start - CODE_SIZES[self.digest_type]
        size = length // self.count
        if size and size * self.count == length and data.startswith(_even_offsets(self.count, size), HEADER.size):
            return list(_even_struct(self.count, size).unpack_from(data, start))
        offsets = self._checked_offsets(length)
        # A copy costs less than adding the start to each offset.
        joined = data[start : start + length]
        return [joined[begin:end] for begin, end in itertools.pairwise(offsets)]

    def arrow_buffers(self) -> tuple[memoryview, memoryview]:
        """The int32 offsets and the payload bytes, without a copy: buffers of an Arrow BinaryArray of `count` values."""
        start = HEADER.size + 4 * (self.count + 1)
        length = len(self.data) - start - CODE_SIZES[self.digest_type]
        size = length // self.count
        even = size and size * self.count == length
        if not (even and self.data.startswith(_even_offsets(self.count, size), HEADER.size)):
            self._checked_offsets(length)
        view = memoryview(self.data)
        return view[HEADER.size : start], view[start : start + length]

    def _checked_offsets(self, length: int) -> list[int]:
        offsets = list(struct.unpack_from(f"<{self.count + 1}i", self.data, HEADER.size))
        if offsets[0] != 0 or offsets[-1] != length or sorted(offsets) != offsets:
            raise RemoteProtocolError(f"{self!r}: its offsets are out of order or leave the payloads")
        return offsets


class CompressedBatch(Batch):
    """A batch whose offsets and payloads are one zstd frame. It is expanded each time that its entries are read: a reader that
    has verified it and reads it twice keeps `plain`."""

    __slots__ = ()
    is_compressed = True

    def plain(self) -> Batch:
        """The same entries without compression. The code at its end is not that of the new bytes: it goes nowhere.

        Raises `RemoteProtocolError` if the writer was broken or hostile, `CompressionUnavailableError`."""
        data = self.data
        fields = list(HEADER.unpack_from(data))
        code_at, size_bytes = len(data) - CODE_SIZES[self.digest_type], fields[_PLAIN_SIZE_FIELD]
        body = expand(memoryview(data)[HEADER.size : code_at], size_bytes)
        fields[_FLAGS_FIELD] &= ~COMPRESSED
        fields[_SIZE_FIELD] += size_bytes - (code_at - HEADER.size)
        fields[_PLAIN_SIZE_FIELD] = 0
        return decode_stored(b"".join((HEADER.pack(*fields), body, data[code_at:])))

    def payloads(self) -> list[bytes]:
        """The payloads of all entries; raises like `plain`."""
        return self.plain().payloads()

    def arrow_buffers(self) -> tuple[memoryview, memoryview]:
        """The offsets and data of an Arrow column, from an uncompressed copy of the batch; raises like `plain`."""
        return self.plain().arrow_buffers()


class PendingBatch:
    """A batch on its way to an ack quorum, and the indices of its write set that acknowledged it, as bit masks."""

    __slots__ = ("acknowledged", "batch", "write_mask")

    def __init__(self, batch: Batch, write_mask: int) -> None:
        self.batch = batch
        self.write_mask = write_mask
        self.acknowledged = 0


def size_of(payloads: Sequence[bytes]) -> int:
    """The bytes that entries have together."""
    return payloads.size_bytes if type(payloads) is PackedPayloads else sum(map(len, payloads))


def _no_list(payloads: object) -> TypeError:
    return TypeError(
        f"expected a list of entries, each of them bytes, not {type(payloads).__name__}: nothing was written"
    )


_BYTES = {bytes}
_TOO_LARGE = {ENTRY_BYTES_MAX + 1}


class Payloads(list[bytes]):
    """Entries that were found fit to be appended, in a list of their own. `size_bytes` is what they have together;
    `has_envelopes` is True if some are `Enveloped`.

    Raises `TypeError` or `PayloadTooLargeError` as `check_payload` does."""

    __slots__ = ("has_envelopes", "size_bytes")

    def __init__(self, payloads: Iterable[bytes]) -> None:
        try:
            super().__init__(payloads)
        except TypeError:
            raise _no_list(payloads) from None
        # Sets of types and sizes: a loop in Python would cost more than everything else that is done to an entry.
        self.has_envelopes = False
        sizes_bytes = set(map(len, self)) if set(map(type, self)) <= _BYTES else _TOO_LARGE
        if sizes_bytes and max(sizes_bytes) > ENTRY_BYTES_MAX:
            given: object = payloads
            if isinstance(given, bytes | str):
                raise _no_list(given)
            for payload in self:
                check_payload(payload)
            self.has_envelopes = Enveloped in map(type, self)
            sizes_bytes = set(map(len, self))
        self.size_bytes = len(self) * sizes_bytes.pop() if len(sizes_bytes) == 1 else sum(map(len, self))


class PackedPayloads(Sequence[bytes]):
    """Entries in one piece, as Arrow has them: int32 offsets from 0 on, one more than there are entries, and the payloads one
    behind the other. A batch is built of them without looking at each. The caller has checked the offsets."""

    __slots__ = ("data", "offsets", "size_bytes")

    def __init__(self, offsets: Bytes, data: Bytes) -> None:
        self.offsets = offsets
        self.data = data
        self.size_bytes = len(data)
        assert len(self) > 0, "a batch has entries"
        assert self._edges[-1] == self.size_bytes, "the offsets are those of the payloads"

    @property
    def _edges(self) -> memoryview[int]:
        return memoryview(self.offsets).cast("B").cast("i")

    def __len__(self) -> int:
        return len(self.offsets) // 4 - 1

    def __iter__(self) -> Iterator[bytes]:
        data = bytes(self.data)
        return (data[begin:end] for begin, end in itertools.pairwise(self._edges))

    @overload
    def __getitem__(self, place: int) -> bytes: ...
    @overload
    def __getitem__(self, place: slice) -> list[bytes]: ...
    def __getitem__(self, place: int | slice) -> bytes | list[bytes]:
        return list(self)[place]


def build(
    digest: Digest,
    *,
    ledger_id: int,
    first_entry_id: int,
    stride: int,
    payloads: Sequence[bytes],
    last_add_confirmed: int,
    stamp: int,
    timestamp_ns: int,
    cumulative_length: int,
) -> Batch:
    """Builds a batch's bytes. The caller has checked each payload with `check_payload`, and keeps to the limits of a
    batch: every bookie would refuse a larger one. All payloads are `Enveloped`, or none is."""
    count = len(payloads)
    assert count <= BATCH_COUNT_MAX, "too many entries for one batch"
    offsets: Bytes
    pieces: Sequence[Bytes] = payloads
    flags = 0
    if type(payloads) is PackedPayloads:
        offsets, length, pieces = payloads.offsets, payloads.size_bytes, (payloads.data,)
    else:
        flags = ENVELOPES if payloads[0].__class__ is Enveloped else 0
        size = len(payloads[0])
        if count == 1 or len(set(map(len, payloads))) == 1:
            is_small = count <= _CACHED_COUNT_MAX  # nearly always
            offsets = _small_even_offsets(count, size) if is_small else _even_offsets(count, size)
            length = count * size
        else:
            starts = list(itertools.accumulate(map(len, payloads), initial=0))
            offsets, length = struct.pack(f"<{count + 1}i", *starts), starts[-1]
    batch_bytes = HEADER.size + len(offsets) + length + digest.code_size
    assert batch_bytes <= BATCH_BYTES_MAX, "too many bytes for one batch"
    header = HEADER.pack(
        MAGIC,
        FORMAT,
        digest.digest_type,
        flags,
        batch_bytes,
        count,
        stride,
        0,
        ledger_id,
        first_entry_id,
        last_add_confirmed,
        stamp,
        timestamp_ns,
        cumulative_length,
    )
    batch = Batch(
        digest.seal(header, (offsets, *pieces)),
        digest.digest_type,
        count,
        stride,
        ledger_id,
        first_entry_id,
        last_add_confirmed,
        stamp,
        timestamp_ns,
        cumulative_length,
    )
    assert len(batch.data) == batch_bytes, "a batch has the size that its header says"
    batch.is_sealed = digest.digest_type is DigestType.CRC32C
    return batch


def builder(compressor: Compressor | None) -> Callable[..., Batch]:
    """Returns the function that builds one writer's batches: `build`, or the same with compression where that saves enough."""
    if compressor is None:
        return build

    def build_compressed(digest: Digest, **fields: Any) -> Batch:
        return _compress(build(digest, **fields), digest, compressor)

    return build_compressed


def _compress(batch: Batch, digest: Digest, compressor: Compressor) -> Batch:
    code_at = len(batch.data) - digest.code_size
    body = memoryview(batch.data)[HEADER.size : code_at]
    frame = compressor.compress(body)
    if frame is None:
        return batch
    fields = list(HEADER.unpack_from(batch.data))
    fields[_FLAGS_FIELD] |= COMPRESSED
    fields[_SIZE_FIELD] += len(frame) - len(body)
    fields[_PLAIN_SIZE_FIELD] = len(body)
    compressed = decode_stored(digest.seal(HEADER.pack(*fields), (frame,)))
    compressed.is_sealed = batch.is_sealed
    return compressed


def check_payload(payload: object) -> None:
    """Raises `TypeError` or `PayloadTooLargeError` if this can't be an entry."""
    if not isinstance(payload, bytes):
        raise TypeError(f"an entry must be bytes, not {type(payload).__name__}: nothing was written, convert it")
    if len(payload) > ENTRY_BYTES_MAX:
        raise PayloadTooLargeError(
            f"an entry of {len(payload)} bytes: the limit is {ENTRY_BYTES_MAX}; nothing was written, split it"
        )


def decode(data: bytes) -> Batch:
    """Reads a batch's header. Raises `RemoteProtocolError` for anything that isn't a batch, and nothing else."""
    if len(data) < HEADER.size:
        raise RemoteProtocolError(f"{len(data)} bytes are too few for a batch's header")
    (
        magic,
        version,
        digest_number,
        flags,
        size,
        count,
        stride,
        plain_bytes,
        ledger_id,
        first,
        confirmed,
        stamp,
        time_ns,
        length,
    ) = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise RemoteProtocolError(f"these bytes begin with {magic!r}: not a batch")
    if version != FORMAT:
        raise RemoteProtocolError(f"a batch of format {version}: this replog reads format {FORMAT}, upgrade it")
    digest_type = _DIGEST_TYPES.get(digest_number)
    kind, whole = Batch, size
    if digest_type is None or flags:
        if digest_type is None or flags & _UNKNOWN_FLAGS:
            raise RemoteProtocolError(
                f"a batch with digest type {digest_number}, flags {flags:#x}: unknown, upgrade replog"
            )
        if flags & COMPRESSED:
            kind, whole = CompressedBatch, HEADER.size + plain_bytes + CODE_SIZES[digest_type]
            if whole > BATCH_BYTES_MAX or size <= whole - plain_bytes:
                raise RemoteProtocolError(
                    f"a compressed batch that claims {whole} bytes in {size}; the limit is {BATCH_BYTES_MAX}"
                )
    if size != len(data) or size > BATCH_BYTES_MAX:
        raise RemoteProtocolError(f"a batch that claims {size} bytes in {len(data)}; the limit is {BATCH_BYTES_MAX}")
    if not 1 <= count <= BATCH_COUNT_MAX or HEADER.size + 4 * (count + 1) + CODE_SIZES[digest_type] > whole:
        raise RemoteProtocolError(f"a batch of {count} entries in {size} bytes")
    # Checked here once, so that later code never computes with ids that no writer could have given out.
    if ledger_id < 0 or first < 0 or stride < 1 or first + (count - 1) * stride > ENTRY_ID_MAX:
        raise RemoteProtocolError(f"a batch of ledger {ledger_id}, entry {first}, stride {stride}: out of range")
    if not -1 <= confirmed < first or stamp < 1:
        raise RemoteProtocolError(f"a batch of entry {first} with last add confirmed {confirmed}, stamp {stamp}")
    return kind(data, digest_type, count, stride, ledger_id, first, confirmed, stamp, time_ns, length)


def decode_stored(data: bytes) -> Batch:
    """Decodes bytes that are proven to be a stored batch, without checking them again."""
    _, _, digest, flags, _, count, stride, _, ledger_id, first, confirmed, stamp, time_ns, length = HEADER.unpack_from(
        data
    )
    if flags:
        kind = CompressedBatch if flags & COMPRESSED else Batch
        return kind(data, _DIGEST_TYPES[digest], count, stride, ledger_id, first, confirmed, stamp, time_ns, length)
    return Batch(data, _DIGEST_TYPES[digest], count, stride, ledger_id, first, confirmed, stamp, time_ns, length)


def check_damage(batch: Batch) -> None:
    """Checks a batch without the password: raises `RemoteProtocolError` if a CRC32C batch is damaged.

    The code of an HMAC batch can't be checked here; its frame or record has a checksum of its own."""
    if batch.digest_type is DigestType.CRC32C and not batch.is_sealed:
        if not is_crc32c_sealed(batch.data):
            raise RemoteProtocolError(f"{batch!r} does not match its CRC32C: it was damaged on the way or on disk")
        batch.is_sealed = True


def _even_struct(count: int, size: int) -> struct.Struct:
    return _small_even_struct(count, size) if count <= _CACHED_COUNT_MAX else struct.Struct(f"{size}s" * count)


def _even_offsets(count: int, size: int) -> bytes:
    if count <= _CACHED_COUNT_MAX:
        return _small_even_offsets(count, size)
    return _recent_even_offsets(count, size) if count <= _RECENT_COUNT_MAX else _pack_even_offsets(count, size)


@lru_cache(maxsize=64)
def _small_even_struct(count: int, size: int) -> struct.Struct:
    return struct.Struct(f"{size}s" * count)


@lru_cache(maxsize=64)
def _small_even_offsets(count: int, size: int) -> bytes:
    return _pack_even_offsets(count, size)


@lru_cache(maxsize=2)
def _recent_even_offsets(count: int, size: int) -> bytes:
    return _pack_even_offsets(count, size)


def _pack_even_offsets(count: int, size: int) -> bytes:
    return struct.pack(f"<{count + 1}i", *range(0, count * size + 1, size)) if size else bytes(4 * (count + 1))
