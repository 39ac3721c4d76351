"""Members in processes of their own, which reach each other by Unix sockets or TCP; the leader is killed."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from subprocess import PIPE

import pytest
import trio

import replog

pytestmark = [pytest.mark.real, pytest.mark.slow]
WITHIN_S = 60.0


class Process:
    """One member, and what it said."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self.lines: list[str] = []
        self.said = trio.Event()

    async def listen(self) -> None:
        rest = b""
        assert self.process.stdout is not None
        async for data in self.process.stdout:
            *lines, rest = (rest + data).split(b"\n")
            self.lines += [line.decode() for line in lines]
            self.said.set()
            self.said = trio.Event()

    async def until(self, line: str | int) -> None:
        """Waits until it said this; for a number, until it made so many more commands."""
        wanted = len(self.lines) + line if isinstance(line, int) else 0
        with trio.fail_after(WITHIN_S):
            while len(self.lines) < wanted if isinstance(line, int) else line not in self.lines:
                await self.said.wait()


@pytest.mark.parametrize(
    "listen",
    [
        pytest.param("", marks=pytest.mark.long(is_sampled=False)),
        pytest.param("tcp:127.0.0.1:0", marks=pytest.mark.long),
    ],
)
async def test_counter_counts_each_command_once_when_leaders_die(tmp_path: Path, listen: str) -> None:
    metastore = f"lmdb:{tmp_path / 'metadata'}?lease_s=2"
    options = replog.BookieOptions(listen=("tcp:127.0.0.1:0",))
    async with (
        replog.embed(tmp_path, bookie_options=options, metastore=metastore) as client,
        trio.open_nursery() as nursery,
    ):
        found = []
        for _ in range(3):
            words = [sys.executable, "-m", "tests.machine.process", metastore, listen]
            started = await nursery.start(partial(trio.run_process, words, stdout=PIPE, check=False))
            found.append(Process(started))
            nursery.start_soon(found[-1].listen)
            await found[-1].until(3)
        first, *others = found
        await first.until("leads")
        for each in others:
            await each.until(20)
        first.process.kill()
        for each in others:
            await each.until(20)
        for each in others:
            each.process.kill()
            await each.process.wait()
        async with client.run_machine("visits", replog.ReplicatedCounter, listen=()) as visits:
            total = await visits.read(lambda state: state.value)
        answers = [int(line) for each in found for line in each.lines if line.isdecimal()]
        assert len(set(answers)) == len(answers), "two commands got one answer"
        assert max(answers) <= total <= len(answers) + len(found), "a command was applied twice, or lost"
        nursery.cancel_scope.cancel()
