"""`/metrics` and `/health` over HTTP: answers for those who ask properly, an end for all others."""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

import pytest
import trio
import trio.testing
from prometheus_client.parser import text_string_to_metric_families

import replog
from replog import metrics
from replog.errors import ConfigError, StorageFullError
from replog.metrics import server
from replog.metrics.health import State
from tests.kit import ONE, Cluster, cluster
from tests.metrics.kit import parsed as parsed_samples

Answer = tuple[int, dict[str, str], bytes]


class Asked:
    """Where metrics are served."""

    def __init__(self, world: Cluster, address: str) -> None:
        self.world = world
        self._host, port = address.rsplit(":", 1)
        self._port = int(port)

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream(self._host, self._port)

    async def send(self, data: bytes) -> bytes:
        """All that is answered to these bytes, until the other side ends the connection."""
        async with await self.connect() as stream:
            with trio.fail_after(30):
                try:
                    await stream.send_all(data)
                    return await all_of(stream)
                except trio.BrokenResourceError:
                    return b""

    async def get(self, path: str, *, method: str = "GET", headers: str = "") -> Answer:
        data = await self.send(f"{method} {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode())
        return parsed(data)


async def all_of(stream: trio.SocketStream) -> bytes:
    pieces = []
    while piece := await stream.receive_some():
        pieces.append(piece)
    return b"".join(pieces)


def parsed(data: bytes) -> Answer:
    head, _, body = data.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    return int(status.split()[1]), dict(line.lower().split(": ", 1) for line in lines), body


@asynccontextmanager
async def asked(address: str = "127.0.0.1:0") -> AsyncIterator[Asked]:
    async with cluster(2) as world, trio.open_nursery() as nursery:
        served = [each.served for each in world.bookies if each.served is not None]
        where = await nursery.start(metrics.serve_metrics, address, served)
        yield Asked(world, where)
        nursery.cancel_scope.cancel()


async def test_metrics_parse() -> None:
    async with asked() as place:
        status, headers, body = await place.get("/metrics")
        assert status == 200
        assert headers["content-type"].startswith("text/plain; version=")
        assert int(headers["content-length"]) == len(body)
        families = {each.name: each for each in text_string_to_metric_families(body.decode())}
        assert len(families["replog_bookie_commits"].samples) == 2
        assert families["replog_bookie_commits"].type == "counter"
        assert families["replog_bookie_commit_latency_seconds"].type == "histogram"
        assert "process_cpu_seconds" in families
        status, headers, body = await place.get("/metrics?x=y", headers="Accept: application/openmetrics-text\r\n")
        assert headers["content-type"].startswith("application/openmetrics-text")
        assert body.endswith(b"# EOF\n")


async def test_only_the_head() -> None:
    async with asked() as place:
        status, headers, body = await place.get("/metrics", method="HEAD")
        assert (status, body) == (200, b"")
        assert int(headers["content-length"]) > 1000


async def test_health_is_the_worst_bookies() -> None:
    async with asked() as place:
        first, second = place.world.bookies
        status, headers, body = await place.get("/health")
        told = json.loads(body)
        assert (status, told["state"], told["read_only"]) == (200, "serving", False)
        assert told["bookies"] == [first.bookie_id, second.bookie_id]
        assert headers["content-type"].startswith("application/json")
        first.server.space.met_full(StorageFullError("no space is left"), trio.current_time())
        first.server._turn()
        status, _, body = await place.get("/health")
        told = json.loads(body)
        assert (status, told["state"], told["read_only"]) == (200, "read_only", True)
        assert "no space is left" in told["problems"][first.bookie_id]


async def test_health_tells_of_the_member_of_a_metastore() -> None:
    async with asked() as place:
        figures = {"metastore_leads": 1.0, "metastore_term": 7.0, "metastore_stopped": 0.0, "metastore_survives": 1.0}
        served = place.world.bookies[0].served
        assert served is not None
        served._beside.append(lambda: figures)
        told = json.loads((await place.get("/health"))[2])
        assert told["metastore"] == {"leads": 1.0, "term": 7.0, "stopped": 0.0, "survives": 1.0}
        figures["metastore_stopped"] = 1.0
        status, _, body = await place.get("/health")
        assert (status, json.loads(body)["problems"].keys()) == (200, {"metastore"})


def test_unready_states_take_no_requests() -> None:
    well = [state for state in State if metrics.Health(state).is_well]
    assert well == [State.SERVING, State.METASTORE_DOUBTED, State.READ_ONLY]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200)) + b"\r\n\r\n", 400),
        (b"GET /metrics HTTP/3.7\r\n\r\n", 505),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 100_000 + b"\r\n\r\n", 431),
        (b"POST /health HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", 405),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"GET /metrics/../health HTTP/1.1\r\nHost: x\r\n\r\n", 404),
    ],
    ids=lambda value: repr(value)[:30],
)
async def test_garbage_gets_an_answer_and_an_end(data: bytes, status: int) -> None:
    async with asked() as place:
        answer = await place.send(data)
        assert not answer or parsed(answer)[0] == status
        assert answer or len(data) > 10_000, "only what is too long may be cut off before it reads the answer"
        assert (await place.get("/health"))[0] == 200


async def test_silent_or_slow_client_is_cut_off(patient_clock: trio.testing.MockClock) -> None:
    async with asked() as place:
        for begun in (b"", b"GET /metr", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200))):
            async with await place.connect() as stream:
                if begun:
                    await stream.send_all(begun)
                with trio.fail_after(30):
                    assert await all_of(stream) == b""
        assert (await place.get("/health"))[0] == 200


async def test_only_so_many_are_heard_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 2)
    async with asked() as place:
        async with await place.connect() as first, await place.connect() as second:
            for each in (first, second):
                await each.send_all(b"GET")  # they never come to an end
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert await place.send(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n") == b""
        with trio.fail_after(30):
            while not await place.send(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"):
                pass  # until their leaving has been noticed


async def test_occupied_address_is_reported() -> None:
    with closing(trio.socket.socket()) as taken:
        await taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen at 127.0.0.1:{port}"):
            await metrics.serve_metrics(f"127.0.0.1:{port}", ())


@pytest.mark.parametrize("address", ["", "127.0.0.1", "x:port", "x:70000"])
async def test_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        await metrics.serve_metrics(address, ())


async def test_logs_and_machines_are_served_beside_bookies() -> None:
    async with cluster(2) as world, world.client(quorum=ONE) as client, trio.open_nursery() as nursery:
        async with client.run_machine("counter", replog.ReplicatedCounter) as counter:
            await counter.add(1)
            measured = metrics.LogMetrics(client)
            serve = functools.partial(metrics.serve_metrics, logs=measured, machines=[counter])
            where = await nursery.start(serve, "127.0.0.1:0")
            status, _, body = await Asked(world, where).get("/metrics")
            found = parsed_samples(body.decode())
            assert status == 200
            assert found["replog_log_known"] == {("counter",): 1}
            assert list(found["replog_machine_commands_total"].values()) == [1]
            assert (await Asked(world, where).get("/health"))[0] == 200, "a process without bookies is well"
        nursery.cancel_scope.cancel()
