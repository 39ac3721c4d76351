"""Measures a replicated counter beside PySyncObj's: `python -m benchmarks.machines [--rounds 3] [--seconds 5] [--callers 100]`.

Three processes each, on this machine, and so many callers in the leader's process, each with one command under way. replog's
members have a bookie each, with storage in files, and a metastore in LMDB; a command is confirmed by two synced copies. PySyncObj
confirms when two members have it in memory: its journal is never synced. It is measured twice: as installed, and with settings
that we tuned (`benchmarks.peers.systems.pysyncobj_member.SETTINGS`: it sends every 2 ms and ticks every 1 ms, in place of 100 and
50). Then the leader is killed (`--takeovers`), and the time
is taken until another member has applied a command.

Prints, of each round and as medians, commands a second, microseconds from the call to its result, and the CPU time of all three
processes for a command.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import attrs
import trio

import replog
from benchmarks.figures import Figures, Meter, clock, medians, percentiles
from benchmarks.peers.system import Load
from benchmarks.peers.systems.pysyncobj import PySyncObj

MEMBERS = 3
_COMMAND_BYTES = 16  # of PySyncObj's argument: about what the counter's are
_WITHIN_S = 60.0
_WARM_UP_S = 1.0
_NAME_WIDTH = 22


@attrs.define
class Counters(replog.StateMachine):
    """What is replicated."""

    values: dict[str, int] = attrs.field(factory=dict)

    @replog.command
    def add(self, name: str, amount: int) -> int:
        """One command."""
        self.values[name] = self.values.get(name, 0) + amount
        return self.values[name]


# -- a member, in a process of its own ------------------------------------------------------------------------------------


async def _member(metastore: str, directory: str) -> None:
    options = replog.BookieOptions(listen=("tcp:127.0.0.1:0",))
    config = replog.BookieConfig(directory=directory, metastore=metastore, options=options)
    async with (
        replog.serve_bookie(config),
        replog.connect(metastore) as client,
        client.run_machine("counters", Counters) as machine,
    ):
        async for line in _lines():
            asked = json.loads(line)
            if "callers" in asked:
                answer: object = await _call(machine, **asked)
            elif "add" in asked:
                answer = await machine.add(asked["add"], 1)
            else:
                answer = machine.status.leads_from is not None
            print(json.dumps(answer), flush=True)


async def _lines() -> AsyncIterator[str]:
    while line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
        yield line


async def _call(
    machine: replog.RunningMachine[Counters], callers: int, seconds: float, process_ids: list[int]
) -> Figures:
    took_s: list[float] = []
    ends_at = clock() + _WARM_UP_S + seconds

    async def call(number: int) -> None:
        while (began := clock()) < ends_at:
            await machine.add(f"visits {number}", 1)
            took_s.append(clock() - began)

    async with trio.open_nursery() as nursery:
        for number in range(callers):
            nursery.start_soon(call, number)
        await trio.sleep(_WARM_UP_S)
        took_s.clear()
        meter = Meter(*process_ids)
        await trio.sleep(seconds)
        return {**meter.figures(len(took_s)), **percentiles(took_s)}


# -- from outside ---------------------------------------------------------------------------------------------------------


class Process:
    """A member's process, and what it is asked. It ends with its standard input."""

    def __init__(self, metastore: str, directory: Path) -> None:
        words = [sys.executable, "-m", "benchmarks.machines", "--member", metastore, str(directory)]
        pipe = subprocess.PIPE
        self.running = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)

    def ask(self, **asked: object) -> object:
        """Asks, and waits for the answer."""
        assert self.running.stdin is not None
        assert self.running.stdout is not None
        print(json.dumps(asked), file=self.running.stdin, flush=True)
        return json.loads(self.running.stdout.readline())

    def kill(self) -> None:
        """SIGKILL. Idempotent."""
        self.running.kill()
        self.running.wait()
        for pipe in (self.running.stdin, self.running.stdout):
            assert pipe is not None
            pipe.close()


