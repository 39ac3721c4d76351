"""etcd's client, against bytes that were written by hand from RFC 7540, RFC 7541 and etcd's description of its messages."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.peers.system import Load, NotMeasured
from benchmarks.peers.systems import etcd_messages as messages
from benchmarks.peers.systems.etcd import SYSTEM, Puts
from benchmarks.peers.systems.etcd_grpc import Calls

needs_etcd = pytest.mark.skipif(SYSTEM.missing() is not None, reason=str(SYSTEM.missing()))

GREETING = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    # SETTINGS: no table for the server's headers, no pushes, streams that may be filled at once
    + bytes.fromhex("000012 04 00 00000000 0001 00000000 0002 00000000 0004 7fffffff")
    # WINDOW_UPDATE: as much for the connection
    + bytes.fromhex("000004 08 00 00000000 7fff0000")
)
HEADERS = bytes.fromhex(
    "83 86"  # POST, http
    "44 06"
    + b"/s/Put".hex()
    + "41 03"
    + b"a:1".hex()
    + "5f 10"
    + b"application/grpc".hex()
    + "40 02 7465 08 747261696c657273"
)
# The server's half of a good call: its headers, a message of two bytes, and trailers that say grpc-status: 0.
STATUS = "88 9acac8b21234da8f"  # grpc-status, by the table of RFC 7541, appendix B
MESSAGE = "89 9acac8b5254207317f"  # grpc-message


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def answer(stream: int, message: bytes = b"ok") -> bytes:
    return (
        frame(1, 4, stream, b"\x88")
        + frame(0, 0, stream, b"\x00" + len(message).to_bytes(4, "big") + message)
        + frame(1, 5, stream, bytes.fromhex(f"00 {STATUS} 01 30"))
    )


def refusal(stream: int) -> bytes:
    plain = b"too many requests"
    return frame(1, 5, stream, bytes.fromhex(f"00 {STATUS} 01 32 00 {MESSAGE}") + bytes([len(plain)]) + plain)


@pytest.fixture
def calls() -> Calls:
    return Calls("a:1", "/s/Put", is_collecting=True)


def data_bytes(sent: bytes) -> Iterator[tuple[int, int, int]]:
    """Stream, length and flags of the frames of data."""
    while sent:
        length, kind, flags, stream = (
            int.from_bytes(sent[:3], "big"),
            sent[3],
            sent[4],
            int.from_bytes(sent[5:9], "big"),
        )
        if kind == 0:
            yield stream, length, flags
        sent = sent[9 + length :]


def test_a_connection_begins_as_the_description_says(calls: Calls) -> None:
    assert calls.greeting() == GREETING


def test_later_calls_refer_to_the_headers_of_the_first(calls: Calls) -> None:
    first, second = calls.call([b"abc"]), calls.call([b"de"])
    assert first == frame(1, 4, 1, HEADERS) + frame(0, 1, 1, b"\x00\x00\x00\x00\x03abc")
    assert second == frame(1, 4, 3, bytes.fromhex("8386 c1 c0 bf be")) + frame(0, 1, 3, b"\x00\x00\x00\x00\x02de")


@pytest.mark.parametrize("cut_bytes", [1, 2, 7, 10, 31, 1000])
def test_answers_are_understood_wherever_they_are_cut(calls: Calls, cut_bytes: int) -> None:
    calls.call([b"a", b"b", b"c"])
    received = answer(1, b"1") + answer(5, b"") + answer(3, b"3" * 40)
    parts = [received[at : at + cut_bytes] for at in range(0, len(received), cut_bytes)]
    assert sum(calls.receive(part)[0] for part in parts) == 3
    assert calls.messages == [b"1", b"", b"3" * 40]


def test_refusal_is_reported_with_the_servers_words(calls: Calls) -> None:
    calls.call([b"a"])
    with pytest.raises(NotMeasured, match="status 2: too many requests"):
        calls.receive(answer(1) + refusal(3))


def test_words_in_huffmans_code_are_read(calls: Calls) -> None:
    coded = bytes.fromhex("8c f1e3c2e5f23a6ba0ab90f4ff")  # www.example.com, RFC 7541, C.4.1
    with pytest.raises(NotMeasured, match=r"status 14: www\.example\.com"):
        calls.receive(frame(1, 5, 1, bytes.fromhex(f"00 {STATUS} 02 3134 00 {MESSAGE}") + coded))


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (frame(3, 0, 1, b"\x00\x00\x00\x07"), "error 7"),
        (frame(7, 0, 0, b"\x00\x00\x00\x01\x00\x00\x00\x0btoo_many_pings"), "error 11.*too_many_pings"),
    ],
)
def test_end_of_a_call_or_server_is_reported(calls: Calls, ended: bytes, words: str) -> None:
    with pytest.raises(NotMeasured, match=words):
        calls.receive(ended)


def test_settings_and_pings_are_answered(calls: Calls) -> None:
    asked = frame(4, 0, 0, bytes.fromhex("0005 00004000")) + frame(6, 0, 0, b"12345678") + frame(4, 1, 0, b"")
    assert calls.receive(asked + frame(6, 1, 0, b"87654321")) == (0, frame(4, 1, 0, b"") + frame(6, 1, 0, b"12345678"))


def test_no_more_is_sent_than_there_is_credit_for(calls: Calls) -> None:
    message = bytes(40_000)  # with its prefix 40 005 bytes, of 65 535 that are free
    assert list(data_bytes(calls.call([message, message]))) == [
        *((1, 16_384, 0), (1, 16_384, 0), (1, 7_237, 1)),
        *((3, 16_384, 0), (3, 9_146, 0)),
    ]
    assert calls.receive(frame(8, 0, 3, b"\x00\x01\x00\x00")) == (0, b"")  # the connection has none
    assert list(data_bytes(calls.receive(frame(8, 0, 0, b"\x00\x00\x40\x00"))[1])) == [(3, 14_475, 1)]


def test_a_message_longer_than_its_stream_delays_no_other(calls: Calls) -> None:
    calls.receive(frame(8, 0, 0, b"\x00\x10\x00\x00"))
    sent = list(data_bytes(calls.call([bytes(65_536), b"small"])))
    assert sum(length for stream, length, _ in sent if stream == 1) == 65_535
    assert sent[-1] == (3, 10, 1)
    assert list(data_bytes(calls.receive(frame(8, 0, 1, b"\x00\x00\x10\x00"))[1])) == [(1, 6, 1)]


def test_setting_changes_the_credit_of_begun_calls(calls: Calls) -> None:
    calls.receive(frame(8, 0, 0, b"\x00\x10\x00\x00"))
    calls.call([bytes(65_536)])
    _, sent = calls.receive(frame(4, 0, 0, bytes.fromhex("0004 00010001")))
    assert sent.startswith(frame(4, 1, 0, b""))
    assert list(data_bytes(sent)) == [(1, 2, 0)]
    assert list(data_bytes(calls.receive(frame(4, 0, 0, bytes.fromhex("0004 00020000")))[1])) == [(1, 4, 1)]


def test_only_so_many_calls_are_open_as_the_server_allows(calls: Calls) -> None:
    calls.receive(frame(4, 0, 0, bytes.fromhex("0003 00000001")))
    assert [stream for stream, _, _ in data_bytes(calls.call([b"a", b"b"]))] == [1]
    ended, sent = calls.receive(answer(1))
    assert (ended, [stream for stream, _, _ in data_bytes(sent)]) == (1, [3])


def test_credit_is_given_back_for_received_bytes() -> None:
    calls = Calls("a:1", "/s/Watch", is_streaming=True)
    assert list(data_bytes(calls.call([b"w"]))) == [(1, 6, 0)]  # without an end
    received = b"".join(frame(0, 0, 1, bytes(16_384)) for _ in range(64))
    credit = b"\x00\x10\x00\x00"
    assert calls.receive(received) == (0, frame(8, 0, 0, credit) + frame(8, 0, 1, credit))


def test_each_entry_has_the_next_key() -> None:
    puts = Puts(Calls("a:1", "/s/Put"), b"log/7/", b"x" * 200)
    first, later = puts.requests(1), puts.requests(2)
    value = b"\x12\xc8\x01" + b"x" * 200  # field 2, 200 bytes

    def put(number: int) -> bytes:
        return b"\x00\x00\x00\x00\xdb\x0a\x0elog/7/" + number.to_bytes(8, "big") + value

    assert first == frame(1, 4, 1, HEADERS) + frame(0, 1, 1, put(0))
    block = bytes.fromhex("8386 c1 c0 bf be")
    assert later == b"".join(frame(1, 4, s, block) + frame(0, 1, s, put(n)) for s, n in ((3, 1), (5, 2)))


# --- messages ------------------------------------------------------------------------------------------------------------

HEADER = bytes.fromhex(
    "0a 0c 08 8101 10 02 18 e807 20 03 28 01"
)  # cluster 129, member 2, revision 1000, term 3; one more


def pair(key: bytes, value: bytes) -> bytes:
    """A KeyValue: key, created 300, changed 300, version 1, value."""
    told = b"\x0a" + bytes([len(key)]) + key + bytes.fromhex("10 ac02 18 ac02 20 01")
    return told + (b"\x2a" + messages.varint(len(value)) + value if value else b"")


@pytest.mark.parametrize(("number", "coded"), [(0, "00"), (1, "01"), (127, "7f"), (128, "8001"), (300, "ac02")])
def test_numbers_have_seven_bits_in_a_byte(number: int, coded: str) -> None:
    assert messages.varint(number).hex() == coded
    assert list(messages.fields(messages.field(3, number))) == [(3, number)]


def test_requests() -> None:
    assert messages.put(b"k", b"v") == bytes.fromhex("0a 01 6b 12 01 76")
    assert messages.key_range(b"a", b"b") == bytes.fromhex("0a 01 61 12 01 62")
    assert messages.count_of(b"a", b"b") == bytes.fromhex("0a 01 61 12 01 62 48 01")
    assert messages.compact(300) == bytes.fromhex("08 ac02 10 01")
    assert messages.watch(b"a", b"b") == bytes.fromhex("0a 06 0a 01 61 12 01 62")
    assert messages.after(b"log/") == b"log0"


def test_values_of_a_range_are_found_in_their_order() -> None:
    values = [b"\x12\x0a" * 5, b"x" * 300, b"", b"last"]
    pairs = b"".join(messages.field(2, pair(b"\x00\n\xff%d" % number, value)) for number, value in enumerate(values))
    answer = HEADER + pairs + bytes.fromhex("20 04")
    assert messages.values(answer, 4) == messages.values(answer, 9) == values  # keys have 4 bytes; 9 is the slow way
    assert messages.count(answer) == 4
    assert messages.revision(answer) == 1000


def test_status_tells_the_leader() -> None:
    assert messages.is_leader(HEADER + bytes.fromhex("20 02 38 2a"))
    assert not messages.is_leader(HEADER + bytes.fromhex("20 05 38 2a"))
    assert not messages.is_leader(b"")
    assert messages.applied(HEADER + bytes.fromhex("20 02 38 2a")) == 42


def test_watches_report_puts() -> None:
    assert messages.is_watching(HEADER + bytes.fromhex("18 01"))
    assert not messages.is_watching(HEADER)
    event = messages.field(11, messages.field(2, pair(b"k", b"v")))
    assert messages.events(HEADER + event + event) == [b"v", b"v"]
    with pytest.raises(NotMeasured, match="ended a watch"):
        messages.is_watching(HEADER + bytes.fromhex("20 01"))


@pytest.mark.parametrize("cut", ["0a", "0a 05 00", "08 80", "0b 00"])
def test_invalid_message_is_reported(cut: str) -> None:
    with pytest.raises(NotMeasured, match="no message"):
        list(messages.fields(bytes.fromhex(cut)))


@pytest.mark.slow
@needs_etcd
def test_real_servers_support_every_request(tmp_path: Path) -> None:
    with SYSTEM.running(tmp_path) as running:
        assert len(running.process_ids) == 3
        for load in (Load(100, 1, 0.05), Load(1024, 100, 0.05), Load(65_536, 10, 0.05)):
            assert running.append(load)["entries"] > 0
        assert running.scan(100, 1500)["entries_per_s"] > 0
        assert running.tail(100, 20)["p50_us"] > 0
        assert running.take_over(100)["takeover_s"] > 0
        assert running.restart()["held_bytes"] > 0
