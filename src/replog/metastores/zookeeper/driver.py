"""kazoo's client, made fit for trio. The only module that knows kazoo's insides, and where its `Any` ends.

Rules: one client has one thread of kazoo's, which owns the socket. That thread hands all answers, watches and states to
the trio thread, so trio hears all of them in the order in which they happened. kazoo's other two threads, which would
carry callbacks, are not started: ours do nothing but that handing over. Everything here is called in the trio thread,
except where the docstring says that it runs in kazoo's or blocks.
"""

from __future__ import annotations

import enum
import logging
import math
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import attrs
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import Connect
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.security import CREATOR_ALL_ACL, READ_ACL_UNSAFE

from replog.errors import ConfigError
from replog.metastores.zookeeper.options import Place, ZooKeeperOptions
from replog.runtime.loggers import logger
from replog.runtime.own_threads import in_own_thread

_log = logger("replog.metastores.zookeeper")
_kazoo_log = logger("replog.metastores.zookeeper.kazoo")
# It warns of each attempt to connect; and at DEBUG it shows credentials.
if _kazoo_log.level == logging.NOTSET:
    _kazoo_log.setLevel(logging.ERROR)

_RECONNECT_S = 0.05  # then twice as long after each failure
_RECONNECT_MAX_S = 1.0
# One attempt to reach one server, with TLS; then the next server is tried, in time for half a session to be left.
_CONNECT_TIMEOUT_S = 5.0
_FAREWELL_S = 2.0  # how long a server may take to answer that a session is closed

Watcher = Callable[[Any], object]


class Result(Protocol):
    """The future answer to one request."""

    @property
    def exception(self) -> Exception | None: ...
    def ready(self) -> bool: ...
    def get(self, block: bool = True) -> Any: ...
    def rawlink(self, callback: Callable[[Any], object]) -> None: ...


class Transaction(Protocol):
    """Changes that happen all or not at all."""

    def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> None: ...
    def check(self, path: str, version: int) -> None: ...
    def commit_async(self) -> Result: ...


class Client(Protocol):
    """The part of kazoo's client that is used. Paths are absolute."""

    def get_async(self, path: str, watch: Watcher | None = None) -> Result: ...
    def exists_async(self, path: str, watch: Watcher | None = None) -> Result: ...
    def get_children_async(self, path: str, watch: Watcher | None = None) -> Result: ...
    def create_async(self, path: str, value: bytes, *, ephemeral: bool = False, sequence: bool = False) -> Result: ...
    def set_async(self, path: str, value: bytes, version: int) -> Result: ...
    def delete_async(self, path: str, version: int) -> Result: ...
    def transaction(self) -> Transaction: ...


class Stat(Protocol):
    """ZooKeeper's facts about a node; kazoo's names."""

    @property
    def version(self) -> int: ...
    @property
    def dataLength(self) -> int: ...
    @property
    def numChildren(self) -> int: ...
    @property
    def ephemeralOwner(self) -> int: ...


