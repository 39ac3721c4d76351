"""A database that was emptied, or restored from an older copy, while bookies run: they drop nothing (B6a)."""

from __future__ import annotations

import sqlite3
from contextlib import AsyncExitStack, closing
from pathlib import Path

import trio

import replog
from replog.bookie.serving import ServedBookie
from replog.config.bookie import BookieTuning

OPTIONS = BookieTuning(garbage_collection_interval_s=0.2)


def copied(source: Path, target: Path) -> None:
    """The whole database, while others have it open."""
    with closing(sqlite3.connect(source)) as one, closing(sqlite3.connect(target)) as other:
        one.backup(other)


async def until_all_doubt(bookies: list[ServedBookie], wanted: bool) -> None:
    with trio.fail_after(60):
        while any(bool(each.statistics()["metastore_doubted"]) is not wanted for each in bookies):  # noqa: ASYNC110 - no event
            await trio.sleep(0.05)


async def test_emptied_or_older_database_costs_nothing(tmp_path: Path) -> None:
    data, older, newest = (tmp_path / name for name in ("metadata", "older", "newest"))
    url = f"sqlite:{data}"
    async with AsyncExitStack() as stack:
        bookies = [
            await stack.enter_async_context(
                replog.serve_bookie(
                    replog.BookieConfig(directory=str(tmp_path / str(number)), metastore=url, options=OPTIONS)
                )
            )
            for number in range(3)
        ]
        client = await stack.enter_async_context(replog.connect(url))
        ids = []
        for copy in (older, newest):
            for _ in range(5):
                async with client.create_ledger() as writer:
                    await writer.append(b"%d" % writer.ledger_id)
                ids.append(writer.ledger_id)
            with closing(sqlite3.connect(data, isolation_level=None)) as database:
                # A counter that is raised after the last copy would make that one look old, too.
                database.execute("BEGIN IMMEDIATE")
                copied(data, copy)
                if copy is newest:
                    database.execute("DELETE FROM entries")
                database.execute("COMMIT")
        await until_all_doubt(bookies, True)
        await trio.sleep(1)  # passes
        for copy in (older, newest):
            copied(copy, data)
            await until_all_doubt(bookies, copy is older)
            await trio.sleep(1)  # passes
        for ledger_id in ids:
            async with client.open_ledger(ledger_id) as reader:
                assert [entry.data async for entry in reader] == [b"%d" % ledger_id]
