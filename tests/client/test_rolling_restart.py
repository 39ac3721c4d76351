"""A cluster is restarted bookie by bookie, as for an upgrade, while writers go on and followers read."""

from __future__ import annotations

import pytest
import trio
import trio.testing

import replog
from replog.config import ClientOptions
from replog.protocol.quorum import Quorum
from tests.kit import cluster, read_log, until

STALL_MAX_S = 1.0


@pytest.mark.parametrize("bookies", [3, pytest.param(4, marks=pytest.mark.long(is_sampled=False))])
@pytest.mark.slow
async def test_no_writer_stalls_while_bookies_are_restarted_in_turn(
    bookies: int, autojump_clock: trio.testing.MockClock
) -> None:
    """Also where there is no spare bookie: the ack quorum goes on, and the bookie is taken back when it returns (C7)."""
    quorum = Quorum(3, 3, 2)
    async with cluster(bookies) as world, world.client(ClientOptions(), quorum) as client:
        names, wanted, longest_s = ("orders", "payments", "idle"), dict[str, list[bytes]](), 0.0
        is_over = trio.Event()

        async def write(name: str, pause_s: float) -> None:
            nonlocal longest_s
            wanted[name] = []
            async with client.write_log(name) as log:
                while not is_over.is_set():
                    data = b"%s %d" % (name.encode(), len(wanted[name]))
                    started_s = trio.current_time()
                    await log.append(data)
                    longest_s = max(longest_s, trio.current_time() - started_s)
                    wanted[name].append(data)
                    await trio.sleep(pause_s)

        async def follow(other: replog.Client, found: list[bytes]) -> None:
            async with other.read_log("orders", follow=True) as reader:
                async for record in reader:
                    found.append(record.data)

        followed: list[bytes] = []
        async with world.client() as other, trio.open_nursery() as nursery:
            nursery.start_soon(follow, other, followed)
            async with trio.open_nursery() as writers:
                for name, pause_s in zip(names, (0.1, 0.2, 7.0), strict=True):
                    writers.start_soon(write, name, pause_s)
                await trio.sleep(2)
                for bookie in world.bookies:
                    await bookie.kill()  # leaves in order, as by SIGTERM
                    await trio.sleep(3)
                    await bookie.start()
                    # The next one follows when all writers have three bookies again.
                    await trio.sleep(15)
                is_over.set()
            await until(lambda: followed == wanted["orders"], 10)
            nursery.cancel_scope.cancel()
        assert longest_s < STALL_MAX_S, f"an append took {longest_s:.3f} s"
        for name in names:
            assert await read_log(client, name) == wanted[name]
        report = await client.admin.repair()
        assert report.under_replicated == 0, "what a bookie missed while it was away is mended"
