"""The bookie's end of a connection: bounds that hold, order, and clients that mean no good."""

from __future__ import annotations

import itertools
import random
import socket
import struct
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from replog.abc import Identity, Role
from replog.protocol import wire
from replog.protocol.messages import (
    AdminCommand,
    AdminRequest,
    CopyReadRequest,
    CopyRequest,
    FenceRequest,
    MetastorePurpose,
    MetastoreRequest,
    RangesRequest,
    ReadLastAddConfirmedRequest,
    ReadRequest,
    RecoveryReadRequest,
    Request,
    Response,
    Status,
    ledger_awaited,
)
from replog.protocol.unasked import decode_awaited
from replog.protocol.wire import FrameSplitter
from replog.transports.tcp import greeting
from replog.transports.tcp.budget import Budget
from replog.transports.tcp.options import TcpTuning
from replog.transports.tcp.session import Session
from replog.transports.tcp.stream import Stream
from tests.lanes.seeds import seeds
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
LARGE = batch_of(MIB)
LARGEST_QUANTUM_BYTES = MIB  # what one receive takes


def large_answer(request: Request) -> Response:
    return Response(request.request_id, Status.OK, batches=(LARGE,))


async def test_deaf_client_stops_only_itself(autojump_clock: trio.testing.MockClock) -> None:
    """B9: reads are made only as far as their answers are taken."""
    handler = Handler(large_answer)
    options = {"connection_bytes_max": 8 * MIB, "total_bytes_max": 64 * MIB, "transfer_timeout_s": 30.0}
    async with listening(handler, **options) as listener, raw_client(listener.address) as greedy:
        greedy.say(*[read(number, MIB) for number in range(1000)])
        await settled()
        (session,) = listener._sessions
        answered = len(handler.requests)
        assert 2 <= answered < 20  # what the two systems' buffers hold, and a share
        assert session._account.answer_bytes == session._stream.held_bytes <= 8 * len(LARGE.data)
        assert session._account.charged_bytes <= session._account.answer_bytes + 1024 * 1024
        assert listener._budget.used_bytes == session._account.charged_bytes
        async with raw_client(listener.address) as other:
            other.say(read(1, MIB))
            (response,) = await other.answers(1)
            assert response.status is Status.OK
            assert response.batches == (LARGE,)
        await settled(29)
        assert session in listener._sessions
        await settled(4)
        assert session not in listener._sessions
        assert "it takes none of the" in session.problem
        assert listener._budget.used_bytes == 0
        assert len(handler.requests) == answered + 1


@pytest.mark.parametrize("seed", seeds(6))
async def test_nothing_is_charged_when_all_is_answered(seed: int, autojump_clock: trio.testing.MockClock) -> None:
    """B9: whatever was asked for and answered, at once or later, with much, little or nothing, while the client stays."""
    chance = random.Random(seed)

    def answer(request: Request) -> Response:
        if isinstance(request, ReadRequest | RecoveryReadRequest):
            batches = chance.choice(((), (), (batch_of(10),), (batch_of(200_000),), (LARGE,)))
            status = Status.OK if batches else chance.choice((Status.NO_ENTRY, Status.UNKNOWN))
            return Response(request.request_id, status, batches=batches)
        return Response(request.request_id, chance.choice((Status.OK, Status.FENCED)))

    handler, numbers = Handler(answer), itertools.count(1)
    options = {"connection_bytes_max": 8 * MIB, "total_bytes_max": 64 * MIB}
    async with listening(handler, **options) as listener, raw_client(listener.address) as client:
        (session,) = listener._sessions
        for _ in range(30):
            handler.holds = chance.random() < 0.5
            requests: list[Request] = []
            for _ in range(chance.randrange(1, 40)):
                number, kind = next(numbers), chance.randrange(4)
                if kind == 0:
                    requests.append(add(number, batch_of(chance.choice((10, 5000)))))
                elif kind == 1:
                    requests.append(RecoveryReadRequest(number, 7, KEY, 2, 0, 1))
                elif kind == 2:
                    requests.append(ReadLastAddConfirmedRequest(number, 7, KEY, -1, 0, 0, 1, 4096))
                else:
                    requests.append(read(number, chance.choice((1, 5000, MIB))))
            client.say(*requests)
            await settled()
            with trio.fail_after(20):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(client.answers, len(requests))
                    handler.holds = False
                    while handler.held:
                        handler.release()
                        await settled()
            await settled()
            assert (session._account.charged_bytes, session._account.answer_bytes) == (0, 0)
            assert (listener._budget.used_bytes, listener._budget.answer_bytes) == (0, 0)


