"""Names and contents of the objects. `docs/how-to/objects.md` has both, for people who look into a bucket.

Format 1. Below the prefix, `replog-metastore` is the marker, and `k/NAME=` is the object of the key of that name. The `=` at its
end, which no word has, makes it another name than that of the keys below it: stores that keep objects as files in directories
cannot have both. A word of a key is its own name if it has only letters, digits, `.`, `_` and `-`. Of another word each other
byte is written `=` and two hexadecimal digits, or all of it `==` and base64 (RFC 4648, URL-safe, without padding) if that is
shorter: so the longest key fits into a name.

An object is a line, and behind it the value: what it is (`value 1` or `gone 1`), the version, a nonce and the CRC-32 of all the
rest. A nonce is never used twice, so no two changes write the same bytes, and no ETag repeats. A tombstone (`gone 1`) has no
value: it is one byte shorter than the shortest other object, so a listing tells it from these by its size.
"""

from __future__ import annotations

import base64
import re
import zlib

import attrs

MARKER = "replog-metastore"
MARKER_BODY = b"A metastore of replog, format 1. Its keys are the objects below k/ whose names end with =.\n"
KEYS = "k"
NAME_BYTES_MAX = 1024  # of S3, Google and Azure

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
_HEAD = re.compile(rb"(value|gone) 1 ([0-9]{20}) ([0-9a-f]{32}) ([0-9a-f]{8})\n")
TOMBSTONE_BYTES = 70
OBJECT_BYTES_MAX = 2 << 20  # a value has at most 1,000,000


class DamagedError(Exception):
    """Bytes or a name that no replog wrote. Never leaves this package."""


@attrs.frozen
class Stored:
    """The content of an object. `value` is None for a tombstone."""

    version: int
    nonce: str
    value: bytes | None

    def encode(self) -> bytes:
        """The object's bytes."""
        kind = b"gone" if self.value is None else b"value"
        head = b"%b 1 %020d %b " % (kind, self.version, self.nonce.encode())
        value = self.value or b""
        return b"%b%08x\n%b" % (head, zlib.crc32(value, zlib.crc32(head)), value)

    @staticmethod
    def decode(body: bytes) -> Stored:
        """Reads an object. Raises `DamagedError`."""
        match = _HEAD.match(body)
        if match is None:
            raise DamagedError("it does not begin as an object of this format")
        value = body[match.end() :]
        if zlib.crc32(value, zlib.crc32(body[: match.start(4)])) != int(match[4], 16):
            raise DamagedError("its checksum does not fit its bytes: it is cut or damaged")
        is_tombstone = match[1] == b"gone"
        if is_tombstone and value:
            raise DamagedError("it is a tombstone with a value")
        return Stored(int(match[2]), match[3].decode(), None if is_tombstone else value)


def name_of(key: str) -> str:
    """The object's name of a key, below the prefix."""
    return f"{place_of(key)}="


def place_of(key: str) -> str:
    """The name below which the objects of the keys below this one are."""
    return "/".join([KEYS, *map(_encode_word, key.split("/"))])


def word_of(name: str) -> str:
    """The last word of the key that has this object's name. Raises `DamagedError`."""
    encoded, ending = name.rpartition("/")[2][:-1], name[-1:]
    try:
        if encoded.startswith("=="):
            padding = "=" * (-(len(encoded) - 2) % 4)
            word = base64.b64decode(encoded[2:] + padding, altchars=b"-_", validate=True).decode()
        else:
            word = re.sub(rb"=([0-9a-f]{2})", lambda found: bytes([int(found[1], 16)]), encoded.encode()).decode()
    except ValueError:
        word = ""
    if not word or ending != "=" or _encode_word(word) != encoded:
        raise DamagedError("no key has an object of this name")
    return word


def _encode_word(word: str) -> str:
    raw = word.encode()
    escaped = "".join(chr(byte) if byte in _PLAIN else f"={byte:02x}" for byte in raw)
    if len(escaped) == len(raw):
        return escaped
    whole = "==" + base64.urlsafe_b64encode(raw).decode().rstrip("=")
    return escaped if len(escaped) <= len(whole) else whole
