"""What is known of a change when the network, a server or the other end's manners fail (M1)."""

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import h11
import pytest
import trio
from etcd_servers import Store, hasty

from replog.errors import KeyNotFoundError, MetastoreUncertainError, VersionConflictError
from replog.testing import serve_proxy
from replog_etcd.errors import EtcdAnswerTooLargeError, EtcdRefusedError, EtcdUnreachableError
from replog_etcd.metastore import EtcdMetastore
from replog_etcd.options import EtcdOptions, Target

NOBODY = "127.0.0.1:1"
SOON_S = 20.0


async def test_change_with_a_lost_answer_is_uncertain_and_happened(store: Store) -> None:
    async with serve_proxy(store.servers[0].address) as proxy, store.client() as other:
        async with store.client(proxy.address) as metastore:
            version = await metastore.create("a", b"1")
            proxy.to_client.swallow()
            with pytest.raises(MetastoreUncertainError, match="read back") as raised, hasty(metastore, 0.5):
                await metastore.put("a", b"2", version)
            assert "key 'a'" in str(raised.value)
            with trio.fail_after(SOON_S):
                await until_changed(other, "a", version)
            assert (await other.get("a")).value == b"2"
            proxy.mend()
            found = await metastore.get("a")
            assert found.value == b"2"
            for key, known, change in (
                ("b", None, metastore.create("b", b"")),
                ("a", found.version, metastore.delete("a")),
            ):
                proxy.to_client.swallow()
                with pytest.raises(MetastoreUncertainError), hasty(metastore, 0.5):
                    await change
                proxy.mend()
                with trio.fail_after(SOON_S):
                    await until_changed(other, key, known)
            assert await other.children("a") == []
            with pytest.raises(KeyNotFoundError):
                await other.get("a")
            assert (await other.get("b")).value == b""


async def until_changed(other: EtcdMetastore, key: str, version: int | None) -> None:
    """Until the change has happened whose outcome is unknown: etcd may do it later than the client gave it up."""
    await other.wait_changed(key, version)


async def test_a_change_is_uncertain_when_the_connection_is_reset(store: Store) -> None:
    async with serve_proxy(store.servers[0].address) as proxy:
        async with store.client(proxy.address) as metastore:
            version = await metastore.create("a", b"1")
            proxy.to_client.swallow()

            async def reset() -> None:
                sent = proxy.to_bookie.forwarded_bytes
                while proxy.to_bookie.forwarded_bytes == sent:  # noqa: ASYNC110
                    await trio.sleep(0.005)
                proxy.mend()
                proxy.reset()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(reset)
                with pytest.raises(MetastoreUncertainError):
                    await metastore.put("a", b"2", version)
            assert (await metastore.get("a")).value in (b"1", b"2")


async def test_unsent_request_is_a_definite_failure(store: Store) -> None:
    async with store.client(NOBODY) as metastore:
        told = r"127\.0\.0\.1:1: .*refused.*Nothing was changed"
        with pytest.raises(EtcdUnreachableError, match=told):
            await metastore.create("a", b"")
        with pytest.raises(EtcdUnreachableError, match=told):
            await metastore.put("a", b"", 1)
        with pytest.raises(EtcdUnreachableError, match=told):
            await metastore.delete("a")
        with pytest.raises(EtcdUnreachableError, match=told):
            await metastore.get("a")


async def test_the_next_server_is_asked_when_one_is_not_there(store: Store) -> None:
    async with store.client(NOBODY, store.servers[0].address) as metastore:
        version = await metastore.create("a", b"1")
        version = await metastore.put("a", b"2", version)
        assert (await metastore.get("a")).version == version


async def test_a_read_goes_on_to_the_next_server_when_one_is_silent(store: Store) -> None:
    address = store.servers[0].address
    async with serve_proxy(address) as silent:
        silent.swallow()
        async with store.client(silent.address, address, request_timeout_s=6.0) as metastore:
            assert await metastore.children("a") == []
            asked = silent.connections
            await metastore.create("a", b"")
            assert silent.connections == asked  # it is not asked again


