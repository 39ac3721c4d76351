"""RabbitMQ's adapter: its conversation against bytes as AMQP 0-9-1 describes them, and all of it against real nodes."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from benchmarks.peers.system import Load, NotMeasured
from benchmarks.peers.systems import rabbitmq, rabbitmq_stream
from benchmarks.peers.systems.rabbitmq_protocol import FRAME_BYTES_MAX, Appends, Deliveries, publish, table

PUBLISHED = (
    b"\x01\x00\x01\x00\x00\x00\x0c\x00\x3c\x00\x28\x00\x00\x00\x03log\x00\xce"  # basic.publish to the default exchange
    b"\x02\x00\x01\x00\x00\x00\x0f\x00\x3c\x00\x00\x00\x00\x00\x00\x00\x00\x00\x03\x10\x00\x02\xce"  # header: persistent
    b"\x03\x00\x01\x00\x00\x00\x03abc\xce"
)


def _ack(tag: int, *, several: bool) -> bytes:
    return b"\x01\x00\x01\x00\x00\x00\x0d\x00\x3c\x00\x50" + tag.to_bytes(8, "big") + bytes((several,)) + b"\xce"


def _in_steps(data: bytes, step: int) -> list[bytes]:
    return [data[start : start + step] for start in range(0, len(data), step)]


def _delivered(tag: int, *bodies: bytes) -> bytes:
    size = struct.pack(">Q", sum(map(len, bodies)))
    arguments = b"\x00\x3c\x00\x3c\x06reader" + tag.to_bytes(8, "big") + b"\x00\x00\x03log"
    frames = [(1, arguments), (2, b"\x00\x3c\x00\x00" + size + b"\x10\x00\x02"), *((3, body) for body in bodies)]
    return b"".join(struct.pack(">BHI", kind, 1, len(data)) + data + b"\xce" for kind, data in frames)


def test_an_entry_is_a_method_a_header_and_a_body() -> None:
    assert publish(b"abc") == PUBLISHED
    assert Appends(b"abc").requests(2) == PUBLISHED * 2


def test_a_body_larger_than_a_frame_comes_in_several() -> None:
    most = FRAME_BYTES_MAX - 8

    assert publish(bytes(most + 1)).endswith(bytes(9) + b"\xce\x03\x00\x01\x00\x00\x00\x01\x00\xce")
    assert len(publish(bytes(most + 1))) == len(publish(bytes(most))) + 1 + 8


def test_a_table_has_strings_numbers_and_truth_values() -> None:
    fields = b"\x01aS\x00\x00\x00\x02bc" + b"\x01dl" + (7).to_bytes(8, "big") + b"\x01et\x01"

    assert table({"a": "bc", "d": 7, "e": True}) == len(fields).to_bytes(4, "big") + fields


@pytest.mark.parametrize("step", [1, 3, 21, 1000])
def test_each_entry_is_confirmed_once_alone_or_in_a_group(step: int) -> None:
    talk = Appends(b"abc")
    answers = _ack(2, several=False) + _ack(4, several=False) + _ack(3, several=True) + _ack(5, several=False)
    found = [talk.receive(part) for part in _in_steps(answers, step)]

    assert sum(count for count, _ in found) == 5
    assert talk.receive(_ack(9, several=True)) == (4, b"")
    assert talk.receive(_ack(9, several=True)) == (0, b"")
    assert talk.receive(_ack(10, several=False)) == (1, b"")


def test_a_group_confirmation_counts_only_unconfirmed_entries() -> None:
    talk = Appends(b"abc")

    assert talk.receive(_ack(2, several=False)) == (1, b"")
    assert talk.receive(_ack(3, several=True)) == (2, b"")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (b"\x00\x3c\x00\x78" + bytes(8) + b"\x00", "basic.nack"),
        (b"\x00\x0a\x00\x3c\x03mem", "connection.blocked"),
        (b"\x00\x14\x00\x28\x01\x94\x08no queue\x00\x00\x00\x00", "404 no queue"),
    ],
)
@pytest.mark.parametrize("step", [1, 1000])
def test_refusal_is_reported_in_its_own_words(arguments: bytes, words: str, step: int) -> None:
    talk = Appends(b"abc")
    answer = struct.pack(">BHI", 1, 1, len(arguments)) + arguments + b"\xce"

    with pytest.raises(NotMeasured, match=words):
        for part in _in_steps(_ack(1, several=False) + answer, step):
            talk.receive(part)


@pytest.mark.parametrize("step", [1, 5, 40, 1000])
def test_messages_cut_anywhere_are_delivered_and_answered(step: int) -> None:
    deliveries = Deliveries()
    data = _delivered(7, b"abc") + _delivered(8, b"de", b"\xcef") + _delivered(9, b"ghi")
    entries, answers = [], []
    for part in _in_steps(data, step):
        found, answer = deliveries.receive(part)
        entries += found
        answers += [answer] if answer else []

    assert entries == [b"abc", b"de\xcef", b"ghi"]
    assert answers[-1] == _ack(9, several=True)


@pytest.mark.parametrize("missing", [1, 4, 11, 20, 38, 50])
def test_incomplete_message_is_not_answered(missing: int) -> None:
    deliveries = Deliveries()
    last = _delivered(8, b"de")

    assert deliveries.receive(_delivered(7, b"abc") + last[:-missing]) == ([b"abc"], _ack(7, several=True))
    assert deliveries.receive(last[-missing:]) == ([b"de"], _ack(8, several=True))


@pytest.mark.slow
@pytest.mark.skipif(rabbitmq.SYSTEM.missing() is not None, reason=str(rabbitmq.SYSTEM.missing()))
def test_a_real_quorum_queue_confirms_and_leaves_no_process(tmp_path: Path) -> None:
    with rabbitmq.SYSTEM.running(tmp_path) as rabbit:
        processes = rabbit.process_ids
        figures = rabbit.append(Load(entry_bytes=100, in_flight=100, seconds=0.2))
        assert figures["entries"] >= 100
        assert figures["server_cpu_us"] > 0
        assert rabbit.tail(100, 20)["p50_us"] > 0
        assert rabbit.take_over(100)["takeover_s"] > 0
        with pytest.raises(NotMeasured, match="stream"):
            rabbit.scan(100, 100)
    assert not [each for each in processes if Path(f"/proc/{each}").exists()]


@pytest.mark.slow
@pytest.mark.skipif(rabbitmq.SYSTEM.missing() is not None, reason=str(rabbitmq.SYSTEM.missing()))
def test_a_real_stream_is_read_again(tmp_path: Path) -> None:
    with rabbitmq_stream.SYSTEM.running(tmp_path) as rabbit:
        assert rabbit.append(Load(entry_bytes=100, in_flight=100, seconds=0.2))["entries"] >= 100
        assert rabbit.scan(1024, 3000)["entries_per_s"] > 0
