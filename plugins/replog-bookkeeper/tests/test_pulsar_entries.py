"""Entries and records of topics, as Pulsar's own classes make them (`java/pulsar/PulsarTopic.java`), and damaged."""

from __future__ import annotations

import sys
import zlib
from contextlib import suppress
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from java_pulsar import golden_entries, golden_records

from replog.errors import CompressionUnavailableError, ConfigError
from replog_bookkeeper.pulsar import (
    ChunksMissingError,
    Message,
    MessageDamagedError,
    MessageTooLargeError,
    Position,
    TopicDamagedError,
    TopicName,
    Unreadable,
)
from replog_bookkeeper.pulsar import compression as codecs
from replog_bookkeeper.pulsar.messages import Marker, Piece, take_apart
from replog_bookkeeper.pulsar.names import Namespace, parse_namespace
from replog_bookkeeper.pulsar.reading import Pieces
from replog_bookkeeper.pulsar.schema import messages, records
from replog_bookkeeper.pulsar.topics import bit_ranges, decode_record

BYTES_MAX = 1 << 20
PUBLISHED = 1_700_000_000_123
COMPRESSIONS = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")


def payload(number: int, size: int) -> bytes:
    """As the Java program makes them."""
    return bytes((number + place % 50) % 256 for place in range(size))


def apart(data: bytes, entry_id: int = 7) -> Any:
    return take_apart(3, entry_id, data, BYTES_MAX)


def golden_messages() -> list[Message]:
    """The messages of the golden entries, each with its entry's number."""
    pieces, found = Pieces(BYTES_MAX), list[Any]()
    for entry_id, data in enumerate(golden_entries()):
        taken = apart(data, entry_id)
        found += pieces.add(taken) if isinstance(taken, Piece) else [] if isinstance(taken, Marker) else taken
    assert pieces.left() == []
    assert all(isinstance(each, Message) for each in found), found
    return found


def framed(name: str, **fields: Any) -> bytes:
    data: bytes = messages[name](**fields).SerializePartialToString()
    return len(data).to_bytes(4, "big") + data


def entry(body: bytes = b"", **fields: Any) -> bytes:
    """An entry that is in order as far as its checksum tells."""
    rest = framed("MessageMetadata", **{"producer_name": b"p", "sequence_id": 1, "publish_time": 5, **fields}) + body
    return b"\x0e\x01" + crc32c(rest).to_bytes(4, "big") + rest


def only_error(data: bytes) -> Exception:
    (found,) = apart(data)
    assert isinstance(found, Unreadable)
    assert (found.ledger_id, found.first_entry_id, found.last_entry_id) == (3, 7, 7)
    return found.error


# -- as Java makes them -------------------------------------------------------------------------------------------


def test_message_has_all_fields_of_javas() -> None:
    first = golden_messages()[0]
    assert first == Message(
        ledger_id=3,
        entry_id=0,
        data=payload(0, 100),
        key="Schlüssel".encode(),
        ordering_key=b"\x01\x02",
        properties={"a": "1", "price": "€ 5"},
        publish_time_ms=PUBLISHED,
        event_time_ms=PUBLISHED - 1,
        producer_name="producer",
        sequence_id=0,
        schema_version=b"\x00\x07",
        deliver_at_ms=PUBLISHED + 60_000,
        replicated_from="elsewhere",
    )


def test_messages_of_each_compression_are_javas() -> None:
    assert [each.data for each in golden_messages()[1:6]] == [payload(each, 1000) for each in range(1, 6)]


def test_batches_of_java_are_taken_apart() -> None:
    found = [each for each in golden_messages() if each.batch_index is not None]
    places = [(7, index) for index in range(3)] + [(8, index) for index in range(10)] + [(9, 0)]
    assert [(each.entry_id, each.batch_index) for each in found] == places
    assert [each.key for each in found[:3]] == [b"key-0", b"key-1", b"key-2"]
    assert [each.data for each in found[:3]] == [payload(0, 100), None, payload(2, 100)]
    assert [each.sequence_id for each in found[:3]] == [10, 11, 12]
    assert [each.event_time_ms for each in found[:3]] == [None, PUBLISHED, None]
    assert found[2].properties == {"index": "2"}
    assert found[12].data == payload(9, 100)
    assert {each.publish_time_ms for each in found[:3]} == {PUBLISHED + 10}


