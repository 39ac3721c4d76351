"""Authentication codes over batches, and the keys that come from a ledger's password (W3, B7).

CRC32C finds damage; HMAC-SHA256 also finds forgery, by anybody who does not know the ledger's password.
"""

from __future__ import annotations

import enum
import hashlib
import hmac

from crc32c import crc32c


class DigestType(enum.IntEnum):
    """Which authentication code a ledger's batches carry. The numbers stand in the batch format."""

    CRC32C = 1
    HMAC_SHA256 = 2


# The CRC32C of any bytes followed by their own CRC32C (little-endian): one pass tells, without cutting the code off.
CRC32C_RESIDUE = 0x48674BC7

CODE_SIZES = {DigestType.CRC32C: 4, DigestType.HMAC_SHA256: 32}


class Digest:
    """Computes the codes of one ledger."""

    def __init__(self, digest_type: DigestType, ledger_id: int, password: bytes) -> None:
        self.digest_type = digest_type
        self.code_size = CODE_SIZES[digest_type]
        self._key = _derive_key(b"replog digest key v1", ledger_id, password)

    def code(self, *covered: bytes | memoryview) -> bytes:
        """The authentication code over these bytes, one after the other."""
        if self.digest_type is DigestType.CRC32C:
            checksum = 0
            for piece in covered:
                checksum = crc32c(piece, checksum)
            return checksum.to_bytes(4, "little")
        mac = hmac.new(self._key, digestmod="sha256")
        for piece in covered:
            mac.update(piece)
        return mac.digest()

    def verifies(self, sealed: bytes | memoryview) -> bool:
        """Whether these bytes end with the code of all that stands before it."""
        if self.digest_type is DigestType.CRC32C:
            return is_crc32c_sealed(sealed)
        covered, code = sealed[: -self.code_size], sealed[-self.code_size :]
        return hmac.compare_digest(self.code(covered), code)


def is_crc32c_sealed(sealed: bytes | memoryview) -> bool:
    """Whether these bytes end with the CRC32C of all that stands before it. Needs no key."""
    return len(sealed) > CODE_SIZES[DigestType.CRC32C] and crc32c(sealed) == CRC32C_RESIDUE


def ledger_key(ledger_id: int, password: bytes) -> bytes:
    """The 32 bytes that a bookie compares before it writes, fences or reads a ledger (B7). Not the password itself."""
    return _derive_key(b"replog ledger key v1", ledger_id, password)


def ledger_key_check(key: bytes) -> str:
    """What the metadata keeps of a ledger key, so that a wrong password fails before any bookie is asked."""
    return hashlib.sha256(b"replog ledger key check v1" + key).hexdigest()


def stored_ledger_key(key: bytes) -> bytes:
    """What a bookie stores of a ledger key: enough to know it again, and nothing that could be shown to another bookie."""
    return bytes.fromhex(ledger_key_check(key))


def is_stored_ledger_key(key: bytes, stored: bytes) -> bool:
    """Whether this is the key of which a bookie stored that."""
    return hmac.compare_digest(stored_ledger_key(key), stored)


def _derive_key(purpose: bytes, ledger_id: int, password: bytes) -> bytes:
    return hmac.digest(password, purpose + ledger_id.to_bytes(8, "little"), "sha256")
