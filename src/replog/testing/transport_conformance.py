"""The conformance suite of transports."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from replog.abc import Connection, Reply, Transport
from replog.errors import BookieUnreachableError, ReplogError
from replog.protocol.batch import Batch, build
from replog.protocol.digest import Digest, DigestType
from replog.protocol.messages import (
    AddRequest,
    AdminCommand,
    AdminRequest,
    CopyReadRequest,
    CopyRequest,
    FenceRequest,
    RangesRequest,
    ReadLastAddConfirmedRequest,
    ReadRequest,
    RecoveryReadRequest,
    Request,
    Response,
    Status,
    WriteLastAddConfirmedRequest,
)
from replog.protocol.proofs import PROOF_BYTES_MAX
from replog.testing.promises import plain_assertions, promise, promised_error, soon

MakeTransport = Callable[[], Transport]

_KEY = bytes(range(32))


async def check_transport(make_transport: MakeTransport, address: str = "") -> None:
    """Check a transport; raise `AssertionError` with the first promise of `replog.abc` that it breaks.

    `address` is where it can listen each time, such as "127.0.0.1:0". Needs no pytest.
    """
    for check in _CHECKS:
        with plain_assertions(), soon("the conformance suite ends"):
            await check(make_transport(), address)


class _Receiver:
    """A client: keeps what it receives, and checks that nothing comes after `disconnected`."""

    def __init__(self) -> None:
        self.responses: list[Response] = []
        self.errors: list[ReplogError] = []
        self._told = trio.Event()

    def responses_received(self, responses: Sequence[Response]) -> None:
        promise(not self.errors, "nothing comes after `disconnected`")
        self.responses += responses
        self._wake()

    def disconnected(self, error: ReplogError) -> None:
        self.errors.append(error)
        self._wake()

    def _wake(self) -> None:
        self._told.set()
        self._told = trio.Event()

    async def wait(self, responses: int, contract: str) -> None:
        with soon(contract):
            while len(self.responses) < responses:
                await self._told.wait()

    async def wait_disconnected(self, contract: str) -> None:
        with soon(contract):
            while not self.errors:
                await self._told.wait()


class _Bookie:
    """A request handler that answers every request with OK and its id, at once or when a check says so."""

    def __init__(self, *, at_once: bool = True) -> None:
        self.at_once = at_once
        self.requests: list[Request] = []
        self.replies: list[tuple[int, Reply]] = []
        self._came = trio.Event()

    def handle(self, requests: Sequence[Request], reply: Reply) -> None:
        self.requests += requests
        if self.at_once:
            reply([answer(request.request_id) for request in requests])
        else:
            self.replies += [(request.request_id, reply) for request in requests]
        self._came.set()
        self._came = trio.Event()

    async def wait(self, requests: int) -> None:
        with soon("requests arrive"):
            while len(self.requests) < requests:
                await self._came.wait()


def answer(request_id: int) -> Response:
    """A plain OK."""
    return Response(request_id, Status.OK)


def _read(request_id: int) -> ReadRequest:
    return ReadRequest(request_id, 7, _KEY, request_id, 1, 1 << 20)


def _batch(payload: bytes, digest_type: DigestType = DigestType.CRC32C) -> Batch:
    return build(
        Digest(digest_type, 7, b"password"),
        ledger_id=7,
        first_entry_id=10,
        stride=1,
        payloads=[payload, b"", b"x"],
        last_add_confirmed=9,
        stamp=1,
        timestamp_ns=1_700_000_000_000_000_000,
        cumulative_length=1 << 40,
    )


async def _check_nobody_listens(transport: Transport, address: str) -> None:
    async with transport.listen(address, _Bookie()) as left:
        pass
    contract = "connecting to where nobody listens raises BookieUnreachableError"
    async with trio.open_nursery() as nursery:
        with promised_error(BookieUnreachableError, contract):
            await transport.connect(left, _Receiver(), nursery)
        nursery.cancel_scope.cancel()


async def _check_the_right_bookie(transport: Transport, address: str) -> None:
    bookie, receiver = _Bookie(), _Receiver()
    async with transport.listen(address, bookie, bookie_id="one") as reached, trio.open_nursery() as nursery:
        with promised_error(BookieUnreachableError, "connecting to another bookie than the one meant is refused"):
            await transport.connect(reached, receiver, nursery, bookie_id="two")
        connection = await transport.connect(reached, receiver, nursery, bookie_id="one")
        connection.send([_read(1)])
        await receiver.wait(1, "the bookie that is meant can be reached")
        await connection.aclose()
        nursery.cancel_scope.cancel()


async def _check_every_field_arrives(transport: Transport, address: str) -> None:
    # Larger than what one read of a socket returns: it arrives in pieces.
    large = _batch(bytes(3 << 20), DigestType.HMAC_SHA256)
    # The largest number of each field: a transport that packs them into 32 bits is found.
    big = (1 << 63) - 1
    requests: list[Request] = [
        AddRequest(1, 7, _KEY, 1, _batch(b"payload")),
        AddRequest(2, 7, _KEY, big, large, recovery=True, proof=b"p" * PROOF_BYTES_MAX),
        FenceRequest(3, big, _KEY, 2),
        RecoveryReadRequest(4, 7, _KEY, 2, big, 3),
        ReadRequest(5, 7, _KEY, 0, 1, 1 << 22),
        ReadLastAddConfirmedRequest(6, 7, _KEY, -1, 1000),
        WriteLastAddConfirmedRequest(7, 7, _KEY, 1, b"proof"),
        AdminRequest(8, AdminCommand.STATISTICS),
        CopyRequest(9, 7, _KEY, 1, _batch(b"payload"), recovery=True),
        CopyRequest(10, 7, b"", 1, _batch(b"payload"), recovery=True, stored_key=_KEY),
        CopyReadRequest(11, 7, b"", big, 1, 1 << 22),
        RangesRequest(12, 7, b"", 1, 0, big),
    ]
    answers = [Response(number, status) for number, status in enumerate(Status, 1)]
    last = len(answers)
    answers.append(Response(last + 1, Status.OK, 5, 6, (_batch(b"payload"), large), "\N{SNOWMAN} detail"))
    answers.append(Response(last + 2, Status.OK, 5, 6, detail="\N{SNOWMAN}", proof=bytes(PROOF_BYTES_MAX)))
    answers.append(Response(last + 3, Status.FENCED, -1, big))
    requests += [_read(number) for number in range(len(requests) + 1, len(answers) + 1)]
    bookie, receiver = _Bookie(at_once=False), _Receiver()
    async with transport.listen(address, bookie) as reached, trio.open_nursery() as nursery:
        connection = await transport.connect(reached, receiver, nursery)
        connection.send(requests)
        await bookie.wait(len(requests))
        for sent, came in zip(requests, bookie.requests, strict=False):
            promise(sent == came, f"a request arrives with all its fields: {sent} came as {came}")
        promise(len(bookie.requests) == len(requests), "each request arrives once")
        bookie.replies[0][1](answers)
        await receiver.wait(len(answers), "answers arrive")
        for replied, got in zip(answers, receiver.responses, strict=False):
            promise(replied == got, f"an answer arrives with all its fields: {replied} came as {got}")
        promise(len(receiver.responses) == len(answers), "each answer comes once")
        await connection.aclose()
        nursery.cancel_scope.cancel()


async def _check_order(transport: Transport, address: str) -> None:
    bookie, receiver = _Bookie(), _Receiver()
    async with transport.listen(address, bookie) as reached, trio.open_nursery() as nursery:
        connection = await transport.connect(reached, receiver, nursery)
        sent: list[int] = []
        for size in range(1, 40):
            numbers = range(len(sent), len(sent) + size)
            connection.send([_read(number) for number in numbers])
            sent += numbers
            # Sometimes several calls of `send` in one turn, sometimes one: both must keep the order.
            if size % 7 == 0:
                await trio.lowlevel.checkpoint()
        await receiver.wait(len(sent), "every request is answered")
        came = [request.request_id for request in bookie.requests]
        promise(came == sent, "requests are handled in the order in which they were sent")
        promise(sorted(each.request_id for each in receiver.responses) == sent, "each answer comes once")
        await connection.aclose()
        nursery.cancel_scope.cancel()


async def _check_answers_overtake(transport: Transport, address: str) -> None:
    bookie, receiver = _Bookie(at_once=False), _Receiver()
    async with transport.listen(address, bookie) as reached, trio.open_nursery() as nursery:
        connection = await transport.connect(reached, receiver, nursery)
        connection.send([_read(0), _read(1)])
        connection.send([_read(2)])
        await bookie.wait(3)
        for number, reply in reversed(bookie.replies):
            reply([answer(number)])
            await trio.lowlevel.checkpoint()
        await receiver.wait(3, "answers may overtake, and come in several pieces")
        found = sorted(each.request_id for each in receiver.responses)
        promise(found == [0, 1, 2], "each answer comes once")
        await connection.aclose()
        nursery.cancel_scope.cancel()


async def _check_connections_are_apart(transport: Transport, address: str) -> None:
    bookie, receivers = _Bookie(), (_Receiver(), _Receiver())
    async with transport.listen(address, bookie) as reached, trio.open_nursery() as nursery:
        connections = [await transport.connect(reached, receiver, nursery) for receiver in receivers]
        for number in range(20):
            connections[number % 2].send([_read(number)])
        for index, receiver in enumerate(receivers):
            await receiver.wait(10, "every request is answered")
            own = all(each.request_id % 2 == index for each in receiver.responses)
            promise(own, "an answer goes to the connection that asked")
        await connections[0].aclose()
        connections[1].send([_read(21)])
        await receivers[1].wait(11, "closing one connection leaves the others alone")
        await connections[1].aclose()
        nursery.cancel_scope.cancel()


async def _check_closing(transport: Transport, address: str) -> None:
    bookie, receiver = _Bookie(at_once=False), _Receiver()
    async with transport.listen(address, bookie) as reached, trio.open_nursery() as nursery:
        connection = await transport.connect(reached, receiver, nursery)
        connection.send([_read(1)])
        await bookie.wait(1)
        await connection.aclose()
        await connection.aclose()  # idempotent
        _refuses_to_send(connection)
        bookie.replies[0][1]([answer(1)])  # into the void, without an error
        await trio.sleep(0.02)
        promise(not receiver.responses, "no answer comes after aclose")
        promise(len(receiver.errors) <= 1, "`disconnected` is called once at most")
        nursery.cancel_scope.cancel()


async def _check_listener_ends(transport: Transport, address: str) -> None:
    bookie, receivers = _Bookie(at_once=False), [_Receiver(), _Receiver()]
    async with trio.open_nursery() as nursery:
        async with transport.listen(address, bookie) as reached:
            connections = [await transport.connect(reached, receiver, nursery) for receiver in receivers]
            connections[0].send([_read(1)])
            await bookie.wait(1)
        for connection, receiver in zip(connections, receivers, strict=True):
            await receiver.wait_disconnected("when a listener ends, its connections do, and `disconnected` is called")
            gone = isinstance(receiver.errors[0], BookieUnreachableError)
            promise(gone, "a receiver gets BookieUnreachableError for a lost connection")
            _refuses_to_send(connection)
        bookie.replies[0][1]([answer(1)])  # into the void, without an error
        await trio.sleep(0.02)
        for connection, receiver in zip(connections, receivers, strict=True):
            await connection.aclose()
            promise(len(receiver.errors) == 1, "`disconnected` is called once")
            promise(not receiver.responses, "nothing comes after `disconnected`")
        nursery.cancel_scope.cancel()
    await _check_a_listener_comes_back(transport, reached)


async def _check_a_listener_comes_back(transport: Transport, address: str) -> None:
    bookie, receiver = _Bookie(), _Receiver()
    async with transport.listen(address, bookie) as reached, trio.open_nursery() as nursery:
        promise(reached == address, "a bookie that restarts may listen where it did")
        connection = await transport.connect(reached, receiver, nursery)
        connection.send([_read(1)])
        await receiver.wait(1, "a bookie that restarted can be reached")
        await connection.aclose()
        nursery.cancel_scope.cancel()


def _refuses_to_send(connection: Connection) -> None:
    with promised_error(BookieUnreachableError, "sending on a connection that is gone raises BookieUnreachableError"):
        connection.send([_read(1)])


_CHECKS = (
    _check_nobody_listens,
    _check_the_right_bookie,
    _check_every_field_arrives,
    _check_order,
    _check_answers_overtake,
    _check_connections_are_apart,
    _check_closing,
    _check_listener_ends,
)
