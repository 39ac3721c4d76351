"""gRPC over HTTP/2 (RFC 7540, RFC 7541), as lean as it goes: calls of one method on one connection, without input or output.

Headers cost a few bytes from the second call on: the first one has the server put them into its table (RFC 7541, 6.2.1). The
server is told to keep no table for its own headers, so that the outcome of a call stands in plain sight in its trailers.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable

from benchmarks.peers.system import NotMeasured

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_HEADER_TABLE_SIZE, _ENABLE_PUSH, _STREAMS_MAX, _INITIAL_WINDOW = 1, 2, 3, 4

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FRAME = struct.Struct(">BHBBL")  # length of what follows (24 bits), kind, flags, stream
_FRAME_BYTES_MAX = 16_384  # that every server takes
_SETTING = struct.Struct(">HL")
_NUMBER = struct.Struct(">L")
_PREFIX = struct.Struct(">BL")  # of a message: not compressed, length
_WINDOW_MAX = (1 << 31) - 1
_WINDOW_AT_FIRST = 65_535
_CREDIT_BYTES = 1 << 20  # given back at once

# Huffman's code for headers (RFC 7541, appendix B), up to 10 bits: the codes of a length follow each other, in this order.
_SYMBOLS = {
    5: "012aceiost",
    6: " %-./3456789=A_bdfghlmnpru",
    7: ":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz",
    8: "&*,;XZ",
    10: '!"()?',
}
_FIRST_CODES = {5: 0, 6: 20, 7: 92, 8: 248, 10: 1016}
_CODES = {
    symbol: format(_FIRST_CODES[bits] + place, f"0{bits}b")
    for bits, symbols in _SYMBOLS.items()
    for place, symbol in enumerate(symbols)
}
_HUFFMAN = 0x80  # of a text's length: it is coded so


def _coded(text: str) -> bytes:
    """As a header's name or value that is shorter when coded."""
    bits = "".join(_CODES[symbol] for symbol in text)
    bits += "1" * (-len(bits) % 8)
    return bytes([_HUFFMAN | len(bits) // 8]) + int(bits, 2).to_bytes(len(bits) // 8, "big")


def _decoded(data: bytes) -> str:
    """The text at the beginning of this; symbols of more bits, and what is behind them, are left out."""
    if not data:
        return ""
    length = data[0] & ~_HUFFMAN
    text = data[1 : 1 + length]
    if not data[0] & _HUFFMAN:
        return text.decode(errors="replace")
    bits, symbols, found, start = (
        "".join(format(each, "08b") for each in text),
        {v: k for k, v in _CODES.items()},
        "",
        0,
    )
    for end in range(1, len(bits) + 1):
        if symbol := symbols.get(bits[start:end]):
            found, start = found + symbol, end
    return found


# As Go's servers write them, which keep no table; digits are shorter when they are not coded.
_STATUS, _MESSAGE = _coded("grpc-status"), _coded("grpc-message")
_STATUS_OK = _STATUS + b"\x010"


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    length = len(payload)
    return _FRAME.pack(length >> 16, length & 0xFFFF, kind, flags, stream) + payload


def _literal(text: str) -> bytes:
    assert len(text) < 127, text
    return bytes([len(text)]) + text.encode()


class Calls:
    """The client's half of a connection. `greeting` is sent first; `call` says what to send for more calls, and `receive` what
    an answer means. `messages` collects what the servers answer if `is_collecting`."""

    def __init__(
        self,
        authority: str,
        method: str,
        *,
        is_collecting: bool = False,
        is_streaming: bool = False,
        open_max: int = _WINDOW_MAX,
    ) -> None:
        """`is_streaming`: a call's request has no end, so that its answer has none (a watch). `open_max`: of calls that wait
        for their end at once; more are kept here until there is room."""
        self.messages: list[bytes] = []
        self._first = b"\x83\x86"  # :method POST, :scheme http; the others are indexed from 62 on, the latest first
        self._first += b"\x44" + _literal(method) + b"\x41" + _literal(authority)
        self._first += b"\x5f" + _literal("application/grpc") + b"\x40" + _literal("te") + _literal("trailers")
        self._later = b"\x83\x86\xc1\xc0\xbf\xbe"
        self._is_collecting = is_collecting
        self._is_streaming = is_streaming
        self._rest = b""  # of the bytes received: a frame that is not whole
        self._answers: dict[int, bytearray] = {}  # not whole, by stream
        self._uncredited = 0
        self._next_stream = 1
        self._open = 0
        self._open_max = open_max
        self._window_at_first = _WINDOW_AT_FIRST
        self._credit = _WINDOW_AT_FIRST  # for all streams together
        self._waiting: deque[bytes] = deque()  # messages of calls that have not begun
        self._begun: dict[int, tuple[memoryview, int]] = {}  # not sent to the end: the rest, and the stream's credit
        self._ready: deque[int] = deque()  # those of them that only wait for the credit of all

    def greeting(self) -> bytes:
        """The first bytes on the connection: all that the server may send, it may send at once."""
        settings = ((_HEADER_TABLE_SIZE, 0), (_ENABLE_PUSH, 0), (_INITIAL_WINDOW, _WINDOW_MAX))
        payload = b"".join(_SETTING.pack(*each) for each in settings)
        credit = _frame(_WINDOW_UPDATE, 0, 0, _NUMBER.pack(_WINDOW_MAX - _WINDOW_AT_FIRST))
        return _PREFACE + _frame(_SETTINGS, 0, 0, payload) + credit

    # -- sent -------------------------------------------------------------------------------------------------------------

    def call(self, messages: Iterable[bytes]) -> bytes:
        """One call with each of these. What the server gives no credit for waits, and comes out of `receive`."""
        self._waiting.extend(messages)
        return self._sendable()

    def _sendable(self) -> bytes:
        parts: list[bytes | memoryview] = []
        while self._ready and self._credit:
            stream = self._ready.popleft()
            if stream in self._begun:
                self._go_on(stream, parts)
        while self._waiting and self._credit and self._open < self._open_max:
            self._begin(self._waiting.popleft(), parts)
        return b"".join(parts)

    def _begin(self, message: bytes, parts: list[bytes | memoryview]) -> None:
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        if stream > _WINDOW_MAX:
            raise NotMeasured("a connection's calls are used up")
        self._open += 1
        block = self._later if stream > 1 else self._first
        length = len(message) + _PREFIX.size
        parts.append(_FRAME.pack(0, len(block), _HEADERS, _END_HEADERS, stream) + block)
        if length <= min(self._credit, self._window_at_first, _FRAME_BYTES_MAX):
            flags = 0 if self._is_streaming else _END_STREAM
            parts += (_FRAME.pack(0, length, _DATA, flags, stream), _PREFIX.pack(0, len(message)), message)
            self._credit -= length
        else:
            assert not self._is_streaming, "the request of a stream is small"
            self._begun[stream] = (memoryview(_PREFIX.pack(0, len(message)) + message), self._window_at_first)
            self._go_on(stream, parts)

    def _go_on(self, stream: int, parts: list[bytes | memoryview]) -> None:
        """As much of its message as there is credit for."""
        rest, credit = self._begun.pop(stream)
        while rest and credit > 0 and self._credit:
            length = min(len(rest), credit, self._credit, _FRAME_BYTES_MAX)
            flags = _END_STREAM if length == len(rest) else 0
            parts += (_FRAME.pack(0, length, _DATA, flags, stream), rest[:length])
            rest, credit, self._credit = rest[length:], credit - length, self._credit - length
        if rest:
            self._begun[stream] = rest, credit
            if credit > 0:
                self._ready.appendleft(stream)

    # -- received ---------------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> tuple[int, bytes]:
        """How many calls have ended well by these bytes, and what has to be sent because of them. Raises `NotMeasured` for a
        call or a connection that the server has ended otherwise."""
        data = self._rest + data if self._rest else data
        position, end, ended = 0, len(data), 0
        answers: list[bytes] = []
        while end - position >= _FRAME.size:
            high, low, kind, flags, stream = _FRAME.unpack_from(data, position)
            length = high << 16 | low
            start, position = position + _FRAME.size, position + _FRAME.size + length
            if position > end:
                position = start - _FRAME.size
                break
            if kind == _HEADERS:
                if flags & _END_STREAM:
                    ended += 1
                    if data.find(_STATUS_OK, start, position) < 0:
                        raise _refusal(data[start:position])
            elif kind == _DATA:
                self._uncredited += length
                if self._is_collecting:
                    self._collect(stream, data[start:position])
                if self._uncredited >= _CREDIT_BYTES:
                    answers.append(self._give_credit(stream))
            else:
                answers.append(self._control(kind, flags, stream, data[start:position]))
        self._rest = data[position:]
        self._open -= ended
        return ended, b"".join(answers) + self._sendable()

    def _collect(self, stream: int, data: bytes) -> None:
        answer = self._answers.setdefault(stream, bytearray())
        answer += data
        while len(answer) >= _PREFIX.size:
            length = _PREFIX.unpack_from(answer)[1] + _PREFIX.size
            if len(answer) < length:
                return
            self.messages.append(bytes(answer[_PREFIX.size : length]))
            del answer[:length]
        if not answer:
            del self._answers[stream]

    def _give_credit(self, stream: int) -> bytes:
        """For what was received: of the stream as well if it goes on."""
        credit, self._uncredited = _NUMBER.pack(self._uncredited), 0
        streams = (0, stream) if self._is_streaming else (0,)
        return b"".join(_frame(_WINDOW_UPDATE, 0, each, credit) for each in streams)

    def _control(self, kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        if kind == _SETTINGS and not flags & _ACK:
            for at in range(0, len(payload), _SETTING.size):
                self._set(*_SETTING.unpack_from(payload, at))
            return _frame(_SETTINGS, _ACK, 0, b"")
        if kind == _PING and not flags & _ACK:
            return _frame(_PING, _ACK, 0, payload)
        if kind == _WINDOW_UPDATE:
            self._take_credit(stream, _NUMBER.unpack(payload)[0])
        elif kind == _RST_STREAM:
            raise NotMeasured(f"the server ended a call with HTTP/2's error {_NUMBER.unpack(payload)[0]}")
        elif kind == _GOAWAY:
            raise NotMeasured(
                f"the server leaves: HTTP/2's error {_NUMBER.unpack_from(payload, 4)[0]}, {payload[8:]!r}"
            )
        return b""

    def _set(self, name: int, value: int) -> None:
        if name == _STREAMS_MAX:
            self._open_max = min(self._open_max, value)
        elif name == _INITIAL_WINDOW:
            more, self._window_at_first = value - self._window_at_first, value
            for stream in list(self._begun):
                self._take_credit(stream, more)

    def _take_credit(self, stream: int, more: int) -> None:
        if not stream:
            self._credit += more
        elif stream in self._begun:  # else its message is sent, and it needs none
            rest, credit = self._begun[stream]
            self._begun[stream] = rest, credit + more
            if credit <= 0 < credit + more:
                self._ready.append(stream)


def _refusal(trailers: bytes) -> NotMeasured:
    """With the number of the status (https://grpc.io/docs/guides/status-codes/) and the server's words."""
    status, words = (_decoded(trailers.partition(name)[2]) for name in (_STATUS, _MESSAGE))
    return NotMeasured(f"a call ended with gRPC's status {status or trailers.hex()}: {words}")