async def test_a_change_sent_to_a_silent_server_is_not_sent_again(store: Store) -> None:
    address = store.servers[0].address
    async with serve_proxy(address) as silent:
        async with store.client(silent.address, address) as metastore, store.client() as other:
            await metastore.create("a", b"1")
            silent.to_client.swallow()
            with pytest.raises(MetastoreUncertainError), hasty(metastore, 0.5):
                await metastore.create("b", b"")
            with trio.fail_after(SOON_S):
                await until_changed(other, "b", None)
            assert (await other.get("b")).value == b""
            with trio.fail_after(SOON_S):  # and then the other one is asked
                assert (await metastore.get("b")).value == b""


async def test_change_survives_a_cut_idle_connection(store: Store) -> None:
    async with serve_proxy(store.servers[0].address) as proxy:
        async with store.client(proxy.address) as metastore:
            version = await metastore.create("a", b"0")
            for _ in range(5):
                proxy.reset()
                (idle,) = metastore._gateway._connections._idle.values()
                with trio.fail_after(SOON_S):
                    while any(each.is_fresh() for each in idle):  # noqa: ASYNC110 - until the reset has come
                        await trio.sleep(0.001)
                version = await metastore.put("a", b"1", version)


async def test_cas_increments_are_exact_on_a_bad_network(store: Store) -> None:
    """Each adds its own token; an unknown outcome is settled by reading back."""
    wanted, made = 60, 0
    async with serve_proxy(store.servers[0].address, seed=5) as proxy, store.client() as other:
        await other.create("list", b"[]")
        done = trio.Event()

        async def disturb() -> None:
            pause_s = 0.03
            while not done.is_set():
                await trio.sleep(pause_s)
                proxy.reset()
                pause_s *= 1.02  # a machine on which nothing is done in between gets more time

        async def add(metastore: EtcdMetastore, token: str) -> None:
            nonlocal made
            while True:
                with contextlib.suppress(EtcdUnreachableError, MetastoreUncertainError, VersionConflictError):
                    found = await metastore.get("list")
                    tokens = json.loads(found.value)
                    if token not in tokens:
                        await metastore.put("list", json.dumps([*tokens, token]).encode(), found.version)
                    made += 1
                    return

        async with store.client(proxy.address, request_timeout_s=1.0) as metastore:
            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(disturb)
                    async with trio.open_nursery() as adding:
                        for worker in range(4):
                            adding.start_soon(add_some, add, metastore, worker, wanted // 4)
                    done.set()
        tokens = json.loads((await other.get("list")).value)
        assert len(tokens) == len(set(tokens)) == made == wanted


async def add_some(
    add: Callable[[EtcdMetastore, str], Awaitable[None]], metastore: EtcdMetastore, worker: int, count: int
) -> None:
    for number in range(count):
        await add(metastore, f"{worker}-{number}")


# -- answers that etcd does not give ------------------------------------------------------------------------------


class Stranger:
    """An HTTP server that answers what it is told to, and counts requests."""

    def __init__(self) -> None:
        self.answer = b""
        self.requests = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        with contextlib.suppress(trio.BrokenResourceError):  # the client may have heard enough
            await self._answer_one(stream, h11.Connection(h11.SERVER))

    async def _answer_one(self, stream: trio.SocketStream, connection: h11.Connection) -> None:
        async with stream:
            while True:
                event = connection.next_event()
                if event is h11.NEED_DATA:
                    connection.receive_data(await stream.receive_some(65536))
                elif isinstance(event, h11.EndOfMessage):
                    self.requests += 1
                    await stream.send_all(self.answer)
                    return  # and the end of the connection
                elif isinstance(event, h11.ConnectionClosed):
                    return


@contextlib.asynccontextmanager
async def stranger(**options: object) -> AsyncIterator[tuple[Stranger, EtcdMetastore]]:
    server = Stranger()
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, server.serve, [listener])
        address = f"127.0.0.1:{listener.socket.getsockname()[1]}"
        metastore = EtcdMetastore(Target.parse(address), EtcdOptions(request_timeout_s=1.0, **options))  # type: ignore[arg-type]
        yield server, metastore
        await metastore.aclose()
        nursery.cancel_scope.cancel()


def http(status: int, body: bytes, claimed_bytes: int | None = None) -> bytes:
    length = len(body) if claimed_bytes is None else claimed_bytes
    return b"HTTP/1.1 %d Word\r\nContent-Length: %d\r\n\r\n" % (status, length) + body


