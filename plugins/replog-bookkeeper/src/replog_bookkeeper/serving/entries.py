"""BookKeeper's entries as a bookie of replog's keeps them: each is a batch of one, whose payload is the whole entry as it came.

A bookie cannot check a digest: no request says which type a ledger has. It takes the last add confirmed of an entry's header as
its writer's word, as Java's bookies do, and hands on the bytes, of which clients check the digest.

An explicit last add confirmed is kept as a proof of replog's that bookies do not check (R11): under HMAC, with BookKeeper's
digest in the place of the code.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

from crc32c import crc32c

from replog.abc import StoredRange
from replog.errors import RemoteProtocolError
from replog.protocol import batch as batches
from replog.protocol.batch import Batch
from replog.protocol.digest import SIGNATURE_SIZES, DigestType
from replog.protocol.fragments import WRITER_TERM
from replog.protocol.proofs import MAGIC, read_claim
from replog_bookkeeper.digests import process_digest

HEADER_BYTES = 32
_HEADER = struct.Struct(">qqqq")
_EXPLICIT = struct.Struct(">qq")
_CRC32, _CRC32C, _MAC = 8, 4, 20  # bytes of a digest
_DIGEST_SIZES = (0, _CRC32C, _CRC32, _MAC)
_PROOF = struct.Struct("<4sBBHqqq")  # of `replog.protocol.proofs`
_PROOF_FORMAT = 1
_CODE_BYTES = SIGNATURE_SIZES[DigestType.HMAC_SHA256]
_AVAILABILITY_HEAD = struct.Struct(">ii56x")
_SEQUENCES = struct.Struct(">qqii")
_INT32_MAX = (1 << 31) - 1


# -- entries ----------------------------------------------------------------------------------------------------------


def wrap_entry(body: bytes, ledger_id: int, entry_id: int) -> Batch:
    """The batch that keeps an entry. Raises `RemoteProtocolError` if it is another entry than the request says, or none."""
    if len(body) < HEADER_BYTES:
        raise RemoteProtocolError(f"{len(body)} bytes are too few for an entry of ledger {ledger_id}")
    found_ledger, found_entry, confirmed, length = _HEADER.unpack_from(body)
    if found_ledger != ledger_id or found_entry != entry_id or ledger_id < 0 or entry_id < 0 or length < 0:
        problem = (
            f"entry {found_entry} of ledger {found_ledger}, length {length}, in an add of {entry_id} of {ledger_id}"
        )
        raise RemoteProtocolError(problem)
    return batches.build(
        process_digest(ledger_id),
        ledger_id=ledger_id,
        first_entry_id=entry_id,
        stride=1,
        payloads=(body,),
        # Java's repairs stamp copies with what is confirmed by then, which may be this entry or a later one.
        last_add_confirmed=max(-1, min(confirmed, entry_id - 1)),
        stamp=WRITER_TERM,
        timestamp_ns=0,
        cumulative_length=length,
    )


def unwrap_entry(batch: Batch) -> bytes:
    """The entry that a batch keeps, as it came."""
    (body,) = batch.payloads()
    return body


def is_same_entry(stored: Batch, batch: Batch) -> bool:
    """True if an entry comes again, with the same length and payload. Java's recoveries resend an entry with another last add
    confirmed in its header, and so with another digest; the first copy stays.

    No request names the digest type: the stored entry's own bytes show how long its digest is. HMAC and DUMMY cannot be told
    apart without the password: there payloads are compared from behind the larger of the two."""
    one, other = unwrap_entry(stored), unwrap_entry(batch)
    if one == other:
        return True
    if len(one) != len(other) or one[:HEADER_BYTES] == other[:HEADER_BYTES]:
        return False  # under the same header, the same payload has the same digest
    if stored.cumulative_length != batch.cumulative_length:
        return False
    for size, fits in ((_CRC32C, _fits_crc32c), (_CRC32, _fits_crc32)):
        if fits(one):
            start = HEADER_BYTES + size
            return fits(other) and memoryview(one)[start:] == memoryview(other)[start:]
    start = HEADER_BYTES + _MAC
    return memoryview(one)[start:] == memoryview(other)[start:]


def _fits_crc32c(entry: bytes) -> bool:
    start = HEADER_BYTES + _CRC32C
    code = crc32c(memoryview(entry)[start:], crc32c(entry[:HEADER_BYTES]))
    return entry[HEADER_BYTES:start] == code.to_bytes(_CRC32C, "big")


def _fits_crc32(entry: bytes) -> bool:
    start = HEADER_BYTES + _CRC32
    code = zlib.crc32(memoryview(entry)[start:], zlib.crc32(entry[:HEADER_BYTES]))
    return entry[HEADER_BYTES:start] == code.to_bytes(_CRC32, "big")


# -- explicit last add confirmed --------------------------------------------------------------------------------------


def wrap_confirmed(body: bytes, ledger_id: int) -> bytes:
    """The proof that keeps an explicit last add confirmed; b"" for -1, which needs none. Raises `RemoteProtocolError`."""
    size = len(body) - _EXPLICIT.size
    if size not in _DIGEST_SIZES:
        raise RemoteProtocolError(f"{len(body)} bytes are not a last add confirmed of ledger {ledger_id}")
    found_ledger, confirmed = _EXPLICIT.unpack_from(body)
    if found_ledger != ledger_id or confirmed < -1:
        problem = f"last add confirmed {confirmed} of ledger {found_ledger} in a request for ledger {ledger_id}"
        raise RemoteProtocolError(problem)
    if confirmed < 0:
        return b""
    head = _PROOF.pack(MAGIC, _PROOF_FORMAT, DigestType.HMAC_SHA256, 0, ledger_id, WRITER_TERM, confirmed)
    return head + body[_EXPLICIT.size :].ljust(_CODE_BYTES - 1, b"\0") + bytes((size,))


def unwrap_confirmed(proof: bytes) -> bytes | None:
    """The explicit last add confirmed that a proof keeps, as it came; None if this is none that a client sent."""
    if len(proof) != _PROOF.size + _CODE_BYTES or not proof.startswith(MAGIC) or proof[-1] not in _DIGEST_SIZES:
        return None
    claim = read_claim(proof)
    code = proof[_PROOF.size : _PROOF.size + proof[-1]]
    return _EXPLICIT.pack(claim.ledger_id, claim.last_add_confirmed) + code


# -- lists of entries -------------------------------------------------------------------------------------------------


def encode_availability(ranges: Sequence[StoredRange], groups_max: int) -> bytes | None:
    """The list of the entries in these ranges, as BookKeeper has it: sequences of one size and one distance make a group. None if
    it takes more groups than that."""
    groups: list[list[int]] = []  # first start, last start, size, period
    for first, last in _sequences(ranges):
        size, known = last - first + 1, groups[-1] if groups else None
        if known is not None and known[2] == size and (first - known[1] == known[3] or known[0] == known[1]):
            period = first - known[1]
            if period <= _INT32_MAX:
                known[1], known[3] = first, period
                continue
        groups.append([first, first, size, 0])
        if len(groups) > groups_max:
            return None
    return _AVAILABILITY_HEAD.pack(0, len(groups)) + b"".join(_SEQUENCES.pack(*each) for each in groups)


def _sequences(ranges: Sequence[StoredRange]) -> list[tuple[int, int]]:
    """The ranges of consecutive entries, ascending, none of them longer than a group can say."""
    found: list[tuple[int, int]] = []
    pieces = []
    for each in ranges:
        if each.stride == 1:
            pieces.append((each.first_entry_id, each.last_entry_id))
        else:
            pieces += [(entry, entry) for entry in range(each.first_entry_id, each.last_entry_id + 1, each.stride)]
    for first, last in sorted(pieces):
        if found and first == found[-1][1] + 1 and last - found[-1][0] < _INT32_MAX:
            found[-1] = (found[-1][0], last)
        else:
            found += [(at, min(last, at + _INT32_MAX - 1)) for at in range(first, last + 1, _INT32_MAX)]
    return found