def test_rest_of_javas_entries() -> None:
    """No checksum, a broker's number, transactions, keys that are bytes or null, chunks, encryption."""
    by_entry = {each.entry_id: each for each in golden_messages() if each.batch_index is None}
    assert by_entry[6].data == payload(6, 3)
    assert by_entry[10].index == 100
    assert (by_entry[12].transaction, apart(golden_entries()[13])) == ((7, 9), Marker((7, 9)))
    assert (apart(golden_entries()[11]), apart(golden_entries()[14])) == (Marker(None), Marker(None))
    assert (by_entry[15].key, by_entry[15].data) == (b"\xff\x00\x01", b"")
    assert (by_entry[16].key, by_entry[16].data) == (b"gone", None)
    assert by_entry[18].producer_name == "other"
    assert by_entry[20].data == bytes((place * place * 31 + place) % 256 for place in range(900))
    assert (by_entry[20].chunks, by_entry[20].key) == (3, b"large")
    assert by_entry[22].key is None
    secret = by_entry[21].encryption
    assert secret is not None
    assert (secret.algorithm, dict(secret.keys), secret.parameter) == (
        "AES/GCM/NoPadding",
        {"reader": b"\x09\x09"},
        bytes(12),
    )
    assert codecs.expand(2, by_entry[21].data or b"", secret.uncompressed_bytes, BYTES_MAX) == payload(47, 200)
    assert (secret.compression, secret.messages, secret.chunk) == ("ZLIB", None, None)


@pytest.mark.parametrize("kind", COMPRESSIONS)
def test_records_of_java_are_read(kind: str) -> None:
    golden = golden_records()
    topic = decode_record("topic", "ManagedLedgerInfo", golden[f"topic-{kind}"])
    assert [each.ledgerId for each in topic.ledgerInfo] == [3, 4, 5, 6]
    assert [each.offloadContext.bookkeeperDeleted for each in topic.ledgerInfo] == [True, False, False, False]
    assert topic.terminatedPosition.entryId == 2
    assert len(topic.properties) == 20
    cursor = decode_record("cursor", "ManagedCursorInfo", golden[f"cursor-{kind}"])
    assert (cursor.cursorsLedgerId, cursor.markDeleteLedgerId, cursor.markDeleteEntryId) == (-1, 5, 1)
    assert cursor.individualDeletedMessages[0].upperEndpoint.entryId == 4


def test_bits_of_acknowledged_entries_become_ranges() -> None:
    bits = records["PositionInfo"](ledgerId=1, entryId=1)
    bits.individualDeletedMessageRanges.add(key=5, values=[0b0110, -1, 1])
    bits.individualDeletedMessageRanges.add(key=6, values=[1 << 62])
    assert bit_ranges(bits.individualDeletedMessageRanges) == [
        (Position(5, 0), Position(5, 2)),
        (Position(5, 63), Position(5, 128)),
        (Position(6, 61), Position(6, 62)),
    ]


# -- names --------------------------------------------------------------------------------------------------------


def test_names_of_topics_lead_to_their_nodes() -> None:
    old = TopicName.parse("persistent://tenant/cluster/ns/a/b")  # of before Pulsar 2, with its cluster
    assert old.managed_ledger == "tenant/cluster/ns/persistent/a%2Fb"
    name = TopicName.parse("persistent://public/default/a b~ü*-partition-3")
    assert name.node == "/managed-ledgers/public/default/persistent/a+b%7E%C3%BC*-partition-3"
    assert name.partition_of == ("a b~ü*", 3)
    assert str(name) == "persistent://public/default/a b~ü*-partition-3"
    assert parse_namespace("persistent://public/default") == Namespace("public", "default")
    assert parse_namespace(str(name)) is None


@pytest.mark.parametrize("text", ["orders", "persistent://a/b", "persistent://a//c", "non-persistent://a/b/c"])
def test_name_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="persistent://TENANT/NAMESPACE/TOPIC"):
        TopicName.parse(text)


