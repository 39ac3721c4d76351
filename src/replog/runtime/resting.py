"""Leaving the event loop to those who add entries, by who does much in it that can wait."""

from __future__ import annotations

from collections.abc import Callable

import trio

# So many times as long as a piece of work took. A pass over 10,000 ledgers took half of the event loop, and kept appends waiting
# for seconds.
_RESTS, _REST_MAX_S = 3.0, 0.05
_BUSY_S = 0.1  # after an add


class Rests:
    """Rests after each of many pieces of work, while `traffic` counts on. Tasks that share one leave three quarters of the event
    loop together: what one of them took has the turns of the others in it."""

    def __init__(self, traffic: Callable[[], int]) -> None:
        self._traffic = traffic
        self._seen_traffic = traffic()
        self._busy_until_s = 0.0

    async def after(self, began_s: float) -> None:
        """Waits a while if entries were added lately; `began_s` is when the piece of work began, by trio's clock."""
        now_s, traffic = trio.current_time(), self._traffic()
        if traffic != self._seen_traffic:
            self._seen_traffic, self._busy_until_s = traffic, now_s + _BUSY_S
        if now_s < self._busy_until_s:
            await trio.sleep(min(_REST_MAX_S, _RESTS * (now_s - began_s)))
