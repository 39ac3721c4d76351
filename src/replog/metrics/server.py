"""`/metrics` and `/health` over HTTP/1.1: one request per connection; slow, large or malformed ones are cut off.

Trio waits for the head of a request; the standard library parses it and formats the answer, both in memory. Nothing here runs in
another thread: what is measured belongs to the thread that serves bookies.

Rules: a connection has one deadline for all it does, a request a length, and there are only so many connections. An
answer is made before its first byte is sent, so a slow client holds nothing but those bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from typing import TypeVar

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
from replog.metrics.requirements import parse_listen
from replog.runtime.loggers import logger

Item = TypeVar("Item")

_log = logger("replog.metrics")

# At a time; further ones are cut off. A monitoring system has one or two, each for milliseconds.
CONNECTIONS_MAX = 16
# Browsers and proxies send some KiB of headers; a request has no body.
REQUEST_BYTES_MAX = 16 << 10
# To ask, and to take the answer: as long as Prometheus itself waits by default.
TIMEOUT_S = 10.0

_BACKLOG = 16
_RECEIVE_BYTES = 4096
_FAREWELL_BYTES = 64 << 10  # read after the answer, so that it isn't lost with the connection
_JSON = "application/json; charset=utf-8"


async def serve_metrics(
    listen: str,
    bookies: Iterable[ServedBookie] | Callable[[], Iterable[ServedBookie]] = (),
    *,
    logs: LogMetrics | None = None,
    machines: Iterable[KnownMachine] | Callable[[], Iterable[KnownMachine]] = (),
    health: Callable[[], Health] | None = None,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answers `/metrics` and `/health` at HOST:PORT until cancelled. `await nursery.start(serve_metrics, "127.0.0.1:9181",
    client.bookies)` gives where it listens.

    `bookies` and `machines` are those of this trio run, or a function that says which they are now. `logs` are looked at
    whenever somebody asks for `/metrics`. `health` is a function that returns another `Health` than `health_of(bookies)`.

    Raises `ConfigError` if it cannot listen there. It speaks no TLS and asks nobody who they are: listen where only those
    are who may know."""
    host, port = parse_listen(listen)
    current = _now(bookies)
    measured = _Measured(current, logs, _now(machines))
    server = _Server(measured, health or (lambda: health_of(current())))
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
    """The present items: a function returns them, or they never change."""
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
        """Looks up the values that cannot be answered at once."""
        if self._logs is not None:
            await self._logs.look()

    def collect(self) -> Iterator[Metric]:
        yield from collect(self._bookies())
        if self._logs is not None:
            yield from self._logs.collect()
        yield from collect_machines(self._machines())

    def describe(self) -> list[Metric]:
        return []  # what there is, is known when it is asked for


class _Server:
    def __init__(
        self,
        measured: _Measured,
        health: Callable[[], Health],
    ) -> None:
        self._measured = measured
        self._health = health
        self._connections = 0
        self._registry = CollectorRegistry()
        self._registry.register(measured)
        ProcessCollector(registry=self._registry)

    async def serve(self, stream: trio.SocketStream) -> None:
        """One connection, to its end."""
        if self._connections >= CONNECTIONS_MAX:
            _log.warning("metrics: more than %d ask at a time", CONNECTIONS_MAX)
            await trio.aclose_forcefully(stream)
            return
        self._connections += 1
        try:
            with trio.move_on_after(TIMEOUT_S):
                await self._converse(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # they left
        finally:
            self._connections -= 1
            await trio.aclose_forcefully(stream)

    async def _converse(self, stream: trio.SocketStream) -> None:
        head = bytearray()
        while b"\r\n\r\n" not in head and len(head) < REQUEST_BYTES_MAX:
            data = await stream.receive_some(_RECEIVE_BYTES)
            if not data:
                return
            head += data
        exchange = _Exchange(bytes(head))
        if b"\r\n\r\n" not in head:
            exchange.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        elif exchange.parse_request():
            await self._answer(exchange)
        await stream.send_all(exchange.wfile.getvalue())
        # Closing a socket that has unread bytes sends a reset, and the client may lose the answer.
        # So what it still sends is read, up to a bound.
        await stream.send_eof()
        heard_bytes = 0
        while heard_bytes < _FAREWELL_BYTES and (data := await stream.receive_some(_RECEIVE_BYTES)):
            heard_bytes += len(data)

    async def _answer(self, exchange: _Exchange) -> None:
        path = exchange.path.partition("?")[0]
        if exchange.command not in ("GET", "HEAD"):
            exchange.send_error(HTTPStatus.METHOD_NOT_ALLOWED)
        elif path == "/health":
            health = self._health()
            status = HTTPStatus.OK if health.is_well else HTTPStatus.SERVICE_UNAVAILABLE
            exchange.answer(status, _JSON, json.dumps(health.to_json()).encode() + b"\n")
        elif path == "/metrics":
            await self._measured.look()
            encode, content_type = choose_encoder(exchange.headers.get("Accept", ""))
            exchange.answer(HTTPStatus.OK, content_type, encode(self._registry))
        else:
            exchange.send_error(HTTPStatus.NOT_FOUND)


class _Exchange(BaseHTTPRequestHandler):
    """One request whose head is in memory, and its answer in `wfile`. `parse_request` is False if it refused."""

    protocol_version = default_request_version = "HTTP/1.1"  # a refusal has a status line, whatever was sent
    server_version = "replog"
    sys_version = ""
    error_message_format = "%(message)s\n"
    error_content_type = "text/plain; charset=utf-8"
    wfile: BytesIO

    def __init__(self, head: bytes) -> None:
        # Not the base's: that serves a socket, in a thread for each.
        self.client_address = ("", 0)
        self.rfile, self.wfile = BytesIO(head), BytesIO()
        self.command, self.requestline, self.request_version = "", "", self.protocol_version
        self.raw_requestline = self.rfile.readline()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuses in fixed words: nothing that was sent is sent back."""
        super().send_error(code)

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing: who asks is nobody's concern."""

    def answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        """Writes an answer with this body, or only its head if only that was asked for."""
        self.send_response(status)
        for name, value in (
            ("Content-Type", content_type),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("Connection", "close"),
        ):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
