"""Cases: the codec of the transport TCP, both ends, without sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from benchmarks.speed.bookies import Batches, Requests
from benchmarks.speed.setting import Case, Work
from replog.protocol import wire
from replog.protocol.frames import FRAME_BYTES_MAX, FrameSplitter
from replog.protocol.messages import AddRequest, Response, Status

_COUNT = 50


@asynccontextmanager
async def _add(entries: int, entry_bytes: int, directory: Path) -> AsyncIterator[Work]:
    """Each request and its answer."""
    requests = Requests(entries, entry_bytes)

    async def run(prepared: list[AddRequest]) -> None:
        to_bookie, to_client = FrameSplitter(FRAME_BYTES_MAX), FrameSplitter(FRAME_BYTES_MAX)
        for request in prepared:
            pieces: list[bytes] = []
            wire.encode_request(request, pieces)
            (frame,) = to_bookie.feed(b"".join(pieces))
            received = wire.decode_request(frame)
            answer: list[bytes] = []
            wire.encode_response(Response(received.request_id, Status.OK), answer)
            (frame,) = to_client.feed(b"".join(answer))
            assert wire.decode_response(frame).request_id == request.request_id

    def prepare() -> list[AddRequest]:
        return [requests.next(1) for _ in range(_COUNT)]

    yield Work(prepare, run, _COUNT, entries * entry_bytes if entries > 1 else 0)


@asynccontextmanager
async def _answer(directory: Path) -> AsyncIterator[Work]:
    """An answer of several batches, which arrives in pieces, as from a socket."""
    batches, count, entries, entry_bytes, piece_bytes = Batches(100, 100), 20, 100, 100, 64 << 10

    async def run(response: Response) -> None:
        splitter = FrameSplitter(FRAME_BYTES_MAX)
        pieces: list[bytes] = []
        wire.encode_response(response, pieces)
        stream = b"".join(pieces)
        found = [
            wire.decode_response(frame)
            for start in range(0, len(stream), piece_bytes)
            for frame in splitter.feed(stream[start : start + piece_bytes])
        ]
        assert [len(each.batches) for each in found] == [count]

    def prepare() -> Response:
        return Response(1, Status.OK, batches=tuple(batches.next(1) for _ in range(count)))

    yield Work(prepare, run, count, count * entries * entry_bytes)


CASES = (
    Case("wire-add", "an add of one entry of 100 B and its answer, encoded and decoded", partial(_add, 1, 100)),
    Case("wire-add-large", "the same of 64 KiB", partial(_add, 64, 1024)),
    Case("wire-answer", "the answer to a read: 20 batches of 100 x 100 B, encoded and decoded; for a batch", _answer),
)
