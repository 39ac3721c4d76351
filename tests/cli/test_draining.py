"""`replog bookies drain --wait`: how often it looks before it says that a bookie may be stopped. No clock is waited for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import pytest
import trio
import trio.testing

from replog.cli.draining import _Recovery, _until_safe, _words
from replog.errors import NotEnoughBookiesError
from replog.repair.drains import DrainStatus, OpenLedger


class Drained:
    """A client that finds the bookie safe or not, look by look; the last finding stays."""

    def __init__(self, findings: Sequence[bool]) -> None:
        self._findings = list(findings)
        self.looked_at_s: list[float] = []

    @property
    def admin(self) -> Self:
        return self

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
    found = await _until_safe(client, await client.admin.drain_status("bookie-1"), wait_s)  # type: ignore[arg-type]
    assert (found.is_safe_to_stop, len(client.looked_at_s)) == (is_safe, looks)
    if is_safe:
        assert client.looked_at_s[-1] - client.looked_at_s[-2] >= 15


class Left:
    """A client of a bookie where ledgers are left open, ten seconds apart. Recovering `stubborn` fails once."""

    def __init__(self, ledger_ids: Sequence[int], stubborn: int) -> None:
        self._left = list(ledger_ids)
        self._stubborn: int | None = stubborn
        self.recovered_at_s: dict[int, float] = {}

    @property
    def admin(self) -> Self:
        return self

    async def drain_status(self, bookie_id: str) -> DrainStatus:
        left = [each for each in self._left if trio.current_time() >= 10 * each and each not in self.recovered_at_s]
        more = tuple(each for each in self._left if each not in self.recovered_at_s)
        return DrainStatus(bookie_id, True, True, more, tuple(OpenLedger(each, "") for each in left))

    async def recover_ledger(self, ledger_id: int, *, password: bytes) -> None:
        assert password == b"secret"
        if ledger_id == self._stubborn:
            self._stubborn = None
            raise NotEnoughBookiesError("try again", 1, ())
        self.recovered_at_s[ledger_id] = trio.current_time()


async def test_ledgers_left_open_during_the_wait_are_recovered(autojump_clock: trio.testing.MockClock) -> None:
    client = Left([0, 1, 2], stubborn=1)
    recovery = _Recovery(client, b"secret")  # type: ignore[arg-type]
    start_s = trio.current_time()
    found = await _until_safe(client, await client.admin.drain_status("bookie-1"), 120.0, recovery)  # type: ignore[arg-type]
    assert found.is_safe_to_stop
    assert {each: at_s - start_s for each, at_s in client.recovered_at_s.items()} == {0: 5, 1: 20, 2: 25}
    assert recovery.problems == []


def test_reasons_why_ledgers_stay_are_listed() -> None:
    status = DrainStatus("bookie-1", True, True, (7, 8), (), {7: ("bookie bookie-2: refused", "no other bookie")})
    lines = _words(status)
    assert "  ledger 7 can't leave: bookie bookie-2: refused" in lines
    assert "  ledger 7 can't leave: no other bookie" in lines
    assert any("replog repair" in each for each in lines), "ledger 8 is moved by a repair"
    assert not any(
        "replog repair" in each for each in _words(DrainStatus("bookie-1", True, True, (7,), (), {7: ("no",)}))
    )
