"""Where a bookie listens for clients of BookKeeper."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from replog.bookie.server import BookieServer
from replog.errors import ConfigError
from replog.runtime.host_ports import advertised_address, format_address, parse_address
from replog.runtime.loggers import logger
from replog.runtime.nursery import open_service_nursery
from replog_bookkeeper.serving.session import Arriving, Session
from replog_bookkeeper.serving.watched import LedgersWatched

_log = logger("replog.bookkeeper")

CONNECTIONS_MAX = 1024
_SHARE_BYTES_MAX, _SHARE_BYTES_MIN = 16 << 20, 64 << 10
_DRAIN_S = 5.0  # that answers may take when the bookie leaves
_ACCEPT_AGAIN_S = 0.1  # after the process has run out of descriptors
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Listener:
    """The connections of one bookie."""

    def __init__(self, server: BookieServer) -> None:
        self._server = server
        self._watched = LedgersWatched()
        self._arriving = Arriving()
        self._sessions: set[Session] = set()
        self._accepting = trio.CancelScope()

    @asynccontextmanager
    async def listen(self, address: str, advertise: str = "") -> AsyncIterator[str]:
        """Serves at HOST:PORT while the context is open; yields the address for clients. On leaving, what was accepted is
        answered, for some seconds. Raises `ConfigError`."""
        host, port = parse_address(address)
        try:
            listeners = await trio.open_tcp_listeners(port, host=host or None)
        except OSError as error:
            problem = f"{format_address(host, port)}: cannot listen there: {error.strerror or error}"
            raise ConfigError(problem) from error
        shown = advertised_address(host, listeners[0].socket.getsockname()[1], advertise)
        async with open_service_nursery() as nursery:
            for each in listeners:
                nursery.start_soon(self._accept, each, nursery)
            try:
                yield shown
            finally:
                self._accepting.cancel()
                await self._drain()

    async def _drain(self) -> None:
        with trio.move_on_after(_DRAIN_S) as scope:
            scope.shield = True
            for each in list(self._sessions):
                await each.wait_idle()

    async def _accept(self, listener: trio.SocketListener, nursery: trio.Nursery) -> None:
        async with listener:
            with self._accepting:
                while True:
                    try:
                        stream = await listener.accept()
                    except OSError as error:
                        if error.errno not in _OUT_OF_RESOURCES:
                            raise
                        _log.error("no connection can be accepted: %s", error)
                        await trio.sleep(_ACCEPT_AGAIN_S)
                        continue
                    if len(self._sessions) >= CONNECTIONS_MAX:
                        _log.warning("a connection is closed: %d are open", CONNECTIONS_MAX)
                        await trio.aclose_forcefully(stream)
                        continue
                    session = Session(stream, self._server, self._watched, self._arriving, self._share)
                    self._sessions.add(session)
                    nursery.start_soon(self._serve, session)

    async def _serve(self, session: Session) -> None:
        try:
            await session.run()
        finally:
            self._sessions.discard(session)

    def _share(self) -> int:
        # As much in all as may wait for the disk: Java's writers would replace a bookie that is too busy.
        share = self._server.options.queue_bytes_max // max(1, len(self._sessions))
        return max(_SHARE_BYTES_MIN, min(_SHARE_BYTES_MAX, share))
