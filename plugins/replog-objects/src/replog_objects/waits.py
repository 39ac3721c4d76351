"""Waiting for changes by looking again: a second after the first look, and ever less often, up to every `poll_s`.

A bucket tells nobody anything, and each look is paid for. Waits of one client for the same thing share their looks, but for the
first of each, which must see what happened before it began.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Hashable

import attrs
import trio

from replog.errors import MetastoreCorruptError, MetastoreError

_PAUSE_S = 1.0


@attrs.define
class _Looked:
    """The last answer, when it was asked for, and how many wait."""

    answer: object = None
    at_s: float = -math.inf
    waiting: int = 0


class Waits:
    """The waits of one client."""

    def __init__(self, poll_s: float) -> None:
        self._poll_s = poll_s
        self._looked: dict[Hashable, _Looked] = {}

    async def wait(self, topic: Hashable, look: Callable[[], Awaitable[object]], known: object) -> None:
        """Returns once a look finds something else than is known. Goes on while the store cannot be reached."""
        looked = self._looked.setdefault(topic, _Looked())
        looked.waiting += 1
        pause_s = min(_PAUSE_S, self._poll_s)
        recent_s = 0.0
        try:
            while True:
                if not await self._is_still(looked, look, known, recent_s):
                    return
                await trio.sleep(pause_s)
                recent_s = pause_s / 2
                pause_s = min(2 * pause_s, self._poll_s)
        finally:
            looked.waiting -= 1
            if not looked.waiting:
                del self._looked[topic]

    async def _is_still(
        self, looked: _Looked, look: Callable[[], Awaitable[object]], known: object, recent_s: float
    ) -> bool:
        now_s = trio.current_time()
        if now_s - looked.at_s >= recent_s or looked.answer != known:
            try:
                looked.answer = await look()
            except MetastoreCorruptError:
                raise
            except MetastoreError:
                return True  # a wait goes on while the store cannot be reached
            looked.at_s = now_s
        return looked.answer == known
