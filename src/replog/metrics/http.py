"""`/metrics` and `/health` over HTTP/1.1: one request per connection; slow, large or malformed ones are cut off.

Rules: a connection has one deadline for all it does, a request a length, and there are only so many connections. What is
answered is made before the first byte of it is sent, so a slow client holds nothing but those bytes.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from http import HTTPStatus
from typing import TypeVar

import attrs
import h11
import trio
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from replog.bookie.serving import ServedBookie
from replog.errors import ConfigError
from replog.metrics.collecting import collect
from replog.metrics.health import Health, health_of
from replog.metrics.logs import LogMetrics
from replog.metrics.machines import KnownMachine, collect_machines
from replog.metrics.options import MetricsOptions, parse_listen

Item = TypeVar("Item")

_log = logging.getLogger("replog.metrics")

_BACKLOG = 16
_RECEIVE_BYTES = 4096
_FAREWELL_BYTES = 64 << 10  # read after the answer, so that it isn't lost with the connection
_JSON = "application/json; charset=utf-8"
_TEXT = "text/plain; charset=utf-8"


async def serve_metrics(
    listen: str,
    bookies: Iterable[ServedBookie] | Callable[[], Iterable[ServedBookie]] = (),
    *,
    logs: LogMetrics | None = None,
    machines: Iterable[KnownMachine] | Callable[[], Iterable[KnownMachine]] = (),
    options: MetricsOptions | None = None,
    health: Callable[[], Health] | None = None,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answers `/metrics` and `/health` at HOST:PORT until cancelled; `await nursery.start(serve_metrics, "127.0.0.1:9181",
    client.bookies)` gives where it listens. The bookies, and the machines, are those of this trio run, or a function that says
    which they are now. `logs` are looked at whenever somebody asks for `/metrics`.

    Raises `ConfigError` if it cannot listen there. It speaks no TLS and asks nobody who they are: listen where only those
    are who may know."""
    host, port = parse_listen(listen)
    current = _now(bookies)
    measured = _Measured(current, logs, _now(machines))
    server = _Server(measured, options or MetricsOptions(), health or (lambda: health_of(current())))
    try:
        listeners = await trio.open_tcp_listeners(port, host=host or None, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(f"metrics: cannot listen at {listen}: {error.strerror or error}") from error
    bound = listeners[0].socket.getsockname()
    address = f"[{bound[0]}]:{bound[1]}" if ":" in bound[0] else f"{bound[0]}:{bound[1]}"
    try:
        async with trio.open_nursery() as nursery:
            for each in listeners:
                nursery.start_soon(trio.serve_listeners, server.serve, [each])
            task_status.started(address)
    finally:
        for each in listeners:
            with trio.CancelScope(shield=True):
                await each.aclose()


def _now(each: Iterable[Item] | Callable[[], Iterable[Item]]) -> Callable[[], Iterable[Item]]:
    """What there is at any time: a function says it, or it is always the same."""
    return each if callable(each) else partial(tuple, tuple(each))


class _Measured(Collector):
    """All that is answered at `/metrics` but for the process' own."""

    def __init__(
        self,
        bookies: Callable[[], Iterable[ServedBookie]],
        logs: LogMetrics | None,
        machines: Callable[[], Iterable[KnownMachine]],
    ) -> None:
        self._bookies = bookies
        self._logs = logs
        self._machines = machines

    async def look(self) -> None:
        """What can't be said at once is looked up."""
        if self._logs is not None:
            await self._logs.look()

    def collect(self) -> Iterator[Metric]:
        yield from collect(self._bookies())
        if self._logs is not None:
            yield from self._logs.collect()
        yield from collect_machines(self._machines())

    def describe(self) -> list[Metric]:
        return []  # what there is, is known when it is asked for


@attrs.frozen
class _Answer:
    status: int
    content_type: str
    body: bytes


class _Server:
    def __init__(
        self,
        measured: _Measured,
        options: MetricsOptions,
        health: Callable[[], Health],
    ) -> None:
        self._measured = measured
        self._options = options
        self._health = health
        self._connections = 0
        self._registry = CollectorRegistry()
        self._registry.register(measured)
        ProcessCollector(registry=self._registry)

    async def serve(self, stream: trio.SocketStream) -> None:
        """One connection, to its end."""
        if self._connections >= self._options.connections_max:
            _log.warning("metrics: more than %d ask at a time", self._options.connections_max)
            await trio.aclose_forcefully(stream)
            return
        self._connections += 1
        try:
            with trio.move_on_after(self._options.timeout_s):
                await self._converse(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # they left
        finally:
            self._connections -= 1
            await trio.aclose_forcefully(stream)

    async def _converse(self, stream: trio.SocketStream) -> None:
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=self._options.request_bytes_max)
        try:
            request = await self._request(http, stream)
            if request is None:
                return
            answer = await self._answer(request)
            is_head = request.method == b"HEAD"
        except h11.RemoteProtocolError as error:
            # In any other state h11 allows no answer.
            if http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
                return
            answer, is_head = _refusal(error.error_status_hint, "that is not a request"), False
        headers = [
            ("Content-Type", answer.content_type),
            ("Content-Length", str(len(answer.body))),
            ("Cache-Control", "no-store"),
            ("Connection", "close"),
        ]
        pieces = [
            http.send(
                h11.Response(status_code=answer.status, reason=HTTPStatus(answer.status).phrase, headers=headers)
            ),
            b"" if is_head else http.send(h11.Data(data=answer.body)),
        ]
        await stream.send_all(b"".join(each for each in pieces if each))
        # Closing a socket that has unread bytes sends a reset, and the client may lose the answer.
        # So what it still sends is read, up to a bound.
        await stream.send_eof()
        heard_bytes = 0
        while heard_bytes < _FAREWELL_BYTES and (data := await stream.receive_some(_RECEIVE_BYTES)):
            heard_bytes += len(data)

    async def _request(self, http: h11.Connection, stream: trio.SocketStream) -> h11.Request | None:
        """What is asked; None if nothing was. A body is not waited for."""
        while True:
            event = http.next_event()
            if isinstance(event, h11.Request):
                return event
            if event is not h11.NEED_DATA:
                return None
            http.receive_data(await stream.receive_some(_RECEIVE_BYTES))

    async def _answer(self, request: h11.Request) -> _Answer:
        path = request.target.partition(b"?")[0]
        if request.method not in (b"GET", b"HEAD"):
            return _refusal(405, "only GET and HEAD")
        if path == b"/health":
            health = self._health()
            return _Answer(200 if health.is_well else 503, _JSON, json.dumps(health.to_json()).encode() + b"\n")
        if path == b"/metrics":
            accept = b",".join(value for name, value in request.headers if name == b"accept").decode("latin-1")
            await self._measured.look()
            encode, content_type = choose_encoder(accept)
            return _Answer(200, content_type, encode(self._registry))
        return _refusal(404, "there are /metrics and /health")


def _refusal(status: int, words: str) -> _Answer:
    return _Answer(status, _TEXT, f"{words}\n".encode())
