"""Frames that can be no answer, over real sockets: whoever asked hears a named error, or a good answer, and always something."""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Iterator

import attrs
import pytest
import trio
import trio.testing

from replog.client.channel import Answer, BookieChannel
from replog.errors import BookieAnswerError, BookieError, BookieUnreachableError
from replog.protocol import wire
from replog.protocol.answers import check_answer
from replog.protocol.messages import AddRequest, Request, Response, Status
from replog.transports.tcp.client import TcpConnection
from replog.transports.tcp.options import TcpTuning
from replog.transports.tcp.stream import Stream
from tests.protocol.test_answers import GOOD, a_batch
from tests.transports.tcp.kit import FRAME_BYTES_MAX

TIMEOUT_S = 1.0
MOST, LEAST = (1 << 63) - 1, -(1 << 63)
_FIELDS = struct.Struct("<IqqIII")


def frame(fields: bytes, body: bytes = b"", kind: int = wire.RESPONSE, flags: int = 0, request_id: int = 1) -> bytes:
    return wire.seal(kind, flags, request_id, fields, len(body)) + body


def malformed(response: Response) -> Iterator[bytes]:
    """The bytes of a good answer with each of its fields missing, empty, huge or inconsistent."""
    detail, proof = response.detail.encode(), response.proof
    body = b"".join(batch.data for batch in response.batches)
    numbers = (response.status, response.last_add_confirmed, response.fence_term)
    sizes = (len(detail), len(response.batches), len(proof))
    for place, values in enumerate(
        [
            (*range(14), 99, (1 << 32) - 1),
            (LEAST, -2, 0, MOST),
            (LEAST, -1, 0, MOST),
            (1, len(detail) + 1, (1 << 32) - 1),
            (0, 1, 5, (1 << 32) - 1),
            (1, len(proof) + 1, 137, (1 << 32) - 1),
        ]
    ):
        for value in values:
            changed = [*numbers, *sizes]
            changed[place] = value
            yield frame(_FIELDS.pack(*changed) + detail + proof, body)
    good = _FIELDS.pack(*numbers, *sizes) + detail + proof
    for length in (0, 4, _FIELDS.size - 1):
        yield frame(good[:length], body)
    for other in (
        b"",
        b"rlog",
        body[:-1],
        body + b"x",
        body + body,
        bytes(200),
        a_batch(4, ledger_id=8).data,
        a_batch(99).data,
    ):
        yield frame(good, other)
    yield frame(good, body, flags=255)
    for kind in (wire.ADD, wire.HELLO, wire.REFUSE, wire.PING, 0, 255):
        yield frame(good, body, kind=kind)
    for request_id in (0, 2, (1 << 64) - 1):
        yield frame(good, body, request_id=request_id)
    yield frame(good, body)[:-1]
    yield frame(good, body).replace(b"\x20", b"\x21")
    yield bytes(100)
    yield b"\xff" * 100


async def answers_to(request: Request, data: bytes) -> list[Answer]:
    """What whoever asked this hears when the bookie sends these bytes."""
    near, far = (Stream(each) for each in socket.socketpair())
    channel = BookieChannel("bookie-1", 1 << 20, TIMEOUT_S, itertools.count(2))
    options = TcpTuning(frame_bytes_max=FRAME_BYTES_MAX)
    connection = TcpConnection(
        "bookie-1",
        near,
        wire.FrameSplitter(wire.FRAME_BYTES_MAX),
        channel,
        options,
        wire.Ready(b"", "", FRAME_BYTES_MAX, 60_000),
    )
    channel.connected(connection)
    heard: list[Answer] = []
    came = trio.Event()

    def on_answer(answer: Answer, _context: object) -> None:
        heard.append(answer)
        came.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run, [])
        nursery.start_soon(far.run)
        nursery.start_soon(channel.watch)
        channel.ask(request, on_answer, None, TIMEOUT_S)
        far.write([data])
        with trio.move_on_after(10 * TIMEOUT_S):
            await came.wait()
        await connection.aclose()
        far.close()
        nursery.cancel_scope.cancel()
    return heard


@pytest.mark.parametrize("kind", GOOD)
async def test_any_bytes_of_a_bookie_end_in_one_answer(kind: str, autojump_clock: trio.testing.MockClock) -> None:
    """R4, D2, W6."""
    request, good = GOOD[kind]
    errors: set[type] = set()
    for data in malformed(good):
        (answer,) = await answers_to(attrs.evolve(request), data)
        if isinstance(answer, BookieError):
            errors.add(type(answer))
        elif not (isinstance(request, AddRequest) and answer.status is Status.OK):  # of that nothing else counts
            check_answer(request, answer)
    assert errors == {BookieAnswerError, BookieUnreachableError}
