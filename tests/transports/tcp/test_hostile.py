"""Clients that mean no good. After each of them the bookie serves an honest client, and has kept nothing of the other."""

from __future__ import annotations

import logging
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing
from crc32c import crc32c

from replog.backends import memory
from replog.bookie.server import BookieServer
from replog.config.bookie import BookieTuning
from replog.errors import BookieRefusedError
from replog.protocol import wire
from replog.protocol.batch import build
from replog.protocol.digest import Digest, DigestType
from replog.protocol.messages import (
    AddRequest,
    FenceRequest,
    ReadLastAddConfirmedRequest,
    ReadRequest,
    RecoveryReadRequest,
    Request,
    Status,
    WriteLastAddConfirmedRequest,
)
from replog.protocol.wire import Frame, FrameSplitter, Hello, Prove, Refuse
from replog.runtime.host_ports import parse_address
from replog.runtime.nursery import open_service_nursery
from replog.transports.tcp import TcpOptions
from replog.transports.tcp.listener import Listener
from replog.transports.tcp.options import TcpTuning
from tests.authentication.files import CLIENT_SECRET, secrets_file
from tests.protocol.bookies import proof_of
from tests.transports.tcp.credentials import Authority, ask, authenticator

KEY = bytes(range(32))
OTHER_KEY = bytes(32)
HOSTILE, HONEST = "127.0.0.2", "127.0.0.1"


class Victim:
    """A bookie, and whether it is as it was."""

    def __init__(self, server: BookieServer, listener: Listener, authentication: str, client: TcpOptions) -> None:
        self.server = server
        self.listener = listener
        self.authentication = authentication
        self.client = client

    async def forgets(self) -> None:
        """Returns when nothing of anybody is kept any more."""
        listener = self.listener
        hosts, budget = listener._hosts, listener._budget
        with trio.fail_after(10):
            while listener._connections or hosts.under_way or listener._sessions or budget.used_bytes:  # noqa: ASYNC110
                await trio.sleep(0.005)
        assert not listener._hosts._under_way

    async def serves(self) -> None:
        """An honest client is served."""
        request = FenceRequest(1, 4711, KEY, 1)
        answer = await ask(self.listener.address, self.client, self.authentication, request)
        assert answer.status is Status.OK


@asynccontextmanager
async def victim(
    options: TcpOptions | None = None, authentication: str = "", client: TcpOptions | None = None
) -> AsyncIterator[Victim]:
    """A bookie. On leaving it has forgotten everybody, and serves an honest client."""
    storage = memory.open_storage("hostile")
    server = BookieServer(storage, BookieTuning(storage="memory", long_poll_max_s=0.5), lambda _event: None)
    settings = options or TcpTuning(handshake_timeout_s=5.0)
    listener = Listener(server, server.bookie_id, authenticator(authentication), settings)
    await listener.bind("127.0.0.1", 0)
    listener._sockets.append(_also(HOSTILE, listener))
    try:
        async with server.running(), open_service_nursery() as nursery:
            nursery.start_soon(listener.run)
            made = Victim(server, listener, authentication, client or TcpOptions())
            try:
                await made.serves()
                yield made
                await made.forgets()
                await made.serves()
                await made.forgets()
            finally:
                await listener.close("the test is over")
    finally:
        storage.close()
        memory.forget("hostile")


def _also(host: str, listener: Listener) -> socket.socket:
    """It listens at this address of the machine too: who connects there comes from there."""
    made = socket.create_server((host, parse_address(listener.address)[1]), backlog=1024)
    made.setblocking(False)
    return made


async def connected(victim: Victim, host: str = HOSTILE) -> trio.SocketStream:
    return await trio.open_tcp_stream(host, parse_address(victim.listener.address)[1], local_address=host)


async def last_words(stream: trio.SocketStream) -> str:
    """Why the bookie ended the connection, as it said it; "" if it said nothing."""
    splitter, reason = FrameSplitter(wire.FRAME_BYTES_MAX), ""
    with trio.fail_after(10), suppress(trio.BrokenResourceError):
        async for data in stream:
            for frame in splitter.feed(bytes(data)):
                if frame.kind == wire.REFUSE:
                    greeting = wire.decode_greeting(frame)
                    assert isinstance(greeting, Refuse)
                    reason = greeting.reason
    await stream.aclose()
    return reason


