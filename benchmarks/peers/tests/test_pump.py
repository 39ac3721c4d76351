"""The pump: all that is asked for is sent, in order, however little a socket takes; nothing is in flight at the end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest

from benchmarks.figures import Meter
from benchmarks.peers import pump as pumping
from benchmarks.peers.pump import append_all, pump
from benchmarks.peers.system import Load, NotMeasured


class _Numbered:
    """Requests are bytes that count up; each byte of an answer confirms one."""

    def __init__(self, request_bytes: int) -> None:
        self.asked = 0
        self._request_bytes = request_bytes

    def requests(self, count: int) -> bytes:
        first, self.asked = self.asked, self.asked + count
        return b"".join(bytes((number % 251,)) * self._request_bytes for number in range(first, self.asked))

    def receive(self, data: bytes) -> tuple[int, bytes]:
        return len(data), b""


def _answer(stream: socket.socket, request_bytes: int, counts: list[int]) -> None:
    """Confirms each request that has come whole, if it is the one that was to come."""
    number = missing = 0
    while data := stream.recv(3 * request_bytes // 2):
        for start in range(0, len(data)):
            if data[start] != number % 251:
                counts.append(-1)
                stream.close()
                return
            missing += 1
            if missing == request_bytes:
                number, missing = number + 1, 0
                stream.sendall(b"x")
    counts.append(number)


def _pumped(
    request_bytes: int, in_flight: int, seconds: float = 0.05, entries_max: int = 1 << 40
) -> tuple[dict[str, float], int, list[int]]:
    ours, theirs = socket.socketpair()
    talk, counts = _Numbered(request_bytes), list[int]()
    server = threading.Thread(target=_answer, args=(theirs, request_bytes, counts))
    with theirs:
        server.start()
        try:
            with ours:
                ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
                figures = pump([(ours, talk)], Load(request_bytes, in_flight, seconds, entries_max=entries_max), Meter)
        finally:
            server.join(10)
    return figures, talk.asked, counts


@pytest.mark.parametrize(("request_bytes", "joined_bytes"), [(10, 1 << 18), (2000, 1 << 18), (2000, 100), (2000, 5000)])
def test_bytes_refused_at_once_are_sent_in_order(
    monkeypatch: pytest.MonkeyPatch, request_bytes: int, joined_bytes: int
) -> None:
    monkeypatch.setattr(pumping, "_JOINED_BYTES", joined_bytes)
    figures, asked, counts = _pumped(request_bytes, in_flight=50)

    assert counts == [asked]
    assert 0 < figures["entries"] < asked
    assert figures["p50_us"] <= figures["p99_us"] <= figures["p999_us"]


def test_a_load_ends_when_so_many_are_confirmed() -> None:
    figures, asked, counts = _pumped(10, in_flight=50, seconds=60.0, entries_max=200)

    assert counts == [asked]
    assert 200 <= figures["entries"] < 250


@pytest.mark.parametrize("entries", [1, 16, 17, 40])
def test_input_is_appended_and_confirmed(entries: int) -> None:
    """A MiB at once: 16 of these."""
    ours, theirs = socket.socketpair()
    talk, counts = _Numbered(1 << 16), list[int]()
    server = threading.Thread(target=_answer, args=(theirs, 1 << 16, counts))
    with theirs:
        server.start()
        try:
            with ours:
                append_all(ours, talk, entries, 1 << 16)
        finally:
            server.join(10)

    assert counts == [talk.asked] == [entries]


def test_appending_ends_when_the_server_hangs_up() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(NotMeasured, match="hung up, with 5 entries"):
            append_all(ours, _Numbered(10), 5, 10)


def test_pump_ends_when_the_server_hangs_up() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        with pytest.raises((NotMeasured, BrokenPipeError)):
            pump([(ours, _Numbered(10))], Load(10, 1, seconds=0.05), Meter)


def test_a_waiting_large_request_is_not_copied_for_the_next() -> None:
    large = bytes(pumping._JOINED_BYTES)
    taken: list[int] = []

    class Full:
        def send(self, data: memoryview) -> int:
            taken.append(len(data))
            raise BlockingIOError

    connection = pumping._Connection(Full(), _Numbered(1))  # type: ignore[arg-type]
    send: Callable[[bytes], bool] = connection.send
    assert not send(large)
    assert not send(b"ab")
    assert not send(b"cd")

    assert [part.obj for part in connection.unsent] == [large, b"abcd"]
    assert connection.unsent[0].obj is large
    assert taken == [len(large)] * 3
