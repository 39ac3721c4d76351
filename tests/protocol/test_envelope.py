"""Envelopes: round trips, and a decoder that survives any bytes. Golden bytes stand in tests/formats."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replog.errors import ConfigError, EnvelopeError
from replog.protocol.envelope import NO_HEADERS, EntryId, Enveloped, Headers, pack, pack_each, unpack
from tests.lanes.seeds import examples

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
headers = st.dictionaries(texts, st.binary(max_size=20), max_size=5)
ids = st.builds(EntryId, texts, st.integers(0, (1 << 63) - 1))


@examples(5)
@given(st.none() | st.binary(max_size=40), st.none() | st.binary(max_size=20), headers, st.none() | ids)
def test_unpack_returns_the_packed_values(
    data: bytes | None, key: bytes | None, named: dict[str, bytes], entry_id: EntryId | None
) -> None:
    if data is None and key is None:
        with pytest.raises(TypeError, match="only one with a key may have no value"):
            pack(data, key=key, headers=named, id=entry_id)
        return
    stored = pack(data, key=key, headers=named, id=entry_id)
    if key is None and not named and entry_id is None:
        assert stored is data
        return
    assert type(stored) is Enveloped
    found, envelope = unpack(stored)
    assert (found, envelope.key, dict(envelope.headers), envelope.id) == (data or b"", key, named, entry_id)
    assert list(envelope.headers) == list(named)
    assert envelope.is_tombstone is (data is None)


@examples(12)
@given(st.binary(max_size=60))
def test_unpack_raises_nothing_else_when_bytes_are_random(stored: bytes) -> None:
    try:
        data, envelope = unpack(stored)
    except EnvelopeError:
        return
    again = pack(None if envelope.is_tombstone else data, key=envelope.key, headers=envelope.headers, id=envelope.id)
    if stored[0] & 2 and not envelope.headers:
        return  # a number of headers that is 0: read, and never written
    assert stored in (again, b"\0" + again)


@pytest.mark.parametrize("size", range(1, 34))
def test_unpack_raises_when_an_envelope_breaks_off(size: int) -> None:
    stored = pack(b"", key=b"key", headers={"name": b"value"}, id=EntryId("producer", 7))
    assert len(stored) > 34
    with pytest.raises(EnvelopeError):
        unpack(stored[:size])


@pytest.mark.parametrize(
    ("stored", "problem"),
    [
        (b"", "breaks off"),
        (b"\x10", "unknown, upgrade replog"),
        (b"\x80data", "unknown, upgrade replog"),
        (b"\x01\xff\xff\xff\xffkey", "ends at"),
        (b"\x04", "no key"),
        (b"\x05\x01\0\0\0kdata", "has a value"),
        (b"\x02\x02\0" + 2 * b"\x01\0\0\0\0\0a", "two headers of one name"),
        (b"\x02\x01\0\x01\0\0\0\0\0\xff", "no valid text"),
    ],
)
def test_unpack_describes_an_invalid_envelope(stored: bytes, problem: str) -> None:
    with pytest.raises(EnvelopeError, match=problem):
        unpack(stored)


@pytest.mark.parametrize(
    ("arguments", "error", "problem"),
    [
        ({"key": "text"}, TypeError, "a key must be bytes, not str"),
        ({"headers": [("a", b"")]}, TypeError, "must be a mapping of texts to bytes, not list"),
        ({"headers": {"a": "text"}}, TypeError, "not of str to str"),
        ({"headers": {b"a": b"text"}}, TypeError, "not of bytes to bytes"),
        ({"headers": {"\ud800": b""}}, ConfigError, "is not valid Unicode"),
        ({"headers": {"a" * 65536: b""}}, ConfigError, "65536 bytes"),
        ({"headers": {str(number): b"" for number in range(65536)}}, ConfigError, "65536 headers"),
        ({"data": "text", "key": b""}, TypeError, "an entry must be bytes, not str"),
    ],
)
def test_pack_refuses_invalid_arguments(arguments: dict[str, object], error: type[Exception], problem: str) -> None:
    with pytest.raises(error, match=problem):
        pack(**{"data": b"data", **arguments})  # type: ignore[arg-type]


def test_pack_each_wants_a_key_for_each_entry() -> None:
    assert pack_each([b"a", b"b"], [b"1", None]) == [pack(b"a", key=b"1"), b"b"]
    with pytest.raises(ConfigError, match="1 keys for 2 entries"):
        pack_each([b"a", b"b"], [b"1"])
    with pytest.raises(ConfigError, match="3 headers for 2 entries"):
        pack_each([b"a", b"b"], None, [None] * 3)


def test_headers_are_an_immutable_mapping() -> None:
    _, envelope = unpack(pack(b"", headers={"b": b"1", "a": b"2"}))
    assert envelope.headers == {"a": b"2", "b": b"1"}
    assert envelope.headers["a"] == b"2"
    assert "c" not in envelope.headers
    with pytest.raises(TypeError):
        envelope.headers["c"] = b""  # type: ignore[index]
    assert pickle.loads(pickle.dumps(envelope)) == envelope
    assert hash(envelope) == hash(unpack(pack(b"", headers={"a": b"2", "b": b"1"}))[1])
    assert Headers() == NO_HEADERS == {}
