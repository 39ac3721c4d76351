"""Nodes that could not be removed while there was no connection: an announcement that ended, or a candidacy.

Rules: each is removed as soon as there is a connection again, even without other calls of the metastore: its session
lives on, and a candidate that has gone would block everyone behind it. One at a time, and before any other call: a
client that announces a key again must not meet its removal.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from replog.errors import MetastoreError, ReplogError
from replog.metastores.zookeeper.calls import Call
from replog.metastores.zookeeper.session import Session
from replog.runtime.loggers import logger

_log = logger("replog.metastores.zookeeper")

Removal = Callable[[Call], Awaitable[None]]
Run = Callable[[str, Removal], Awaitable[Any]]

_PAUSE_S = 0.5


class Leftovers:
    """Of one metastore, whose calls `run` makes: they call `clear` first. It owns a task while something is left over."""

    def __init__(self, session: Session, run: Run) -> None:
        self._session = session
        self._run = run
        self._removals: list[Removal] = []
        self._one_clears = trio.Lock()
        self._task: trio.CancelScope | None = None

    def add(self, removal: Removal) -> None:
        """Something is left over. The task is a system task of trio's: it must not wait, and no other task is left."""
        self._removals.append(removal)
        if self._task is None:
            self._task = trio.CancelScope()
            trio.lowlevel.spawn_system_task(self._clear_later, self._task)

    async def clear(self, call: Call) -> None:
        """Removes the leftovers; failures are tried again."""
        if not self._removals:
            return
        async with self._one_clears:
            while self._removals:
                # It stays in the list until it is done: if this is cancelled, the next call tries it again.
                removal = self._removals[0]
                try:
                    await removal(call)
                except MetastoreError:
                    call.forget_doubt()  # it is not this that was called for
                    return
                self._removals.remove(removal)

    def close(self) -> None:
        """Ends the task: remaining nodes end with the session."""
        if self._task is not None:
            self._task.cancel()

    async def _clear_later(self, scope: trio.CancelScope) -> None:
        with scope:
            while self._removals:
                try:
                    await self._session.connected()  # however long it takes
                    await self._run("what was left over", _nothing)
                except trio.ClosedResourceError:
                    break
                except ReplogError as error:
                    _log.info("%s: not removed yet: %s", self._session.place, error)
                if self._removals:
                    await trio.sleep(_PAUSE_S)
        self._task = None


async def _nothing(_call: Call) -> None:
    pass
