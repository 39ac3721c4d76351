"""Which event loop runs here, and calls that it makes later.

A trio run may be the guest of another event loop. trio waits for such a run in a helper thread, so that each call that its own
`run_sync_soon` makes costs two changes of thread. The host makes calls at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import trio

from replog.errors import WrongEventLoopError
from replog.runtime.shared_event import SharedEvent

Call = Callable[[], None]


def check_event_loop(verb: str) -> None:
    """Raises `WrongEventLoopError` unless this is called by a task of trio's."""
    if not trio.lowlevel.in_trio_task():
        raise WrongEventLoopError(
            f"replog.{verb}() needs trio; under asyncio use replog.aio.{verb}(). Nothing was opened"
        )


class HostLoop(Protocol):
    """The event loop that a trio run is the guest of."""

    def soon(self, call: Callable[[], object]) -> None:
        """Makes the call after everything that is ready now, unless the run ends before. Only in the loop's thread."""

    def soon_from_any_thread(self, call: Callable[..., object], /, *arguments: Any) -> None:
        """Thread-safe form of `soon`. Raises `trio.RunFinishedError`."""

    def watch(self, descriptor: int, call: Callable[[], object]) -> Callable[[], object]:
        """Makes the call whenever the descriptor is readable. Returns what ends that. Both only in the loop's thread."""


_host_loop: trio.lowlevel.RunVar[HostLoop | None] = trio.lowlevel.RunVar("replog host loop", default=None)


def current_host_loop() -> HostLoop | None:
    """The host of this trio run; None if the run has its thread for itself."""
    return _host_loop.get()


def use_host_loop(host: HostLoop) -> None:
    """Says that this trio run is a guest of that loop."""
    _host_loop.set(host)


def soon_from_any_thread() -> Callable[..., object]:
    """A function that has others called in the thread of this run, as `TrioToken.run_sync_soon` does, in the shortest way."""
    host = current_host_loop()
    return trio.lowlevel.current_trio_token().run_sync_soon if host is None else host.soon_from_any_thread


class CallSoon:
    """Calls that one task makes a turn of the event loop later, for all writers of a client. Only for its own thread.

    Other threads may call `trio.lowlevel.TrioToken.run_sync_soon`, so it writes to a socket pair, polls, reads twice and
    registers again for each call. A task that is woken by an event costs a fifth of that."""

    def __init__(self) -> None:
        self._next: list[Call] = []
        self._later: list[Call] = []
        self._wanted = SharedEvent()
        self._host = current_host_loop()

    def soon(self, call: Call, *, after_woken: bool = False) -> None:
        """Makes this call when the task that runs now has given way; with `after_woken`, when the tasks that were woken by now
        have had their turn, too. Calls that `run` has not made when it is cancelled are dropped."""
        if self._host is not None:
            # The host's queue has everybody who was woken by now, and trio's task would be two changes of thread away.
            self._host.soon(call)
            return
        (self._later if after_woken else self._next).append(call)
        self._wanted.set()

    async def run(self) -> None:
        """Makes the calls until cancelled."""
        while True:
            await self._wanted.wait()
            # Calls that are made meanwhile are for the next turn: otherwise two callers could keep each other here without
            # end.
            calls, self._next, self._later = self._next, self._later, []
            if not self._next:
                self._wanted = SharedEvent()
            for call in calls:
                call()
