"""Real processes on one file: they count together, are killed in the middle, hold a lease and lose it, and fork."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio

import replog
from replog.config.bookie import BookieTuning
from replog.errors import KeyExistsError, MetastoreError, StorageInUseError
from replog_sqlite import SQLiteMetastore, SQLiteOptions

PREAMBLE = """
import sys
import trio
from replog.errors import MetastoreError, MetastoreUncertainError, VersionConflictError
from replog_sqlite import SQLiteMetastore, SQLiteOptions

def say(*words):
    print(*words, flush=True)

async def count(metastore, times):
    for _ in range(times):
        while True:
            found = await metastore.get("counter")
            number = int(found.value) + 1
            try:
                await metastore.put("counter", b"%d" % number, found.version)
            except VersionConflictError:
                continue
            say(number)
            break
"""

COUNT = """
async def main():
    metastore = SQLiteMetastore(sys.argv[1])
    await count(metastore, int(sys.argv[2]))
    await metastore.aclose()
"""

OPEN_AND_CLOSE = """
async def main():
    for round in range(int(sys.argv[2])):
        metastore = SQLiteMetastore(sys.argv[1])
        try:
            await metastore.create("counter", b"0")
        except MetastoreError as error:
            assert "exists already" in str(error), error
        await count(metastore, 1)
        await metastore.aclose()
"""

ANNOUNCE = """
async def main():
    metastore = SQLiteMetastore(sys.argv[1], SQLiteOptions(lease_s=0.6))
    async with metastore.elect("live/leader", sys.argv[2].encode()):
        say("leads")
        await trio.sleep_forever()
