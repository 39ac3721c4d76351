"""Clients that take nothing, beside one that does: what it asks is answered, and the bytes are counted exactly (B9)."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import trio
import trio.testing
from trio.testing import wait_all_tasks_blocked

from replog.protocol import wire
from replog.protocol.messages import (
    FenceRequest,
    ReadRequest,
    RecoveryReadRequest,
    Request,
    Response,
    Status,
    WriteLastAddConfirmedRequest,
)
from replog.protocol.wire import FrameSplitter
from replog.transports.tcp.budget import Budget
from replog.transports.tcp.listener import Listener
from replog.transports.tcp.options import TcpTuning
from replog.transports.tcp.session import Session
from replog.transports.tcp.stream import Stream
from tests.protocol.bookies import proof_of
from tests.transports.tcp.kit import (
    FRAME_BYTES_MAX,
    KEY,
    Handler,
    RawClient,
    add,
    batch_of,
    encoded,
    listening,
    raw_client,
    read,
    settled,
)

MIB = 1 << 20
SMALL = batch_of(1000)
LARGE = batch_of(MIB)


def answer(request: Request) -> Response:
    """A large batch to who asks for much."""
    if isinstance(request, ReadRequest):
        return Response(request.request_id, Status.OK, batches=(LARGE if request.bytes_max > 1000 else SMALL,))
    if isinstance(request, RecoveryReadRequest):
        return Response(request.request_id, Status.OK, batches=(LARGE,))
    return Response(request.request_id, Status.OK)


@asynccontextmanager
async def beside_rude_clients(
    handler: Handler, clients: int, say: Callable[[RawClient], None], **options: int
) -> AsyncIterator[tuple[Listener, RawClient]]:
    """A listener, and a client that came after so many rude ones had said theirs."""
    async with AsyncExitStack() as stack:
        listener = await stack.enter_async_context(listening(handler, **options))
        for _ in range(clients):
            client = await stack.enter_async_context(raw_client(listener.address, receive_buffer_bytes=4096))
            say(client)
        await settled()
        yield listener, await stack.enter_async_context(raw_client(listener.address))


def ask_for_much(client: RawClient) -> None:
    client.say(*[read(number, 4 * MIB) for number in range(100)])


def ask_to_recover(client: RawClient) -> None:
    client.say(*[RecoveryReadRequest(number, 7, KEY, 1, 0, 1) for number in range(100)])


def begin_large_message(client: RawClient) -> None:
    client.stream.write([encoded(add(1, batch_of(2 * MIB - 4096)))[:-1]])


def is_counted_exactly(listener: Listener) -> bool:
    """Whether what the sessions keep is what the budget says, and within its bound."""
    budget = listener._budget
    sessions = list(listener._sessions)
    for session in sessions:
        pieces = {id(view.obj): len(view.obj) for view in session._stream._waiting}  # type: ignore[arg-type]
        held_bytes = sum(pieces.values()) + len(session._stream._small)
        assert session._stream.held_bytes == session._answers.held_bytes
        assert held_bytes == session._answers.held_bytes or len(pieces) < len(
            session._stream._waiting
        )  # one batch, sent often
        assert session._account.answer_bytes == session._answers.held_bytes + sum(session._answers.reads.values())
        known_bytes = sum(session._account.requests.values()) + session._begun_bytes + session._kept_bytes
        assert session._account.charged_bytes == session._account.answer_bytes + known_bytes
    assert budget.used_bytes == sum(each._account.charged_bytes for each in sessions) <= budget.total_bytes_max
    assert budget.answer_bytes == sum(each._account.answer_bytes for each in sessions)
    return budget.answer_bytes <= budget.answer_bytes_max + len(LARGE.data)


async def check_is_served(healthy: RawClient) -> None:
    """Adds, fences, explicit last adds confirmed, pings and small reads are answered, without any time passing."""
    started_s = trio.current_time()
    for number in range(0, 50, 5):
        healthy.say(
            add(number, batch_of(10_000)),
            FenceRequest(number + 1, 7, KEY, 1),
            WriteLastAddConfirmedRequest(number + 2, 7, KEY, 1, proof_of(5)),
            read(number + 3, 1000),
            add(number + 4, SMALL),
        )
        answers = await healthy.answers(5)
        assert sorted(each.request_id for each in answers) == list(range(number, number + 5))
        assert {each.status for each in answers} == {Status.OK}
    healthy.stream.write([wire.PING_FRAME])
    frame = await healthy.hear()
    assert frame is not None
    assert frame.kind == wire.PONG
    assert trio.current_time() - started_s < 1


async def test_small_requests_are_answered_beside_deaf_clients(autojump_clock: trio.testing.MockClock) -> None:
    async with beside_rude_clients(
        Handler(answer), 24, ask_for_much, connection_bytes_max=8 * MIB, total_bytes_max=32 * MIB
    ) as (listener, healthy):
        assert listener._budget.answer_bytes > 4 * MIB
        assert is_counted_exactly(listener)
        await check_is_served(healthy)
        assert is_counted_exactly(listener)


async def test_small_requests_are_answered_beside_deaf_recoveries(autojump_clock: trio.testing.MockClock) -> None:
    async with beside_rude_clients(
        Handler(answer), 24, ask_to_recover, connection_bytes_max=8 * MIB, total_bytes_max=32 * MIB
    ) as (listener, healthy):
        assert is_counted_exactly(listener)
        await check_is_served(healthy)


async def test_small_requests_are_answered_beside_half_messages(autojump_clock: trio.testing.MockClock) -> None:
    async with beside_rude_clients(
        Handler(answer), 24, begin_large_message, connection_bytes_max=8 * MIB, total_bytes_max=32 * MIB
    ) as (listener, healthy):
        assert listener._budget.is_scarce  # they need more than there is
        assert is_counted_exactly(listener)
        await check_is_served(healthy)


async def test_large_reads_are_answered_after_deaf_clients_lost_room(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with beside_rude_clients(
        Handler(answer), 24, ask_for_much, connection_bytes_max=4 * MIB, total_bytes_max=16 * MIB
    ) as (listener, healthy):
        healthy.say(read(1, 4 * MIB))
        with trio.fail_after(15):  # a quarter of 30 s, and a look each second
            (response,) = await healthy.answers(1)
        assert response.batches == (LARGE,)
        assert is_counted_exactly(listener)


async def test_departed_client_is_noticed_while_nothing_is_received(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It has asked for so much that nothing more is read: its farewell stands behind what nobody reads."""
    handler = Handler(answer, holds=True)
    async with listening(handler) as listener:
        async with raw_client(listener.address) as leaving:
            leaving.say(*[read(number, MIB) for number in range(1000)])
            await settled()
            (session,) = listener._sessions
            assert session._pace.is_waiting
        await settled(2)
        assert not listener._sessions
        assert session.problem == ""
        assert listener._budget.used_bytes == 0
        held = len(handler.held)
        handler.release()
        await settled()
        assert len(handler.requests) == held  # what it asked for besides is not read


