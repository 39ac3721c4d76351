"""The metastore in a directory, shared by real processes: some of them are killed, some are stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import lmdb
import pytest
import trio

from replog.errors import KeyExistsError, MetastoreError, MetastoreFullError, MetastoreUncertainError
from replog.metastores.lmdb import LMDBMetastore, LMDBTuning

pytestmark = pytest.mark.crash


@asynccontextmanager
async def opened(path: Path, **options: float) -> AsyncIterator[LMDBMetastore]:
    metastore = LMDBMetastore(path, LMDBTuning(**options))  # type: ignore[arg-type]
    try:
        yield metastore
    finally:
        await metastore.aclose()


PREAMBLE = """
import sys
import lmdb
import trio
from replog.errors import KeyNotFoundError, MetastoreError, VersionConflictError
from replog.metastores.lmdb import LMDBMetastore, LMDBOptions

def say(*words):
    print(*words, flush=True)

metastore = LMDBMetastore(sys.argv[1])
"""

READ_ON = """
async def main():
    await metastore.get("a")
    with metastore._environment.map.environment.begin():
        say("reading")
        await trio.sleep_forever()
"""

# Counts up two keys for ever, and says each number once it is confirmed: what it said must never be lost.
COUNT = """
async def main():
    while True:
        found = await metastore.get("counter")
        number = int(found.value) + 1
        try:
            await metastore.put("counter", b"%d" % number, found.version)
        except VersionConflictError:
            continue
        say(number)
"""

ANNOUNCE = """
async def main():
    metastore = LMDBMetastore(sys.argv[1], LMDBOptions(lease_s=float(sys.argv[2])))
    async with metastore.announce("live/x", b"value"):
        say("here")
        await trio.sleep_forever()
"""

# Takes the writer lock from under the metastore's feet, and keeps it.
HOLD_THE_LOCK = """
async def main():
    environment = lmdb.open(sys.argv[1])
    with environment.begin(write=True):
        say("held")
        await trio.sleep_forever()
"""

GROW = """
async def main():
    for number in range(8):
        await metastore.create(f"large/{number}", bytes(500_000))
