"""HTTP/1.1 connections to etcd's servers: made, kept for the next request, and dropped when anything about them is in doubt.

Rules: a request is sent whole before its answer is read. A connection on which something failed or was cancelled is
closed, never used again. An incompletely sent request was not understood by the server (`NotSentError`); every later
failure has an unknown outcome (`AnswerLostError`).
"""

from __future__ import annotations

import select
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import h11
import trio

from replog.errors import ConfigError
from replog_etcd.errors import EtcdAnswerTooLargeError
from replog_etcd.options import Endpoint, EtcdOptions

Headers = Sequence[tuple[str, str]]
Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]

_READ_BYTES = 64 << 10
_IDLE_MAX_S = 30.0  # a proxy or firewall may have forgotten a connection that was silent for long
_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}


class NotSentError(Exception):
    """The server can't have understood the request: it did not get all of it. Never leaves this package."""


class AnswerLostError(Exception):
    """The request was sent, and its answer did not come. Never leaves this package."""


class Connection:
    """One connection. Used by one task at a time."""

    def __init__(
        self, endpoint: Endpoint, stream: Stream, connected: socket.SocketType | trio.socket.SocketType
    ) -> None:
        self.endpoint = endpoint
        self.idle_since_s = 0.0
        self._stream = stream
        self._connected = connected
        self._http = h11.Connection(h11.CLIENT)
        self._host = str(endpoint)

    async def send(self, path: str, headers: Headers, body: bytes) -> None:
        """Sends a request. Raises `NotSentError`."""
        all_headers = [("Host", self._host), ("Content-Length", str(len(body))), ("Content-Type", "application/json")]
        request = h11.Request(method="POST", target=path, headers=[*all_headers, *headers])
        pieces = [self._http.send(request), self._http.send(h11.Data(data=body)), self._http.send(h11.EndOfMessage())]
        try:
            # One write, so that a small request is one packet.
            await self._stream.send_all(b"".join(piece for piece in pieces if piece))
        except trio.BrokenResourceError as error:
            raise NotSentError(f"the connection broke: {reason(error)}") from error

    async def receive_head(self) -> int:
        """The status of the answer, once it begins. Raises `AnswerLostError`."""
        event = await self._next()
        if not isinstance(event, h11.Response):
            raise AnswerLostError(f"no answer but {type(event).__name__}")
        return event.status_code

    async def receive_piece(self) -> bytes:
        """The next bytes of the answer, b"" at its end. Raises `AnswerLostError`."""
        event = await self._next()
        return bytes(event.data) if isinstance(event, h11.Data) else b""

    async def receive_body(self, bytes_max: int) -> bytes:
        """The rest of the answer. Raises `AnswerLostError`, `EtcdAnswerTooLargeError`."""
        body = bytearray()
        while piece := await self.receive_piece():
            body += piece
            if len(body) > bytes_max:
                raise EtcdAnswerTooLargeError(
                    f"{self.endpoint}: the answer is larger than response_bytes_max, {bytes_max}"
                )
        return bytes(body)

    def finish(self) -> bool:
        """Whether the connection can take another request, after an answer that was read to its end."""
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            self.idle_since_s = trio.current_time()
            return True
        return False

    def is_fresh(self) -> bool:
        """Whether a connection that waited is likely to live: nothing came meanwhile, not even its end."""
        if trio.current_time() - self.idle_since_s > _IDLE_MAX_S:
            return False
        watched = select.poll()
        watched.register(self._connected.fileno(), select.POLLIN)
        # Whatever can be read from an idle connection is its end, or nothing that belongs to the next request.
        return not watched.poll(0)

    def close(self) -> None:
        """At once, without a farewell."""
        self._connected.close()

    async def _next(self) -> h11.Event:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(bytes(await self._stream.receive_some(_READ_BYTES)))
        except (trio.BrokenResourceError, h11.RemoteProtocolError) as error:
            raise AnswerLostError(f"the connection broke: {reason(error)}") from error
        if isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
            raise AnswerLostError("the server closed the connection")
        assert not isinstance(event, type), event  # NEED_DATA and PAUSED are dealt with
        return event


