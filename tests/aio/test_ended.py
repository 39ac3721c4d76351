"""`wait_ended` under asyncio: as a task beside appends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import replog
from replog import aio
from tests.aio.kit import under_asyncio


@under_asyncio
async def test_idle_leader_learns_of_its_deposition(tmp_path: Path) -> None:
    async with aio.embed(tmp_path / "wal") as client, client.write_log("log") as first:
        await first.append(b"0")
        ended = asyncio.create_task(first.wait_ended())
        async with client.write_log("log") as second:
            with pytest.raises(replog.FencedError):
                await ended
            await second.append(b"1")


@under_asyncio
async def test_wait_returns_when_writer_is_closed(tmp_path: Path) -> None:
    async with aio.embed(tmp_path / "wal") as client:
        async with client.write_log("log") as log:
            cancelled, ended = (asyncio.create_task(log.wait_ended()) for _ in range(2))
            await log.append(b"0")
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            await log.append(b"1")
            assert not ended.done()
        await ended