"""


@asynccontextmanager
async def opened(path: Path, *, lease_s: float = 10.0) -> AsyncIterator[SQLiteMetastore]:
    metastore = SQLiteMetastore(path, SQLiteOptions(lease_s=lease_s))
    try:
        yield metastore
    finally:
        await metastore.aclose()


@asynccontextmanager
async def child(script: str, *arguments: object) -> AsyncIterator[trio.Process]:
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


async def said(process: trio.Process) -> str:
    """The next thing that it says; "" if it ended. Of a line that a kill cut off nobody knows."""
    assert process.stdout is not None
    line = b""
    with trio.fail_after(60):
        while not line.endswith(b"\n"):
            piece = await process.stdout.receive_some(1)
            if not piece:
                return ""
            line += piece
    return line.decode().strip()


async def collect(process: trio.Process, into: list[int], at_most: int = 0) -> None:
    """All that it says, or only so much, and then it is killed."""
    while word := await said(process):
        into.append(int(word))
        if at_most and len(into) >= at_most:
            process.kill()


@pytest.mark.slow
async def test_hundreds_of_cas_increments_survive_a_killed_process(tmp_path: Path) -> None:
    """What a process was told is confirmed counts once, whoever dies; nobody is held up by the dead."""
    path = tmp_path / "f"
    confirmed: list[list[int]] = [[] for _ in range(4)]
    async with opened(path) as metastore:
        await metastore.create("counter", b"0")
        with trio.fail_after(120):
            async with (
                child(COUNT, path, 150) as one,
                child(COUNT, path, 150) as two,
                child(COUNT, path, 150) as three,
                child(COUNT, path, 10**9) as killed,
                trio.open_nursery() as nursery,
            ):
                for process, into in zip((one, two, three), confirmed, strict=False):
                    nursery.start_soon(collect, process, into)
                nursery.start_soon(collect, killed, confirmed[3], 90)
            assert [each.returncode for each in (one, two, three)] == [0, 0, 0]
            assert killed.returncode == -signal.SIGKILL
        total = int((await metastore.get("counter")).value)
    counts = Counter(number for each in confirmed for number in each)
    assert max(counts.values()) == 1, "a number was confirmed twice: an increment was lost"
    assert [len(each) for each in confirmed[:3]] == [150] * 3
    # The killed one may have said one more than was read of it, and changed one more than it could say.
    assert len(counts) <= total
    missing = set(range(1, total + 1)) - set(counts)
    assert all(number > confirmed[3][-1] for number in missing), (
        "only what followed on its last word may be unconfirmed"
    )
    assert len(missing) <= 1


@pytest.mark.slow
async def test_processes_open_and_close_at_once(tmp_path: Path) -> None:
    """The first makes the file, the last takes the write-ahead log away: at every moment some do one or the other."""
    path, said_by_all = tmp_path / "f", [list[int]() for _ in range(4)]
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:

            async def run(into: list[int]) -> None:
                async with child(OPEN_AND_CLOSE, path, 15) as process:
                    await collect(process, into)
                    assert await process.wait() == 0

            for into in said_by_all:
                nursery.start_soon(run, into)
    assert sorted(number for each in said_by_all for number in each) == list(range(1, 61))


async def test_a_killed_leader_is_followed_once_its_lease_is_over(tmp_path: Path) -> None:
    async with child(ANNOUNCE, tmp_path / "f", "first") as first:
        assert await said(first) == "leads"
        async with (
            opened(tmp_path / "f", lease_s=0.6) as metastore,
            child(ANNOUNCE, tmp_path / "f", "second") as second,
        ):
            with pytest.raises(KeyExistsError):
                async with metastore.announce("live/leader", b"mine"):
                    pass
            assert await metastore.announced("live") == {"leader": b"first"}
            first.kill()
            assert await said(second) == "leads"
            assert await metastore.announced("live") == {"leader": b"second"}


async def test_a_stopped_process_delays_others_by_its_lease_at_most(tmp_path: Path) -> None:
    async with child(ANNOUNCE, tmp_path / "f", "first") as first:
        assert await said(first) == "leads"
        first.send_signal(signal.SIGSTOP)
        async with opened(tmp_path / "f", lease_s=0.6) as metastore:
            with trio.fail_after(30):
                async with metastore.elect("live/leader", b"mine"):
                    assert await metastore.announced("live") == {"leader": b"mine"}
                    first.send_signal(signal.SIGCONT)


def in_a_fork(action: object) -> int:
    """The exit status of a child that does this: 0, or 1 with a traceback on standard error."""
    forked = os.fork()
    if forked == 0:
        status = 1
        try:
            action()  # type: ignore[operator]
            status = 0
        except BaseException:
            import traceback

            traceback.print_exc()
            raise
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1])


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_opens_none_while_its_parent_has_one_open(tmp_path: Path) -> None:
    """In a fork SQLite takes locks for its own that only the parent has; no client there may believe it is safe."""
    metastore: SQLiteMetastore

    async def open_it() -> None:
        nonlocal metastore
        metastore = SQLiteMetastore(tmp_path / "f")
        await metastore.create("a", b"1")

    def child_uses() -> None:
        async def use() -> None:
            async with opened(tmp_path / "f") as anew, opened(tmp_path / "another") as another:
                for each in (metastore, anew, another):
                    with pytest.raises(MetastoreError, match="fork of one that has an SQLite metastore open"):
                        await each.get("a")
            await metastore.aclose()  # no harm

        trio.run(use)

    def child_opens() -> None:
        async def use() -> None:
            async with opened(tmp_path / "f") as anew:
                assert (await anew.get("b")).value == b"2"

        trio.run(use)

    async def go_on() -> None:
        with suppress(KeyExistsError):
            await metastore.create("b", b"2")
        await metastore.aclose()

    trio.run(open_it)
    assert in_a_fork(child_uses) == 0
    trio.run(go_on)
    assert in_a_fork(child_opens) == 0, "with nothing open, a fork is a process like any other"


EMBED = """
import replog

async def main():
    metastore = SQLiteMetastore(sys.argv[1], SQLiteOptions(lease_s=600))
    async with replog.embed(sys.argv[2], metastore=metastore) as client, client.write_log("orders") as log:
        await log.append(b"first")
        say("stored")
        await trio.sleep_forever()
"""


async def test_embedding_after_a_kill_does_not_wait(tmp_path: Path) -> None:
    """The lock on the directory proves that the killed process is gone, though its lease has ten minutes left."""
    async with child(EMBED, tmp_path / "store", tmp_path / "wal") as process:
        assert await said(process) == "stored"
        process.kill()
    async with opened(tmp_path / "store", lease_s=600) as metastore:
        with trio.fail_after(120):
            async with replog.embed(tmp_path / "wal", metastore=metastore) as client:
                async with client.write_log("orders") as log:
                    await log.append(b"second")
                async with client.read_log("orders") as reader:
                    assert [record.data async for record in reader] == [b"first", b"second"]


async def test_copy_of_a_served_directory_is_refused(tmp_path: Path) -> None:
    options = BookieTuning(storage="files", announce_timeout_s=0.5)
    async with child(EMBED, tmp_path / "store", tmp_path / "wal") as process:
        assert await said(process) == "stored"
        shutil.copytree(tmp_path / "wal", tmp_path / "copy")
        async with opened(tmp_path / "store", lease_s=600) as metastore:
            with pytest.raises(StorageInUseError, match="copy of this directory"):
                async with replog.embed(tmp_path / "copy", metastore=metastore, bookie_options=options):
                    pass