class Connections:
    """The connections to one cluster. At most `connections_max` requests at a time; idle ones are kept for each server."""

    def __init__(self, options: EtcdOptions) -> None:
        self._options = options
        self._idle: dict[Endpoint, deque[Connection]] = {}
        self._slots = trio.Semaphore(options.connections_max)
        self._tls: ssl.SSLContext | None = None
        self._making_tls = trio.Lock()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Waits until there are fewer requests than may be."""
        async with self._slots:
            yield

    async def connect(self, endpoint: Endpoint, timeout_s: float) -> Connection:
        """An idle connection, or a new one; to be closed, or given back. Raises `NotSentError`, `ConfigError`."""
        idle = self._idle.get(endpoint)
        while idle:
            # The one that was used last: it is the most likely to live, and the others grow old and are dropped.
            connection = idle.pop()
            if connection.is_fresh():
                return connection
            connection.close()
        return await self.dial(endpoint, timeout_s)

    def give_back(self, connection: Connection) -> None:
        """After an answer that was read to its end."""
        if connection.finish():
            self._idle.setdefault(connection.endpoint, deque()).append(connection)
        else:
            connection.close()

    async def dial(self, endpoint: Endpoint, timeout_s: float) -> Connection:
        """A new connection. Raises `NotSentError`, `ConfigError`."""
        context = await self._tls_context()
        # Name resolution and all addresses of the host share this time.
        with trio.move_on_after(timeout_s):
            try:
                stream = await trio.open_tcp_stream(endpoint.host, endpoint.port)
            except (OSError, UnicodeError) as error:  # UnicodeError: of a name that can be none
                raise NotSentError(f"it can't be connected to: {reason(error)}") from error
            try:
                _keep_alive(stream)
                if context is None:
                    return Connection(endpoint, stream, stream.socket)
                hostname = self._options.tls_hostname or endpoint.host
                # Many servers close without TLS's farewell; HTTP says by itself where an answer ends.
                encrypted = trio.SSLStream(stream, context, server_hostname=hostname, https_compatible=True)
                await encrypted.do_handshake()
                return Connection(endpoint, encrypted, stream.socket)
            except trio.BrokenResourceError as error:
                stream.socket.close()
                raise NotSentError(f"TLS can't be agreed upon: {reason(error)}") from error
            except BaseException:
                stream.socket.close()
                raise
        raise NotSentError(f"no connection within {timeout_s:.3g} s")

    def forget(self, endpoint: Endpoint) -> None:
        """Closes the idle connections to this server."""
        for connection in self._idle.pop(endpoint, ()):
            connection.close()

    def close(self) -> None:
        """Closes all idle ones."""
        for endpoint in list(self._idle):
            self.forget(endpoint)

    async def _tls_context(self) -> ssl.SSLContext | None:
        if not self._options.speaks_tls:
            return None
        async with self._making_tls:
            if self._tls is None:
                self._tls = await trio.to_thread.run_sync(_make_tls_context, self._options)
        return self._tls


def _make_tls_context(options: EtcdOptions) -> ssl.SSLContext:
    """Reads the files. Raises `ConfigError`."""
    try:
        context = ssl.create_default_context(cafile=options.tls_ca_file or None)
        if options.tls_certificate_file:
            context.load_cert_chain(options.tls_certificate_file, options.tls_key_file or None)
    except (OSError, ssl.SSLError) as error:
        files = [options.tls_ca_file, options.tls_certificate_file, options.tls_key_file]
        named = ", ".join(each for each in files if each)
        raise ConfigError(f"etcd: the TLS files {named} can't be used: {reason(error)}") from error
    context.check_hostname = options.tls_check_hostname
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _keep_alive(stream: trio.SocketStream) -> None:
    """So that a wait hears of a host that vanished without a word."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):  # Linux's names
            stream.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def reason(error: BaseException) -> str:
    """The error's message, and its cause where that says more."""
    cause = error.__cause__
    if isinstance(cause, BaseExceptionGroup):  # of several addresses each has failed
        return "; ".join(dict.fromkeys(str(each) for each in cause.exceptions))
    words = str(error) or type(error).__name__
    return words if cause is None or str(cause) in words else f"{words}: {cause}"
