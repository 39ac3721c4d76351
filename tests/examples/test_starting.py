"""The fail-over loops that are documented survive a cluster that is still starting: no candidate is lost."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import replog
from examples.failover import Candidate
from replog.config import ClientOptions
from replog.metastores.memory import MemoryMetastore
from replog.testing import Fault, FaultyMetastore
from tests.kit import Cluster, cluster

ROOT = Path(__file__).parents[2]
NAMES = ("ann", "ben", "eve")
OPTIONS = ClientOptions(metastore_timeout_s=5.0, takeover_timeout_s=5.0)
METASTORE_AWAY_S = 60.0
BOOKIES_AWAY_S = 60.0

Compete = Callable[[replog.Client, str, Callable[[str], None]], Awaitable[None]]  # until cancelled; says who leads


async def as_in_the_example(client: replog.Client, name: str, leads: Callable[[str], None]) -> None:
    def say(line: str) -> None:
        if line.startswith(f"{name} leads"):
            leads(name)

    candidate = Candidate(client, name, say)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(candidate.bank.follow)
        nursery.start_soon(candidate.compete)


async def as_in_the_readme(client: replog.Client, name: str, leads: Callable[[str], None]) -> None:
    def say(line: str, *, flush: bool = False) -> None:
        if line.startswith(f"{name} leads"):
            leads(name)

    (program,) = [each for each in blocks(ROOT / "README.md") if "lead_log(" in each]
    (loop,) = re.findall(r"^        while True:\n.*?(?=^trio.run)", program, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"replog": replog, "trio": trio, "print": say}
    exec("async def lead(client, me):\n" + textwrap.indent(textwrap.dedent(loop), "    "), names)
    await names["lead"](client, name)


async def as_on_the_page(client: replog.Client, name: str, leads: Callable[[str], None]) -> None:
    class State:
        def apply(self, record: replog.Record) -> None:
            assert record.data

    async def serve(log: replog.LogWriter, state: State) -> None:
        await log.append(name.encode())
        leads(name)
        await trio.sleep_forever()

    loop = next(each for each in blocks(ROOT / "docs" / "how-to" / "failover.md") if "lead_log(" in each)
    names: dict[str, Any] = {"replog": replog, "trio": trio, "state": State(), "serve": serve}
    exec("async def lead(client):\n" + textwrap.indent(loop, "    "), names)
    await names["lead"](client)


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


class Starting:
    """Candidates whose metastore is away at first, and then has no bookies; those who lead are stopped, one after the other."""

    def __init__(self, made: Cluster, compete: Compete, nursery: trio.Nursery) -> None:
        self._made = made
        self._compete = compete
        self._nursery = nursery
        self._is_away = True
        self._scopes: dict[str, trio.CancelScope] = {}
        self._led: list[str] = []
        self._somebody_leads = trio.Event()

    def begin(self) -> None:
        for name in NAMES:
            self._nursery.start_soon(self._run, name)

    async def _run(self, name: str) -> None:
        metastore = FaultyMetastore(
            self._made.metastore.inner, lambda _operation, _key: Fault.UNAVAILABLE if self._is_away else None
        )
        with trio.CancelScope() as self._scopes[name]:
            async with self._made.client(OPTIONS, metastore=metastore) as client:
                await self._compete(client, name, self._leads)

    def _leads(self, name: str) -> None:
        self._led.append(name)
        self._somebody_leads.set()

    def metastore_comes(self) -> None:
        assert self._led == []
        self._is_away = False

    async def leaders(self) -> list[str]:
        """Who leads, in turn: each is stopped as soon as it does."""
        for _ in NAMES:
            await self._somebody_leads.wait()
            self._somebody_leads = trio.Event()
            self._scopes[self._led[-1]].cancel()
        return self._led


@pytest.mark.parametrize("compete", [as_in_the_example, as_in_the_readme, as_on_the_page])
async def test_candidates_all_compete_when_started_before_the_cluster(
    compete: Compete, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster(bookies=0) as made, trio.open_nursery() as nursery:
        assert isinstance(made.metastore.inner, MemoryMetastore)
        starting = Starting(made, compete, nursery)
        starting.begin()
        await trio.sleep(METASTORE_AWAY_S)
        starting.metastore_comes()
        await trio.sleep(BOOKIES_AWAY_S)
        for _ in range(3):
            await made.add_bookie()
        with trio.fail_after(600):
            assert sorted(await starting.leaders()) == sorted(NAMES)
        nursery.cancel_scope.cancel()
