"""Redis' protocol, RESP: as lean as Python can for appends and for scans, and simple for all else."""

from __future__ import annotations

import re
import socket
from typing import Protocol

from benchmarks.peers.system import NotMeasured
from tests.servers.processes import HOST

REPLICAS_WAITED_FOR = 1  # with the primary, two of three: as an ack quorum of two
STREAM = "log"
ANSWER_S = 30.0
PAGE_BYTES = 1 << 20  # of entries that a scan asks for at once


def encode(*words: str | bytes) -> bytes:
    """A command as RESP has it."""
    parts = [word.encode() if isinstance(word, str) else word for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


class Appends:
    """A `Conversation`: groups of XADD, each with a WAIT behind it, whose answer confirms the group."""

    def __init__(self, payload: bytes, replicas: int = REPLICAS_WAITED_FOR) -> None:
        self._entry = encode("XADD", STREAM, "*", "d", payload)
        self._wait = encode("WAIT", str(replicas), str(int(ANSWER_S * 1000)))
        self._too_few = tuple(b"\n:%d\r" % count for count in range(replicas))
        self._groups: list[int] = []
        self._rest = b"\n"  # what follows a line's end, with that end: each answer begins behind one

    def requests(self, count: int) -> bytes:
        """A group."""
        self._groups.append(count)
        return self._entry * count + self._wait

    def receive(self, data: bytes) -> tuple[int, bytes]:
        """An XADD's answer is `$15` and the entry's identifier, a WAIT's `:1`, a refusal `-WORDS`."""
        data = self._rest + data
        end = data.rfind(b"\n")
        self._rest, lines = data[end:], data[: end + 1]
        if b"\n-" in lines:
            raise NotMeasured(f"refused: {_line(lines, b'-')}")
        if any(words in lines for words in self._too_few):
            raise NotMeasured(f"WAIT ended with too few replicas: {_line(lines, b':')}")
        groups = lines.count(b"\n:")
        confirmed = sum(self._groups[:groups])
        del self._groups[:groups]
        return confirmed, b""


def _line(lines: bytes, first: bytes) -> str:
    return next(line for line in lines.split(b"\r\n") if line.lstrip(b"\n").startswith(first)).strip().decode()


Answer = bytes | int | list["Answer"] | None


class Client:
    """One connection on which one thing is asked after the other. Errors of the server raise `NotMeasured`."""

    def __init__(self, port: int) -> None:
        self.stream = socket.create_connection((HOST, port), timeout=ANSWER_S)
        self.stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self.stream.makefile("rb")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self.stream.close()

    def ask(self, *words: str | bytes) -> Answer:
        """A command's answer."""
        self.stream.sendall(encode(*words))
        return self._answer()

    def text(self, *words: str) -> str:
        """An answer that is one of words."""
        answer = self.ask(*words)
        if not isinstance(answer, bytes):
            raise NotMeasured(f"{words} was answered by {answer!r}")
        return answer.decode()

    def append(self, payload: bytes) -> None:
        """One entry, until it is confirmed."""
        wait = encode("WAIT", str(REPLICAS_WAITED_FOR), str(int(ANSWER_S * 1000)))
        self.stream.sendall(encode("XADD", STREAM, "*", "d", payload) + wait)
        self._answer()
        replicas = self._answer()
        if not isinstance(replicas, int) or replicas < REPLICAS_WAITED_FOR:
            raise NotMeasured(f"WAIT ended with {replicas!r} replicas")

    def _answer(self) -> Answer:
        line = self._file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the server hung up")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise NotMeasured(f"refused: {rest.decode()}")
        if kind == b"+":
            return rest
        count = int(rest)
        if kind == b":":
            return count
        if count < 0:
            return None
        if kind == b"*":
            return [self._answer() for _ in range(count)]
        body = self._file.read(count + 2)
        if len(body) < count + 2:
            raise ConnectionError("the server hung up")
        return body[:-2]


class Receiving(Protocol):
    """What a page is read from: a socket's half."""

    def recv_into(self, into: memoryview, /) -> int:
        """As a socket has it."""


class Pages:
    """Reads a stream's entries of one size from the answers of XRANGE: one search for a whole page, no call for an entry."""

    def __init__(self, entry_bytes: int) -> None:
        head = rb"\*2\r\n\$\d+\r\n(\d+-\d+)\r\n\*2\r\n\$1\r\nd\r\n\$%d\r\n" % entry_bytes
        self._entry = re.compile(head + rb"(.{%d})\r\n" % entry_bytes, re.DOTALL)

    def read(self, stream: Receiving) -> tuple[list[bytes], bytes]:
        """One answer's entries (none: it was the end), and the identifier of the last one."""
        with memoryview(bytearray(PAGE_BYTES)) as into:
            data = bytearray()
            while b"\r\n" not in data:
                data += _received(stream, into)
            if not data.startswith(b"*"):
                raise NotMeasured(f"refused: {bytes(data[:200])!r}")
            end = data.index(b"\r\n") + 2
            expected = int(data[1:end])
            entries: list[bytes] = []
            last = b""
            while True:
                for match in self._entry.finditer(data, end):
                    if match.start() != end:
                        break  # within what has not come whole yet
                    last, payload = match.groups()
                    entries.append(payload)
                    end = match.end()
                if len(entries) == expected:
                    return entries, last
                data = data[end:] + _received(stream, into)
                end = 0


def _received(stream: Receiving, into: memoryview) -> memoryview:
    count = stream.recv_into(into)
    if not count:
        raise ConnectionError("the server hung up")
    return into[:count]
