"""The tasks that wait for changes of nodes. ZooKeeper notifies once, so a woken task reads again and sets a new watch.

Rules: kazoo has one watcher for all tasks; this module knows the waiting tasks by path. So a cancelled wait leaves nothing
behind, and kazoo's thread forgets a path when no task waits for it any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

Wake = Callable[[], object]


class Watches:
    """All paths with waiting tasks. Calls `forget(path)` when the last task leaves a path."""

    def __init__(self, forget: Callable[[str], None]) -> None:
        self._forget = forget
        self._wakes: dict[str, list[Wake]] = {}

    def is_watched(self, path: str) -> bool:
        """True while a task waits for this node. May be called in any thread."""
        return path in self._wakes

    def add(self, path: str, wake: Wake) -> None:
        """Calls `wake` whenever the node may have changed, if a request has set a watch on it."""
        self._wakes.setdefault(path, []).append(wake)

    def remove(self, path: str, wake: Wake) -> None:
        """No longer."""
        wakes = self._wakes[path]
        wakes.remove(wake)
        if not wakes:
            del self._wakes[path]
            self._forget(path)

    def fired(self, path: str | None) -> None:
        """Something happened to the node; None: all watches are gone, and anything may have happened."""
        paths = list(self._wakes) if path is None else [path]
        for each in paths:
            for wake in list(self._wakes.get(each, ())):
                wake()

    @contextmanager
    def waiting(self, *paths: str) -> Iterator[Waiting]:
        """Waits for a change of any of these nodes, as a context."""
        waiting = Waiting()
        for path in paths:
            self.add(path, waiting.wake)
        try:
            yield waiting
        finally:
            for path in paths:
                self.remove(path, waiting.wake)


class Waiting:
    """One wait."""

    def __init__(self) -> None:
        self._woken = trio.Event()

    def rearm(self) -> None:
        """Before watches are set: what happens from now on counts."""
        self._woken = trio.Event()

    def wake(self) -> None:
        """Ends the wait."""
        self._woken.set()

    async def woken(self) -> None:
        """Returns once something has happened since `rearm`."""
        await self._woken.wait()
