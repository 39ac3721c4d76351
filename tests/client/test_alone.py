"""Lone appends, committed in the caller's thread where the bookie is in the same process; and appends beside others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

import replog
from replog.bookie.commits import GroupCommit
from replog.metastores.memory import MemoryMetastore
from tests.kit import Turns


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each commit that a bookie started, whether it was made in the thread that asked."""
    found: list[bool] = []
    here, passed_on = GroupCommit.commit_here, GroupCommit._pass_on

    def made_here(self: GroupCommit) -> None:
        found.append(True)
        here(self)

    def made_elsewhere(self: GroupCommit) -> None:
        found.append(False)
        passed_on(self)

    monkeypatch.setattr(GroupCommit, "commit_here", made_here)
    monkeypatch.setattr(GroupCommit, "_pass_on", made_elsewhere)
    return found


@asynccontextmanager
async def ledger(directory: Path) -> AsyncIterator[replog.LedgerWriter]:
    async with (
        replog.embed(directory, storage="memory", metastore=MemoryMetastore()) as client,
        client.create_ledger() as writer,
    ):
        yield writer


async def test_a_lone_extend_commits_inline_and_gives_way(
    inline: list[bool], tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with ledger(tmp_path) as writer, trio.open_nursery() as nursery:
        turns = Turns()
        nursery.start_soon(turns.count)
        for call in range(9):
            assert list(await writer.extend([b"one", b"two"])) == [2 * call, 2 * call + 1]
            assert turns.counted >= call, "another task waits for longer than one call"
        nursery.cancel_scope.cancel()
        # Of the first it isn't known that nobody else extends; nor of one that a busy machine answers late.
        assert not inline[0]
        assert inline.count(True) >= 6


async def test_concurrent_extends_share_batches_and_give_way(
    inline: list[bool], tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with ledger(tmp_path) as writer:

        async def extend() -> None:
            for _ in range(10):
                await writer.extend([b"one", b"two"])

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(extend)
        assert writer.last_add_confirmed == 99
        assert writer._entries.batches_sent == len(inline) <= 25, "they don't share batches"
        assert not any(inline)


async def test_an_extend_cancelled_while_giving_way_is_sent(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """W4: its outcome is unknown to who cancelled it, and what comes behind it is not held up."""
    async with ledger(tmp_path) as writer:
        await writer.extend([b"one"])
        with trio.CancelScope() as scope:
            scope.deadline = trio.current_time()  # seen at the next turn of the event loop
            await writer.extend([b"two", b"three"])
        assert scope.cancelled_caught
        assert writer.last_add_pushed == 2
        assert await writer.append(b"four") == 3
        assert writer.last_add_confirmed == 3


async def test_a_lone_append_gives_way_and_can_be_cancelled(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with ledger(tmp_path) as writer, trio.open_nursery() as nursery:
        turns = Turns()
        nursery.start_soon(turns.count)
        for entry_id in range(80):
            assert await writer.append(b"one") == entry_id
            assert turns.counted >= entry_id // 8, "another task waits for longer than eight appends"
        for entry_id in range(80, 88):
            with trio.CancelScope() as scope:
                scope.cancel()
                await writer.append(b"cancelled")
            assert scope.cancelled_caught
            assert writer.last_add_pushed == entry_id, (
                "its outcome is unknown, and what comes behind it is not held up (W4)"
            )
        assert await writer.append(b"behind them") == 88
        nursery.cancel_scope.cancel()