async def test_a_broken_client_is_noticed_while_nothing_is_received(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with listening(Handler(answer)) as listener:
        async with raw_client(listener.address, receive_buffer_bytes=4096) as leaving:
            leaving.say(*[read(number, MIB) for number in range(1000)])
            await settled()
            (session,) = listener._sessions
            assert session._pace.is_waiting
            leaving.stream._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await settled(2)
        assert not listener._sessions
        assert listener._budget.used_bytes == 0


async def test_adds_overtake_waiting_reads(autojump_clock: trio.testing.MockClock) -> None:
    handler = Handler(answer, holds=True)
    async with listening(handler) as listener, raw_client(listener.address) as client:
        client.say(*[read(number, 1000) for number in range(100)], add(100, SMALL), FenceRequest(101, 7, KEY, 1))
        await settled()
        assert [request.request_id for request in handler.requests] == [*range(32), 100, 101]
        handler.release()
        await settled()
        handler.release()
        await settled()
        handler.release()
        await settled()
        handler.release()
        answers = await client.answers(102)
        assert sorted(each.request_id for each in answers) == list(range(102))
        assert [each.request_id for each in handler.requests if isinstance(each, ReadRequest)] == list(range(100))
        assert listener._budget.used_bytes == 0


async def test_read_is_refused_when_room_is_missing_for_long(autojump_clock: trio.testing.MockClock) -> None:
    handler = Handler(answer, holds=True)
    async with listening(handler, transfer_timeout_s=10.0) as listener, raw_client(listener.address) as client:
        client.say(*[read(number, 1000) for number in range(40)])
        await settled(8)
        assert len(handler.held) == 32
        with trio.fail_after(5):
            answers = await client.answers(8)
        assert {each.status for each in answers} == {Status.TOO_BUSY}
        assert [each.request_id for each in answers] == list(range(32, 40))
        assert "no room for the answer" in answers[0].detail
        handler.release()
        await client.answers(32)
        assert listener._budget.used_bytes == 0


async def test_piece_is_counted_whole_until_all_of_it_is_sent(nursery: trio.Nursery) -> None:
    ends = socket.socketpair()
    near, far = map(Stream, ends)
    ends[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 100_000)
    budget = Budget(64 * MIB)
    session = Session(near, FrameSplitter(FRAME_BYTES_MAX), Handler(answer), None, TcpTuning(), budget)
    nursery.start_soon(near.run)
    nursery.start_soon(session.run, [])
    client = RawClient(far, FrameSplitter(wire.FRAME_BYTES_MAX), [])
    client.say(read(1, MIB))
    await wait_all_tasks_blocked(0.01)
    assert 0 < near.waiting_bytes < len(LARGE.data)  # the system has taken some
    assert near.held_bytes == len(LARGE.data) == budget.answer_bytes == budget.used_bytes
    await client.answers(1)
    await wait_all_tasks_blocked(0.01)
    assert near.held_bytes == budget.answer_bytes == budget.used_bytes == 0
    far.close()
