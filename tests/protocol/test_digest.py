"""Authentication codes and keys."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replog.protocol.digest import (
    CODE_SIZES,
    Digest,
    DigestType,
    is_crc32c_sealed,
    ledger_key,
    ledger_key_check,
)


@pytest.mark.parametrize("digest_type", DigestType)
@given(pieces=st.lists(st.binary(max_size=40), min_size=1, max_size=5), password=st.binary(max_size=20))
def test_what_is_sealed_verifies_and_what_is_changed_does_not(
    digest_type: DigestType, pieces: list[bytes], password: bytes
) -> None:
    """W3: in pieces or in one; one flipped bit, anywhere, is found."""
    digest = Digest(digest_type, 7, password)
    body = b"".join(pieces)
    code = digest.code(*pieces)
    assert code == digest.code(body) == digest.code(memoryview(body))
    assert len(code) == digest.code_size == CODE_SIZES[digest_type]
    sealed = body + code
    if not body:
        return
    assert digest.verifies(sealed)
    assert digest.verifies(memoryview(sealed))
    for place in (0, len(body) // 2, len(sealed) - 1):
        changed = bytearray(sealed)
        changed[place] ^= 0x10
        assert not digest.verifies(bytes(changed))


def test_the_code_is_crc32c() -> None:
    """The published check value: 0xE3069283 for "123456789"."""
    assert Digest(DigestType.CRC32C, 7, b"").code(b"123456789") == (0xE3069283).to_bytes(4, "little")


def test_the_code_is_hmac_sha256_under_a_key_of_ledger_and_password() -> None:
    """Computed a second time from the definition: these bytes stand on disks."""
    key = hmac.new(b"secret", b"replog digest key v1" + (7).to_bytes(8, "little"), hashlib.sha256).digest()
    expected = hmac.new(key, b"body", hashlib.sha256).digest()
    assert Digest(DigestType.HMAC_SHA256, 7, b"secret").code(b"bo", b"dy") == expected


def test_ledger_keys_are_what_they_were() -> None:
    """B7: bookies keep them for ever."""
    key = hmac.new(b"secret", b"replog ledger key v1" + (7).to_bytes(8, "little"), hashlib.sha256).digest()
    assert ledger_key(7, b"secret") == key
    assert ledger_key_check(key) == hashlib.sha256(b"replog ledger key check v1" + key).hexdigest()


@pytest.mark.parametrize("digest_type", DigestType)
def test_short_bytes_never_verify(digest_type: DigestType) -> None:
    digest = Digest(digest_type, 7, b"x")
    for size in range(CODE_SIZES[digest_type] + 1):
        assert not digest.verifies(bytes(size))
    assert not is_crc32c_sealed(b"")
    assert not is_crc32c_sealed(bytes(4))


def test_another_password_or_ledger_does_not_verify() -> None:
    """B7: with HMAC-SHA256; a CRC32C knows no key."""
    sealed = b"body" + Digest(DigestType.HMAC_SHA256, 7, b"x").code(b"body")
    assert not Digest(DigestType.HMAC_SHA256, 7, b"y").verifies(sealed)
    assert not Digest(DigestType.HMAC_SHA256, 8, b"x").verifies(sealed)
