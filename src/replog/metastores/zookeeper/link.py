"""kazoo's client of one session: made on demand, replaced after kazoo gave it up, closed at the end.

Rules: a client that kazoo gave up (wrong credentials, a failure of its own) is replaced on demand, but not again and
again. kazoo's thread touches nothing here but `tell`, which hands everything to the trio thread.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import trio

from replog.errors import MetastoreError
from replog.metastores.zookeeper.driver import Driver, Event
from replog.metastores.zookeeper.options import Place, ZooKeeperOptions
from replog.runtime.threads import run_in_thread

_BEGIN_AGAIN_S = 5.0  # after the server refused the credentials
_RESTART_S = 1.0  # after kazoo's thread failed


class Link:
    """`driver` is None until `begin`, and after `aclose`. `on_event` is called in the trio thread."""

    def __init__(
        self,
        place: Place,
        options: ZooKeeperOptions,
        on_event: Callable[[Event, int], None],
        is_watched: Callable[[str], bool],
    ) -> None:
        self.driver: Driver | None = None
        self._place = place
        self._options = options
        self._on_event = on_event
        self._is_watched = is_watched
        self._token: trio.lowlevel.TrioToken | None = None
        self._beginning = trio.Lock()
        self._refusal = ""
        self._ended_s: float | None = None
        self._is_closed = False

    @property
    def is_connected(self) -> bool:
        """True if kazoo has a connection now, as its own thread sees it."""
        return self.driver is not None and self.driver.is_connected

    @property
    def has_ended(self) -> bool:
        """True after kazoo gave the client up: it never connects again, and has to be replaced."""
        return self._ended_s is not None

    @property
    def problem(self) -> str:
        """Why there is no connection, as far as known."""
        found = self._refusal or (self.driver.problem if self.driver is not None else "")
        return found or "no server answers, or none has a name that is known"

    async def begin(self) -> None:
        """Makes a client and has it connect, or replaces the one that ended. Raises `MetastoreError` if the server refused
        the credentials just now, `trio.ClosedResourceError`, `ConfigError`."""
        self._check_refusal()
        async with self._beginning:
            self._check_open()
            if self.driver is not None:
                if self._ended_s is None:
                    return  # another task did it
                # A client that fails at once would otherwise be made again and again as fast as threads start.
                await trio.sleep_until(self._ended_s + _RESTART_S)
                await run_in_thread(self.driver.close)
                self.driver = None
            self._token = trio.lowlevel.current_trio_token()
            driver = await run_in_thread(self._make_driver)
            # The metastore may have been closed while the thread made it.
            self._check_open()
            self.driver, self._refusal, self._ended_s = driver, "", None
            driver.start()

    def tell(self, happened: Callable[[], object]) -> None:
        """Calls this in the trio thread. For kazoo's thread."""
        assert self._token is not None, "only a client that was begun can call"
        with suppress(trio.RunFinishedError):  # no task is left
            self._token.run_sync_soon(happened)

    async def aclose(self) -> None:
        """Ends the session and kazoo's thread. Not cancelled. Idempotent."""
        self._is_closed = True
        with trio.CancelScope(shield=True):
            async with self._beginning:
                driver, self.driver = self.driver, None
                if driver is not None:
                    await run_in_thread(driver.close)

    def _make_driver(self) -> Driver:
        return Driver(self._place, self._options, self._happened, self._is_watched)

    def _check_refusal(self) -> None:
        if self._refusal and self._ended_s is not None and trio.current_time() < self._ended_s + _BEGIN_AGAIN_S:
            raise MetastoreError(f"{self._place}: {self._refusal}. Nothing was sent")

    def _check_open(self) -> None:
        if self._is_closed:
            raise trio.ClosedResourceError("this metastore was closed")

    def _happened(self, driver: Driver, event: Event, session_id: int) -> None:
        self.tell(lambda: self._take_note(driver, event, session_id))

    def _take_note(self, driver: Driver, event: Event, session_id: int) -> None:
        # kazoo's thread may still tell of a client when another one has taken its place.
        if driver is not self.driver:
            return  # one that was replaced
        if event is Event.ENDED:
            self._ended_s = trio.current_time()
        elif event is Event.REFUSED:
            self._refusal = (
                "ZooKeeper refused the credentials, or closed the connection while they were checked: "
                "look at user and password_file"
            )
        self._on_event(event, session_id)
