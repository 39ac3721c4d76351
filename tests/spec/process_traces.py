"""`python -m tests.spec.process_traces`: bookies and clients as processes that are killed, and TLC reads what they did.

Three or more bookies serve throughout; one at a time is killed (SIGKILL) and started again. In each round a client creates some
ledgers, bounded and unbounded, and is killed while it appends; two clients recover them or take them over at once, and one of
those is killed; a third one closes what is open. A reader follows all of them.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import trio

from tests.failures.options import STORAGE
from tests.failures.processes import Process, Starter, starting
from tests.servers.processes import free_port
from tests.spec import tlc
from tests.spec.processes import Config
from tests.spec.recording import Recorder, Trace
from tests.spec.traces import Named, check, renamed

BOOKIES = 4
ENTRIES = 14  # of each writer
_STARTING_S = 240.0  # on a busy machine
_ENDING_S = 240.0


class Cluster:
    """The processes of one run, which append what they do to one file."""

    def __init__(self, directory: Path, starter: Starter, seed: int) -> None:
        self.file = directory / "events"
        self.chance = random.Random(seed)
        self.kills: Counter[str] = Counter()
        self._directory = directory
        self._metastore = f"lmdb:{directory / 'metastore'}"
        self._starter = starter
        self._ports = [free_port() for _ in range(BOOKIES)]
        self._bookies: list[Process] = []
        self._started = 0

    async def start(self) -> None:
        """Starts all bookies at once."""
        async with trio.open_nursery() as nursery:
            for number in range(BOOKIES):
                self._bookies.append(await self._run_bookie(number))
            for each in self._bookies:
                nursery.start_soon(each.says, "listen", _STARTING_S)

    async def _run_bookie(self, number: int) -> Process:
        words = ["--log-format", "json", "--metastore", self._metastore, "--storage", STORAGE]
        words += ["--data", str(self._directory / f"bookie-{number}"), "--listen", f"127.0.0.1:{self._ports[number]}"]
        return await self._run(f"bookie-{number}", "bookie", *words)

    async def _run(self, name: str, role: str, *arguments: str) -> Process:
        self._started += 1
        module = ["tests.spec.processes", str(self.file), str(self._started), role, *arguments]
        return await self._starter.run(f"{name}.{self._started}", module)

    async def client(self, verb: str, *, creates: int = 0, ledgers: Sequence[int] = (), entries: int = 0) -> Process:
        """Starts a client."""
        config = Config(self._metastore, verb, creates, entries, tuple(ledgers))
        return await self._run(verb.replace(" ", "-"), "client", json.dumps(attrs.asdict(config)))

    async def replace_bookie(self) -> None:
        """Kills a bookie, and starts it again."""
        number = self.chance.randrange(BOOKIES)
        await self._kill("bookie", self._bookies[number])
        await self._pause(0.5)
        self._bookies[number] = await self._run_bookie(number)
        await self._bookies[number].says("listen", _STARTING_S)

    async def _kill(self, what: str, process: Process) -> None:
        self.kills[what] += process.is_running
        await process.kill()

    async def _pause(self, most_s: float) -> None:
        await trio.sleep(self.chance.random() * most_s)

    async def run_round(self, many: int) -> None:
        """Creates so many ledgers, and closes them in the end."""
        async with trio.open_nursery() as nursery:
            first = await self.client("create", creates=many, entries=ENTRIES)
            await first.says("ledger", _STARTING_S, times=many)
            ledgers = [words["ledger"] for words in first.said if "ledger" in words]
            reader = await self.client("read", ledgers=ledgers)
            nursery.start_soon(self.replace_bookie)
            await self._pause(0.8)
            await self._kill("client", first)
            second = await self.client("take over", ledgers=ledgers, entries=ENTRIES)
            third = await self.client("take over", ledgers=ledgers[::-1], entries=ENTRIES // 2)
            await second.says("begins", _STARTING_S)
            await self._pause(1.2)
            await self._kill("client", second)
        last = await self.client("finish", ledgers=ledgers)
        await last.says("done", _ENDING_S)
        await reader.says("done", _ENDING_S)
        await third.says("done", _ENDING_S)


async def record(many: int, seed: int, directory: Path, each: int = 10) -> tuple[list[Named], Counter[str]]:
    """The traces of so many ledgers, `each` to a round, and how many processes were killed."""
    async with starting(directory) as starter:
        cluster = Cluster(directory, starter, seed)
        await cluster.start()
        left = many
        while left:
            await cluster.run_round(min(each, left))
            left -= min(each, left)
            print(f"{many - left} ledgers", file=sys.stderr, flush=True)
        starter.nursery.cancel_scope.cancel()
    return assembled(cluster.file), cluster.kills


def assembled(path: Path) -> list[Named]:
    """The traces in a file that processes wrote."""
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    senders = {(words["bookie"], words["request"]): words["sender"] for words in lines if "sender" in words}
    uncommitted = _uncommitted(lines)
    traces: dict[int, Trace] = {}
    for place, words in enumerate(lines):
        if "begins" in words:
            begins = words["begins"]
            begins = {**begins, "quorum": tuple(begins["quorum"]), "ensemble": tuple(begins["ensemble"])}
            traces.setdefault(words["ledger"], Trace(**begins))
        elif "event" in words and place not in uncommitted:
            event = _tuples(words["event"])
            if event[0] == "stored":
                event = (event[0], event[1], *senders[event[1], event[2]], *event[3:])
            traces[words["ledger"]].events.append(event)
    return [Named(trace.ledger_id, renamed(_with_short_names(trace), Recorder())) for trace in traces.values()]


def _uncommitted(lines: Sequence[dict[str, Any]]) -> set[int]:
    """The lines with changes of records whose transaction was never committed: its process was killed, and the next transaction
    got its number."""
    found: set[int] = set()
    written: dict[int, list[int]] = {}  # by process: what it wrote since its last transaction
    begun: dict[int, list[int]] = {}  # by transaction: what was written in it
    for place, words in enumerate(lines):
        if "transaction" in words:
            found.update(begun.get(words["transaction"], ()))
            begun[words["transaction"]] = written.pop(words["process"], [])
        elif "process" in words:
            written.setdefault(words["process"], []).append(place)
    return found.union(*written.values())


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _with_short_names(trace: Trace) -> Trace:
    """The same with bookies' names as the specification has them."""
    names: dict[str, str] = {}

    def short(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(short, value))
        return names.get(value, value) if isinstance(value, str) else value

    for name in [*trace.ensemble, *(name for event in trace.events for name in _bookies_of(event))]:
        names.setdefault(name, f"b{len(names) + 1}")
    return attrs.evolve(trace, ensemble=short(trace.ensemble), events=[short(event) for event in trace.events])