@contextmanager
def _replog(metastore: str, directory: Path) -> Iterator[list[Process]]:
    with ExitStack() as stack:
        members = []
        for number in range(MEMBERS):
            members.append(Process(metastore, directory / f"bookie-{number}"))
            stack.callback(members[-1].kill)
        yield members


def _leader(members: Sequence[Process]) -> Process:
    deadline = clock() + _WITHIN_S
    while clock() < deadline:
        for each in members:
            if each.ask():
                return each
        time.sleep(0.02)
    raise TimeoutError(f"nobody leads after {_WITHIN_S:.0f} s")


def _measure_replog(directory: Path, callers: int, seconds: float) -> Figures:
    with _replog(f"lmdb:{directory}/metastore", directory) as members:
        leader = _leader(members)
        others = [each.running.pid for each in members if each is not leader]
        found = leader.ask(callers=callers, seconds=seconds, process_ids=others)
    assert isinstance(found, dict)
    return found


def _measure_pysyncobj(directory: Path, callers: int, seconds: float, *, is_tuned: bool) -> Figures:
    with PySyncObj(is_tuned=is_tuned).running(directory) as members:
        found = members.append(Load(_COMMAND_BYTES, in_flight=callers, seconds=seconds))
    return {**found, "total_cpu_us": found["client_cpu_us"] + found["server_cpu_us"]}


def _take_over(metastore: str, directory: Path) -> Figures:
    with _replog(metastore, directory) as members:
        leader = _leader(members)
        leader.ask(add="visits")
        began = clock()
        leader.kill()
        another = next(each for each in members if each is not leader)
        another.ask(add="visits")
        return {"takeover_s": clock() - began}


def _told(name: str, found: Figures) -> str:
    if "takeover_s" in found:
        return (
            f"{name:{_NAME_WIDTH}} {found['takeover_s']:6.2f} s from kill -9 of the leader to the next command's result"
        )
    rate, p50, p99, cpu = (found[each] for each in ("entries_per_s", "p50_us", "p99_us", "total_cpu_us"))
    times = f"p50 {p50 / 1e3:7.2f} ms   p99 {p99 / 1e3:7.2f} ms"
    return f"{name:{_NAME_WIDTH}} {rate:8,.0f} commands/s   {times}   {cpu:7.0f} us of CPU each"


def main() -> None:
    """Runs the rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--callers", type=int, default=100)
    parser.add_argument("--takeovers", type=int, default=0, help="so many instead, of replog alone")
    parser.add_argument(
        "--metastore", default="", help="for the takeovers: a URL, like zookeeper://HOST:PORT/PLACE?lease_s=1"
    )
    parser.add_argument("--member", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.member:
        trio.run(_member, *options.member)
        return
    measures: dict[str, Callable[[Path, int, float], Figures]] = {
        "replog": _measure_replog,
        "PySyncObj as installed": partial(_measure_pysyncobj, is_tuned=False),
        "PySyncObj tuned by us": partial(_measure_pysyncobj, is_tuned=True),
    }
    found: dict[str, list[Figures]] = {}
    for number in range(options.takeovers or options.rounds):
        with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as made:
            if options.takeovers:
                where, *query = options.metastore.split("?")
                place = "?".join([f"{where}/{number}", *query]) if where else f"lmdb:{made}/metastore"
                found.setdefault("replog", []).append(_take_over(place, Path(made)))
                print(f"round {number + 1}: {_told('replog', found['replog'][-1])}")
                continue
            for name, measure in measures.items():
                of_its_own = Path(made) / name.replace(" ", "-")
                of_its_own.mkdir()
                found.setdefault(name, []).append(measure(of_its_own, options.callers, options.seconds))
                print(f"round {number + 1}: {_told(name, found[name][-1])}", flush=True)
    for name, rounds in found.items():
        print(f"medians: {_told(name, medians(rounds))}")


if __name__ == "__main__":
    main()
