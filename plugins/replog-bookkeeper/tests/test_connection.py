"""The connection to a bookie, against a peer that answers as the test says: hostile bytes, cut streams, foreign answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest
import trio
from golden import golden, golden_bytes
from hypothesis import given
from hypothesis import strategies as st
from test_golden import ENTRY, KEY, LEDGER, batch_of

from replog.client.channel import Answer, BookieChannel
from replog.errors import BookieError, BookieUnreachableError, ConfigError, RemoteProtocolError, ReplogError
from replog.protocol.messages import (
    AddRequest,
    FenceRequest,
    LedgerRequest,
    ReadLastAddConfirmedRequest,
    ReadRequest,
    RecoveryReadRequest,
    Response,
    Status,
)
from replog_bookkeeper import frames, frames_v2
from replog_bookkeeper.frames import Code, Operation, ReadFlag, Splitter
from replog_bookkeeper.schema import wire
from replog_bookkeeper.transport import ANSWER_BYTES_MAX, BookKeeperTransport


def requests() -> list[LedgerRequest]:
    return [
        AddRequest(1, LEDGER, KEY, 1, batch_of(b"payload")),
        FenceRequest(2, LEDGER, KEY, 2),
        RecoveryReadRequest(3, LEDGER, KEY, 2, ENTRY, 1),
        ReadRequest(4, LEDGER, KEY, ENTRY, 1, 1 << 20),
        ReadLastAddConfirmedRequest(5, LEDGER, KEY, -1, 0),
        ReadLastAddConfirmedRequest(6, LEDGER, KEY, -1, 50),
    ]


Peer = Callable[[list[bytes]], bytes]  # requests as they came, to what is sent back


async def all_answers(answer: Peer, asked: Sequence[LedgerRequest] | None = None, version: int = 3) -> list[Answer]:
    """The answers that a channel gives to these requests, of each kind one if none are given."""
    wanted = requests() if asked is None else asked
    found: dict[int, Answer] = {}
    all_found = trio.Event()

    async def serve(stream: trio.SocketStream) -> None:
        splitter = Splitter(ANSWER_BYTES_MAX)
        with suppress(trio.BrokenResourceError):
            async for data in stream:
                if back := answer(splitter.feed(data)):
                    await stream.send_all(back)

    def note(answer: Answer, request_id: int) -> None:
        found[request_id] = answer
        if len(found) == len(wanted):
            all_found.set()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, serve, 0)
        port = listeners[0].socket.getsockname()[1]
        channel = BookieChannel("peer", 1 << 30, 1.0, iter(range(1, 1 << 30)))
        transport = BookKeeperTransport(wire_version=version)
        channel.connected(await transport.connect(f"127.0.0.1:{port}", channel, nursery, bookie_id="peer"))
        nursery.start_soon(channel.watch)
        for each in wanted:
            channel.ask(each, note, each.request_id, 1.0)
        with trio.fail_after(20):
            await all_found.wait()
        nursery.cancel_scope.cancel()
    return [found[each.request_id] for each in wanted]


def framed(message: bytes) -> bytes:
    return len(message).to_bytes(4, "big") + message


def replies(make: Callable[[object], bytes]) -> Peer:
    """A peer that answers each request by what `make` says of it."""
    return lambda messages: b"".join(framed(make(wire["Request"].FromString(each))) for each in messages)


# -- what a bookie can say ----------------------------------------------------------------------------------------


@given(st.binary(max_size=200))
def test_any_bytes_are_a_response_or_a_named_error(data: bytes) -> None:
    with suppress(RemoteProtocolError):
        frames.decode(data)


@given(st.sampled_from([each for each in golden() if each.startswith("answer-")]), st.randoms(use_true_random=False))
def test_mutated_responses_are_read_or_named(name: str, chance: random.Random) -> None:
    data = bytearray(golden_bytes(name))
    for _ in range(chance.randint(1, 4)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    del data[chance.randint(len(data) // 2, len(data)) :]
    with suppress(RemoteProtocolError):
        frames.decode(bytes(data))


@given(st.lists(st.binary(max_size=50), max_size=10), st.randoms(use_true_random=False))
def test_stream_is_cut_alike_in_any_pieces(messages: list[bytes], chance: random.Random) -> None:
    stream, found, splitter = b"".join(map(framed, messages)), list[bytes](), Splitter(100)
    while stream:
        size = chance.randint(1, len(stream))
        found += splitter.feed(stream[:size])
        stream = stream[size:]
    assert found == messages


def test_frame_above_the_limit_ends_the_stream() -> None:
    assert Splitter(100).feed(framed(bytes(100))) == [bytes(100)]
    with pytest.raises(RemoteProtocolError, match="101 bytes"):
        Splitter(100).feed(framed(bytes(101))[:4])


@pytest.mark.parametrize(
    "garbage", [bytes(8), b"\xff" * 8, framed(b"\xff"), framed(b""), (1 << 31).to_bytes(4, "big"), b"\0\0"]
)
async def test_garbage_is_no_answer_and_never_a_denial(garbage: bytes) -> None:
    """R4: every question ends in doubt."""
    for answer in await all_answers(lambda _messages: garbage):
        assert isinstance(answer, BookieError)


async def test_answer_to_another_operation_ends_the_connection() -> None:
    """The transaction fits, and the body is that of another question."""

    def other(request: object) -> bytes:
        header = request.header  # type: ignore[attr-defined]
        found = wire["Response"].FromString(golden_bytes("answer-add-EOK"))
        found.header.txnId = header.txnId
        if header.operation == Operation.ADD_ENTRY:
            found = wire["Response"].FromString(golden_bytes("answer-read-lac"))
            found.header.txnId = header.txnId
        return bytes(found.SerializeToString())

    for answer in await all_answers(replies(other)):
        assert isinstance(answer, BookieUnreachableError)


@pytest.mark.parametrize("status", [402, 403, 404, 501, 502, 503, 504, 505, 506, 507, 0, -1, 99])
async def test_each_status_without_a_body_is_safe(status: int) -> None:
    """Only "no entry" and "no ledger" deny, and only to what reads (R4)."""

    def refuse(request: object) -> bytes:
        header = request.header  # type: ignore[attr-defined]
        return bytes(wire["Response"](header=header, status=status).SerializeToString())

    for request, answer in zip(requests(), await all_answers(replies(refuse)), strict=False):
        if isinstance(answer, Response) and answer.status is Status.NO_ENTRY:
            assert status in (402, 403)
            assert not isinstance(request, AddRequest)
        if isinstance(answer, Response) and answer.status is Status.OK:
            assert status in (402, 403)  # a fence, or a query, of a bookie that has nothing
            assert not answer.batches
            assert not answer.proof


@pytest.mark.parametrize("body", [b"", b"x", golden_bytes("entry-CRC32"), golden_bytes("entry-CRC32C")[:-1]])
async def test_damaged_entry_is_doubt(body: bytes) -> None:
    """R4, R11: a copy that does not verify denies nothing, and proves nothing."""

    def answer(request: object) -> bytes:
        header = request.header  # type: ignore[attr-defined]
        found = wire["Response"](header=header, status=0)
        if header.operation == Operation.READ_ENTRY:
            found.readResponse.status, found.readResponse.ledgerId, found.readResponse.entryId = 0, LEDGER, ENTRY
            found.readResponse.body = body
        elif header.operation == Operation.READ_CONFIRMED:
            found.readLacResponse.status, found.readLacResponse.ledgerId = 0, LEDGER
            found.readLacResponse.lacBody, found.readLacResponse.lastEntryBody = body, body
        else:
            found.addResponse.status, found.addResponse.ledgerId, found.addResponse.entryId = 0, LEDGER, ENTRY + 1
        return bytes(found.SerializeToString())

    for found in await all_answers(replies(answer)):
        assert isinstance(found, Response)
        assert found.status is Status.UNKNOWN


async def test_hint_of_a_long_poll_is_checked_before_it_counts() -> None:
    """R11: a number beside an entry moves nothing; the bytes that prove it are asked for, and here lack."""
    operations: list[int] = []

    def answer(request: object) -> bytes:
        header = request.header  # type: ignore[attr-defined]
        operations.append(header.operation)
        found = wire["Response"](header=header, status=0)
        if header.operation == Operation.READ_ENTRY:
            found.readResponse.status, found.readResponse.ledgerId, found.readResponse.entryId = 0, LEDGER, -1
            found.readResponse.maxLAC = 1000
        else:
            found.readLacResponse.status, found.readLacResponse.ledgerId = 0, LEDGER
        return bytes(found.SerializeToString())

    (found,) = await all_answers(replies(answer), [ReadLastAddConfirmedRequest(1, LEDGER, KEY, -1, 500)])
    assert isinstance(found, Response)
    assert (found.status, found.proof) == (Status.OK, b"")
    assert operations == [Operation.READ_ENTRY, Operation.READ_CONFIRMED]


async def test_silent_bookie_ends_in_a_named_error() -> None:
    for answer in await all_answers(lambda _messages: b""):
        assert isinstance(answer, BookieUnreachableError)


async def test_invalid_address_is_named() -> None:
    transport = BookKeeperTransport()
    async with trio.open_nursery() as nursery:
        for address, kind in (("host:port", ConfigError), ("127.0.0.1:1", BookieUnreachableError)):
            with pytest.raises(kind):
                await transport.connect(address, _Nobody(), nursery, bookie_id="peer")
    with pytest.raises(ConfigError):
        transport.listen("127.0.0.1:0", _Nobody())  # type: ignore[arg-type]


class _Nobody:
    def responses_received(self, responses: Sequence[Response]) -> None:
        raise AssertionError

    def disconnected(self, error: ReplogError) -> None:
        raise AssertionError


async def test_equal_questions_of_version_2_wait_for_each_other() -> None:
    """Their answers look the same: that to a plain read must not be taken for one of a read that fences (R3)."""
    came: list[list[int]] = []

    def answer(messages: list[bytes]) -> bytes:
        questions = [frames_v2.Question(each) for each in messages]
        came.append([each.body.flag for each in questions])
        return b"".join(
            each.answer(Code.OK, body=KEY.seal_entry(batch_of(b"payload"), ENTRY - 1)) for each in questions
        )

    plain, fence = ReadRequest(1, LEDGER, KEY, ENTRY, 1, 1 << 20), RecoveryReadRequest(2, LEDGER, KEY, 2, ENTRY, 1)
    found = await all_answers(answer, [plain, fence], version=2)
    assert came == [[0], [ReadFlag.FENCE_LEDGER]]
    for each in found:
        assert isinstance(each, Response)
        assert (each.status, each.batches[0].payloads()) == (Status.OK, [b"payload"])


@pytest.mark.parametrize(
    "garbage", [bytes(24), b"\0\0\0\3abc", b"\0\0\0\x18" + bytes(24), b"\0\0\0\x18\2\5" + bytes(22)]
)
async def test_garbage_in_version_2_ends_the_connection(garbage: bytes) -> None:
    for answer in await all_answers(lambda _messages: garbage, requests()[:4], version=2):
        assert isinstance(answer, BookieUnreachableError)