HELLO = wire.encode_greeting(Hello(1, 1, 0, bytes(32), "", "none", "test"))
PROVE = wire.encode_greeting(Prove(b""))


def client_hello() -> bytes:
    """What a client of TLS says first."""
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="x").do_handshake()
    return outgoing.read()


def header(size: int, fields_bytes: int, kind: int = wire.HELLO) -> bytes:
    """A header whose checksum holds if no fields follow."""
    unsealed = wire.HEADER.pack(0, size, fields_bytes, kind, 0, 0, 1)
    return crc32c(unsealed[4:]).to_bytes(4, "little") + unsealed[4:]


def spoilt(frame: bytes) -> bytes:
    return frame[:-1] + bytes([frame[-1] ^ 1])


STRANGE_BEGINNINGS = {
    "noise": (b"\x9c\x1f" * 500, "no greeting of replog"),
    "zeros": (bytes(4096), "no greeting of replog"),
    "HTTP": (b"GET / HTTP/1.1\r\nHost: bookie\r\n\r\n" * 2, "no greeting of replog"),
    "SSH": (b"SSH-2.0-OpenSSH_9.6 and some more\r\n", "no greeting of replog"),
    "TLS": (client_hello(), "it speaks TLS, and this side does not"),
    "huge frame": (header(0xFFFFFFFF, 0), "at most 8192 are taken"),
    "huge fields": (header(8000, 0xFFFFFFFF), "at most 8192 are taken"),
    "more fields than frame": (header(24, 100), "at most 8192 are taken"),
    "less than a header": (header(0, 0), "at most 8192 are taken"),
    "spoilt": (spoilt(HELLO), "does not match its checksum"),
    "a request first": (header(24, 0, wire.ADMIN), "instead of a greeting"),
    "the second first": (PROVE, "it did not begin with Hello"),
    "the first twice": (HELLO + HELLO, "it did not go on with Prove"),
    "another magic": (wire.seal(wire.HELLO, 0, 0, b"nogood" + bytes(100)), "this is not replog"),
    "no text": (wire.seal(wire.HELLO, 0, 0, wire.MAGIC + b"\1\0\1\0" + bytes(40) + b"\xff\xff"), "ends within a text"),
    "text of no encoding": (
        wire.seal(wire.HELLO, 0, 0, wire.MAGIC + b"\1\0\1\0" + bytes(40) + b"\1\0\xff\0\0\0\0"),
        "parse",
    ),
    "later version": (
        wire.encode_greeting(Hello(2, 9, 0, bytes(32), "", "none", "")),
        "wire version 1, the client 2 to 9",
    ),
    "another bookie": (wire.encode_greeting(Hello(1, 1, 0, bytes(32), "x\ny", "none", "")), r"not x?y"),
}


@pytest.mark.parametrize("name", STRANGE_BEGINNINGS)
async def test_strange_beginning_is_answered_and_forgotten(name: str, caplog: pytest.LogCaptureFixture) -> None:
    said, told = STRANGE_BEGINNINGS[name]
    async with victim() as bookie:
        stream = await connected(bookie)
        await stream.send_all(said)
        assert told in await last_words(stream)
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert HOSTILE in line
    assert "was refused" in line
    assert line.isprintable()


@pytest.mark.parametrize(
    "said", [HELLO[:10], HELLO[:-1], b"", b"\x16"], ids=["header", "all but one", "nothing", "a byte"]
)
async def test_unfinished_introduction_is_not_awaited(said: bytes, autojump_clock: trio.testing.MockClock) -> None:
    """Slowly or never: the deadline is for the whole handshake."""
    async with victim(TcpTuning(handshake_timeout_s=0.3)) as bookie:
        stream = await connected(bookie)
        await stream.send_all(said)
        started = trio.current_time()
        assert await last_words(stream) == ""
        assert trio.current_time() - started < 5
        dripping = await connected(bookie)
        with pytest.raises(trio.BrokenResourceError), trio.fail_after(10):
            for _ in range(1000):
                await dripping.send_all(HELLO[:1])
                await trio.sleep(0.02)
        await dripping.aclose()


