"""Makes background work yield the event loop to appends.

Theory: a piece of work that never waits takes the event loop for as long as it lasts, and many pieces one after the other
take all of it, since each is ready again before the appends behind it are done. A pass over 10,000 ledgers took half of
the event loop, and kept appends waiting for seconds. So each piece is followed by a rest of three times its length: that
leaves three quarters to appends, for any length of a piece and without a measurement of the load. Where no entry was
added lately, there is no rest.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

_RESTS, _REST_MAX_S = 3.0, 0.05  # so many times as long as a piece of work took
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
