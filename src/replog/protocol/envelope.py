"""The envelope: the metadata that an entry carries beside its data (format 1).

An entry without a key, headers and an id is the caller's bytes and nothing else. One with any of them is an envelope: a flag
of its batch says so, and each entry of that batch is one. So no bytes of a caller are ever taken for an envelope.
Little-endian throughout:

    fields    one byte, a bit for each field that follows; others are refused
    id        bit 8: sequence (uint64), length of the producer's name (uint16), that name in UTF-8
    key       bit 1: length (uint32), bytes
    headers   bit 2: number (uint16); of each: length of its name (uint16), length of its value (uint32), name in UTF-8, value
    data      what remains; with bit 4 (a tombstone: the key has no value any more) nothing may remain

`pack` makes an `Enveloped`: bytes that the writer's batches know by their class, to be kept apart from plain ones.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from itertools import repeat
from typing import NamedTuple

from replog.errors import ConfigError, EnvelopeError

HEADERS_MAX = (1 << 16) - 1
NAME_BYTES_MAX = (1 << 16) - 1
SEQUENCE_MAX = (1 << 63) - 1
PRODUCER_BYTES_MAX = 200

_KEY, _HEADERS, _TOMBSTONE, _ID = 1, 2, 4, 8
_KNOWN = _KEY | _HEADERS | _TOMBSTONE | _ID
_KEY_SIZE = struct.Struct("<I")
_COUNT = struct.Struct("<H")
_HEADER = struct.Struct("<HI")
_ID_HEAD = struct.Struct("<QH")


class Enveloped(bytes):
    """The stored bytes of one entry that is an envelope. Only `pack` makes them."""

    __slots__ = ()


class Headers(Mapping[str, bytes]):
    """The headers of one entry, in the order in which they were given. Immutable, and hashable as the record that has them."""

    __slots__ = ("_pairs",)

    def __init__(self, pairs: tuple[tuple[str, bytes], ...] = ()) -> None:
        self._pairs = pairs

    def __getitem__(self, name: str) -> bytes:
        for each, value in self._pairs:
            if each == name:
                return value
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def __hash__(self) -> int:
        return hash(frozenset(self._pairs))

    def __repr__(self) -> str:
        return repr(dict(self._pairs))


NO_HEADERS = Headers()


class EntryId(NamedTuple):
    """The producer of an entry, and the entry's number in the order of that producer's entries."""

    producer: str
    sequence: int


class Envelope(NamedTuple):
    """The metadata that an entry carries beside its data."""

    key: bytes | None = None
    headers: Mapping[str, bytes] = NO_HEADERS
    is_tombstone: bool = False
    id: EntryId | None = None


PLAIN = Envelope()


def pack(
    data: bytes | None,
    *,
    key: bytes | None = None,
    headers: Mapping[str, bytes] | None = None,
    id: EntryId | None = None,
) -> bytes:
    """The bytes to store for an entry: the very same without a key, headers and an id. `data` None is a tombstone; it has a key.

    Raises `TypeError` or `ConfigError` for values that can't be put into an envelope; nothing was written then."""
    if key is None and not headers and id is None and data is not None:
        return data
    fields, parts = 0, [b""]
    if id is not None:
        fields |= _ID
        producer = id.producer.encode()
        parts += (_ID_HEAD.pack(id.sequence, len(producer)), producer)
    if key is not None:
        if not isinstance(key, bytes):
            raise TypeError(f"a key must be bytes, not {type(key).__name__}: nothing was written, convert it")
        fields |= _KEY
        parts += (_KEY_SIZE.pack(len(key)), key)
    if headers:
        fields |= _HEADERS
        _add_headers(parts, headers)
    if data is None:
        if key is None:
            raise TypeError(
                "an entry must be bytes, not NoneType: nothing was written; only one with a key may have no value"
            )
        fields |= _TOMBSTONE
    elif isinstance(data, bytes):
        parts.append(data)
    else:
        raise TypeError(f"an entry must be bytes, not {type(data).__name__}: nothing was written, convert it")
    parts[0] = bytes((fields,))
    return Enveloped(b"".join(parts))