def _bookies_of(event: tuple[Any, ...]) -> list[str]:
    if event[0] in ("stored", "denied", "fenced", "published", "restarted"):
        return [event[1]]
    if event[0] == "send":
        return [event[2]]
    if event[0] in ("proposes ensemble", "changes private"):
        return list(event[3])
    return []


def main() -> int:
    """Returns 1 if a trace is rejected."""
    parser = argparse.ArgumentParser(prog="python -m tests.spec.process_traces", description=__doc__)
    parser.add_argument("--ledgers", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--read", type=Path, help="check what was kept of an earlier run")
    parser.add_argument("--keep", type=Path, help="keep what the processes write in this directory")
    options = parser.parse_args()
    tlc.fetch()
    kills: Counter[str] = Counter()
    if options.read is not None:
        traces = assembled(options.read)
    elif options.keep is not None:
        options.keep.mkdir(parents=True)
        traces, kills = trio.run(record, options.ledgers, options.seed, options.keep)
    else:
        with tempfile.TemporaryDirectory(prefix="replog-traces-") as directory:
            traces, kills = trio.run(record, options.ledgers, options.seed, Path(directory))
    rejected = check(traces)
    for named, place, kind in rejected:
        print(f"rejected: ledger {named.trace.ledger_id}, event {place}: {named.trace.events[place - 1]} ({kind})")
    events = sum(len(named.trace.events) for named in traces)
    terms = sum(len({event[1] for event in named.trace.events if event[0] == "fences"}) for named in traces)
    print(
        f"{len(traces)} traces of {events} events, {terms} recoveries, {kills['bookie']} bookies and "
        f"{kills['client']} clients killed: {len(rejected)} rejected"
    )
    return 1 if rejected else 0


if __name__ == "__main__":
    sys.exit(main())
