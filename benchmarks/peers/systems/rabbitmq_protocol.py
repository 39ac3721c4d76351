"""AMQP 0-9-1 as RabbitMQ speaks it, by frames: as lean as Python can for what is published and delivered."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping

from benchmarks.peers.system import NotMeasured
from tests.servers.processes import HOST

QUEUE = "log"
ANSWER_S = 30.0
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_BYTES_MAX = 131_072  # RabbitMQ's default; 8 of them are not the body's
_FRAME = struct.Struct(">BHI")
_END = b"\xce"
_ACK = struct.Struct(">BHIHHQB")  # a whole frame but its end
_RECEIVE_BYTES = 1 << 18
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"

# Methods, by class and number.
START, START_OK, TUNE, TUNE_OK = (10, 10), (10, 11), (10, 30), (10, 31)
OPEN, OPEN_OK, CLOSE, BLOCKED = (10, 40), (10, 41), (10, 50), (10, 60)
CHANNEL_OPEN, CHANNEL_OPEN_OK, CHANNEL_CLOSE = (20, 10), (20, 11), (20, 40)
DECLARE, DECLARE_OK, DELETE, DELETE_OK = (50, 10), (50, 11), (50, 40), (50, 41)
QOS, QOS_OK, CONSUME, CONSUME_OK = (60, 10), (60, 11), (60, 20), (60, 21)
PUBLISH, RETURN, DELIVER, ACK, NACK = (60, 40), (60, 50), (60, 60), (60, 80), (60, 120)
CONFIRM, CONFIRM_OK = (85, 10), (85, 11)

Method = tuple[int, int]
Value = str | int | bool


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """A frame around this."""
    return _FRAME.pack(kind, channel, len(payload)) + payload + _END


def method(which: Method, arguments: bytes = b"", channel: int = 1) -> bytes:
    """A method's frame."""
    return frame(METHOD, channel, struct.pack(">HH", *which) + arguments)


def short(text: str) -> bytes:
    """A short string."""
    return bytes((len(text),)) + text.encode()


def long(data: bytes) -> bytes:
    """A long string."""
    return struct.pack(">I", len(data)) + data


def table(entries: Mapping[str, Value]) -> bytes:
    """A field table of strings, numbers and truth values."""
    return long(b"".join(short(name) + _field(value) for name, value in entries.items()))


def _field(value: Value) -> bytes:
    if isinstance(value, bool):
        return b"t" + bytes((value,))
    if isinstance(value, int):
        return b"l" + struct.pack(">q", value)
    return b"S" + long(value.encode())


def publish(payload: bytes) -> bytes:
    """A persistent message for the queue, by the default exchange."""
    size = FRAME_BYTES_MAX - 8
    header = struct.pack(">HHQH", 60, 0, len(payload), 1 << 12) + b"\x02"  # the flag of delivery-mode: 2, persistent
    bodies = (frame(BODY, 1, payload[start : start + size]) for start in range(0, len(payload), size))
    return method(PUBLISH, b"\0\0" + short("") + short(QUEUE) + b"\0") + frame(HEADER, 1, header) + b"".join(bodies)


def refused(which: Method, arguments: bytes) -> NotMeasured:
    """What a method says that was not hoped for."""
    if which in (CLOSE, CHANNEL_CLOSE, RETURN):
        code, size = struct.unpack_from(">HB", arguments)
        return NotMeasured(f"refused: {code} {arguments[3 : 3 + size].decode()}")
    names = {NACK: "basic.nack", BLOCKED: "connection.blocked, since memory or disk is short"}
    return NotMeasured(f"refused: {names.get(which, which)}")


