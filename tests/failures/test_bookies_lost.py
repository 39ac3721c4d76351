"""A bookie is killed and its directory deleted while appends go on; then a repair, and another one is deleted (F1-F6, B8a).

Four bookies, each a process of its own; ledgers of three copies, of mixed sizes, some with a password.
"""

from __future__ import annotations

import random
import shutil
import statistics
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import trio

import replog
from replog.errors import BookieError
from replog.runtime.nursery import for_each
from tests.failures.options import metastore_beside
from tests.servers.bookies import FILES, Bookies

FORGOTTEN_S = 60.0  # until a killed bookie's announcement ends
REPAIRED_S = 600.0
AT_ONCE = 32
WINDOW_S = 10.0  # of which the percentiles of appends are taken
Ledger = tuple[int, list[bytes]]
Wait = tuple[float, float]  # when an append began, and how long it took


@contextmanager
def four_bookies(directory: Path, metastore: str = "", storage: str = FILES) -> Iterator[list[Bookies]]:
    place = metastore or metastore_beside(directory)
    servers = [Bookies(directory / f"server-{number}", 1, place, storage) for number in range(4)]
    try:
        for server in servers:
            server.directory.mkdir()
            server.start()
        yield servers
    finally:
        for server in servers:
            server.kill()


async def write_ledgers(client: replog.Client, count: int) -> list[Ledger]:
    """Closed ledgers of 1 to 30 entries."""
    chance, found = random.Random(7), list[Ledger]()

    async def write(number: int) -> None:
        entries = [b"%d/%d " % (number, each) * chance.randrange(1, 200) for each in range(chance.randrange(1, 31))]
        async with client.create_ledger() as writer:
            for start in range(0, len(entries), 7):
                await writer.extend(entries[start : start + 7])
        found.append((writer.ledger_id, entries))

    await for_each(write, range(count), AT_ONCE)
    return found


async def check_ledgers(client: replog.Client, ledgers: list[Ledger]) -> None:
    async def check(ledger: Ledger) -> None:
        ledger_id, entries = ledger
        async with client.open_ledger(ledger_id) as reader:
            assert [entry.data async for entry in reader] == entries

    await for_each(check, ledgers, AT_ONCE)


@asynccontextmanager
async def appending(
    client: replog.Client, confirmed: list[bytes], waits: list[Wait] | None = None
) -> AsyncIterator[None]:
    """A writer appends to a log, and is never fenced: an error of its own ends the test. `waits` gets how long appends took."""
    is_over = False

    async def append() -> None:
        async with client.write_log("log") as log:
            while not is_over:
                data = b"%d" % len(confirmed)
                started_s = trio.current_time()
                await log.append(data)
                confirmed.append(data)
                if waits is not None:
                    waits.append((started_s, trio.current_time() - started_s))
                await trio.sleep(0.005)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(append)
        yield
        is_over = True


async def forgotten(client: replog.Client, bookie_id: str) -> None:
    """Returns once the killed bookie is no longer announced."""
    with trio.fail_after(FORGOTTEN_S):
        while bookie_id in {each.bookie_id for each in await client.admin.bookies()}:  # noqa: ASYNC110 - its lease ends
            await trio.sleep(0.2)


def median_p99_s(waits: list[Wait]) -> float:
    """The median, over windows of `WINDOW_S`, of the 99th percentile of how long appends took."""
    windows: dict[int, list[float]] = {}
    for began_s, took_s in waits:
        windows.setdefault(int((began_s - waits[0][0]) // WINDOW_S), []).append(took_s)
    return statistics.median(sorted(each)[len(each) * 99 // 100] for each in windows.values())


async def repair_without(client: replog.Client, bookie_id: str) -> replog.results.AuditReport:
    """Repairs as soon as the killed bookie is no longer announced."""
    await forgotten(client, bookie_id)
    with trio.fail_after(REPAIRED_S):
        return await client.admin.repair(lost=[bookie_id])


async def test_killed_bookie_is_made_up_for_while_appends_go_on(tmp_path: Path, is_long: bool) -> None:
    """The run of 13,000 ledgers, or a small one: the repair ends within ten minutes, and appends are confirmed at most twice as
    late beside it."""
    count = 13_000 if is_long else 60
    with four_bookies(tmp_path) as servers:
        confirmed: list[bytes] = []
        alone, beside = list[Wait](), list[Wait]()
        async with replog.connect(servers[0].metastore) as client:
            ledgers = await write_ledgers(client, count)
            before = {each.bookie_id for each in await client.admin.bookies()}
            if is_long:
                async with appending(client, confirmed, alone):
                    await trio.sleep(3 * WINDOW_S)
            async with appending(client, confirmed, beside):
                servers[0].kill()
                shutil.rmtree(servers[0].directory)
                victim = next(iter(before - await answering(client)))
                await forgotten(client, victim)
                beside.clear()  # from the repair on
                started_s = trio.current_time()
                report = await repair_without(client, victim)
                took_s = trio.current_time() - started_s
                appended = len(confirmed)
                with trio.fail_after(30):
                    while len(confirmed) < appended + 10:  # noqa: ASYNC110 - another task appends
                        await trio.sleep(0.01)
            print(
                f"\n{count} ledgers: repaired in {took_s:.1f} s, {appended} appends meanwhile; {report.ledgers} audited"
            )
            if alone:
                alone_s, beside_s = median_p99_s(alone), median_p99_s(beside)
                print(
                    f"appends, median of p99: {alone_s * 1e3:.1f} ms alone, {beside_s * 1e3:.1f} ms beside the repair"
                )
            with trio.fail_after(REPAIRED_S):
                # The log's ledger was open until now, and its third copies may be on their way.
                while (report := await client.admin.repair()).under_replicated:  # noqa: ASYNC110 - bookies have no event
                    await trio.sleep(0.2)
            assert report.open_ledgers == 0
            servers[1].kill()
            shutil.rmtree(servers[1].directory)
            await check_ledgers(client, ledgers)
            async with client.read_log("log") as reader:
                assert [record.data async for record in reader] == confirmed
        # Last: nothing is lost even where the machine is too slow for this.
        assert not alone or median_p99_s(beside) <= 2 * median_p99_s(alone)


async def answering(client: replog.Client) -> set[str]:
    """The bookies that answer."""
    found = set()
    for bookie in await client.admin.bookies():
        try:
            await bookie.statistics(timeout_s=2.0)
        except BookieError:
            continue
        found.add(bookie.bookie_id)
    return found


pytestmark = [pytest.mark.sized]
