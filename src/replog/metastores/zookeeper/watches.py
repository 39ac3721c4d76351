"""Who waits for which node. ZooKeeper tells once, so everybody looks again after they were woken, and sets the watch anew.

Rules: one watcher is given to kazoo, for all of them, and who waits is known here, by path. So a wait that was cancelled
leaves nothing here, and kazoo's thread is told to forget a path that nobody waits for any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

Wake = Callable[[], object]


class Watches:
    """All paths that are waited for; `forget(path)` is called when nobody waits for one any more."""

    def __init__(self, forget: Callable[[str], None]) -> None:
        self._forget = forget
        self._wakes: dict[str, list[Wake]] = {}

    def is_watched(self, path: str) -> bool:
        """Whether anybody waits for this node. May be called in any thread."""
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
        """For who waits for any of these nodes."""
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
