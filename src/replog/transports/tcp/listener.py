"""Where a bookie listens, over TCP or at a path: accepts connections, sees to it that they introduce themselves in time, and
serves them.

A stranger costs little: few handshakes are under way at a time, each within its deadline and with messages of a few
KiB; a host that keeps failing is not heard for a while; above `connections_max` no other client is let in.
"""

from __future__ import annotations

import errno
import socket
import ssl
from contextlib import suppress

import attrs
import trio

from replog.abc import Authenticator, Peer, RequestHandler
from replog.errors import ConfigError, RemoteProtocolError
from replog.protocol import wire
from replog.protocol.wire import FrameSplitter
from replog.runtime.host_ports import advertised_address, format_address, is_local_address
from replog.runtime.loggers import logger
from replog.runtime.platform import peer_credentials, return_freed_memory
from replog.runtime.threads import run_in_thread
from replog.transports.tcp.budget import Budget
from replog.transports.tcp.certificates import bookie_certificates
from replog.transports.tcp.counters import Counters
from replog.transports.tcp.greeting import NO_MECHANISM, BookieGreeter
from replog.transports.tcp.handshakes import Handshakes
from replog.transports.tcp.nearby import listen_beside
from replog.transports.tcp.options import TcpOptions, UnixOptions, tuned
from replog.transports.tcp.refusals import NO_TLS, NotTlsError, RefusedPeerError, SilentPeerError, tls_problem_of_client
from replog.transports.tcp.session import Session
from replog.transports.tcp.stream import Stream
from replog.transports.tcp.tls import TlsStream
from replog.transports.tcp.unix import listen_at

_log = logger("replog.transports.tcp")

_BACKLOG = 128
_ACCEPT_AGAIN_S = 0.1  # after the process has run out of descriptors
_LINGER_S = 1.0  # so that a refused client can receive the reason
_SILENCE_MAX_MS = (1 << 63) - 1  # what can be said
_LOOK_S = 1.0  # how often slow and silent clients are looked for
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@attrs.frozen
class _Caller:
    """The client of a connection: for people, and for the limits of handshakes, which count by `host`."""

    shown: str
    host: str
    is_local: bool