async def test_port_scan_does_not_count_as_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With and without TLS, leaving by an end or by a reset: nothing is logged, nobody is barred."""
    certificate = str(Authority(tmp_path, "probed").sign("127.0.0.1"))
    for options in (TcpOptions(), TcpOptions(tls_certificate_file=certificate)):
        client = TcpOptions(tls_ca_file=str(tmp_path / "probed.pem")) if options.tls_certificate_file else TcpOptions()
        limited = TcpTuning(tls_certificate_file=options.tls_certificate_file, failed_handshakes_max=1)
        async with victim(limited, client=client) as bookie:
            for number in range(40):
                stream = await connected(bookie, HONEST)
                if number % 2:
                    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                await stream.aclose()
            await bookie.forgets()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


# -- floods -----------------------------------------------------------------------------------------------------------


async def test_repeatedly_failing_host_is_ignored_and_others_are_not(autojump_clock: trio.testing.MockClock) -> None:
    """Failures are forgotten as time passes, so none may pass meanwhile."""
    async with victim(TcpTuning(failed_handshakes_max=5)) as bookie:
        for _ in range(5):
            stream = await connected(bookie)
            await stream.send_all(bytes(100))
            assert "no greeting" in await last_words(stream)
        for _ in range(50):
            assert "too many handshakes from this host have failed" in await last_words(await connected(bookie))
        await bookie.serves()
        assert bookie.listener._hosts.refusal(HOSTILE, trio.current_time())
        assert not bookie.listener._hosts.refusal(HOSTILE, trio.current_time() + 10)


async def test_a_barred_client_of_tls_reads_why(tmp_path: Path) -> None:
    """Though it is said in clear, without a handshake."""
    authority = Authority(tmp_path, "barring")
    options = TcpTuning(tls_certificate_file=str(authority.sign("127.0.0.1")), failed_handshakes_max=1)
    client = TcpOptions(tls_ca_file=str(authority.file))
    async with victim(options, client=client) as bookie:
        bookie.listener._hosts.failed(HONEST, trio.current_time() + 30)
        with pytest.raises(BookieRefusedError, match="too many handshakes from this host have failed"):
            await ask(bookie.listener.address, client)
        bookie.listener._hosts._failures.clear()


async def test_a_host_cannot_take_all_handshakes() -> None:
    async with victim(TcpTuning(handshakes_max=8, handshake_timeout_s=60.0)) as bookie:
        silent = [await connected(bookie) for _ in range(30)]
        with trio.fail_after(10):
            while bookie.listener._hosts.under_way < 4:  # noqa: ASYNC110
                await trio.sleep(0.005)
        await bookie.serves()
        assert bookie.listener._hosts.under_way == 4
        refused = [await last_words(stream) for stream in silent[4:]]
        assert all("others are introducing themselves" in reason for reason in refused)
        for stream in silent:
            await stream.aclose()


async def test_more_connections_than_are_allowed() -> None:
    async with victim(TcpOptions(connections_max=4)) as bookie:
        taken = [await introduced(bookie) for _ in range(4)]
        assert "takes no more" in await last_words(await connected(bookie))
        for stream in taken:
            await stream.aclose()


# -- after the greeting -----------------------------------------------------------------------------------------------


async def introduced(bookie: Victim) -> trio.SocketStream:
    stream = await connected(bookie)
    await stream.send_all(HELLO + PROVE)
    splitter, heard = FrameSplitter(wire.FRAME_BYTES_MAX), list[Frame]()
    while len(heard) < 2:
        heard += splitter.feed(bytes(await stream.receive_some()))
    assert [frame.kind for frame in heard] == [wire.WELCOME, wire.READY]
    return stream


def encoded(*requests: Request) -> bytes:
    pieces: list[bytes] = []
    for request in requests:
        wire.encode_request(request, pieces)
    return b"".join(pieces)


def batch_add(request_id: int, digest_type: DigestType = DigestType.CRC32C) -> AddRequest:
    batch = build(
        Digest(digest_type, 7, b"password"),
        ledger_id=7,
        first_entry_id=0,
        stride=1,
        payloads=[b"payload" * 10],
        last_add_confirmed=-1,
        stamp=1,
        timestamp_ns=1,
        cumulative_length=70,
    )
    return AddRequest(request_id, 7, KEY, 1, batch)


READ = ReadRequest(1, 7, KEY, 0, 1, 100)
BREACHES = {
    "noise": (b"\x9c\x1f" * 500, "a frame of"),
    "huge frame": (header(0xFFFFFFFF, 0, wire.ADD), "a frame of 4294967295 bytes"),
    "huge fields": (header(1 << 24, 1 << 23, wire.ADD), "bytes of fields"),
    "spoilt": (spoilt(encoded(READ)), "does not match its checksum"),
    "spoilt batch": (spoilt(encoded(batch_add(1, DigestType.HMAC_SHA256))), "damaged on the way"),
    "no batch": (wire.seal(wire.ADD, 0, 1, bytes(68)), "batch"),
    "unknown kind": (header(24, 0, 99), "no request that this version knows"),
    "an answer": (header(24, 0, wire.RESPONSE), "no request that this version knows"),
    "a greeting again": (HELLO, "no request that this version knows"),
    "too few fields": (wire.seal(wire.READ, 0, 1, bytes(10)), "with 10 bytes of fields"),
    "reused id": (
        encoded(ReadLastAddConfirmedRequest(5, 7, KEY, 1 << 40, 10_000), ReadRequest(5, 7, KEY, 0, 1, 100)),
        "request id 5 is used again",
    ),
    "no such ledger": (encoded(FenceRequest(1, -1, KEY, 1)), "there can be none"),
    "lowest ledger": (encoded(WriteLastAddConfirmedRequest(1, -(1 << 63), KEY, 1, proof_of(1))), "there can be none"),
}


@pytest.mark.parametrize("name", BREACHES)
async def test_later_protocol_error_is_answered_and_forgotten(name: str) -> None:
    said, told = BREACHES[name]
    async with victim() as bookie:
        stream = await introduced(bookie)
        await stream.send_all(said)
        assert told in await last_words(stream)


@pytest.mark.parametrize("kept", [10, 30, 100])
async def test_half_a_frame_and_gone(kept: int) -> None:
    async with victim() as bookie:
        stream = await introduced(bookie)
        await stream.send_all(encoded(batch_add(1))[:kept])
        await stream.aclose()


async def test_half_a_frame_and_silence(autojump_clock: trio.testing.MockClock) -> None:
    async with victim(TcpTuning(transfer_timeout_s=0.2)) as bookie:
        stream = await introduced(bookie)
        await stream.send_all(encoded(batch_add(1))[:100])
        assert await last_words(stream) == ""
        assert not bookie.server.storage.ledger_ids() or 7 not in bookie.server.storage.ledger_ids()


WRONG_KEYS: list[Callable[[], Request]] = [
    lambda: attrs.evolve(batch_add(1), key=OTHER_KEY),
    lambda: FenceRequest(1, 7, OTHER_KEY, 5),
    lambda: RecoveryReadRequest(1, 7, OTHER_KEY, 5, 0, 1),
    lambda: WriteLastAddConfirmedRequest(1, 7, OTHER_KEY, 5, proof_of(0)),
    lambda: ReadRequest(1, 7, OTHER_KEY, 0, 1, 100),
    lambda: ReadLastAddConfirmedRequest(1, 7, OTHER_KEY, -1, 0),
]


@pytest.mark.parametrize("number", range(len(WRONG_KEYS)))
async def test_client_with_another_key_gets_and_changes_nothing(number: int) -> None:
    async with victim() as bookie:
        address = bookie.listener.address
        assert (await ask(address, TcpOptions(), "", batch_add(1))).status is Status.OK
        before = bookie.server.storage.marks(7)
        answer = await ask(address, TcpOptions(), "", WRONG_KEYS[number]())
        assert answer.status is Status.UNAUTHORIZED
        assert not answer.batches
        assert answer.last_add_confirmed == -1
        assert bookie.server.storage.marks(7) == before
        assert (await ask(address, TcpOptions(), "", READ)).batches == (batch_add(1).batch,)


async def test_endless_unread_pings_stop_by_themselves() -> None:
    """Their answers fill the client's own room, and then it is not heard any more."""
    options = TcpTuning(frame_bytes_max=3 << 20, connection_bytes_max=3 << 20, transfer_timeout_s=1.0)
    async with victim(options) as bookie:
        stream = await introduced(bookie)
        pings = wire.PING_FRAME * 10_000
        with pytest.raises((trio.BrokenResourceError, trio.TooSlowError)), trio.fail_after(1.5):
            while True:
                await stream.send_all(pings)
                assert bookie.listener._budget.used_bytes < 10 << 20
        await stream.aclose()


