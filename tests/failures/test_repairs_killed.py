"""Repairs with real processes, beyond files and LMDB: LMDB storages over ZooKeeper, and repairers that are killed (F6, B8a)."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import trio

import replog
from tests.failures.test_bookies_lost import (
    REPAIRED_S,
    answering,
    appending,
    check_ledgers,
    four_bookies,
    repair_without,
    write_ledgers,
)

KILLS = int(os.environ.get("REPLOG_REPAIR_KILLS", "5"))  # 100 by hand
BYTES_PER_S = 300_000 if KILLS < 20 else 30_000  # slow enough that each finds something to do
_COMMAND = [sys.executable, "-c", "from replog.cli import main; main()"]
_WINDOW_S = 1.0


@pytest.mark.long(is_sampled=False)
async def test_lost_bookie_is_replaced_with_lmdb_over_zookeeper(tmp_path: Path, zookeeper_url: str) -> None:
    """A thousand ledgers; appends go on, and are confirmed hardly later than before."""
    with four_bookies(tmp_path, zookeeper_url, "lmdb") as servers:
        confirmed: list[bytes] = []
        async with replog.connect(zookeeper_url) as client:
            ledgers = await write_ledgers(client, 1000)
            before = {each.bookie_id for each in await client.admin.bookies()}
            async with appending(client, confirmed):
                servers[0].kill()
                shutil.rmtree(servers[0].directory)
                victim = next(iter(before - await answering(client)))
                alone_s = await worst_waits(client)
                beside_s: list[float] = []
                async with trio.open_nursery() as nursery:

                    async def measure() -> None:
                        while True:
                            beside_s.extend(await worst_waits(client, windows=1))

                    nursery.start_soon(measure)
                    report = await repair_without(client, victim)
                    nursery.cancel_scope.cancel()
            print(
                f"\n{report.ledgers} ledgers audited; worst append of a second: {median(alone_s) * 1e3:.0f} ms alone, "
                f"{median(beside_s) * 1e3:.0f} ms beside the repair"
            )
            with trio.fail_after(REPAIRED_S):
                # The log's ledger was open until now, and its third copies may be on their way.
                while (report := await client.admin.repair()).under_replicated:  # noqa: ASYNC110 - bookies have no event
                    await trio.sleep(0.2)
            assert report.unchanged > 900, "the last audits ask only about what may have changed"
            servers[1].kill()
            shutil.rmtree(servers[1].directory)
            await check_ledgers(client, ledgers)
            async with client.read_log("log") as reader:
                assert [record.data async for record in reader] == confirmed
        assert median(beside_s) < max(3 * median(alone_s), 0.5)


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0


async def worst_waits(client: replog.Client, windows: int = 5) -> list[float]:
    """How long the slowest append of each second took."""
    found = []
    async with client.create_ledger() as writer:
        for _ in range(windows):
            ends_s, worst_s = trio.current_time() + _WINDOW_S, 0.0
            while trio.current_time() < ends_s:
                started_s = trio.current_time()
                await writer.append(bytes(1024))
                worst_s = max(worst_s, trio.current_time() - started_s)
            found.append(worst_s)
    await client.delete_ledger(writer.ledger_id)
    return found


@pytest.mark.long(is_sampled=False)
async def test_repeatedly_killed_repairer_ends(tmp_path: Path) -> None:
    """F6: no entry is lost, no writer fenced; what one has copied the next one finds."""
    chance = random.Random(11)
    with four_bookies(tmp_path) as servers:
        confirmed: list[bytes] = []
        async with replog.connect(servers[0].metastore) as client:
            ledgers = await write_ledgers(client, 400)
            before = {each.bookie_id for each in await client.admin.bookies()}
            async with appending(client, confirmed):
                servers[0].kill()
                shutil.rmtree(servers[0].directory)
                victim = next(iter(before - await answering(client)))
                with trio.fail_after(60):
                    while victim in {each.bookie_id for each in await client.admin.bookies()}:  # noqa: ASYNC110
                        await trio.sleep(0.2)
                await client.admin.declare_lost([victim])
                lacking = [(await client.admin.audit()).under_replicated]
                for _ in range(KILLS):
                    lacking.append(await kill_a_repair(client, servers[0].metastore, lacking[-1], chance))
                print(f"\nfragments that lack copies, after each of {KILLS} repairers was killed: {lacking}")
                assert lacking[-1] < lacking[0]
            with trio.fail_after(REPAIRED_S):
                while (await client.admin.repair()).under_replicated:  # noqa: ASYNC110 - bookies have no event
                    await trio.sleep(0.2)
            servers[1].kill()
            shutil.rmtree(servers[1].directory)
            await check_ledgers(client, ledgers)
            async with client.read_log("log") as reader:
                assert [record.data async for record in reader] == confirmed


async def kill_a_repair(client: replog.Client, metastore: str, lacking: int, chance: random.Random) -> int:
    """Kills `replog repair` while it copies; returns how many fragments still lack copies."""
    command = [*_COMMAND, "repair", "--metastore", metastore, "--option", f"repair_bytes_per_s={BYTES_PER_S}"]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with trio.fail_after(60):
            while process.poll() is None and (await client.admin.audit()).under_replicated >= lacking > 0:  # noqa: ASYNC110
                await trio.sleep(0.05)
        await trio.sleep(0.3 * chance.random())
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
    return (await client.admin.audit()).under_replicated
