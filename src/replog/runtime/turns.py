"""Calls that are made a turn of the event loop later, by one task of a client for all its writers.

As `trio.lowlevel.TrioToken.run_sync_soon` makes them, which other threads may call too: and so it writes to a socket pair, polls,
reads twice and registers again for each. A task that is woken by an event costs a fifth of that.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from replog.runtime.event_loop import current_host_loop

Call = Callable[[], None]


class Turns:
    """The calls of one client. Only for its own thread."""

    def __init__(self) -> None:
        self._next: list[Call] = []
        self._later: list[Call] = []
        self._wanted = trio.Event()
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
                self._wanted = trio.Event()
            for call in calls:
                call()
