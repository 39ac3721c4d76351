"""Archivings and recalls of real processes that are killed at any moment: no entry is lost, and no object stays (F5, F6).

`REPLOG_ARCHIVE_KILLS=100` asks for as many rounds."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

import replog
from tests.servers.bookies import serving_bookies

KILLS = int(os.environ.get("REPLOG_ARCHIVE_KILLS", "6"))
SEGMENTS, ENTRIES = 6, 40
SCRIPT = """
import sys, trio, replog
from replog.protocol import archiving
archiving.OBJECT_BYTES_MAX = 20_000
metastore, verb = sys.argv[1:]

async def main():
    async with replog.connect(metastore) as client:
        print("begun", flush=True)
        await (client.admin.archive_log("log") if verb == "archive" else client.admin.recall_log("log"))

trio.run(main)
"""


def ask(metastore: str, function: Callable[[replog.Client], Awaitable[None]]) -> None:
    async def main() -> None:
        async with replog.connect(metastore) as client:
            await function(client)

    trio.run(main)


def killed_during(metastore: str, verb: str, after_s: float) -> bool:
    """Runs it in a process that is killed after a while; False if it was quicker."""
    with subprocess.Popen([sys.executable, "-c", SCRIPT, metastore, verb], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"begun\n"
        time.sleep(after_s)
        is_over = child.poll() is not None
        child.kill()
    return not is_over


@pytest.mark.crash
def test_f6_killed_archivings_and_recalls_lose_nothing(tmp_path: Path) -> None:
    chance, store = random.Random(7), tmp_path / "store"
    store.mkdir()
    data = [b"%06d" % each + b"." * 1000 for each in range(SEGMENTS * ENTRIES)]

    async def begin(client: replog.Client) -> None:
        await client.admin.add_archive(f"file:{store}")
        async with client.write_log("log") as log:
            for start in range(0, len(data), ENTRIES):
                for each in data[start : start + ENTRIES]:
                    await log.append(each)
                await log.roll()

    async def check(client: replog.Client) -> None:
        for bookie in await client.admin.bookies():
            await bookie.collect_garbage()
        async with client.read_log("log") as reader:
            assert [record.data async for record in reader] == data

    async def finish(client: replog.Client) -> None:
        await client.admin.archive_log("log")
        # However the clock was set meanwhile: no archiving is under way.
        collected = await client.admin.collect_archives(grace_s=-86400.0)
        report = await client.admin.audit_archives()
        assert (report.fragments, report.problems) == (SEGMENTS, ())
        objects = [each for each in (store / "ledgers").rglob("*") if each.is_file()]
        assert (len(objects), collected.young) == (report.objects, 0), (collected, sorted(objects))
        await check(client)

    with serving_bookies(tmp_path) as bookies:
        ask(bookies.metastore, begin)
        kills = 0
        for number in range(KILLS):
            kills += killed_during(bookies.metastore, ("archive", "recall")[number % 2], chance.uniform(0, 0.4))
            ask(bookies.metastore, check)
        assert kills >= KILLS // 3
        ask(bookies.metastore, finish)