class Event(enum.Enum):
    """The events of a connection. `ENDED`: kazoo's thread has ended, and will not come back."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"
    REFUSED = "refused"
    ENDED = "ended"


@attrs.frozen
class _Secrets:
    """Secrets that were read from files."""

    context: ssl.SSLContext | None
    sasl: dict[str, str] | None
    digest: list[tuple[str, str]]


class Driver:
    """One kazoo client. `on_event(driver, event, session_id)`, and `is_watched(path)`, whether anybody waits for this node,
    are called in kazoo's thread."""

    def __init__(
        self,
        place: Place,
        options: ZooKeeperOptions,
        on_event: Callable[[Driver, Event, int], None],
        is_watched: Callable[[str], bool],
    ) -> None:
        """Reads the files that the options name: blocks. Raises `ConfigError`."""
        secrets = _read_files(options)
        self._on_event = on_event
        self._is_watched = is_watched
        self._unwatched: deque[tuple[str, int]] = deque()  # paths, and how many requests had been submitted by then
        self.submitted = 0
        self.answered = 0
        self._handler = _Handler(_CONNECT_TIMEOUT_S, secrets.context, self._forget, self._ended)
        self._kazoo: Any = KazooClient(
            hosts=[f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in place.servers],
            timeout=options.lease_s,
            handler=self._handler,
            default_acl=_acl(options.acl),
            auth_data=secrets.digest,
            sasl_options=secrets.sasl,
            # Without an end: the calls of the metastore have deadlines of their own.
            connection_retry={
                "max_tries": -1,
                "delay": _RECONNECT_S,
                "backoff": 2,
                "max_delay": _RECONNECT_MAX_S,
            },
            logger=_kazoo_log,
            use_ssl=options.is_tls_client,
        )
        self.client: Client = self._kazoo
        self.negotiated_timeout_s = options.lease_s
        self._hear_handshakes()
        self._kazoo.add_listener(self._state_changed)

    def start(self) -> None:
        """Begins to connect, in a thread. Never waits for it."""
        self._kazoo.start_async()

    @property
    def is_connected(self) -> bool:
        """Whether kazoo thinks so now, in its own thread."""
        return bool(self._kazoo.connected)

    @property
    def problem(self) -> str:
        """Why the last attempt to connect failed; "" if none did."""
        return self._handler.problem

    @property
    def silence_s(self) -> float:
        """For how long nothing was heard from a server."""
        return time.monotonic() - self._handler.heard_s

    def forget_watch(self, path: str) -> None:
        """Nobody waits for this node any more. kazoo has no word for it: it keeps a watcher until it fires. So its
        thread removes it, since nothing else may touch these maps: once all submitted requests are answered, for one of
        these may set it yet, and unless a caller waits again by then."""
        self._unwatched.append((path, self.submitted))

    def forget_requests(self) -> None:
        """The connection is gone, and with it all watches and submitted requests."""
        self._unwatched.clear()
        self.answered = self.submitted

    def watched_paths(self) -> set[str]:
        """Where kazoo has watchers now."""
        return {*self._kazoo._data_watchers, *self._kazoo._child_watchers}

    def close(self) -> bool:
        """Ends the session, so that what it announced is gone, and the thread. Blocks, for a few seconds at most, even if
        no server answers. Idempotent. False if the thread could not be ended: it is stuck, say in a name service."""
        self._handler.cut = self._cut
        try:
            self._kazoo.stop()
        except _StuckError:
            _log.warning("kazoo's thread does not end; it is left behind, and ends as soon as it can")
            return False
        self._kazoo.close()
        return True

    # -- in kazoo's thread ----------------------------------------------------------------------------------------

    def _state_changed(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            session = self._kazoo.client_id
            if session is not None:
                self._on_event(self, Event.CONNECTED, session[0])
        elif state == KazooState.SUSPENDED:
            self._on_event(self, Event.SUSPENDED, 0)
        else:
            # kazoo's LOST means both: only its inner state tells an ended session from refused credentials.
            refused = self._kazoo.client_state == KeeperState.AUTH_FAILED
            self._on_event(self, Event.REFUSED if refused else Event.LOST, 0)

    def _ended(self) -> None:
        self._on_event(self, Event.ENDED, 0)

    def _forget(self) -> None:
        while self._unwatched and self._unwatched[0][1] <= self.answered:
            path, _ = self._unwatched.popleft()
            if not self._is_watched(path):  # tasks that wait from now on register later, in this thread
                self._kazoo._data_watchers.pop(path, None)
                self._kazoo._child_watchers.pop(path, None)

    def _hear_handshakes(self) -> None:
        """kazoo reports neither the timeout that the server has granted, nor why a handshake failed."""
        connection = self._kazoo._connection
        invoke = connection._invoke

        def listening(timeout: float, request: Any, xid: int | None = None) -> Any:
            try:
                answer = invoke(timeout, request, xid)
            except Exception as error:
                self._handler.problem = f"no handshake with {self._handler.address}: {error!r}"
                raise
            if isinstance(request, Connect) and answer[0].time_out > 0:
                self.negotiated_timeout_s = answer[0].time_out / 1000
                self._handler.problem = ""
            return answer

        connection._invoke = listening

    def _cut(self) -> None:
        connected = self._kazoo._connection._socket
        if connected is not None:
            with suppress(OSError):  # it is closed already
                connected.shutdown(socket.SHUT_RDWR)


class _StuckError(Exception):
    """kazoo's thread does not end."""


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """How kazoo gets threads and sockets. `cut` breaks the connection, when a caller waits for its end."""

    def __init__(
        self,
        connect_timeout_s: float,
        context: ssl.SSLContext | None,
        before_select: Callable[[], None],
        on_end: Callable[[], None],
    ) -> None:
        super().__init__()
        self._connect_timeout_s = connect_timeout_s
        self._context = context
        self._before_select = before_select
        self._on_end = on_end
        self._ended = threading.Event()
        self._ended.set()
        self.cut: Callable[[], None] = lambda: None
        self.problem = ""
        self.address = ""
        self.heard_s = time.monotonic()

    def start(self) -> None:
        """Nothing: no thread for callbacks."""

    def stop(self) -> None:
        """Waits for the end of the thread, which kazoo's client has asked for; kazoo would wait without an end."""
        if self._ended.wait(_FAREWELL_S):
            return
        self.cut()
        if not self._ended.wait(self._connect_timeout_s + _FAREWELL_S):
            raise _StuckError

    def dispatch_callback(self, callback: Any) -> None:
        """Calls a watcher at once."""
        callback.func(*callback.args)

    def spawn(self, function: Callable[..., object], *args: Any, **kwargs: Any) -> threading.Thread:
        """Starts the thread."""
        self._ended.clear()
        thread = threading.Thread(
            target=in_own_thread, args=(self._run, function, args, kwargs), name="replog-zookeeper", daemon=True
        )
        thread.start()
        return thread

    def _run(self, function: Callable[..., object], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        try:
            function(*args, **kwargs)
        except Exception as error:
            self.problem = f"kazoo's thread failed: {error!r}"
            _log.exception("kazoo's thread failed; a new client is made when it is needed")
        finally:
            # Set before any callback: `stop` may wait for it in another thread.
            self._ended.set()
            self._on_end()

    def select(
        self, readers: Sequence[Any], writers: Sequence[Any], _errors: Sequence[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """A `select.select` without the epoll descriptor that kazoo's own makes and closes each time."""
        self._before_select()
        poll = select.poll()
        for each in readers:
            poll.register(each, select.POLLIN)
        for each in writers:
            poll.register(each, select.POLLOUT)
        ready = {number for number, _ in poll.poll(None if timeout is None else math.ceil(timeout * 1000))}
        readable = [each for each in readers if each.fileno() in ready]
        if readers and readable[:1] == [readers[0]]:
            self.heard_s = time.monotonic()  # the first one is the connection
        return readable, [each for each in writers if each.fileno() in ready], []

    def create_connection(
        self, address: tuple[str, int], hostname: str | None = None, timeout: float | None = None, **_: Any
    ) -> socket.socket:
        """Connects, with a deadline of its own for each server, and TLS as it was asked for."""
        self.address = f"{hostname or address[0]}:{address[1]}"
        limit_s = self._connect_timeout_s if timeout is None else min(timeout, self._connect_timeout_s)
        try:
            connected = socket.create_connection(address, limit_s)
            try:
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._context is None:
                    return connected
                return self._context.wrap_socket(connected, server_hostname=hostname or address[0])
            except BaseException:
                connected.close()
                raise
        except OSError as error:
            self.problem = f"{self.address}: {error}"
            raise


def _acl(name: str) -> Any:
    if name == "open":
        return None
    return [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE] if name == "readable" else list(CREATOR_ALL_ACL)


def _read_files(options: ZooKeeperOptions) -> _Secrets:
    context = _tls(options) if options.is_tls_client else None
    if not options.user:
        return _Secrets(context, None, [])
    password = _password(options.password_file)
    if options.mechanism == "digest":
        return _Secrets(context, None, [("digest", f"{options.user}:{password}")])
    return _Secrets(context, {"mechanism": "DIGEST-MD5", "username": options.user, "password": password}, [])


def _password(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            # Only the line's end: a password may end with a blank.
            password = file.read().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"password_file={path}: it can't be read: {error}") from error
    if not password:
        raise ConfigError(f"password_file={path}: it is empty")
    return password


def _tls(options: ZooKeeperOptions) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.tls_ca_file or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = options.tls_check_hostname
        if options.tls_certificate_file:
            context.load_cert_chain(options.tls_certificate_file, options.tls_key_file or None)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        files = ", ".join(filter(None, (options.tls_ca_file, options.tls_certificate_file, options.tls_key_file)))
        raise ConfigError(f"tls: no good certificates in {files or 'the system'}: {error}") from error
    return context