# -- damaged ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 2, 7, 8, 17, 21])
def test_each_flipped_bit_is_named(number: int) -> None:
    golden = golden_entries()[number]
    for place in range(8 * len(golden)):
        data = bytearray(golden)
        data[place // 8] ^= 1 << place % 8
        assert isinstance(only_error(bytes(data)), MessageDamagedError)


@pytest.mark.parametrize("number", range(23))
def test_entry_cut_short_is_never_taken_for_whole(number: int) -> None:
    golden = golden_entries()[number]
    for size in range(len(golden)):
        if number == 6 and size >= len(golden) - 3:
            continue  # without a checksum, nothing tells that bytes are missing at the end of a payload
        assert isinstance(only_error(golden[:size]), MessageDamagedError)


@given(st.binary(max_size=200), st.sampled_from([b"", b"\x0e\x02", b"\x00\x00\x00\x08"]))
def test_any_bytes_give_messages_or_an_error(data: bytes, head: bytes) -> None:
    found = apart(head + data)
    assert isinstance(found, list | Piece | Marker)


@given(st.binary(max_size=200))
def test_any_record_is_read_or_named(data: bytes) -> None:
    for head in (b"", b"\x47\x78", b"\x47\x78\x00\x00\x00\x04\x08\x03\x10\x7f"):
        with suppress(TopicDamagedError):
            decode_record("topic", "ManagedLedgerInfo", head + data)


@pytest.mark.parametrize(("size", "words"), [(-1, "is -1"), (1 << 30, "message_bytes_max"), (5, "expands to")])
def test_record_of_another_size_is_named(size: int, words: str) -> None:
    how = records["Compressed"](compressionType=2, uncompressedSize=size).SerializeToString()
    value = b"\x47\x78" + len(how).to_bytes(4, "big") + how + zlib.compress(bytes(9))
    with pytest.raises(TopicDamagedError, match=words):
        decode_record("topic", "ManagedLedgerInfo", value)


def test_lacking_field_is_named() -> None:
    rest = framed("MessageMetadata", producer_name=b"p", sequence_id=1)
    assert "publish_time" in str(only_error(rest))


def test_unknown_compression_is_named() -> None:
    error = only_error(entry(b"x", compression=9, uncompressed_size=1))
    assert isinstance(error, MessageDamagedError)
    assert "its compression 9 is none of NONE, LZ4, ZLIB, ZSTD, SNAPPY" in str(error)


@pytest.mark.parametrize("kind", range(1, 5))
def test_absurd_sizes_are_not_believed(kind: int) -> None:
    fields = {"compression": kind, "uncompressed_size": (1 << 32) - 1}
    assert isinstance(only_error(entry(b"x", **fields)), MessageTooLargeError)
    for size in (0, 999, 1001):
        golden = messages["MessageMetadata"]()
        data = golden_entries()[1 + kind]
        golden.MergeFromString(data[10 : 10 + int.from_bytes(data[6:10], "big")])
        golden.uncompressed_size = size
        compressed = data[10 + int.from_bytes(data[6:10], "big") :]
        with pytest.raises(MessageDamagedError, match=COMPRESSIONS[kind]):
            codecs.expand(kind, compressed, size, BYTES_MAX)


@pytest.mark.parametrize("size", [-1, 5, (1 << 31) - 1])
def test_batch_gives_messages_before_its_damage(size: int) -> None:
    good = framed("SingleMessageMetadata", payload_size=2) + b"ab"
    bad = framed("SingleMessageMetadata", payload_size=size) + b"abcd"
    first, lost = apart(entry(good + bad, num_messages_in_batch=(1 << 31) - 1))
    assert (first.data, first.batch_index) == (b"ab", 0)
    assert isinstance(lost.error, MessageDamagedError)
    assert "message 1 of the 2147483647 of its batch" in str(lost)


def test_each_message_of_a_batch_has_its_own_index() -> None:
    """A broker's number is that of the batch's last message."""
    one = framed("SingleMessageMetadata", payload_size=1) + b"a"
    noted = b"\x0e\x02" + framed("BrokerEntryMetadata", index=14, broker_timestamp=3)
    found = apart(noted + entry(3 * one, num_messages_in_batch=3))
    assert [(each.index, each.broker_time_ms) for each in found] == [(12, 3), (13, 3), (14, 3)]


def test_bytes_behind_a_batch_are_named() -> None:
    good = framed("SingleMessageMetadata", payload_size=2) + b"ab"
    message, lost = apart(entry(good + b"rest", num_messages_in_batch=1))
    assert message.data == b"ab"
    assert "4 bytes are left after the 1 messages" in str(lost)


def test_key_without_base64_is_named() -> None:
    assert "base64" in str(only_error(entry(partition_key=b"!", partition_key_b64_encoded=True)))


def test_texts_of_other_languages_are_kept() -> None:
    (found,) = apart(entry(partition_key=b"\xff", properties=[messages["KeyValue"](key=b"\xfe", value=b"v")]))
    assert (found.key, found.properties) == (b"\xff", {"\\xfe": "v"})


def test_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cramjam", None)
    codecs._cramjam.cache_clear()
    try:
        for number in (2, 4, 5):
            error = only_error(golden_entries()[number])
            assert isinstance(error, CompressionUnavailableError)
            assert "pip install 'replog-bookkeeper[pulsar]'" in str(error)
        (message,) = apart(golden_entries()[3])
        assert message.data == payload(3, 1000)
    finally:
        codecs._cramjam.cache_clear()


# -- chunks -------------------------------------------------------------------------------------------------------


def chunk(number: int, total: int = 3, uuid: str = "u", size: int = 10) -> Piece:
    fields = {
        "uuid": uuid.encode(),
        "chunk_id": number,
        "num_chunks_from_msg": total,
        "total_chunk_msg_size": size * total,
    }
    found = apart(entry(bytes([number]) * size, **fields), entry_id=number)
    assert isinstance(found, Piece)
    return found


def test_chunks_are_joined_though_sent_twice() -> None:
    """A producer sends again what was not acknowledged, or begins the message again."""
    for numbers in ((0, 1, 2), (0, 1, 1, 0, 1, 2), (0, 0, 1, 2), (0, 1, 0, 1, 2)):
        pieces = Pieces(BYTES_MAX)
        found = [each for number in numbers for each in pieces.add(chunk(number))]
        assert [each.data for each in found if isinstance(each, Message)] == [b"\0" * 10 + b"\1" * 10 + b"\2" * 10]
        assert len(found) == 1
        assert pieces.left() == []


def test_missing_chunk_is_named() -> None:
    pieces = Pieces(BYTES_MAX)
    assert pieces.add(chunk(0)) == []
    (lost,) = pieces.add(chunk(2))
    assert isinstance(lost, Unreadable)
    assert isinstance(lost.error, ChunksMissingError)
    assert "it is chunk 2 of 3 of a message, and chunk 1 was the next" in str(lost)
    assert pieces.left() == []


def test_message_without_its_last_chunk_is_named_at_the_end() -> None:
    pieces = Pieces(BYTES_MAX)
    assert pieces.add(chunk(0)) + pieces.add(chunk(1)) == []
    (lost,) = pieces.left()
    assert str(lost) == "ledger 3, entry 0 to 1: a message has 3 chunks, and the topic ends after 2 of them"


def test_chunks_are_bounded_in_bytes() -> None:
    pieces = Pieces(4 * chunk(0).entry_bytes - 1)
    begun = [pieces.add(chunk(0, uuid=name)) for name in "abc"]
    assert begun == [[], [], []]
    (lost,) = pieces.add(chunk(0, uuid="d"))
    assert isinstance(lost, Unreadable)
    assert isinstance(lost.error, MessageTooLargeError)
    assert len(pieces.left()) == 3


def test_chunks_of_another_size_are_named() -> None:
    pieces = Pieces(BYTES_MAX)
    pieces.add(chunk(0, total=2))
    (lost,) = pieces.add(chunk(1, total=2, size=11))
    assert isinstance(lost, Unreadable)
    assert isinstance(lost.error, MessageDamagedError)
