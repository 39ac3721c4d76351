"""The way to bookies in other processes and on other machines: frames over TCP, with or without TLS, or over Unix sockets.

Rules: every message of the peer is checked, and costs a bounded number of bytes; requests are handled in the order in
which they were sent (reads that wait for room excepted), and each answer goes out as soon as it is ready; one write
takes all messages of a wake-up. The frames are `replog.protocol.wire`'s, the beginning of a connection is `greeting`'s,
its ends are `client`'s and `session`'s.
"""

from __future__ import annotations

import functools
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import trio

from replog.abc import Authenticator, Connection, RequestHandler, ResponseReceiver, Transport
from replog.errors import BookieRefusedError, BookieUnreachableError, ConfigError, RemoteProtocolError
from replog.hookspecs import Backend, hookimpl
from replog.protocol.wire import FRAME_BYTES_MAX, GREETING_BYTES_MAX, FrameSplitter
from replog.runtime.host_ports import parse_address
from replog.runtime.nursery import open_service_nursery
from replog.transports.tcp.certificates import certificate_digest, client_certificates
from replog.transports.tcp.client import TcpConnection
from replog.transports.tcp.counters import Counters
from replog.transports.tcp.greeting import ClientGreeter
from replog.transports.tcp.listener import Listener
from replog.transports.tcp.nearby import beside, connect_beside
from replog.transports.tcp.options import TcpOptions, UnixOptions, tuned
from replog.transports.tcp.refusals import NO_TLS, NotTlsError, SilentPeerError, refusal_in_clear, tls_problem_of_bookie
from replog.transports.tcp.stream import Stream
from replog.transports.tcp.tls import TlsStream
from replog.transports.tcp.unix import connect_to, socket_path

__all__ = ["TcpOptions", "TcpTransport", "UnixOptions"]


class TcpTransport(Transport):
    """Reaches bookies by HOST:PORT; with `UnixOptions`, by the path of a Unix socket. Raises `ConfigError` if the options' files
    can't be used."""

    def __init__(self, options: TcpOptions | UnixOptions) -> None:
        self.options = tuned(options)
        self._certificates = client_certificates(self.options)
        self._counters = Counters()

    async def connect(
        self,
        address: str,
        receiver: ResponseReceiver,
        nursery: trio.Nursery,
        *,
        bookie_id: str = "",
        authenticator: Authenticator | None = None,
    ) -> Connection:
        reach = self._reach(address)
        if authenticator is not None and authenticator.needs_certificates and not self.options.is_client_mutual_tls:
            needed = "a tls_certificate_file, among the transport's options"
            if isinstance(self.options, UnixOptions):
                needed = "TLS, which Unix sockets don't have"
            problem = f"authentication by {authenticator.mechanism!r} needs {needed}"
            raise BookieRefusedError(bookie_id or address, problem)
        stream: Stream | None = None
        try:
            with trio.fail_after(self.options.handshake_timeout_s):
                stream = self._stream(*await reach())
                connection, greeter = await self._greet(stream, receiver, bookie_id, authenticator)
        except BaseException as error:
            if stream is not None:
                stream.close()
            explained = _explained(bookie_id or address, address, error)
            if explained is error:
                raise
            raise explained from error
        try:
            nursery.start_soon(connection.run, greeter.early)
        except RuntimeError as error:
            # It is closed: its opener was left meanwhile.
            stream.close()
            raise BookieUnreachableError(bookie_id or address, "the client was left while connecting") from error
        return connection

    def _reach(self, address: str) -> Callable[[], Awaitable[tuple[socket.socket, str]]]:
        """The way to a socket that is connected there, and the name of its host. Raises `ConfigError`."""
        if isinstance(self.options, UnixOptions):
            return functools.partial(_connected_at, socket_path(address))
        host, port = parse_address(address)
        if self._certificates is None and self.options.unix_nearby:
            return functools.partial(_connected_nearby, host, port)
        return functools.partial(_connected, host, port)

    def _stream(self, connected: socket.socket, host: str) -> Stream:
        if self._certificates is None or isinstance(self.options, UnixOptions):
            return Stream(connected)
        try:
            hostname = self.options.tls_hostname or host
            return TlsStream(connected, self._certificates.current().context, hostname=hostname, is_bookie=False)
        except BaseException:
            connected.close()
            raise

    async def _greet(
        self, stream: Stream, receiver: ResponseReceiver, bookie_id: str, authenticator: Authenticator | None
    ) -> tuple[TcpConnection, ClientGreeter]:
        splitter = FrameSplitter(GREETING_BYTES_MAX)
        greeter = ClientGreeter(stream, splitter)
        async with open_service_nursery() as nursery:
            nursery.start_soon(stream.run)
            binding = b""
            if isinstance(stream, TlsStream):
                await stream.handshake()
                binding = certificate_digest(stream.peer_certificate)
            name, ready = await greeter.greet(bookie_id, authenticator, binding)
        splitter.frame_bytes_max = FRAME_BYTES_MAX
        return TcpConnection(name, stream, splitter, receiver, self.options, ready), greeter

    @asynccontextmanager
    async def listen(
        self,
        address: str,
        handler: RequestHandler,
        *,
        bookie_id: str = "",
        authenticator: Authenticator | None = None,
    ) -> AsyncIterator[str]:
        listener = Listener(handler, bookie_id, authenticator, self.options, self._counters)
        if isinstance(self.options, UnixOptions):
            await listener.bind_path(socket_path(address, bookie_id), self.options.mode_bits)
        else:
            await listener.bind(*parse_address(address), self.options.advertise)
        async with open_service_nursery() as nursery:
            nursery.start_soon(listener.run)
            try:
                yield listener.address
            finally:
                await listener.close("this bookie is shutting down")

    def statistics(self) -> Mapping[str, float]:
        return self._counters.statistics()


