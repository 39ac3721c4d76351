"""`python -m tests.spec.council_processes`: members of a metastore as processes that fail, and TLC reads what they did.

In each run three processes begin a cluster. While clients change keys, processes are killed and stopped, disks fail, clocks jump,
and members are added, removed and replaced. Every process appends each step to one file with one call, before others can see it:
so the lines are in the order of time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import trio

from replog.abc import Metastore
from replog.errors import MetastoreUnavailableError, MetastoreUncertainError
from tests.failures.quorum_faults import Changes, ProcessFaults
from tests.failures.quorum_members import Members, in_thread
from tests.spec import tlc
from tests.spec.council_recording import Assembler, Trace, recording_members
from tests.spec.council_traces import Named, check
from tests.spec.recording import Event

TRACE = "REPLOG_TEST_TRACE"  # in the environment: the file
EVENTS_MAX = 500
_CLIENTS = 2
_MEMBERS = 3
_STARTING_S = 120.0
_RUN_S = 8.0
_PAUSE_S = 0.25  # between two calls of a client, so that faults come between few entries


@contextmanager
def recording_to(path: str) -> Iterator[None]:
    """Appends what the member in this process does to a file."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def tell(name: str, what: Event) -> None:
        os.write(file, json.dumps([name, what]).encode() + b"\n")

    with recording_members(tell):
        yield


async def record(directory: Path, seed: int) -> tuple[Trace, Counter[str]]:
    """The trace of one cluster, and which faults there were."""
    file, choice, counts = directory / "trace", random.Random(seed), Counter[str]()
    with patch.dict(os.environ, {TRACE: str(file)}):
        members = Members(directory, _MEMBERS)
        for each in members.used:
            await in_thread(each.launch)
        try:
            async with members.metastore() as metastore:
                await _until_it_answers(metastore)
            with trio.move_on_after(_RUN_S):
                async with trio.open_nursery() as nursery:
                    for client in range(_CLIENTS):
                        nursery.start_soon(_change, members, client)
                    for fault in (ProcessFaults(members, choice, counts), Changes(members, choice, counts)):
                        nursery.start_soon(_repeat, fault, choice)
        finally:
            with trio.CancelScope(shield=True):
                for process in members.places:
                    await in_thread(process.kill)
    return assembled(file), counts


async def _until_it_answers(metastore: Metastore) -> None:
    with trio.fail_after(_STARTING_S):
        while True:
            with suppress(MetastoreUnavailableError, MetastoreUncertainError):
                await metastore.children("c0")
                return


async def _change(members: Members, number: int) -> None:
    count = 0
    while True:
        async with members.metastore() as metastore:
            with suppress(MetastoreUnavailableError, MetastoreUncertainError):  # what counts is what members did
                await metastore.create(f"c{number}/k{count}", b"")
            count += 1
        await trio.sleep(_PAUSE_S)


async def _repeat(fault: ProcessFaults | Changes, choice: random.Random) -> None:
    while True:
        await trio.sleep(choice.uniform(0.2, 1.0))
        await fault.one()


def assembled(path: Path) -> Trace:
    """The trace in a file that processes wrote. What a process was killed in the middle of writing is one line less."""
    assembler = Assembler()
    for line in path.read_bytes().splitlines():
        name, what = json.loads(line)
        assembler.tell(name, _tuples(what))
    trace = assembler.trace
    trace.events[EVENTS_MAX:] = []
    return trace


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def main() -> int:
    """Returns 1 if a trace is rejected."""
    parser = argparse.ArgumentParser(prog="python -m tests.spec.council_processes", description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    tlc.fetch()
    traces: list[Named] = []
    counts: Counter[str] = Counter()
    for seed in range(options.seed, options.seed + options.runs):
        with tempfile.TemporaryDirectory(prefix="replog-traces-") as directory:
            trace, faults = trio.run(record, Path(directory), seed)
        traces.append(Named(seed, trace))
        counts += faults
    rejected = check(traces)
    for named, place, kind in rejected:
        print(f"rejected: seed {named.seed}, event {place}: {named.trace.events[place - 1]} ({kind})")
    events = sum(len(each.trace.events) for each in traces)
    print(f"{len(traces)} traces of {events} events: {len(rejected)} rejected; {dict(counts)}")
    return int(bool(rejected))


if __name__ == "__main__":
    sys.exit(main())
