"""Authentication codes and keys."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replog.protocol.digest import (
    CODE_SIZES,
    SIGNATURE_SIZES,
    Digest,
    DigestType,
    is_crc32c_sealed,
    ledger_key,
    ledger_key_check,
)


@pytest.mark.parametrize("digest_type", DigestType)
@given(pieces=st.lists(st.binary(max_size=40), min_size=1, max_size=5), password=st.binary(max_size=20))
def test_sealed_bytes_verify_and_changed_ones_do_not(
    digest_type: DigestType, pieces: list[bytes], password: bytes
) -> None:
    """W3: in pieces or in one; one flipped bit, anywhere, is found."""
    digest = Digest(digest_type, 7, password)
    header, body = pieces[0], b"".join(pieces[1:])
    code = digest.code(header, body)
    assert code == digest.code(memoryview(header), memoryview(body))
    assert len(code) == digest.code_size == CODE_SIZES[digest_type]
    sealed = header + body + code
    if not header + body:
        return
    assert digest.verifies(sealed, len(header))
    assert digest.verifies(memoryview(sealed), len(header))
    for place in (0, len(header + body) // 2, len(sealed) - len(code), len(sealed) - 1):
        changed = bytearray(sealed)
        changed[place] ^= 0x10
        assert not digest.verifies(bytes(changed), len(header))
    signed = header + body + digest.sign(header + body)
    assert len(signed) == len(header + body) + SIGNATURE_SIZES[digest_type]
    assert digest.is_signed(signed)
    for place in (0, len(signed) - 1):
        changed = bytearray(signed)
        changed[place] ^= 0x10
        assert not digest.is_signed(bytes(changed))


def test_the_code_is_crc32c() -> None:
    """The published check value: 0xE3069283 for "123456789"."""
    assert Digest(DigestType.CRC32C, 7, b"").code(b"1234", b"56789") == (0xE3069283).to_bytes(4, "little")


def test_the_code_is_an_hmac_keyed_by_ledger_and_password() -> None:
    """Computed a second time from the definition: these bytes stand on disks."""
    key = hmac.new(b"secret", b"replog digest key v1" + (7).to_bytes(8, "little"), hashlib.sha256).digest()
    body_digest = hashlib.sha256(b"body").digest()
    expected = body_digest + hmac.new(key, b"header" + body_digest, hashlib.sha256).digest()
    assert Digest(DigestType.HMAC_SHA256, 7, b"secret").code(b"header", b"body") == expected


def test_a_header_is_proven_without_the_body() -> None:
    """R11: the header and the code are a signed statement."""
    digest = Digest(DigestType.HMAC_SHA256, 7, b"secret")
    assert digest.is_signed(b"header" + digest.code(b"header", b"body"))
    assert not digest.is_signed(b"healer" + digest.code(b"header", b"body"))


def test_ledger_keys_do_not_change() -> None:
    """B7: bookies keep them for ever."""
    key = hmac.new(b"secret", b"replog ledger key v1" + (7).to_bytes(8, "little"), hashlib.sha256).digest()
    assert ledger_key(7, b"secret") == key
    assert ledger_key_check(key) == hashlib.sha256(b"replog ledger key check v1" + key).hexdigest()


@pytest.mark.parametrize("digest_type", DigestType)
def test_short_bytes_never_verify(digest_type: DigestType) -> None:
    digest = Digest(digest_type, 7, b"x")
    for size in range(CODE_SIZES[digest_type] + 1):
        for header_size in (0, size // 2, size, size + 1):
            assert not digest.verifies(bytes(size), header_size)
    for size in range(SIGNATURE_SIZES[digest_type] + 1):
        assert not digest.is_signed(bytes(size))
    assert not is_crc32c_sealed(b"")
    assert not is_crc32c_sealed(bytes(4))


def test_another_password_or_ledger_does_not_verify() -> None:
    """B7: with HMAC-SHA256; a CRC32C knows no key."""
    sealed = b"header body" + Digest(DigestType.HMAC_SHA256, 7, b"x").code(b"header", b" body")
    assert Digest(DigestType.HMAC_SHA256, 7, b"x").verifies(sealed, 6)
    assert not Digest(DigestType.HMAC_SHA256, 7, b"y").verifies(sealed, 6)
    assert not Digest(DigestType.HMAC_SHA256, 8, b"x").verifies(sealed, 6)


def test_each_creation_has_its_own_keys() -> None:
    """M5: an id that was given out again, even under the same password, is another ledger."""
    assert ledger_key(7, b"secret", "one") != ledger_key(7, b"secret", "another")
    sealed = Digest(DigestType.HMAC_SHA256, 7, b"secret", "one").seal(b"header", [b"body"])
    assert Digest(DigestType.HMAC_SHA256, 7, b"secret", "one").verifies(sealed, 6)
    assert not Digest(DigestType.HMAC_SHA256, 7, b"secret", "another").verifies(sealed, 6)
