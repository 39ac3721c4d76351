"""Memory of a listener under peers that begin messages and never end them: within its bound, and returned afterwards (B9)."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from replog.protocol import wire
from replog.protocol.wire import FrameSplitter
from replog.runtime.host_ports import parse_address
from replog.transports.tcp.flood_end import FloodEnd
from replog.transports.tcp.greeting import ClientGreeter
from replog.transports.tcp.stream import Stream
from replog.transports.tcp.tls import TlsStream
from tests.forks import Forked
from tests.transports.tcp.credentials import Authority
from tests.transports.tcp.kit import add, batch_of, encoded

MEBIBYTE = 1 << 20
TOTAL_BYTES = 96 * MEBIBYTE
SLACK_BYTES = 48 * MEBIBYTE  # what one call receives, for each of the peers, and gaps of the heap
PEERS, TURNS = 40, 3
ACTOR = Path(__file__).with_name("memory_actor.py")
DEADLINE_S = 60.0


class Listening:
    """The process that listens."""

    def __init__(self, kind: str, directory: Path) -> None:
        command: list[str | Path] = [sys.executable, ACTOR, kind, str(TOTAL_BYTES), directory]
        self.kind = kind
        self._process = Forked(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()

    def ask(self) -> dict[str, int]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found: dict[str, int] = json.loads(self._process.stdout.readline())
        return found

    def end(self) -> None:
        with self._process:
            self._process.kill()


@asynccontextmanager
async def peer(listening: Listening) -> AsyncIterator[Stream]:
    """One that has introduced itself."""
    is_unix = listening.kind == "unix"
    connected = socket.socket(socket.AF_UNIX if is_unix else socket.AF_INET)
    connected.connect(listening.address if is_unix else parse_address(listening.address))
    if listening.kind == "tls":
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        stream: Stream = TlsStream(connected, context, hostname="localhost", is_bookie=False)
        assert isinstance(stream, TlsStream)
        await stream.handshake()
    else:
        stream = Stream(connected)
    try:
        with trio.fail_after(DEADLINE_S):
            # TLS binds what is proven to the certificate; here nothing is.
            await ClientGreeter(stream, FrameSplitter(wire.GREETING_BYTES_MAX)).greet("", None, b"")
        yield stream
    finally:
        stream.close()


async def cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


async def flood(listening: Listening, message: bytes, piece_bytes: int) -> dict[str, int]:
    """All peers send what is taken of this; when no more is taken, tells what memory it takes, and lets them leave."""
    found: dict[str, int] = {}
    left = trio.Event()

    async def send(nursery: trio.Nursery) -> None:
        async with peer(listening) as stream:
            nursery.start_soon(stream.run)
            for start in range(0, len(message), piece_bytes):
                if left.is_set():
                    break
                stream.write([message[start : start + piece_bytes]])
                sent = trio.Event()
                stream.on_sent = sent.set
                if stream.waiting_bytes:
                    async with trio.open_nursery() as waiting:
                        waiting.start_soon(cancel_when, left, waiting.cancel_scope)
                        await sent.wait()
                        waiting.cancel_scope.cancel()
                await trio.lowlevel.checkpoint()
            await left.wait()

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            for _ in range(PEERS):
                nursery.start_soon(send, nursery)
            before, still = -1, 0
            while still < 5:
                await trio.sleep(0.1)
                found = await trio.to_thread.run_sync(listening.ask)
                still = still + 1 if found["received_bytes"] == before else 0
                before = found["received_bytes"]
            left.set()
            while (await trio.to_thread.run_sync(listening.ask))["charged_bytes"]:
                pass
            nursery.cancel_scope.cancel()
    return found


@pytest.mark.parametrize(
    ("kind", "message_bytes", "piece_bytes"),
    [
        ("tcp", 8 * MEBIBYTE, MEBIBYTE),
        ("tcp", 8 * MEBIBYTE, 4096),
        ("tcp", 48 << 10, 48 << 10),
        ("unix", 8 * MEBIBYTE, MEBIBYTE),
        ("tls", 8 * MEBIBYTE, MEBIBYTE),
    ],
)
def test_memory_stays_within_its_bound_when_messages_never_end(
    kind: str, message_bytes: int, piece_bytes: int, tmp_path: Path, short_path: Path
) -> None:
    if kind == "tls":
        Authority(tmp_path, "authority").sign("localhost", file=short_path / "bookie.pem")
    listening = Listening(kind, short_path)
    message = encoded(add(1, batch_of(message_bytes)))[:-1]
    try:
        at_rest = listening.ask()["resident_bytes"]
        for _ in range(TURNS):
            found = trio.run(flood, listening, message, piece_bytes)
            assert found["resident_bytes"] - at_rest < TOTAL_BYTES + SLACK_BYTES
        deadline_s = time.monotonic() + DEADLINE_S
        while (held_bytes := listening.ask()["resident_bytes"] - at_rest) > SLACK_BYTES:
            assert time.monotonic() < deadline_s, f"{held_bytes} bytes are kept after everybody left"
            time.sleep(0.1)
    finally:
        listening.end()


def test_memory_is_returned_once_when_a_flood_has_ended() -> None:
    flood_end = FloodEnd()
    assert not any(flood_end.look(400 * MEBIBYTE, second) for second in range(100))
    looks = [flood_end.look(MEBIBYTE, 100.0 + second) for second in range(100)]
    assert looks.count(True) == 1


def test_memory_is_kept_when_a_load_comes_and_goes() -> None:
    flood_end = FloodEnd()
    loads = [400 * MEBIBYTE, 0, 0, 0] * 25
    assert not any(flood_end.look(load, float(second)) for second, load in enumerate(loads))