def _add_headers(parts: list[bytes], headers: object) -> None:
    if not isinstance(headers, Mapping):
        raise TypeError(
            f"headers must be a mapping of texts to bytes, not {type(headers).__name__}: nothing was written"
        )
    if len(headers) > HEADERS_MAX:
        raise ConfigError(f"{len(headers)} headers: the limit is {HEADERS_MAX}; nothing was written")
    parts.append(_COUNT.pack(len(headers)))
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, bytes):
            found = f"{type(name).__name__} to {type(value).__name__}"
            raise TypeError(f"headers must be a mapping of texts to bytes, not of {found}: nothing was written")
        try:
            encoded = name.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"the name of a header, {name!r}, is not valid Unicode: nothing was written") from error
        if len(encoded) > NAME_BYTES_MAX:
            problem = f"the name of a header has {len(encoded)} bytes"
            raise ConfigError(f"{problem}: the limit is {NAME_BYTES_MAX}; nothing was written")
        parts += (_HEADER.pack(len(encoded), len(value)), encoded, value)


def pack_each(
    data: Iterable[bytes | None],
    keys: Iterable[bytes | None] | None = None,
    headers: Iterable[Mapping[str, bytes] | None] | None = None,
) -> Iterable[bytes]:
    """`pack` of each, with its key and headers; the data itself if there are neither. Raises as `pack`, `ConfigError` unless
    each entry has one of each that is given."""
    if keys is None and headers is None:
        return data  # type: ignore[return-value]  # as `Payloads` checks
    rows, given_keys = list(data), repeat(None) if keys is None else list(keys)
    given_headers = repeat(None) if headers is None else list(headers)
    for name, given in (("keys", given_keys), ("headers", given_headers)):
        if isinstance(given, list) and len(given) != len(rows):
            raise ConfigError(
                f"{len(given)} {name} for {len(rows)} entries: each has one, maybe None; nothing was written"
            )
    together = zip(rows, given_keys, given_headers, strict=False)
    return [pack(each, key=key, headers=of_entry) for each, key, of_entry in together]


def has_id(stored: bytes) -> bool:
    """True if this entry is an envelope that has an id; it may be damaged all the same."""
    return stored.__class__ is Enveloped and bool(stored[:1]) and bool(stored[0] & _ID)


def unpack(stored: bytes) -> tuple[bytes, Envelope]:
    """The data of an entry that is an envelope (empty for a tombstone), and the rest of it. Raises `EnvelopeError`."""
    try:
        return _unpack(stored)
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise EnvelopeError(
            f"an envelope of {len(stored)} bytes that breaks off, or has no valid text: {error}"
        ) from error


def _unpack(stored: bytes) -> tuple[bytes, Envelope]:
    fields, at = stored[0], 1
    if fields & ~_KNOWN:
        raise EnvelopeError(f"an envelope with the fields {fields:#x}: unknown, upgrade replog")
    entry_id, key, headers = None, None, NO_HEADERS
    if fields & _ID:
        sequence, size = _ID_HEAD.unpack_from(stored, at)
        producer, at = _piece(stored, at + _ID_HEAD.size, size)
        entry_id = EntryId(producer.decode(), sequence)
    if fields & _KEY:
        (size,) = _KEY_SIZE.unpack_from(stored, at)
        key, at = _piece(stored, at + _KEY_SIZE.size, size)
    if fields & _HEADERS:
        headers, at = _unpack_headers(stored, at)
    is_tombstone = bool(fields & _TOMBSTONE)
    if is_tombstone and (key is None or at < len(stored)):
        raise EnvelopeError("an envelope of a tombstone that has no key, or has a value")
    return stored[at:], Envelope(key, headers, is_tombstone, entry_id)


def _unpack_headers(stored: bytes, at: int) -> tuple[Headers, int]:
    (count,) = _COUNT.unpack_from(stored, at)
    at += _COUNT.size
    pairs: dict[str, bytes] = {}
    for _ in range(count):
        name_size, value_size = _HEADER.unpack_from(stored, at)
        name, at = _piece(stored, at + _HEADER.size, name_size)
        value, at = _piece(stored, at, value_size)
        pairs[name.decode()] = value
    if len(pairs) < count:
        raise EnvelopeError("an envelope with two headers of one name")
    return Headers(tuple(pairs.items())), at


def _piece(stored: bytes, at: int, size: int) -> tuple[bytes, int]:
    end = at + size
    if end > len(stored):
        raise EnvelopeError(f"an envelope of {len(stored)} bytes with a field that ends at {end}")
    return stored[at:end], end
