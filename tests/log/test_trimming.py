"""Trimming through a client: the list is cut first, then the ledgers go (L3)."""

from pathlib import Path

import pytest
import trio

import replog


async def test_trimming_drops_ledgers_before_a_position(tmp_path: Path) -> None:
    with trio.fail_after(20):
        async with replog.embed(tmp_path) as client, client.write_log("log") as log:
            await log.append(b"one")
            await log.roll()
            second = await log.append(b"two")
            third = await log.roll()
            assert len(await client.ledgers()) == 3

            assert await client.trim_log("log", before=second) == replog.Position(second.segment, 0)
            assert len(await client.ledgers()) == 2
            assert await client.trim_log("log", before=third) == third
            assert await client.ledgers() == [log.ledger_id]


async def test_trimming_again_changes_nothing(tmp_path: Path) -> None:
    with trio.fail_after(20):
        async with replog.embed(tmp_path) as client, client.write_log("log") as log:
            position = await log.append(b"one")
            for _ in range(2):
                assert await client.trim_log("log", before=position) == replog.Position(position.segment, 0)
            async with client.read_log("log") as reader:
                assert [record.data async for record in reader] == [b"one"]


async def test_a_position_of_another_log_trims_nothing(tmp_path: Path) -> None:
    with trio.fail_after(20):
        async with replog.embed(tmp_path) as client, client.write_log("log") as log:
            await log.append(b"one")
            await log.roll()
            with pytest.raises(replog.errors.PositionError, match="nothing was trimmed"):
                await client.trim_log("log", before="17:0")
            assert len(await client.ledgers()) == 2
