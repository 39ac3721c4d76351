"""Keys and digests of BookKeeper: what a ledger's password and digest type make, and the bytes that they seal.

An entry is its header (ledger, entry, last add confirmed, length so far, each an int64), the digest, the payload; all big-
endian. The digest covers header and payload, and stands between them. An explicit last add confirmed is ledger, last add
confirmed, digest.

Inside of this process an entry is a batch of one, under CRC32C: the digest of BookKeeper is checked when an entry comes from a
bookie, and made when it goes to one.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import struct
import zlib
from functools import lru_cache
from typing import Self

from crc32c import crc32c

from replog.errors import RemoteProtocolError
from replog.protocol import batch as batches
from replog.protocol.batch import ENTRY_BYTES_MAX, Batch
from replog.protocol.digest import Digest, DigestType
from replog.protocol.fragments import WRITER_TERM
from replog.protocol.quorum import Quorum

MASTER_KEY_BYTES = 20
_HEADER = struct.Struct(">qqqq")
_EXPLICIT = struct.Struct(">qq")


class LedgerDigest(enum.Enum):
    """The digest types of BookKeeper; the numbers are those of its metadata."""

    CRC32 = 1
    HMAC = 2  # BookKeeper's programs call it MAC
    CRC32C = 3
    DUMMY = 4


_SIZES = {LedgerDigest.CRC32: 8, LedgerDigest.HMAC: 20, LedgerDigest.CRC32C: 4, LedgerDigest.DUMMY: 0}


class LedgerKey(bytes):
    """The key that bookies compare, SHA-1 of "ledger" and the password. It carries what a connection must know of the ledger:
    how its entries are sealed, and its quorum. As requests hold a ledger's key, each of them brings that along."""

    digest: LedgerDigest
    quorum: Quorum
    _mac_key: bytes

    def __new__(cls, password: bytes, digest: LedgerDigest, quorum: Quorum) -> Self:
        key = super().__new__(cls, hashlib.sha1(b"ledger" + password).digest())
        key.digest = digest
        key.quorum = quorum
        key._mac_key = hashlib.sha1(b"mac" + password).digest()
        return key

    def _code(self, header: bytes, payload: bytes) -> bytes:
        if self.digest is LedgerDigest.CRC32C:
            return crc32c(payload, crc32c(header)).to_bytes(4, "big")
        if self.digest is LedgerDigest.CRC32:
            return zlib.crc32(payload, zlib.crc32(header)).to_bytes(8, "big")
        if self.digest is LedgerDigest.HMAC:
            return hmac.digest(self._mac_key, header + payload, "sha1")
        return b""

    # -- entries ----------------------------------------------------------------------------------------------------

    def seal_entry(self, batch: Batch, last_add_confirmed: int) -> bytes:
        """The bytes of the one entry of this batch, with this last add confirmed in its header."""
        assert batch.count == 1, "BookKeeper has single entries"
        (payload,) = batch.payloads()
        header = _HEADER.pack(batch.ledger_id, batch.first_entry_id, last_add_confirmed, batch.cumulative_length)
        return b"".join((header, self._code(header, payload), payload))

    def open_entry(self, body: bytes, ledger_id: int, entry_id: int | None) -> Batch:
        """The entry as a batch of one. `entry_id` is the one that was asked for; None: any, as the last one of a bookie.

        Raises `RemoteProtocolError` if it is another entry, or its digest does not fit."""
        start = _HEADER.size + _SIZES[self.digest]
        if len(body) < start:
            raise RemoteProtocolError(f"{len(body)} bytes are too few for an entry of ledger {ledger_id}")
        header, code, payload = body[: _HEADER.size], body[_HEADER.size : start], body[start:]
        if not hmac.compare_digest(self._code(header, payload), code):
            raise RemoteProtocolError(f"an entry of ledger {ledger_id} does not fit its {self.digest.name} digest")
        found_ledger, found_entry, confirmed, length = _HEADER.unpack(header)
        if found_ledger != ledger_id or found_entry != (found_entry if entry_id is None else entry_id):
            problem = f"entry {found_entry} of ledger {found_ledger} in place of {entry_id} of {ledger_id}"
            raise RemoteProtocolError(problem)
        if found_entry < 0 or confirmed < -1 or length < len(payload) or len(payload) > ENTRY_BYTES_MAX:
            problem = f"an entry {found_entry} with last add confirmed {confirmed} and length {length}: out of range"
            raise RemoteProtocolError(problem)
        return batches.build(
            process_digest(ledger_id),
            ledger_id=ledger_id,
            first_entry_id=found_entry,
            stride=self.quorum.stride,
            payloads=(payload,),
            # BookKeeper's own repairs stamp copies with what is confirmed by then, which may be this entry or a later one.
            last_add_confirmed=min(confirmed, found_entry - 1),
            stamp=WRITER_TERM,
            timestamp_ns=0,
            cumulative_length=length,
        )

    # -- explicit last add confirmed --------------------------------------------------------------------------------

    def seal_confirmed(self, ledger_id: int, last_add_confirmed: int) -> bytes:
        """The statement that this entry is confirmed."""
        statement = _EXPLICIT.pack(ledger_id, last_add_confirmed)
        return statement + self._code(statement, b"")

    def open_confirmed(self, body: bytes, ledger_id: int) -> int:
        """The last add confirmed of a statement. Raises `RemoteProtocolError` if it is none, or of another ledger."""
        statement, code = body[: _EXPLICIT.size], body[_EXPLICIT.size :]
        if len(statement) < _EXPLICIT.size or not hmac.compare_digest(self._code(statement, b""), code):
            raise RemoteProtocolError(f"a last add confirmed of ledger {ledger_id} does not fit its digest")
        found_ledger, confirmed = _EXPLICIT.unpack(statement)
        if found_ledger != ledger_id or confirmed < -1:
            problem = f"last add confirmed {confirmed} of ledger {found_ledger} in place of {ledger_id}"
            raise RemoteProtocolError(problem)
        return int(confirmed)


@lru_cache(maxsize=256)
def process_digest(ledger_id: int) -> Digest:
    """The digest of a ledger's batches inside of this process."""
    return Digest(DigestType.CRC32C, ledger_id, b"")
