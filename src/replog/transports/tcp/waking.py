"""An event that happens again and again."""

from __future__ import annotations

import trio


class Wakeup:
    """Wakes the tasks that wait when it is called; costs next to nothing while none does."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event: trio.Event | None = None

    async def wait(self) -> None:
        """Returns after the next `wake`. Any number of tasks may wait."""
        if self._event is None:
            self._event = trio.Event()
        await self._event.wait()

    def wake(self) -> None:
        """Wakes all tasks that wait now."""
        event, self._event = self._event, None
        if event is not None:
            event.set()