class Frames:
    """Cuts what is received into frames."""

    def __init__(self) -> None:
        self._rest = b""

    def cut(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Kind and payload of each frame that has come whole. To be exhausted before more is given."""
        data = self._rest + data
        start, end = 0, len(data)
        while end - start >= 8:
            kind, _, size = _FRAME.unpack_from(data, start)
            after = start + 8 + size
            if after > end:
                break
            yield kind, data[start + 7 : after - 1]
            start = after
        self._rest = data[start:]


class Appends:
    """A `Conversation`: messages that are published, and confirmed by `basic.ack`: one, or all up to one."""

    def __init__(self, payload: bytes) -> None:
        self._entry = publish(payload)
        self._frames = Frames()
        self._confirmed = 0  # all up to this one
        self._alone: set[int] = set()  # behind it

    def requests(self, count: int) -> bytes:
        """So many messages."""
        return self._entry * count

    def receive(self, data: bytes) -> tuple[int, bytes]:
        """Raises for a refusal, a connection that is held up among them."""
        count = 0
        for kind, payload in self._frames.cut(data):
            if kind == METHOD:
                which = (payload[1], payload[3])
                if which != ACK:
                    raise refused(which, payload[4:])
                count += self._ack(int.from_bytes(payload[4:12], "big"), are_several=bool(payload[12] & 1))
        return count, b""

    def _ack(self, tag: int, *, are_several: bool) -> int:
        if are_several:
            before = {each for each in self._alone if each <= tag}
            self._alone -= before
            count = max(0, tag - self._confirmed) - len(before)
            self._confirmed = max(self._confirmed, tag)
        else:
            count = 1
            self._alone.add(tag)
        while self._confirmed + 1 in self._alone:
            self._confirmed += 1
            self._alone.discard(self._confirmed)
        return count


class Deliveries:
    """Takes messages from what a consumer is sent, and answers it: all up to the last one are done with."""

    def __init__(self) -> None:
        self._frames = Frames()
        self._tag = 0
        self._missing_bytes = 0
        self._parts: list[bytes] = []

    def receive(self, data: bytes) -> tuple[list[bytes], bytes]:
        """The messages that have come whole, and what is to be sent because of them."""
        entries: list[bytes] = []
        whole = 0  # the tag of the last message that has come whole
        for kind, payload in self._frames.cut(data):
            if kind == METHOD:
                which = (payload[1], payload[3])
                if which != DELIVER:
                    raise refused(which, payload[4:])
                (self._tag,) = struct.unpack_from(">Q", payload, 5 + payload[4])  # behind the consumer's name
            elif kind == HEADER:
                (self._missing_bytes,) = struct.unpack_from(">Q", payload, 4)
            elif kind == BODY:
                self._missing_bytes -= len(payload)
                self._parts.append(payload)
                if not self._missing_bytes:
                    entries.append(b"".join(self._parts))
                    self._parts.clear()
                    whole = self._tag
        return entries, method(ACK, struct.pack(">QB", whole, 1)) if whole else b""


class Client:
    """One connection with one channel, on which one thing is asked after the other."""

    def __init__(self, port: int, answer_s: float = ANSWER_S) -> None:
        self.stream = socket.create_connection((HOST, port), timeout=answer_s)
        self.stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames = Frames()
        self._came: list[tuple[int, bytes]] = []
        try:
            self._open()
        except BaseException:
            self.stream.close()
            raise

    def _open(self) -> None:
        self.stream.sendall(PROTOCOL_HEADER)
        self._expect(START)
        who = short("PLAIN") + long(b"\0guest\0guest") + short("en_US")
        self.stream.sendall(method(START_OK, table({}) + who, channel=0))
        self._expect(TUNE)
        self.stream.sendall(method(TUNE_OK, struct.pack(">HIH", 16, FRAME_BYTES_MAX, 0), channel=0))
        self.stream.sendall(method(OPEN, short("/") + b"\0\0", channel=0))
        self._expect(OPEN_OK)
        self.ask(CHANNEL_OPEN, b"\0", CHANNEL_OPEN_OK)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()

    def ask(self, which: Method, arguments: bytes, answer: Method) -> bytes:
        """The arguments of the answer."""
        self.stream.sendall(method(which, arguments))
        return self._expect(answer)

    def declare(self, kind: str, *, is_passive: bool = False) -> int:
        """A durable queue, led by the server of this connection; how many messages are ready in it."""
        arguments: dict[str, Value] = {"x-queue-type": kind, "x-queue-leader-locator": "client-local"}
        flags = 1 if is_passive else 2
        found = self.ask(DECLARE, b"\0\0" + short(QUEUE) + bytes((flags,)) + table(arguments), DECLARE_OK)
        (count,) = struct.unpack_from(">I", found, 1 + found[0])
        return int(count)

    def delete(self) -> None:
        """The queue, if it is there."""
        self.ask(DELETE, b"\0\0" + short(QUEUE) + b"\0", DELETE_OK)

    def confirm(self) -> None:
        """From now on, what is published is confirmed."""
        self.ask(CONFIRM, b"\0", CONFIRM_OK)

    def consume(self, ahead: int, arguments: Mapping[str, Value]) -> None:
        """With so many messages under way at most; they come from now on, and nothing else may be asked."""
        self.ask(QOS, struct.pack(">IHB", 0, ahead, 0), QOS_OK)
        self.ask(CONSUME, b"\0\0" + short(QUEUE) + short("reader") + b"\0" + table(arguments), CONSUME_OK)

    def received(self) -> bytes:
        """What has come, or comes next; among it what was received together with an answer."""
        if self._came:
            data = b"".join(frame(kind, 1, payload) for kind, payload in self._came)
            self._came.clear()
            return data
        data = self.stream.recv(_RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the server hung up")
        return data

    def append(self, payload: bytes) -> None:
        """One entry, until it is confirmed; `confirm` comes first."""
        self.stream.sendall(publish(payload))
        self._expect(ACK)

    def _expect(self, answer: Method) -> bytes:
        while True:
            while not self._came:
                data = self.stream.recv(_RECEIVE_BYTES)
                if not data:
                    raise ConnectionError("the server hung up")
                self._came.extend(self._frames.cut(data))
            kind, payload = self._came.pop(0)
            if kind == METHOD:
                which = (payload[1], payload[3])
                if which != answer:
                    raise refused(which, payload[4:])
                return payload[4:]
