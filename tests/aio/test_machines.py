"""State machines under asyncio: the same commands, results and errors."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import replog
from replog import aio
from replog.aio.machines import RunningMachine
from tests.aio.kit import under_asyncio
from tests.machine.counters import Counters


@under_asyncio
async def test_commands_of_many_tasks_are_applied_once(tmp_path: Path) -> None:
    async with aio.embed(tmp_path) as client, client.run_machine("counters", Counters, listen=()) as counters:
        assert isinstance(counters, RunningMachine)
        found = await asyncio.gather(*(counters.add("visits") for _ in range(20)))
        assert sorted(found) == list(range(1, 21))
        assert await counters.call(Counters.add, "visits", amount=2) == 22
        assert await counters.read(lambda state: state.values["visits"]) == 22
        assert counters.local.values == {"visits": 22}
        assert counters.status.commands == 21
        with pytest.raises(replog.errors.CommandFailedError, match="ValueError"):
            await counters.take("none", 1)
        with pytest.raises(AttributeError, match="no command 'sub'"):
            counters.sub  # noqa: B018
    with pytest.raises(replog.ClosedError):
        await counters.add("visits")


@under_asyncio
async def test_local_state_changes_only_while_the_task_waits(tmp_path: Path) -> None:
    async with aio.embed(tmp_path) as client, client.run_machine("counters", Counters, listen=()) as counters:
        await counters.add("visits")
        adding = asyncio.ensure_future(counters.add("visits"))
        assert counters.local.values == {"visits": 1}
        await adding
        assert counters.local.values == {"visits": 2}
