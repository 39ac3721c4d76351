"""`replog bookies drain --wait`: how often it looks before it says that a bookie may be stopped. No clock is waited for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
import trio.testing

from replog.cli.draining import _until_safe
from replog.client.draining import DrainStatus


class Drained:
    """A client that finds the bookie safe or not, look by look; the last finding stays."""

    def __init__(self, findings: Sequence[bool]) -> None:
        self._findings = list(findings)
        self.looked_at_s: list[float] = []

    async def drain_status(self, _bookie_id: str) -> DrainStatus:
        self.looked_at_s.append(trio.current_time())
        is_safe = self._findings.pop(0) if len(self._findings) > 1 else self._findings[0]
        return DrainStatus("bookie-1", True, True, () if is_safe else (7,), ())


@pytest.mark.parametrize(
    ("findings", "wait_s", "looks", "is_safe"),
    [
        ([True], 1.0, 2, True),
        ([True], 60.0, 2, True),
        ([False, True], 3.0, 3, True),  # safe at the end of the wait: looked at once more
        ([False, True, False], 3.0, 3, False),  # a client had chosen the bookie
        ([False, True, False, True], 60.0, 5, True),
        ([False], 12.0, 4, False),
    ],
)
async def test_bookie_is_safe_when_it_was_seen_so_twice(
    findings: list[bool], wait_s: float, looks: int, is_safe: bool, autojump_clock: trio.testing.MockClock
) -> None:
    client = Drained(findings)
    found = await _until_safe(client, await client.drain_status("bookie-1"), wait_s)  # type: ignore[arg-type]
    assert (found.is_safe_to_stop, len(client.looked_at_s)) == (is_safe, looks)
    if is_safe:
        assert client.looked_at_s[-1] - client.looked_at_s[-2] >= 15