async def _connected(host: str, port: int) -> tuple[socket.socket, str]:
    stream = await trio.open_tcp_stream(host, port)
    return socket.socket(fileno=stream.socket.detach()), host


async def _connected_nearby(host: str, port: int) -> tuple[socket.socket, str]:
    nearby = await connect_beside(host, port)
    if nearby is None:
        reached, _ = await _connected(host, port)
        nearby = beside(reached)
        if nearby is None:
            return reached, host
        reached.close()
    return nearby, host


async def _connected_at(path: str) -> tuple[socket.socket, str]:
    return await connect_to(path), ""


def _explained(bookie_id: str, address: str, error: BaseException) -> BaseException:
    """The error for a client that could not connect. Errors that are not of the connection stay as they are."""
    if isinstance(error, trio.TooSlowError):
        return BookieUnreachableError(bookie_id, f"no handshake with {address} in time")
    if isinstance(error, RemoteProtocolError):
        return BookieRefusedError(bookie_id, f"at {address} no bookie of replog answers: {error}")
    if isinstance(error, NotTlsError):
        reason = refusal_in_clear(error.said)
        return BookieRefusedError(
            bookie_id, f"at {address}: {NO_TLS}, and says: {reason}" if reason else f"at {address}: {NO_TLS}"
        )
    if isinstance(error, SilentPeerError):
        return BookieRefusedError(bookie_id, f"{address}: it ended the connection at once; its log may say why")
    if isinstance(error, ssl.SSLError):
        return BookieRefusedError(bookie_id, f"TLS with {address}: {tls_problem_of_bookie(error)}")
    if isinstance(error, OSError):
        reason = _reason(error)
        return BookieUnreachableError(bookie_id, reason if bookie_id == address else f"{address}: {reason}")
    return error


def _reason(error: OSError) -> str:
    """trio says that all its attempts have failed; each of them knows why."""
    attempts = error.__cause__.exceptions if isinstance(error.__cause__, ExceptionGroup) else ()
    numbers = dict.fromkeys(each.errno for each in attempts if isinstance(each, OSError) and each.errno)
    return ", ".join(map(os.strerror, numbers)) or error.strerror or str(error)


@hookimpl
def replog_transports() -> Sequence[Backend[Transport]]:
    """Offers "tcp" and "unix"."""
    return [
        Backend("tcp", _open, TcpOptions, summary="bookies in other processes and machines, with TLS if wished"),
        Backend("unix", _open, UnixOptions, summary="bookies in other processes of this machine, by a socket's path"),
    ]


def _open(rest: str, options: TcpOptions | UnixOptions) -> Transport:
    if rest:
        scheme = "unix" if isinstance(options, UnixOptions) else "tcp"
        raise ConfigError(f"{scheme}:{rest}: a transport has no address; give it where a bookie listens")
    return TcpTransport(options)
