"""One task that looks after all writers of a client which have something under way.

A task for each, with a clock of its own, costs ten times as much: with ten thousand ledgers more than a processor has.
"""

from __future__ import annotations

from typing import Protocol

import trio

_LOOKS_PER_TURN = 100  # of the event loop: others get theirs, however many writers there are


class Watched(Protocol):
    """An object that the ticker looks after."""

    def look(self) -> bool:
        """Does the work that is due; returns whether it has to be called again. Never waits."""


class Ticker:
    """Calls `look` of each watched object about every so many seconds, until it returns False. Without any it sleeps."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._watched: dict[Watched, None] = {}  # a set that keeps its order
        self._arrived = trio.Event()

    def __len__(self) -> int:
        return len(self._watched)

    def watch(self, watched: Watched) -> None:
        """Looks after it from now on, the first time within one period."""
        if watched not in self._watched:
            self._watched[watched] = None
            self._arrived.set()

    async def run(self) -> None:
        """Looks around until cancelled."""
        while True:
            if not self._watched:
                self._arrived = trio.Event()
                await self._arrived.wait()
            await trio.sleep(self._every_s)
            # A copy, since a look may begin to watch another writer.
            for place, watched in enumerate(list(self._watched), start=1):
                if not watched.look():
                    del self._watched[watched]
                if place % _LOOKS_PER_TURN == 0:
                    await trio.lowlevel.checkpoint()