async def test_answers_have_a_bound_when_larger_than_asked_for(autojump_clock: trio.testing.MockClock) -> None:
    handler = Handler(large_answer, holds=True)
    async with listening(handler, connection_bytes_max=8 * MIB) as listener, raw_client(listener.address) as greedy:
        greedy.say(*[read(number) for number in range(1, 201)])
        await settled()
        assert len(handler.held) == 32  # the others wait for their turn
        handler.release()
        (session,) = listener._sessions
        assert session._account.charged_bytes <= 8 * MIB
        answers = await greedy.answers(32)
        while len(answers) < 200:
            await settled()
            # From here on the session knows how large answers may be, and asks for no more than it can give.
            assert len(handler.held) <= 8
            handler.release()
            assert session._account.charged_bytes <= 8 * MIB + len(LARGE.data)
            answers += await greedy.answers(1)
        assert [answer.request_id for answer in answers] == list(range(1, 201))
        assert {answer.status for answer in answers[:32]} == {Status.OK, Status.TOO_BUSY}
        assert {answer.status for answer in answers[32:]} == {Status.OK}
        assert all(answer.batches == (LARGE,) for answer in answers if answer.status is Status.OK)
        assert "of 1048" in next(answer.detail for answer in answers if answer.status is Status.TOO_BUSY)
        await settled()
        assert session._account.charged_bytes == 0


async def test_immediate_answer_is_charged_until_it_can_go(nursery: trio.Nursery) -> None:
    """Other sessions are told things meanwhile, and ask whether there is room for them."""
    near, far = (Stream(each) for each in socket.socketpair())
    budget, charged_bytes = Budget(1 << 30), list[int]()

    def answer(request: Request) -> Response:
        charged_bytes.append(budget.used_bytes)
        assert session._account.charged_bytes == budget.used_bytes
        return large_answer(request)

    session = Session(near, FrameSplitter(FRAME_BYTES_MAX), Handler(answer), None, TcpTuning(), budget)
    nursery.start_soon(near.run)
    nursery.start_soon(session.run, [])
    client = RawClient(far, FrameSplitter(FRAME_BYTES_MAX), [])
    client.say(add(1, batch_of(10)), read(2), read(3), add(4, batch_of(10)))
    await client.answers(4)
    size_bytes = len(LARGE.data)
    for place, used_bytes in enumerate(charged_bytes):
        assert place * size_bytes < used_bytes <= place * size_bytes + 4 * 2048, charged_bytes
    await wait_all_tasks_blocked()
    assert session._account.charged_bytes == budget.used_bytes == 0
    far.close()


