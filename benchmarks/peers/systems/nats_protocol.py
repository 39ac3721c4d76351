"""NATS' protocol, and the part of JetStream's that a log needs: as lean as Python can for appends and for what is delivered."""

from __future__ import annotations

import json
import re
import secrets
import socket
from collections.abc import Mapping
from typing import Any, Protocol

from benchmarks.peers.system import NotMeasured
from tests.servers.processes import HOST

STREAM = "log"
SUBJECT = "entries"
ANSWER_S = 30.0
_RECEIVE_BYTES = 1 << 20
_HELLO = json.dumps(
    {
        "verbose": False,
        "pedantic": False,
        "headers": True,
        "no_responders": True,
        "lang": "python",
        "version": "1",
        "protocol": 1,
    }
)


def publish(subject: str, reply: str, payload: bytes) -> bytes:
    """A message, whose answer is to come to another subject."""
    return f"PUB {subject} {reply} {len(payload)}\r\n".encode() + payload + b"\r\n"


class Appends:
    """A `Conversation`: messages for the stream, each of which is acknowledged by a message of its own."""

    def __init__(self, payload: bytes, acks: str) -> None:
        self._entry = publish(SUBJECT, acks, payload)
        self._rest = b"\n"  # what follows a line's end, with that end

    def requests(self, count: int) -> bytes:
        """So many messages."""
        return self._entry * count

    def receive(self, data: bytes) -> tuple[int, bytes]:
        """An acknowledgement is `{"stream":"log", "seq":17}`, a line of its own; a refusal has an `"error"` in it, or says
        that nobody is there for the subject."""
        data = self._rest + data
        end = data.rfind(b"\n")
        self._rest, lines = data[end:], data[: end + 1]
        if b'"error"' in lines or b"\n-ERR" in lines or b"\nNATS/1.0 " in lines:
            raise NotMeasured(f"refused: {_refusal(lines)}")
        return lines.count(b'\n{"stream":'), b"PONG\r\n" * lines.count(b"\nPING\r")


def _refusal(lines: bytes) -> str:
    marks = (b'"error"', b"-ERR", b"NATS/1.0 ")
    return next(line for line in lines.split(b"\r\n") if any(mark in line for mark in marks)).decode().strip()


class Wire(Protocol):
    """A socket's half."""

    def recv(self, size: int, /) -> bytes:
        """As a socket has it."""

    def sendall(self, data: bytes, /) -> None:
        """As a socket has it."""


class Deliveries:
    """Takes entries of one size from what a push consumer delivers: one search for all that has come, no call for an entry.
    Answers the consumer's flow control and the server's pings."""

    def __init__(self, wire: Wire, entry_bytes: int) -> None:
        self._wire = wire
        self._entry = re.compile(
            rb"MSG %b \d+ \S+ %d\r\n(.{%d})\r\n" % (SUBJECT.encode(), entry_bytes, entry_bytes), re.DOTALL
        )
        self._rest = b""

    def receive(self) -> list[bytes]:
        """Waits for more, and returns what came whole: maybe nothing."""
        data = self._wire.recv(_RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the server hung up")
        data = self._rest + data
        entries: list[bytes] = []
        end = 0
        while True:
            for match in self._entry.finditer(data, end):
                if match.start() != end:
                    break  # something else is between, or it has not come whole
                entries.append(match[1])
                end = match.end()
            after = self._other(data, end)
            if after is None:
                self._rest = data[end:]
                return entries
            end = after

    def _other(self, data: bytes, start: int) -> int | None:
        """Where it ends what begins there and is no entry; None if it has not come whole."""
        found = data.find(b"\r\n", start)
        if found < 0:
            return None
        words, end = data[start:found].split(b" "), found + 2
        if words[0] == b"PING":
            self._wire.sendall(b"PONG\r\n")
            return end
        if words[0] == b"HMSG":
            end += int(words[-1]) + 2
            if end > len(data):
                return None
            if len(words) == 6:  # with a subject to answer to: FlowControl Request; else a heartbeat
                self._wire.sendall(b"PUB %b 0\r\n\r\n" % words[3])
            return end
        if words[0] in (b"MSG", b"-ERR"):
            if words[0] == b"MSG" and words[1] == SUBJECT.encode() and len(data) < end + int(words[-1]) + 2:
                return None
            raise NotMeasured(f"delivered instead of an entry: {data[start : start + 200]!r}")
        return end  # PONG, INFO


class Client:
    """One connection on which one thing is asked after the other."""

    def __init__(self, port: int) -> None:
        self.stream = socket.create_connection((HOST, port), timeout=ANSWER_S)
        self.stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self.stream.makefile("rb")
        inbox = f"_INBOX.{secrets.token_hex(8)}"
        self.acks, self.answers, self.delivered = (f"{inbox}.{name}" for name in ("acks", "answers", "delivered"))
        subscriptions = f"SUB {self.acks} 1\r\nSUB {self.answers} 2\r\nSUB {self.delivered} 3\r\n"
        self.stream.sendall(f"CONNECT {_HELLO}\r\n{subscriptions}PING\r\n".encode())
        while self._line() != b"PONG":
            pass  # INFO comes first

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self.stream.close()

    def ask(self, what: str, request: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What JetStream's API answers. Its errors raise `NotMeasured`."""
        body = json.dumps(request).encode() if request is not None else b""
        self.stream.sendall(publish(f"$JS.API.{what}", self.answers, body))
        answer: dict[str, Any] = json.loads(self._message())
        if "error" in answer:
            raise NotMeasured(f"{what}: {answer['error']}")
        return answer

    def append(self, payload: bytes) -> None:
        """One entry, until it is confirmed."""
        self.stream.sendall(publish(SUBJECT, self.acks, payload))
        answer = json.loads(self._message())
        if "error" in answer:
            raise NotMeasured(f"refused: {answer['error']}")

    def _message(self) -> bytes:
        """The next message's body."""
        while True:
            words = self._line().split(b" ")
            if words[0] == b"PING":
                self.stream.sendall(b"PONG\r\n")
            elif words[0] == b"MSG":
                return self._body(int(words[-1]))
            elif words[0] == b"HMSG":
                raise NotMeasured(f"refused: {self._body(int(words[-1])).decode().strip()}")
            elif words[0] == b"-ERR":
                raise NotMeasured(f"refused: {b' '.join(words).decode()}")

    def _body(self, size: int) -> bytes:
        body = self._file.read(size + 2)
        if len(body) < size + 2:
            raise ConnectionError("the server hung up")
        return body[:-2]

    def _line(self) -> bytes:
        line = self._file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the server hung up")
        return line[:-2]