"""


@asynccontextmanager
async def child(script: str, *arguments: str | Path) -> AsyncIterator[trio.Process]:
    source = PREAMBLE + textwrap.dedent(script) + "\ntrio.run(main)\n"
    command = [sys.executable, "-c", source, *map(str, arguments)]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            assert process.stdout is not None
            await process.stdout.aclose()


async def line(process: trio.Process) -> bytes:
    assert process.stdout is not None
    said = b""
    with trio.fail_after(30):
        while not said.endswith(b"\n"):
            piece = await process.stdout.receive_some()
            assert piece, "it ended without a word"
            said += piece
    return said


async def until_children(metastore: LMDBMetastore, expected: list[str]) -> None:
    """A loaded machine may make a process look silent for a moment: what counts is how it ends."""
    with trio.fail_after(20):
        while (found := await metastore.children("live")) != expected:
            await metastore.wait_children_changed("live", found)


async def test_cas_increments_of_processes_survive_a_kill(tmp_path: Path) -> None:
    """What a process was told is confirmed is there, whoever dies; nobody is blocked by the dead."""
    said: list[int] = []
    said_more = trio.Event()
    async with opened(tmp_path) as metastore:
        await metastore.create("counter", b"0")

        def tell() -> None:
            nonlocal said_more
            said_more.set()
            said_more = trio.Event()

        async def until_said(numbers: int) -> None:
            while len(said) < numbers:
                await said_more.wait()

        async def listen(process: trio.Process) -> None:
            buffered = b""
            assert process.stdout is not None
            async for piece in process.stdout:
                *lines, buffered = (buffered + piece).split(b"\n")
                said.extend(int(each) for each in lines)
                tell()

        async def count_here() -> None:
            for _ in range(150):
                while True:
                    found = await metastore.get("counter")
                    try:
                        await metastore.put("counter", b"%d" % (int(found.value) + 1), found.version)
                        said.append(int(found.value) + 1)
                        break
                    except MetastoreError:
                        continue

        with trio.fail_after(60):
            async with child(COUNT, tmp_path) as one, child(COUNT, tmp_path) as two, trio.open_nursery() as nursery:
                nursery.start_soon(listen, one)
                nursery.start_soon(listen, two)
                await until_said(100)
                one.kill()
                await one.wait()
                said_before = len(said)
                await count_here()
                await until_said(said_before + 250)
                two.kill()
                nursery.cancel_scope.deadline = trio.current_time() + 30
        total = int((await metastore.get("counter")).value)
    assert len(set(said)) == len(said), "a number was confirmed twice: an increment was lost"
    assert max(said) <= total
    # Each of the killed may have changed it once more, and may have been killed before it could say so.
    assert total - 2 <= len(said) <= total


async def test_announcements_of_a_dead_process_can_be_made_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as metastore, child(ANNOUNCE, tmp_path, "60") as process:
        assert await line(process) == b"here\n"
        version = (await metastore.get("live/x")).version
        assert await metastore.announced("live") == {"x": b"value"}
        with pytest.raises(KeyExistsError):
            async with metastore.announce("live/x", b""):
                pass
        process.kill()
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(metastore.wait_changed, "live/x", version)
                nursery.start_soon(metastore.wait_children_changed, "live", ["x"])
        assert await metastore.announced("live") == {}
        with pytest.raises(MetastoreError, match="does not exist"):
            await metastore.put("live/x", b"", version)
        async with metastore.announce("live/y", b""):  # sweeps
            assert await metastore.announced("live") == {"y": b""}
    with lmdb.open(str(tmp_path)) as environment, environment.begin() as transaction:
        assert [bytes(key) for key, _ in transaction.cursor()] == [b"\0format", b"\0version"]


async def test_waiter_sees_a_death_beside_others(tmp_path: Path) -> None:
    """One task looks for all that wait. It has seen the last commit, and no key that may vanish, when this wait comes."""
    async with opened(tmp_path) as metastore, child(ANNOUNCE, tmp_path, "60") as process:
        assert await line(process) == b"here\n"
        other = await metastore.create("other", b"")
        version = (await metastore.get("live/x")).version
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(metastore.wait_changed, "other", other)
                while metastore._waits._last_change < 0:  # noqa: ASYNC110 - a look has no event
                    await trio.sleep(0.01)
                async with trio.open_nursery() as waiting:
                    waiting.start_soon(metastore.wait_changed, "live/x", version)
                    while len(metastore._waits._waits) < 2:  # noqa: ASYNC110
                        await trio.sleep(0.01)
                    process.kill()
                nursery.cancel_scope.cancel()
        assert await metastore.announced("live") == {}


async def test_a_stopped_process_is_not_there_until_it_goes_on(tmp_path: Path) -> None:
    async with opened(tmp_path) as metastore, child(ANNOUNCE, tmp_path, "0.4") as process:
        assert await line(process) == b"here\n"
        await trio.sleep(1.0)  # longer than its lease, which it renews
        await until_children(metastore, ["x"])
        assert (await metastore.get("live/x")).value == b"value"
        process.send_signal(signal.SIGSTOP)
        await until_children(metastore, [])
        assert await metastore.announced("live") == {}
        async with metastore.announce("live/y", b""):  # sweeps, but nothing that may come back
            process.send_signal(signal.SIGCONT)
            await until_children(metastore, ["x", "y"])


async def test_a_process_stopped_in_a_transaction_blocks_only_a_while(tmp_path: Path) -> None:
    async with opened(tmp_path) as patient, opened(tmp_path, timeout_s=0.3) as metastore:
        await patient.create("a", b"1")
        async with child(HOLD_THE_LOCK, tmp_path) as process:
            assert await line(process) == b"held\n"
            with pytest.raises(MetastoreError, match=r"nothing was written\. Another process holds") as raised:
                await metastore.create("b", b"1")
            assert not isinstance(raised.value, MetastoreUncertainError)
            assert (await metastore.get("a")).value == b"1", "reads go on"
            process.send_signal(signal.SIGKILL)
            await process.wait()
        await patient.create("c", b"the lock of a dead process is taken over")
        assert await metastore.children("b") == []
        with pytest.raises(MetastoreError, match="does not exist"):
            await metastore.get("b")


async def test_a_process_stopped_while_it_reads_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It keeps the pages that were freed since then: the file grows, and nothing else would say why."""
    async with opened(tmp_path, map_bytes=1 << 20, map_bytes_max=4 << 20) as metastore:
        version = await metastore.create("a", bytes(20_000))
        async with child(READ_ON, tmp_path) as process:
            assert await line(process) == b"reading\n"
            process.send_signal(signal.SIGSTOP)
            with pytest.raises(MetastoreFullError, match="nothing was written") as raised:
                for _ in range(1_000):
                    version = await metastore.put("a", bytes(20_000), version)
            grown = [each.getMessage() for each in caplog.records if "grows to" in each.getMessage()]
            for words in (*grown, str(raised.value)):
                assert f"process {process.pid} has been reading for" in words
                assert f"kill -CONT {process.pid}" in words
            assert grown
            process.send_signal(signal.SIGKILL)
            await process.wait()
        caplog.clear()
        for _ in range(1_000):
            version = await metastore.put("a", bytes(20_000), version)
        assert not caplog.records, "the pages are used again"


async def test_map_enlarged_by_another_process_is_read(tmp_path: Path) -> None:
    async with opened(tmp_path, map_bytes=1 << 20) as metastore:
        await metastore.create("a", b"1")
        async with child(GROW, tmp_path) as process:
            with trio.fail_after(30):
                assert await process.wait() == 0
        assert len(await metastore.children("large")) == 8
        assert len((await metastore.get("large/7")).value) == 500_000
        await metastore.create("b", bytes(500_000))


def test_no_descriptor_is_left(tmp_path: Path) -> None:
    async def use() -> None:
        async with opened(tmp_path) as metastore, metastore.announce("a", b""):
            await metastore.create("b", b"")
            await metastore.delete("b")

    trio.run(use)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        trio.run(use)
    assert len(os.listdir("/proc/self/fd")) == before