async def test_a_long_poll_brings_no_batches_without_room(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Nothing is set aside for it, so that thousands may wait; its answer is worth something without batches too."""

    def answer(request: Request) -> Response:
        return Response(request.request_id, Status.OK, 5, batches=(LARGE,))

    handler = Handler(answer, holds=True)
    async with listening(handler, connection_bytes_max=8 * MIB) as listener, raw_client(listener.address) as greedy:
        greedy.say(*[ReadLastAddConfirmedRequest(n, 7, KEY, 5, 60_000, 6, 1, MIB) for n in range(1, 1001)])
        await settled()
        (session,) = listener._sessions
        assert len(handler.held) == 1000
        assert session._account.charged_bytes < 2 * MIB
        handler.release()
        assert session._account.charged_bytes <= 8 * MIB
        answers = await greedy.answers(1000)
        assert {(each.status, each.last_add_confirmed) for each in answers} == {(Status.OK, 5)}
        brought = [len(each.batches) for each in answers]
        assert set(brought) == {0, 1}
        assert brought[0] == 1
        await settled()
        assert session._account.charged_bytes == 0
        assert not session._answers._polls
        greedy.say(ReadLastAddConfirmedRequest(1, 7, KEY, 5, 0, 6, 1, MIB))
        handler.holds = False
        handler.release()
        assert (await greedy.answers(1))[0].batches == (LARGE,)


async def test_requests_in_one_piece_are_answered_as_room_allows(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A bookie that answers at once, from memory, must not have to keep a thousand answers of a mebibyte."""
    handler = Handler(large_answer)
    async with listening(handler, connection_bytes_max=4 * MIB) as listener, raw_client(listener.address) as client:
        client.say(*[read(number, MIB) for number in range(100)])
        (session,) = listener._sessions
        answers: list[Response] = []
        while len(answers) < 100:
            answers += await client.answers(1)
            assert session._account.charged_bytes <= 5 * MIB + 4096
        assert [answer.request_id for answer in answers] == list(range(100))
        assert [request.request_id for request in handler.requests] == list(range(100))
        assert all(answer.batches == (LARGE,) for answer in answers)


async def test_client_is_not_read_when_it_never_reads(autojump_clock: trio.testing.MockClock) -> None:
    handler = Handler()
    async with listening(handler, connection_bytes_max=FRAME_BYTES_MAX) as listener:
        async with raw_client(listener.address, receive_buffer_bytes=4096) as deaf:
            pings = wire.PING_FRAME * 1000
            sent = 0
            while deaf.stream.waiting_bytes < 8 * MIB and sent < 400:
                deaf.stream.write([pings * 10])
                sent += 1
                await settled()
            (session,) = listener._sessions
            assert session._account.charged_bytes <= FRAME_BYTES_MAX + LARGEST_QUANTUM_BYTES
            assert deaf.stream.waiting_bytes >= 8 * MIB  # the rest is where it came from
            await settled(35)
            assert "it takes none" in session.problem


async def test_trickling_message_ends_the_connection(autojump_clock: trio.testing.MockClock) -> None:
    async with listening(Handler(), transfer_timeout_s=30.0) as listener, raw_client(listener.address) as slow:
        (session,) = listener._sessions
        begin = trio.current_time()
        for byte in encoded(add(1, LARGE))[:200]:
            slow.stream.write([bytes([byte])])
            await trio.sleep(1)
            if session.problem:
                break
        assert session.problem == "a message that it began does not end"
        assert 30 <= trio.current_time() - begin <= 33


async def test_bytes_for_a_begun_message_are_reserved_and_returned(
    autojump_clock: trio.testing.MockClock,
) -> None:
    handler = Handler(holds=True)
    frame = encoded(add(1, LARGE))
    async with listening(handler) as listener, raw_client(listener.address) as client:
        (session,) = listener._sessions
        client.stream.write([frame[:200]])
        await settled()
        assert session._account.charged_bytes == listener._budget.used_bytes == len(frame)
        client.stream.write([frame[200:]])
        await settled()
        assert session._account.charged_bytes == len(LARGE.data) + 1024
        handler.release()
        assert session._account.charged_bytes == 0
        client.stream.write([frame[:200]])
        await settled()
        assert session._account.charged_bytes == len(frame)
    assert listener._budget.used_bytes == 0


async def test_many_half_messages_do_not_block_each_other_forever(autojump_clock: trio.testing.MockClock) -> None:
    """Together they need five times what there is; each gets its room when another one is done."""
    handler = Handler()
    frame = encoded(add(1, batch_of(FRAME_BYTES_MAX - 1024)))
    options = {"connection_bytes_max": FRAME_BYTES_MAX, "total_bytes_max": 2 * FRAME_BYTES_MAX}
    done = 0

    async def send_slowly(address: str) -> None:
        nonlocal done
        async with raw_client(address) as client:
            client.stream.write([frame[:100]])
            await trio.sleep(1)
            client.stream.write([frame[100 : MIB // 2]])
            await trio.sleep(1)
            client.stream.write([frame[MIB // 2 :]])
            (answer,) = await client.answers(1)
            assert answer.status is Status.OK
            done += 1

    async with listening(handler, **options) as listener:
        with trio.fail_after(100):
            async with trio.open_nursery() as nursery:
                for _ in range(10):
                    nursery.start_soon(send_slowly, listener.address)
                while done < 10:
                    assert listener._budget.used_bytes <= 3 * FRAME_BYTES_MAX
                    await trio.sleep(0.25)
    assert done == 10


async def test_endless_half_messages_delay_others_for_a_bounded_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    frame = encoded(add(1, batch_of(FRAME_BYTES_MAX - 1024)))
    options = {
        "connection_bytes_max": FRAME_BYTES_MAX,
        "total_bytes_max": 2 * FRAME_BYTES_MAX,
        "transfer_timeout_s": 10.0,
    }
    async with (
        listening(Handler(), **options) as listener,
        raw_client(listener.address) as first,
        raw_client(listener.address) as second,
        raw_client(listener.address) as honest,
    ):
        for hostile in (first, second):
            hostile.stream.write([frame[:100]])
        await settled()
        honest.stream.write([frame])
        await settled(1)
        assert len(listener._sessions) == 3
        with trio.fail_after(9):  # who stands still while others wait has a quarter of the time that a message may take
            await honest.answers(1)


class SlowStream:
    """What a session looks at: a peer that takes some bytes each second of what waits."""

    def __init__(self, waiting_bytes: int) -> None:
        self.waiting_bytes = waiting_bytes
        self.taken_bytes = self.received_bytes = 0
        self.is_closed = False

    def take(self, size_bytes: int) -> None:
        self.waiting_bytes -= size_bytes
        self.taken_bytes += size_bytes


@pytest.mark.parametrize(
    ("bytes_per_s", "is_room_scarce", "stays"), [(1, False, True), (1, True, False), (40, True, True)]
)
async def test_a_trickling_client_loses_its_room_when_others_need_it(
    bytes_per_s: int, is_room_scarce: bool, stays: bool, autojump_clock: trio.testing.MockClock
) -> None:
    stream: Any = SlowStream(1000)
    options = TcpTuning(transfer_timeout_s=30.0, silence_max_s=1000.0)
    session = Session(stream, FrameSplitter(FRAME_BYTES_MAX), Handler(), None, options, Budget(1 << 30))
    for second in range(100):
        stream.take(bytes_per_s)
        if stream.waiting_bytes < 500 and stays:
            stream.waiting_bytes = 1000  # more is asked for, again and again
        session.look(float(second), is_room_scarce=is_room_scarce and second > 50)
        if session.problem:
            assert 81 <= second <= 83
            assert "room is scarce" in session.problem
            break
    assert (session.problem == "") is stays


async def test_the_order_of_requests_is_kept_however_they_arrive(autojump_clock: trio.testing.MockClock) -> None:
    handler = Handler(holds=True)
    async with (
        listening(handler, connection_bytes_max=FRAME_BYTES_MAX) as listener,
        raw_client(listener.address) as client,
    ):
        requests: list[Request] = []
        for number in range(0, 300, 3):
            fence = FenceRequest(number + 1, 7, KEY, 1)
            requests += [add(number, batch_of(number * 1000)), fence, read(number + 2, 100_000)]
        data, start, size = encoded(*requests), 0, 1
        while start < len(data):
            client.stream.write([data[start : start + size]])
            start, size = start + size, size * 3 % 100_003 + 1
            if size % 5 == 0:
                await settled()
                handler.release()
        while len(handler.requests) < len(requests):
            await settled()
            handler.release()
        assert [request.request_id for request in handler.requests] == list(range(300))


async def test_long_poll_delays_no_other_and_silent_clients_are_lost(
    autojump_clock: trio.testing.MockClock,
) -> None:
    handler = Handler(holds=True)
    async with listening(handler, silence_max_s=30.0) as listener:
        async with raw_client(listener.address) as silent, raw_client(listener.address) as alive:
            silent_session, alive_session = sorted(listener._sessions, key=lambda each: each._pace._heard_at_s)
            for client in (silent, alive):
                client.say(ReadLastAddConfirmedRequest(1, 7, KEY, 5, 60_000))
            client_of = {True: alive, False: silent}
            for _ in range(8):
                await settled(5)
                alive.stream.write([wire.PING_FRAME])
            assert len(listener._sessions) == 1
            handler.release()
            assert (await client_of[True].answers(1))[0].request_id == 1
            problems = {silent_session.problem, alive_session.problem}
            assert problems == {"", "nothing was heard from it for 30.0 s"}
            assert await silent.hear() is None


async def test_reused_id_ends_the_connection(autojump_clock: trio.testing.MockClock) -> None:
    async with listening(Handler(holds=True)) as listener, raw_client(listener.address) as client:
        client.say(read(1), read(2))
        await settled()
        client.say(read(1))
        assert "request id 1 is used again before its answer" in await client.farewell()


@pytest.mark.parametrize("features", [0, wire.FEATURE_AWAITED])
async def test_writer_is_notified_unasked_unless_an_end_is_older(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, features: int
) -> None:
    """W5: a client that does not understand the frame would end the connection, so it gets none."""
    monkeypatch.setattr(greeting, "_FEATURES", features)
    handler = Handler(holds=True)
    async with listening(handler) as listener, raw_client(listener.address) as client:
        client.say(read(1))
        await settled()
        ((request, reply),) = handler.held
        reply([Response(request.request_id, Status.OK), ledger_awaited(7)])
        reply([ledger_awaited(8)])
        client.say(read(2))
        await settled()
        reply([Response(2, Status.OK)])
        frames: list[wire.Frame] = []
        while not frames or frames[-1].request_id != 2:
            frame = await client.hear()
            assert frame is not None
            frames.append(frame)
        told = [decode_awaited(each) for each in frames if each.kind == wire.AWAITED]
        assert told == ([ledger_awaited(7), ledger_awaited(8)] if features else [])
        assert len(frames) == 2 + len(told)


async def test_repeated_or_late_answer_goes_nowhere(autojump_clock: trio.testing.MockClock) -> None:
    handler = Handler(holds=True)
    async with listening(handler) as listener:
        async with raw_client(listener.address) as client:
            client.say(read(1))
            await settled()
            (request, reply), handler.held = handler.held[0], []
            answer = Response(request.request_id, Status.OK)
            reply([answer, answer])
            reply([answer])
            client.say(read(2))
            await settled()
            handler.release()
            assert [each.request_id for each in await client.answers(2)] == [1, 2]
        await settled()
        reply([answer])
        assert listener._budget.used_bytes == 0


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: replog\r\n\r\n",
        bytes(100),
        b"\xff" * 100,
        wire.seal(wire.RESPONSE, 0, 1, bytes(28)),
        wire.seal(99, 0, 1, b""),
        wire.seal(wire.ADD, 0, 1, bytes(60), 3) + b"abc",
        wire.encode_greeting(wire.Prove(b"again")),
        struct.pack("<IIIBBHQ", 0, 1 << 31, 10, wire.ADD, 0, 0, 1),
    ],
)
async def test_nonsense_ends_its_own_connection_and_is_reported(
    data: bytes, autojump_clock: trio.testing.MockClock
) -> None:
    async with listening(Handler()) as listener, raw_client(listener.address) as other:
        async with raw_client(listener.address) as client:
            client.stream.write([data])
            assert await client.farewell()
        other.say(read(1))
        assert await other.answers(1)


async def test_broken_connection_gives_everything_back(autojump_clock: trio.testing.MockClock) -> None:
    handler = Handler(large_answer, holds=True)
    async with listening(handler) as listener:
        async with raw_client(listener.address) as client:
            client.say(*[read(number, MIB) for number in range(10)], add(100, LARGE))
            client.stream.write([encoded(add(101, LARGE))[:1000]])
            await settled()
            assert listener._budget.used_bytes > 10 * MIB
            client.stream._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await settled()
        assert not listener._sessions
        assert listener._budget.used_bytes == 0
        handler.release()
        assert listener._budget.used_bytes == 0


@pytest.mark.parametrize(
    "roles", [None, {Role.CLIENT}, {Role.CLIENT, Role.ADMIN}, {Role.CLIENT, Role.REPAIRER}, {Role.REPAIRER}]
)
async def test_repair_needs_role_or_key(roles: set[Role] | None, nursery: trio.Nursery) -> None:
    """F1, B7: who shows the ledger's key is a client, and the bookie checks the key; who shows none must be a repairer."""
    near, far = (Stream(each) for each in socket.socketpair())
    identity = None if roles is None else Identity("somebody", frozenset(roles))
    handler = Handler()
    session = Session(near, FrameSplitter(FRAME_BYTES_MAX), handler, identity, TcpTuning(), Budget(1 << 30))
    nursery.start_soon(session.run, [])
    client = RawClient(far, FrameSplitter(FRAME_BYTES_MAX), [])
    key = b"k" * 32
    by_role: list[Request] = [
        RangesRequest(1, 7, b"", 1, 0, 9),
        CopyReadRequest(2, 7, b"", 0, 1, 100),
        CopyRequest(3, 7, b"", 1, batch_of(10), recovery=True, stored_key=key),
    ]
    by_key: list[Request] = [
        RangesRequest(4, 7, key, 1, 0, 9),
        CopyReadRequest(5, 7, key, 0, 1, 100),
        CopyRequest(6, 7, key, 1, batch_of(10), recovery=True),
    ]
    client.say(*by_role, *by_key)
    answers = {answer.request_id: answer for answer in await client.answers(6)}
    for needed, requests in ((Role.REPAIRER, by_role), (Role.CLIENT, by_key)):
        may = roles is None or needed in roles
        for request in requests:
            assert answers[request.request_id].status is (Status.OK if may else Status.UNAUTHORIZED), request
            assert may or f"the role of a {needed.value}" in answers[request.request_id].detail
            assert (request.request_id in [each.request_id for each in handler.requests]) is may
    far.close()


@pytest.mark.parametrize("roles", [None, {Role.CLIENT}, {Role.MEMBER}, {Role.CLIENT, Role.ADMIN}])
async def test_each_purpose_of_a_metastore_needs_its_role(roles: set[Role] | None, nursery: trio.Nursery) -> None:
    near, far = (Stream(each) for each in socket.socketpair())
    identity = None if roles is None else Identity("somebody", frozenset(roles))
    handler, budget = Handler(), Budget(1 << 30)
    session = Session(near, FrameSplitter(FRAME_BYTES_MAX), handler, identity, TcpTuning(), budget)
    nursery.start_soon(session.run, [])
    client = RawClient(far, FrameSplitter(FRAME_BYTES_MAX), [])
    client.say(*[MetastoreRequest(int(each), each, b"question") for each in MetastorePurpose])
    answers = {answer.request_id: answer for answer in await client.answers(len(MetastorePurpose))}
    for purpose in MetastorePurpose:
        role = Role[purpose.name]
        may = roles is None or role in roles
        assert answers[purpose].status is (Status.OK if may else Status.UNAUTHORIZED), purpose
    assert len(handler.requests) == len(Role if roles is None else roles) - (roles is None)
    assert budget.used_bytes == 0
    far.close()


@pytest.mark.parametrize("roles", [None, {Role.CLIENT}, {Role.CLIENT, Role.ADMIN}])
async def test_only_administration_needs_the_role_of_administrators(
    roles: set[Role] | None, nursery: trio.Nursery
) -> None:
    near, far = (Stream(each) for each in socket.socketpair())
    identity = None if roles is None else Identity("somebody", frozenset(roles))
    handler, budget = Handler(), Budget(1 << 30)
    session = Session(near, FrameSplitter(FRAME_BYTES_MAX), handler, identity, TcpTuning(), budget)
    nursery.start_soon(session.run, [])
    client = RawClient(far, FrameSplitter(FRAME_BYTES_MAX), [])
    client.say(*[AdminRequest(int(command), command) for command in AdminCommand], read(100))
    answers = {answer.request_id: answer for answer in await client.answers(len(AdminCommand) + 1)}
    for command in AdminCommand:
        is_for_clients = command in (AdminCommand.STATISTICS, AdminCommand.LEDGER_DELETED)
        may = is_for_clients or roles is None or Role.ADMIN in roles
        assert answers[command].status is (Status.OK if may else Status.UNAUTHORIZED)
        assert may or "needs the role of an administrator" in answers[command].detail
        assert any(isinstance(each, AdminRequest) and each.command is command for each in handler.requests) is may
    assert answers[100].status is Status.OK
    assert budget.used_bytes == 0
    far.close()
