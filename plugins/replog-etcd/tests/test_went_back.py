"""An etcd whose data were lost, or restored from an older snapshot, while bookies run: they drop nothing (B6a)."""

from __future__ import annotations

import shutil
from contextlib import AsyncExitStack
from pathlib import Path

import trio
from etcd_servers import Store, start_etcd

import replog
from replog.bookie.serving import ServedBookie
from replog.config.bookie import BookieTuning


async def until_all_doubt(bookies: list[ServedBookie], wanted: bool) -> None:
    with trio.fail_after(60):
        while any(bool(each.statistics()["metastore_doubted"]) is not wanted for each in bookies):  # noqa: ASYNC110 - no event
            await trio.sleep(0.05)


async def test_lost_or_older_data_cost_nothing(tmp_path: Path) -> None:
    (server,) = start_etcd(tmp_path)
    store = Store([server], "prod")
    data = server._directory / server.name
    options = BookieTuning(garbage_collection_interval_s=0.2)
    try:
        async with AsyncExitStack() as stack:
            bookies = [
                await stack.enter_async_context(
                    replog.serve_bookie(
                        replog.BookieConfig(
                            directory=str(tmp_path / str(number)), metastore=store.url(), options=options
                        )
                    )
                )
                for number in range(3)
            ]
            client = await stack.enter_async_context(replog.connect(store.url()))
            ids = []
            for copy in ("older", "newest"):
                for _ in range(5):
                    async with client.create_ledger() as writer:
                        await writer.append(b"%d" % writer.ledger_id)
                    ids.append(writer.ledger_id)
                await trio.sleep(3)  # the bookies raise their counters
                server.kill()
                shutil.copytree(data, tmp_path / copy)
                if copy == "older":  # a counter that is raised after the last copy makes that one look old
                    server.start()
            for copy in ("", "older", "newest"):
                server.kill()
                shutil.rmtree(data)
                if copy:
                    shutil.copytree(tmp_path / copy, data)
                server.start()
                await until_all_doubt(bookies, copy != "newest")
                if copy != "newest":
                    await trio.sleep(1)  # passes
            for ledger_id in ids:
                async with client.open_ledger(ledger_id) as reader:
                    assert [entry.data async for entry in reader] == [b"%d" % ledger_id]
    finally:
        server.kill()
