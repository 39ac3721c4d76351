"""One session with ZooKeeper, for one trio run: whether there is a connection, and sending requests over it.

Rules: nothing is given to kazoo unless it is connected, since it would queue without bound, and requests lost from its
queue stay unanswered. Requests on the way are bounded in bytes, and in calls, because kazoo's wake-up pipe takes some
270 and then blocks its caller: the trio thread. `link` makes kazoo's client, and replaces it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import trio

from replog.metastores.zookeeper.budget import Budget
from replog.metastores.zookeeper.driver import Client, Driver, Event, Result
from replog.metastores.zookeeper.link import Link
from replog.metastores.zookeeper.options import Place, ZooKeeperOptions
from replog.runtime.loggers import logger

_log = logger("replog.metastores.zookeeper")

CALLS_MAX = 100
# On the way to ZooKeeper; further calls wait. Eight of the largest requests.
_IN_FLIGHT_BYTES_MAX = 16 << 20


@attrs.frozen
class Request:
    """One request: how to give it to kazoo, and about how many bytes it has."""

    submit: Callable[[Client], Result]
    size_bytes: int = 0


class Session:
    """`session_id` is 0 while there is none. It is begun at the first call."""

    def __init__(
        self,
        place: Place,
        options: ZooKeeperOptions,
        on_watch: Callable[[str | None], None],
        is_watched: Callable[[str], bool],
    ) -> None:
        self.place = place
        self.session_id = 0
        self.sessions_lost = 0
        self._options = options
        self._on_watch = on_watch
        self._link = Link(place, options, self._take_note, is_watched)
        self._is_up = False
        self._is_doubted = False
        self._changed = trio.Event()
        self._budget = self._new_budget()
        self._is_closed = False

    # -- requests -------------------------------------------------------------------------------------------------

    async def exchange(self, requests: Sequence[Request], submitted: Callable[[], None]) -> list[Result]:
        """Sends requests in one go, once there is a connection and room, and returns when the last one is answered: they
        are in order. `submitted` is called when they go to kazoo: before that, nothing was sent. Never times out.

        A result that is not ready then is lost, as those are that have ConnectionLoss or SessionExpiredError.
        """
        size_bytes = sum(request.size_bytes for request in requests)
        while True:
            driver = await self.connected()
            budget = self._budget
            if not await budget.acquire(len(requests), size_bytes):
                continue
            # The connection may have been lost while this waited for room: kazoo would queue what it is given now.
            if budget.is_closed or not driver.is_connected:
                budget.release(len(requests), size_bytes)
                continue
            break
        submitted()
        driver.submitted += len(requests)
        results = [request.submit(driver.client) for request in requests]
        answered = trio.Event()

        def done() -> None:
            budget.release(len(requests), size_bytes)
            # With the connection `forget_requests` has settled the count; a late callback must not count twice.
            if not budget.is_closed:
                driver.answered += len(requests)
            answered.set()

        results[-1].rawlink(lambda _result: self._link.tell(done))
        await answered.wait()
        return results

    @property
    def watcher(self) -> Callable[[object], object]:
        """The watcher to give kazoo with a request."""
        return self._watched

    def forget_watch(self, path: str) -> None:
        """Nobody waits for this node any more."""
        if self._link.driver is not None and not self._is_closed:
            self._link.driver.forget_watch(path)

    # -- states ---------------------------------------------------------------------------------------------------

    @property
    def is_connected(self) -> bool:
        """Whether something could be sent now."""
        return self._is_up and self._link.is_connected

    @property
    def problem(self) -> str:
        """Why there is no connection, as far as known."""
        return self._link.problem

    async def connected(self) -> Driver:
        """Waits for a connection. Raises `MetastoreError` if the server refuses the credentials,
        `trio.ClosedResourceError`, `ConfigError`."""
        await trio.lowlevel.checkpoint()
        while True:
            self.check_open()
            driver = self._link.driver
            if driver is None or self._link.has_ended:
                await self._link.begin()
            elif self._is_up and driver.is_connected:
                return driver
            else:
                await self._changed.wait()

    async def wait_another(self, session_id: int) -> None:
        """Waits until there is a session that is not this one. While this one is in doubt, says so, once."""
        while not self.is_connected or self.session_id in (0, session_id):
            self.check_open()
            with trio.move_on_after(self._doubt_after_s()):
                await self._changed.wait()
                continue
            self._doubt()

    def check_open(self) -> None:
        """Raises `trio.ClosedResourceError` if it was closed."""
        if self._is_closed:
            raise trio.ClosedResourceError("this metastore was closed")

    async def aclose(self) -> None:
        """Ends the session and kazoo's thread. Requests on the way end as if the connection were lost. Idempotent."""
        self._is_closed = True
        self._notify()
        await self._link.aclose()
        await trio.lowlevel.checkpoint_if_cancelled()

    def _doubt_after_s(self) -> float:
        """How long this session may still be believed in: two thirds of its timeout, since the server was last heard."""
        driver = self._link.driver
        if self._is_doubted or self._is_up or driver is None or not self.session_id:
            return float("inf")
        return max(0.0, driver.negotiated_timeout_s * 2 / 3 - driver.silence_s)

    def _doubt(self) -> None:
        if not self._is_doubted and not self._is_up:
            self._is_doubted = True
            self.sessions_lost += 1
            text = "%s: nothing heard for most of the session timeout: what is announced counts as gone (%s)"
            _log.warning(text, self.place, self.problem)

    # -- what kazoo tells -----------------------------------------------------------------------------------------

    def _watched(self, event: object) -> None:
        path: str | None = getattr(event, "path", None)
        self._link.tell(lambda: self._on_watch(path or None))

    def _take_note(self, event: Event, session_id: int) -> None:
        if event is Event.CONNECTED:
            self._is_up = True
            if self.session_id not in (0, session_id) and not self._is_doubted:
                self.sessions_lost += 1
            self.session_id = session_id
            self._is_doubted = False
        else:
            self._disconnected()
        self._notify()

    def _disconnected(self) -> None:
        self._is_up = False
        if self._link.driver is not None:
            self._link.driver.forget_requests()
        # Those that wait for room are woken, and ask again over the next connection; so does everyone
        # with a watch, since ZooKeeper forgot the watches.
        self._budget.close()
        self._budget = self._new_budget()
        self._on_watch(None)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
        if self._is_closed:
            self._budget.close()
            self._on_watch(None)

    def _new_budget(self) -> Budget:
        return Budget(CALLS_MAX, _IN_FLIGHT_BYTES_MAX)
