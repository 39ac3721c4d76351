"""Proofs of a last add confirmed: short bytes that show that its writer, or a recovery, said so (R11).

One bookie's bare number decides nothing. A proof names the ledger, the stamp (the term of the writer whose entry it is), the
last add confirmed and the digest type. There are two kinds, told apart by their first four bytes:

    explicit   32 bytes: magic "rlac", format, digest type, reserved, ledger id, stamp, last add confirmed; then their code
               under the ledger's digest: 4 bytes (CRC32C) or 32 (HMAC-SHA256). Little-endian, as a batch's header.
    head       the header of an HMAC batch and the 64 bytes of its code: what is between them is not needed

Nothing at all, `b""`, proves the last add confirmed -1. A ledger with the digest CRC32C has no secret: anybody who
knows a number can make an explicit proof of it. So there a proof finds damage and mistakes, not lies. A bookie makes
such a proof from a stored batch's header.
"""

from __future__ import annotations

import struct

import attrs
from crc32c import crc32c

from replog.errors import RemoteProtocolError
from replog.protocol.batch import ENTRY_ID_MAX, HEADER, Batch
from replog.protocol.batch import MAGIC as BATCH_MAGIC
from replog.protocol.digest import CODE_SIZES, SIGNATURE_SIZES, Digest, DigestType
from replog.protocol.model import NO_ENTRY, WRITER_TERM, LedgerMetadata

MAGIC = b"rlac"
FORMAT = 1
HEAD_BYTES, CODE_BYTES = HEADER.size, CODE_SIZES[DigestType.HMAC_SHA256]
PROOF_BYTES_MAX = HEAD_BYTES + CODE_BYTES
_EXPLICIT = struct.Struct("<4sBBHqqq")
_NUMBER = struct.Struct("<q")
_EXPLICIT_AT = _EXPLICIT.size - _NUMBER.size  # where an explicit proof has the last add confirmed
_HEAD_AT = 40  # where a batch's header has it
_DIGEST_TYPES = {int(digest_type): digest_type for digest_type in DigestType}


@attrs.frozen
class Claim:
    """The claim in a proof. Only its code shows whether it is true."""

    ledger_id: int
    stamp: int
    last_add_confirmed: int
    digest_type: DigestType


def prove(digest: Digest, ledger_id: int, stamp: int, last_add_confirmed: int) -> bytes:
    """The explicit proof of a last add confirmed; nothing for -1."""
    if last_add_confirmed == NO_ENTRY:
        return b""
    statement = _pack(digest.digest_type, ledger_id, stamp, last_add_confirmed)
    return statement + digest.sign(statement)


def _pack(digest_type: DigestType, ledger_id: int, stamp: int, last_add_confirmed: int) -> bytes:
    return _EXPLICIT.pack(MAGIC, FORMAT, digest_type, 0, ledger_id, stamp, last_add_confirmed)


def head_of(batch: Batch) -> bytes:
    """The bytes of a batch that `proof_of_head` needs: a few, without keeping the batch in memory."""
    data = batch.data
    return data[:HEAD_BYTES] + data[-CODE_BYTES:]


def proof_of_head(head: bytes) -> bytes:
    """The proof of the last add confirmed in a batch's header; `head` is what `head_of` gave, or a proof already."""
    if not head.startswith(BATCH_MAGIC):
        return head
    assert len(head) == HEAD_BYTES + CODE_BYTES, "a head is cut to its size"
    _, _, digest_number, *_, ledger_id, _, confirmed, stamp, _, _ = HEADER.unpack_from(head)
    if confirmed == NO_ENTRY:
        return b""
    # Under HMAC the header with its code is a proof as it is; under CRC32C the code covers the payloads, too.
    if digest_number != DigestType.CRC32C:
        return head
    statement = _pack(DigestType.CRC32C, ledger_id, stamp, confirmed)
    return statement + crc32c(statement).to_bytes(4, "little")


def claimed(proof: bytes) -> int:
    """The last add confirmed that a proof claims, unchecked; -1 if it is not a proof. For comparing proofs."""
    if len(proof) > _EXPLICIT.size and proof.startswith(MAGIC):
        return int(_NUMBER.unpack_from(proof, _EXPLICIT_AT)[0])
    if len(proof) == PROOF_BYTES_MAX and proof.startswith(BATCH_MAGIC):
        return int(_NUMBER.unpack_from(proof, _HEAD_AT)[0])
    return NO_ENTRY