class Listener:
    """Serves one bookie at one address. `run` is the task behind it; `close` ends it."""

    def __init__(
        self,
        handler: RequestHandler,
        bookie_id: str,
        authenticator: Authenticator | None,
        options: TcpOptions | UnixOptions,
        counters: Counters | None = None,
    ) -> None:
        self.address = ""
        self._handler = handler
        self._bookie_id = bookie_id
        self._authenticator = authenticator
        options = self._options = tuned(options)
        self._certificates = bookie_certificates(options)
        self._sockets: list[socket.socket] = []
        self._sessions: set[Session] = set()
        self._connections = 0  # including those before the handshake
        self._counters = counters or Counters()
        self._hosts = Handshakes(options.handshakes_max, options.failed_handshakes_max)
        self._budget = Budget(options.total_bytes_max)
        self._scope = trio.CancelScope()
        self._accepting = trio.CancelScope()
        self._ended = trio.Event()

    async def bind(self, host: str, port: int, advertise: str = "") -> None:
        """Takes the address; clients connect to the one that is advertised, if any. Raises `ConfigError`."""
        shown = format_address(host, port)
        self._check_mutual(f"tcp:{shown}", "a tls_certificate_file and a tls_ca_file here")
        try:
            found = await trio.socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, _, _, _, where in dict.fromkeys(found):
                # A free port is chosen once, so that the bookie has the same one over IPv4 and IPv6.
                if port == 0 and self._sockets:
                    where = (where[0], self._sockets[0].getsockname()[1], *where[2:])
                self._sockets.append(_listen(family, where))
        except OSError as error:
            self._close_sockets()
            raise ConfigError(f"tcp:{shown}: cannot listen there: {error.strerror or error}") from error
        self.address = advertised_address(host, self._sockets[0].getsockname()[1], advertise)
        self._warn()
        self._listen_beside()

    def _listen_beside(self) -> None:
        options = self._options
        if self._certificates is None and isinstance(options, TcpOptions) and options.unix_nearby:
            self._sockets += filter(None, [listen_beside(each) for each in self._sockets])

    async def bind_path(self, path: str, mode: int) -> None:
        """Takes this path for a socket with these permissions. Raises `ConfigError`."""
        self._check_mutual(f"unix:{path}", "TLS, which is for tcp:HOST:PORT only (or authenticate by a secret)")
        self._sockets.append(await listen_at(path, mode))
        self.address = path

    def _check_mutual(self, shown: str, needed: str) -> None:
        authenticator = self._authenticator
        if authenticator is not None and authenticator.needs_certificates and not self._options.is_bookie_mutual_tls:
            problem = f"authentication by {authenticator.mechanism!r} needs {needed}"
            raise ConfigError(f"{shown}: {problem}: no client could connect")

    def _warn(self) -> None:
        """Warns of what others could do, if the bookie can be reached from other machines."""
        if all(is_local_address(each.getsockname()[0]) for each in self._sockets):
            return
        dangers = []
        if self._certificates is None:
            dangers.append("everything passes in clear (no tls_certificate_file)")
        asks = self._authenticator is not None and self._authenticator.mechanism != NO_MECHANISM
        if not asks and not self._options.is_bookie_mutual_tls:
            dangers.append("everybody may connect (no authentication, no tls_ca_file)")
        if dangers:
            extra = {"bookie": self._bookie_id}
            _log.warning(
                "other machines can reach this bookie at %s, and %s", self.address, " and ".join(dangers), extra=extra
            )

    async def run(self) -> None:
        """Accepts and serves until `close`. Not cancelled by others: accepted requests must still be answered then."""
        try:
            with trio.CancelScope(shield=True), self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._watch)
                    with self._accepting:
                        async with trio.open_nursery() as accepting:
                            for listening in self._sockets:
                                accepting.start_soon(self._accept, listening, nursery)
        finally:
            self._close_sockets()
            self._ended.set()

    async def close(self, reason: str) -> None:
        """Takes no new connections, lets sessions answer what they accepted in `drain_timeout_s`, and ends them all."""
        self._accepting.cancel()
        self._close_sockets()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + self._options.drain_timeout_s):
            async with trio.open_nursery() as nursery:
                for session in list(self._sessions):
                    nursery.start_soon(session.drain, reason)
        # What could not be answered by the deadline ends here: a client that takes nothing does not keep a bookie from
        # stopping.
        self._scope.cancel()
        # All of `run` is cancelled: it ends without waiting for anybody.
        with trio.CancelScope(shield=True):
            await self._ended.wait()

    def _close_sockets(self) -> None:
        for listening in self._sockets:
            trio.lowlevel.notify_closing(listening)
            listening.close()
        self._sockets.clear()

    # -- accepting --------------------------------------------------------------------------------------------------

    async def _accept(self, listening: socket.socket, nursery: trio.Nursery) -> None:
        is_in_want = False  # of descriptors or memory: said once
        while listening.fileno() >= 0:  # else it was closed already
            try:
                await trio.lowlevel.wait_readable(listening)
                connected, where = listening.accept()
            except trio.ClosedResourceError:
                return
            except BlockingIOError:
                continue
            except OSError as error:
                if error.errno in _OUT_OF_RESOURCES:
                    if not is_in_want:
                        _log.warning("no new connections for a while: %s", error.strerror)
                    is_in_want = True
                    # Without the pause this loop would spin: the connection stays at the head of the queue until a
                    # descriptor is free.
                    await trio.sleep(_ACCEPT_AGAIN_S)
                # Else that connection ended before it was accepted.
                continue
            is_in_want = False
            caller = _caller(connected, where)
            # Before any task is started and any byte is read: a refused client costs one write.
            refusal = self._refusal(caller.host)
            if refusal:
                self._counters.refused += 1
                _refuse_at_once(connected, refusal)
                continue
            self._connections += 1
            self._counters.handshakes += 1
            self._hosts.begun(caller.host)  # until `_greet` ends
            nursery.start_soon(self._serve, connected, caller)

    def _refusal(self, host: str) -> str:
        if self._connections >= self._options.connections_max:
            return f"this bookie has {self._connections} connections, and takes no more"
        return self._hosts.refusal(host, trio.current_time())

    async def _serve(self, connected: socket.socket, caller: _Caller) -> None:
        binding = b""
        if self._certificates is None:
            stream = Stream(connected)
        else:
            credentials = self._certificates.current()
            stream = TlsStream(connected, credentials.context, hostname=None, is_bookie=True)
            binding = credentials.binding
        self._counters.opened(stream)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.run)
                session, early = await self._greet(stream, binding, caller)
                if session is not None:
                    await self._run_session(session, early, caller.shown)
                nursery.cancel_scope.cancel()
        finally:
            self._counters.closed(stream)
            stream.close()
            self._connections -= 1

    async def _run_session(self, session: Session, early: list[wire.Frame], client: str) -> None:
        self._sessions.add(session)
        try:
            await session.run(early)
        finally:
            self._sessions.discard(session)
        if session.problem:
            _log.info("client %s: %s", client, session.problem, extra={"client": client, "bookie": self._bookie_id})

    async def _greet(self, stream: Stream, binding: bytes, caller: _Caller) -> tuple[Session | None, list[wire.Frame]]:
        """The session of a client that may connect; None if it was refused, with the reason."""
        problem, told = "it did not introduce itself in time", ""
        try:
            with trio.move_on_after(self._options.handshake_timeout_s):
                return await self._introduce(stream, binding, caller)
        except SilentPeerError:
            return None, []  # a probe of the port: it sent nothing
        except RefusedPeerError as error:
            told = str(error)
            problem = f"{told} ({error.detail})" if error.detail else told
        except RemoteProtocolError as error:
            problem = told = f"no greeting of replog: {error}"
        except NotTlsError:
            problem, told = (
                NO_TLS,
                "this bookie speaks TLS only: give the client a tls_ca_file, among its transports' options",
            )
        except ssl.SSLError as error:
            problem = f"TLS: {tls_problem_of_client(error)}"
        except OSError as error:
            problem = f"the connection broke: {error}"
        finally:
            self._counters.handshakes -= 1
            self._hosts.ended(caller.host)
        self._hosts.failed(caller.host, trio.current_time())
        client = caller.shown
        self._counters.failed_handshakes += 1
        _log.warning("client %s was refused: %s", client, problem, extra={"client": client, "bookie": self._bookie_id})
        await self._tell(stream, told, in_clear=problem == NO_TLS)
        return None, []

    async def _tell(self, stream: Stream, reason: str, *, in_clear: bool) -> None:
        """Sends the reason to a client that is refused. TLS has sent its own alert."""
        if not reason and not isinstance(stream, TlsStream):
            return
        if reason:
            refuse = wire.encode_greeting(wire.Refuse(reason, retry=False))
            if in_clear and isinstance(stream, TlsStream):
                stream.write_in_clear(refuse)
            else:
                stream.write([refuse])
        # Closed at once, the connection might be reset before the client has read why.
        with trio.move_on_after(_LINGER_S):
            await stream.linger()

    async def _introduce(self, stream: Stream, binding: bytes, caller: _Caller) -> tuple[Session, list[wire.Frame]]:
        names: tuple[str, ...] = ()
        if isinstance(stream, TlsStream):
            await stream.handshake()
            names = stream.peer_names
        options = self._options
        splitter = FrameSplitter(wire.GREETING_BYTES_MAX, wire.GREETING_BYTES_MAX)
        greeter = BookieGreeter(stream, splitter)
        peer = Peer(caller.shown, caller.is_local, names)
        limits = options.frame_bytes_max, int(min(options.silence_max_s * 1000, _SILENCE_MAX_MS))
        identity = await greeter.greet(self._bookie_id, peer, self._authenticator, binding, limits)
        # `close` has begun, and would not wait for this session.
        if self._accepting.cancel_called:
            raise RefusedPeerError("this bookie is shutting down")
        splitter.frame_bytes_max = options.frame_bytes_max
        session = Session(stream, splitter, self._handler, identity, options, self._budget)
        return session, greeter.early

    async def _watch(self) -> None:
        while True:
            await trio.sleep(_LOOK_S)
            now_s = trio.current_time()
            is_room_scarce = self._budget.is_scarce
            for session in list(self._sessions):
                session.look(now_s, is_room_scarce=is_room_scarce)
            if self._budget.has_flood_ended(now_s):
                await run_in_thread(return_freed_memory)


def _caller(connected: socket.socket, where: tuple[object, ...] | str) -> _Caller:
    if isinstance(where, tuple):
        host, port = str(where[0]), where[1]
        assert isinstance(port, int)
        return _Caller(format_address(host, port), host, is_local_address(host))
    process_id, user_id = peer_credentials(connected)  # a client's own socket has no path
    return _Caller(f"process {process_id} of user {user_id}", f"user {user_id}", is_local=True)


def _listen(family: int, where: tuple[object, ...]) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # Otherwise the socket for IPv6 would take the port for IPv4 as well, and the second bind fail.
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.setblocking(False)
        listening.bind(where)
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def _refuse_at_once(connected: socket.socket, reason: str) -> None:
    """Says why, if the socket takes it, and closes: without a task. In a TLS connection the reason stays unheard."""
    connected.setblocking(False)
    with suppress(OSError):
        connected.send(wire.encode_greeting(wire.Refuse(reason, retry=True)))
    connected.close()
