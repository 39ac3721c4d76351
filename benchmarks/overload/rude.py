"""Clients that ask a bookie for large reads and never receive the answers, as a process. Ends with its standard input.

The library's own codec over a raw socket: the library's client always receives. A client whose connection was ended
connects again at once.
"""

from __future__ import annotations

import socket
import sys

import trio

from replog.errors import ReplogError
from replog.protocol import wire
from replog.protocol.batch import build
from replog.protocol.digest import Digest, DigestType, ledger_key
from replog.protocol.messages import AddRequest, ReadRequest
from replog.protocol.wire import FrameSplitter
from replog.runtime.nursery import open_service_nursery
from replog.transports.tcp.addresses import parse_address
from replog.transports.tcp.greeting import ClientGreeter
from replog.transports.tcp.refusals import RefusedPeerError, SilentPeerError
from replog.transports.tcp.stream import Stream

_REQUESTS_MAX = 4096  # unanswered, of each client
_BYTES_MAX = 4 << 20
_AGAIN_S = 0.1
_HALF_BYTES = 15 << 20


def _half_message(ledger_id: int, key: bytes) -> bytes:
    """All but the last byte of a large add."""
    batch = build(
        Digest(DigestType.CRC32C, ledger_id, b""),
        ledger_id=ledger_id,
        first_entry_id=1 << 40,
        stride=1,
        payloads=[bytes(_HALF_BYTES)],
        last_add_confirmed=-1,
        stamp=1,
        timestamp_ns=0,
        cumulative_length=_HALF_BYTES,
    )
    pieces: list[bytes] = []
    wire.encode_request(AddRequest(1 << 40, ledger_id, key, 1, batch), pieces)
    return b"".join(pieces)[:-1]


async def _be_rude(address: str, ledger_id: int, key: bytes, entries: int, half: bytes, seen: dict[str, int]) -> None:
    while True:
        try:
            with trio.fail_after(5):
                connected = await trio.open_tcp_stream(*parse_address(address))
            stream = Stream(socket.socket(fileno=connected.socket.detach()))
            try:
                await _ask(stream, ledger_id, key, entries, half, seen)
            finally:
                stream.close()
        except (OSError, ReplogError, RefusedPeerError, SilentPeerError, trio.TooSlowError):
            pass
        await trio.sleep(_AGAIN_S)


async def _ask(stream: Stream, ledger_id: int, key: bytes, entries: int, half: bytes, seen: dict[str, int]) -> None:
    async with open_service_nursery() as nursery:
        nursery.start_soon(stream.run)
        with trio.fail_after(5):
            await ClientGreeter(stream, FrameSplitter(wire.GREETING_BYTES_MAX)).greet("", None, b"")
        seen["connections"] += 1
        for request_id in range(1, 1 + (1 if half else _REQUESTS_MAX)):
            pieces: list[bytes] = []
            entry_id = request_id * 7 % entries
            wire.encode_request(ReadRequest(request_id, ledger_id, key, entry_id, 1, _BYTES_MAX), pieces)
            stream.write(pieces)
        stream.write([half])
        while not stream.has_peer_left():  # noqa: ASYNC110 - nothing tells it without receiving
            await trio.sleep(_AGAIN_S)
        nursery.cancel_scope.cancel()


async def _main(address: str, ledger_id: int, entries: int, clients: int, kind: str) -> None:
    seen = {"connections": 0}
    key = ledger_key(ledger_id, b"")
    half = _half_message(ledger_id, key) if kind == "halves" else b""
    async with trio.open_nursery() as nursery:
        for _ in range(clients):
            nursery.start_soon(_be_rude, address, ledger_id, key, entries, half, seen)
        print("ready", flush=True)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()
    print(seen["connections"], flush=True)


if __name__ == "__main__":
    trio.run(_main, sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
