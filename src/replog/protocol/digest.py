"""Authentication codes over batches, and the keys that come from a ledger's password (W3, B7).

CRC32C finds damage; HMAC-SHA256 also finds forgery without the ledger's password.

The code of a batch is of one of two kinds. CRC32C: the checksum of all bytes before it, so that one pass checks the batch.
HMAC-SHA256: the SHA-256 of the body, then an HMAC over the header and that SHA-256. So the header, the SHA-256 and the
HMAC prove what the header says without the body, and a bookie cuts them out of a batch without any hashing (R11).
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import io
from collections.abc import Sequence

from crc32c import crc32c

Bytes = bytes | bytearray | memoryview


class DigestType(enum.IntEnum):
    """The code that each batch of a ledger carries, to check copies. The numbers are part of the batch format."""

    CRC32C = 1  #: Finds damage.
    HMAC_SHA256 = 2  #: Finds forgeries as well: its key comes from the ledger's password.


# The CRC32C of any bytes followed by their own CRC32C (little-endian): one pass checks it, without cutting the code off.
CRC32C_RESIDUE = 0x48674BC7

_SMALL_BYTES = 16 << 10

CODE_SIZES = {DigestType.CRC32C: 4, DigestType.HMAC_SHA256: 64}  # of a batch
SIGNATURE_SIZES = {DigestType.CRC32C: 4, DigestType.HMAC_SHA256: 32}  # of a statement


class Digest:
    """Computes the codes of one ledger."""

    def __init__(self, digest_type: DigestType, ledger_id: int, password: bytes, creation: str = "") -> None:
        self.digest_type = digest_type
        self.code_size = CODE_SIZES[digest_type]
        self._key = _derive_key(b"replog digest key v1", ledger_id, password, creation)

    def seal(self, header: bytes, body: Sequence[Bytes]) -> bytes:
        """The header and the body in one piece, and their code behind them, with one copy: `BytesIO` changes, and then
        gives away, the bytes that nobody else has. Small pieces are copied twice, which costs less."""
        size = self.code_size
        joined = b"".join((header, *body, bytes(size)))
        if len(joined) <= _SMALL_BYTES and self.digest_type is DigestType.CRC32C:
            joined = joined[:-size]
            return joined + crc32c(joined).to_bytes(4, "little")
        sealed = io.BytesIO(joined)
        del joined  # else `BytesIO` would copy it
        with sealed.getbuffer() as buffer:
            if self.digest_type is DigestType.CRC32C:
                # As `code`, in one pass.
                buffer[-size:] = crc32c(buffer[:-size]).to_bytes(size, "little")
            else:
                buffer[-size:] = self.code(header, buffer[len(header) : -size])
        return sealed.getvalue()

    def code(self, header: Bytes, body: Bytes) -> bytes:
        """The authentication code of a batch with this header and body."""
        if self.digest_type is DigestType.CRC32C:
            return crc32c(body, crc32c(header)).to_bytes(4, "little")
        body_digest = hashlib.sha256(body).digest()
        return body_digest + self.sign(bytes(header) + body_digest)

    def verifies(self, sealed: Bytes, header_size: int) -> bool:
        """True if these bytes end with the code of the header of this size and of the body behind it."""
        if self.digest_type is DigestType.CRC32C:
            return is_crc32c_sealed(sealed)
        size = self.code_size
        if len(sealed) < header_size + size:
            return False
        # Without copies: a batch may have megabytes.
        sealed = memoryview(sealed)
        return hmac.compare_digest(self.code(sealed[:header_size], sealed[header_size:-size]), sealed[-size:])

    def sign(self, statement: bytes) -> bytes:
        """The authentication code of a short statement (R11). Under CRC32C anybody can make it: it finds only damage."""
        if self.digest_type is DigestType.CRC32C:
            return crc32c(statement).to_bytes(4, "little")
        return hmac.digest(self._key, statement, "sha256")

    def is_signed(self, signed: bytes) -> bool:
        """True if these bytes end with the authentication code of the statement before it."""
        size = SIGNATURE_SIZES[self.digest_type]
        return len(signed) > size and hmac.compare_digest(self.sign(signed[:-size]), signed[-size:])


def is_crc32c_sealed(sealed: Bytes) -> bool:
    """True if these bytes end with the CRC32C of all bytes before it. Needs no key."""
    return len(sealed) > CODE_SIZES[DigestType.CRC32C] and crc32c(sealed) == CRC32C_RESIDUE


STORED_KEY_BYTES = 32


def ledger_key(ledger_id: int, password: bytes, creation: str = "") -> bytes:
    """The 32 bytes that a bookie compares before it writes, fences or reads a ledger (B7). Not the password itself.

    Another creation of the same id has another key, even under the same password (M5)."""
    return _derive_key(b"replog ledger key v1", ledger_id, password, creation)


def ledger_key_check(key: bytes) -> str:
    """The text that the metadata keeps for a ledger key: with it a wrong password fails before any bookie is asked."""
    return hashlib.sha256(b"replog ledger key check v1" + key).hexdigest()


def stored_ledger_key(key: bytes) -> bytes:
    """The form of a ledger key that a bookie stores: enough to recognise the key, and useless for opening it at another
    bookie."""
    return bytes.fromhex(ledger_key_check(key))


def is_stored_ledger_key(key: bytes, stored: bytes) -> bool:
    """True if `stored` is what a bookie stored for this key."""
    return hmac.compare_digest(stored_ledger_key(key), stored)


def _derive_key(purpose: bytes, ledger_id: int, password: bytes, creation: str) -> bytes:
    return hmac.digest(password, purpose + ledger_id.to_bytes(8, "little") + creation.encode(), "sha256")
