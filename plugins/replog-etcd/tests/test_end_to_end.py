"""Bookies that register in etcd, a leader that takes over from another, and a reader that follows: all of it by URL."""

from contextlib import AsyncExitStack
from pathlib import Path

import trio
from etcd_servers import Store

import replog

THREE = replog.Quorum(ensemble=3, write=3, ack=2)


async def test_log_works_with_its_metadata_in_etcd(store: Store, tmp_path: Path) -> None:
    read: list[bytes] = []
    first_led, second_waits = trio.Event(), trio.Event()

    async def lead_first(client: replog.Client) -> None:
        async with client.lead_log("orders", quorum=THREE) as log:
            await log.append(b"one")
            first_led.set()
            await second_waits.wait()
            await log.roll()
            await log.append(b"two")

    async def lead_second(client: replog.Client) -> None:
        async with client.lead_log("orders", quorum=THREE) as log:
            await log.append(b"three")

    async def follow(client: replog.Client) -> None:
        async with client.read_log("orders", follow=True) as reader:
            async for record in reader:
                read.append(record.data)
                if record.data == b"three":
                    return

    with trio.fail_after(60):
        async with AsyncExitStack() as bookies:
            for number in range(3):
                options = replog.BookieOptions(storage="memory", listen=("tcp:127.0.0.1:0",))
                config = replog.BookieConfig(
                    directory=str(tmp_path / str(number)), metastore=store.url(), options=options
                )
                await bookies.enter_async_context(replog.serve_bookie(config))
            async with replog.connect(store.url()) as one, replog.connect(store.url()) as other:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(lead_first, one)
                    await first_led.wait()
                    nursery.start_soon(follow, other)
                    nursery.start_soon(lead_second, other)
                    async with store.client() as metastore:
                        while len(await metastore.announced("elections/orders")) < 2:
                            await metastore.wait_children_changed("elections/orders", [])
                    second_waits.set()
                assert await one.logs() == ["orders"]
        assert read == [b"one", b"two", b"three"]
        async with store.client() as metastore:
            assert await metastore.announced("bookies") == {}