DOUBTFUL = [
    pytest.param(b"", id="nothing"),
    pytest.param(b"SSH-2.0-OpenSSH\r\n", id="no HTTP"),
    pytest.param(http(200, b"{}", 100), id="an answer that breaks off"),
    pytest.param(http(200, b"<html>"), id="no JSON"),
    pytest.param(http(200, b"[]"), id="no object"),
    pytest.param(http(200, b"{}"), id="not etcd's"),
    pytest.param(http(200, b'{"header":[]}'), id="hardly etcd's"),
    pytest.param(http(499, b'{"error":"context canceled","code":1}'), id="cancelled"),
    pytest.param(http(302, b""), id="a redirection"),
    pytest.param(http(502, b"Bad Gateway"), id="a proxy's answer"),
    pytest.param(http(503, b'{"error":"etcdserver: request timed out","code":14}'), id="no time"),
    pytest.param(http(503, b'{"error":"etcdserver: leader changed","code":14}'), id="no leader"),
    pytest.param(http(500, b'{"error":"something","code":2}'), id="something"),
]


@pytest.mark.parametrize("answer", DOUBTFUL)
async def test_a_change_answered_with_doubt_has_an_unknown_outcome(answer: bytes) -> None:
    async with stranger() as (server, metastore):
        server.answer = answer
        with pytest.raises(MetastoreUncertainError, match="read back"):
            await metastore.create("a", b"")
        assert server.requests == 1  # never a second time


@pytest.mark.parametrize("answer", DOUBTFUL)
async def test_read_answered_with_doubt_fails(answer: bytes) -> None:
    async with stranger() as (server, metastore):
        server.answer = answer
        with pytest.raises(EtcdUnreachableError):
            await metastore.get("a")


@pytest.mark.parametrize("answer", DOUBTFUL)
async def test_only_reads_go_to_the_next_server_after_doubt(answer: bytes) -> None:
    async with stranger() as (doubtful, one), stranger() as (kind, other):
        doubtful.answer, kind.answer = answer, http(200, b'{"header":{"revision":"7"},"succeeded":true}')
        (first,), (second,) = one._gateway.target.endpoints, other._gateway.target.endpoints
        metastore = EtcdMetastore(Target((first, second)), EtcdOptions(request_timeout_s=5.0))
        with pytest.raises(MetastoreUncertainError):
            await metastore.create("a", b"")
        assert (doubtful.requests, kind.requests) == (1, 0)
        assert await metastore.children("a") == []
        assert (doubtful.requests, kind.requests) == (1, 1)  # the one that failed is not asked again
        await metastore.aclose()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (http(404, b"404 page not found"), "HTTP 404 404 page not found"),
        (http(404, b'{"error":"Not Found","code":5}'), "etcd 3.4 or newer"),
        (http(400, b'{"error":"etcdserver: request is too large","code":3}'), "max-request-bytes"),
        (http(400, b'{"error":"etcdserver: user name is empty","code":3}'), "password_file"),
        (http(403, b'{"error":"etcdserver: permission denied","code":7}'), "readwrite"),
        (http(429, b'{"error":"etcdserver: mvcc: database space exceeded","code":8}'), "alarm disarm"),
    ],
)
async def test_refusal_is_definite_and_names_the_remedy(answer: bytes, told: str) -> None:
    async with stranger() as (server, metastore):
        server.answer = answer
        for call in (metastore.create("a", b""), metastore.get("a")):
            with pytest.raises(EtcdRefusedError, match=told):
                await call
        assert server.requests == 2


async def test_too_many_requests_are_asked_again_later() -> None:
    async with stranger() as (server, metastore):
        server.answer = http(429, b'{"error":"etcdserver: too many requests","code":8}')
        async with trio.open_nursery() as nursery:
            nursery.start_soon(grow_kind, server)
            assert await metastore.create("a", b"") == 7
        assert server.requests >= 2


async def grow_kind(server: Stranger) -> None:
    while not server.requests:  # noqa: ASYNC110
        await trio.sleep(0.005)
    server.answer = http(200, b'{"header":{"revision":"7"},"succeeded":true}')


async def test_an_answer_without_end_is_cut_off() -> None:
    async with stranger(response_bytes_max=4 << 20) as (server, metastore):
        server.answer = http(200, b"x" * (5 << 20))
        with pytest.raises(EtcdAnswerTooLargeError, match="response_bytes_max"):
            await metastore.get("a")
        with pytest.raises(MetastoreUncertainError):
            await metastore.create("a", b"")