def better_proof(one: bytes, other: bytes) -> bytes:
    """The proof that claims more; the first one if they claim the same."""
    return other if claimed(other) > claimed(one) else one


def read_claim(proof: bytes) -> Claim:
    """The claim in a proof. Raises `RemoteProtocolError` if it is not a proof, or is a damaged one of CRC32C."""
    if proof.startswith(MAGIC) and len(proof) > _EXPLICIT.size:
        _, version, digest_number, _, ledger_id, stamp, confirmed = _EXPLICIT.unpack_from(proof)
        size = _EXPLICIT.size + SIGNATURE_SIZES.get(digest_number, 0)
    elif proof.startswith(BATCH_MAGIC) and len(proof) == PROOF_BYTES_MAX:
        _, version, digest_number, *_, ledger_id, _, confirmed, stamp, _, _ = HEADER.unpack_from(proof)
        size = PROOF_BYTES_MAX if digest_number == DigestType.HMAC_SHA256 else 0
    else:
        raise RemoteProtocolError(f"{len(proof)} bytes that are not a proof of a last add confirmed (R11)")
    digest_type = _DIGEST_TYPES.get(digest_number)
    if version != FORMAT or digest_type is None or len(proof) != size:
        raise RemoteProtocolError(f"a proof of format {version}, digest type {digest_number}, {len(proof)} bytes")
    if ledger_id < 0 or stamp < 1 or not 0 <= confirmed <= ENTRY_ID_MAX:
        raise RemoteProtocolError(f"a proof of ledger {ledger_id}, stamp {stamp}, entry {confirmed}: out of range")
    if digest_type is DigestType.CRC32C and crc32c(proof[:-4]).to_bytes(4, "little") != proof[-4:]:
        raise RemoteProtocolError(f"a proof of ledger {ledger_id}, entry {confirmed}: it does not match its CRC32C")
    return Claim(ledger_id, stamp, confirmed, digest_type)


def proven(proof: bytes, digest: Digest, metadata: LedgerMetadata) -> int:
    """The last add confirmed that this proof proves for the ledger with this record; -1 for no proof.

    The stamp of a proof is the term of the writer that said so. It is of use only to a client whose record has that term: with an
    older one, the client would take entries of a deposed writer for confirmed ones (X11). Then this is -1, too.

    Raises `RemoteProtocolError` if it proves nothing: then its sender is damaged, or lies (R11)."""
    if not proof:
        return NO_ENTRY
    claim = read_claim(proof)
    if claim.ledger_id != metadata.ledger_id or claim.digest_type is not digest.digest_type:
        raise RemoteProtocolError(f"{claim} for ledger {metadata.ledger_id} with digest {digest.digest_type.name}")
    # What a writer confirmed has its own stamp, or an earlier one. A bounded ledger has no further terms.
    is_possible = not is_outlived(claim, metadata)
    if not (is_possible and (metadata.is_unbounded or claim.stamp == WRITER_TERM) and digest.is_signed(proof)):
        raise RemoteProtocolError(
            f"{claim} is not proven by its code: it does not come from a holder of the password (R11)"
        )
    return claim.last_add_confirmed if is_qualified(claim.stamp, metadata) else NO_ENTRY


def is_qualified(stamp: int, metadata: LedgerMetadata) -> bool:
    """True if a last add confirmed with this stamp is of use to a client that knows this record (R11)."""
    return stamp <= metadata.last_fragment.term


def is_outlived(claim: Claim, metadata: LedgerMetadata) -> bool:
    """True if this record gives the entry to a later term than the proof's: so a record was lost that named the proof's
    writer, and the term was raised (T1). The entries confirmed by that writer are gone."""
    confirmed = claim.last_add_confirmed
    if not metadata.is_listed(confirmed):
        return False  # such an old claim is of no use to anybody: what is listed is confirmed further
    return confirmed >= metadata.trim_to and metadata.fragment_of(confirmed).term > claim.stamp