async def test_permanently_waiting_questions_are_bounded() -> None:
    options = TcpTuning(frame_bytes_max=3 << 20, connection_bytes_max=3 << 20)
    async with victim(options) as bookie:
        stream = await introduced(bookie)
        with trio.move_on_after(0.7):
            for start in range(0, 1_000_000, 1000):
                polls = [ReadLastAddConfirmedRequest(start + n, 7, KEY, 1 << 40, 1 << 60) for n in range(1000)]
                await stream.send_all(encoded(*polls))
        assert bookie.server.statistics()["waiting_polls"] < 10_000
        await stream.aclose()


# -- replays ----------------------------------------------------------------------------------------------------------


async def test_a_recorded_session_proves_nothing_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = secrets_file(tmp_path / "all.toml", app=CLIENT_SECRET)
    recorded: list[bytes] = []
    async with victim(authentication=f"secret:{path}") as bookie:
        async with open_service_nursery() as nursery:
            listeners = await nursery.start(partial(trio.serve_tcp, host=HONEST), _recorder(bookie, recorded), 0)
            address = f"{HONEST}:{listeners[0].socket.getsockname()[1]}"
            request = WriteLastAddConfirmedRequest(1, 8, KEY, 1, proof_of(5, ledger_id=8))
            assert (await ask(address, TcpOptions(), f"secret:{path}", request)).status is Status.OK
            nursery.cancel_scope.cancel()
        await bookie.forgets()
        said = b"".join(recorded)
        assert CLIENT_SECRET.encode() not in said
        seen: list[int] = []
        bookie.server.handle = lambda requests, reply: seen.extend(each.request_id for each in requests)  # type: ignore[method-assign]
        stream = await connected(bookie)
        await stream.send_all(said)
        assert "another secret here" in await last_words(stream)
        assert not seen
        del bookie.server.handle


def _recorder(bookie: Victim, recorded: list[bytes]) -> Callable[[trio.SocketStream], Awaitable[None]]:
    async def pump(source: trio.SocketStream, target: trio.SocketStream, kept: list[bytes]) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for data in source:
                kept.append(bytes(data))
                await target.send_all(data)

    async def record(client: trio.SocketStream) -> None:
        async with await connected(bookie, HONEST) as upstream, trio.open_nursery() as nursery:
            nursery.start_soon(pump, upstream, client, [])
            await pump(client, upstream, recorded)
            nursery.cancel_scope.cancel()

    return record


async def test_unauthenticated_client_is_not_heard(tmp_path: Path) -> None:
    """Requests that come with the greeting wait for its end, and there is none."""
    path = secrets_file(tmp_path / "all.toml", app=CLIENT_SECRET)
    async with victim(authentication=f"secret:{path}") as bookie:
        stream = await connected(bookie)
        hello = wire.encode_greeting(Hello(1, 1, 0, bytes(32), "", "secret", ""))
        await stream.send_all(
            hello + wire.encode_greeting(Prove(bytes(32) + b"app")) + encoded(FenceRequest(1, 9, KEY, 1))
        )
        assert "another secret here" in await last_words(stream)
        assert bookie.server.storage.marks(9) is None
