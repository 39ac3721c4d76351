"""A machine whose members die, freeze and lose messages, simulated; and a checker of what its callers saw.

The machine is a list: `append` returns how long the list is then, and a read returns the whole of it. For such a machine,
linearizability can be decided exactly, from the final list and the times of the calls. `check` knows nothing else of the machine.
"""

from __future__ import annotations

import sys
from functools import partial
from itertools import count

import attrs
import trio

import replog
from replog.errors import MachineError, SessionExpiredError
from replog.machine.options import MachineTuning
from replog.testing import SimulatedCluster, simulate

NAMES = ("ann", "ben", "eve")
CALLERS = 3  # in each process
WRONG_S = (0.0, 30.0, -30.0, 86_400.0, -86_400.0, 3e8)  # by which wall clocks are ahead
CALLS = 25  # of each caller
OPTIONS = MachineTuning(
    call_timeout_s=20.0, session_timeout_s=15.0, repeat_after_s=1.0, check_every=15, snapshot_every=20
)


@attrs.define
class Journal(replog.StateMachine):
    entries: list[str] = attrs.field(factory=list)
    times_ns: list[int] = attrs.field(factory=list)  # the machine's, of each entry

    @replog.command
    def append(self, entry: str) -> int:
        self.entries.append(entry)
        self.times_ns.append(self.now_ns)
        return len(self.entries)


@attrs.define
class Seen:
    """One call, and what its caller saw. `length` is None if the outcome is unknown."""

    entry: str  # "" for a read
    began_s: float
    ended_s: float = float("inf")
    length: int | None = None
    entries: tuple[str, ...] = ()


class Town:
    """The callers. What they saw, and the ids that they saved, outlive the processes."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.seen: list[Seen] = []
        self.leaders = 0
        self.left = {(name, caller): CALLS for name in NAMES for caller in range(CALLERS)}
        self._saved: dict[tuple[str, int], tuple[replog.CommandId, str]] = {}
        self._numbers = count()
        self._cluster = cluster

    async def process(self, name: str, client: replog.Client) -> None:
        """The `main` of a process: runs until its callers have made all their calls, and serves the others then."""
        async with client.run_machine("journal", Journal, listen=(), options=OPTIONS) as journal:
            async with trio.open_nursery() as nursery:
                for caller in range(CALLERS):
                    nursery.start_soon(self._caller, (name, caller), journal)
            await trio.sleep_forever()

    async def _caller(self, who: tuple[str, int], journal: replog.RunningMachine[Journal]) -> None:
        chance = self._cluster.random
        if who in self._saved:
            await self._append_as(who, journal)
        while self.left[who] > 0:
            self.left[who] -= 1
            match chance.randrange(4):
                case 0:
                    await self._read(journal)
                case 1:
                    try:
                        self._saved[who] = await journal.next_id(), f"{who[0]}{next(self._numbers)}"
                    except MachineError:
                        continue
                    await self._append_as(who, journal)
                case _:
                    await self._append(journal, f"{who[0]}{next(self._numbers)}")
            await trio.sleep(0.5 * chance.random())

    async def _append(self, journal: replog.RunningMachine[Journal], entry: str) -> None:
        self.seen.append(call := Seen(entry, trio.current_time()))
        try:
            call.length = await journal.call(Journal.append, entry)
        except MachineError:
            return
        call.ended_s = trio.current_time()

    async def _append_as(self, who: tuple[str, int], journal: replog.RunningMachine[Journal]) -> None:
        """With an id that was saved before, and again after a restart, or an error that leaves the outcome unknown."""
        command_id, entry = self._saved[who]
        known = [each for each in self.seen if each.entry == entry]
        if not known:
            self.seen.append(Seen(entry, trio.current_time()))
        call = next(each for each in self.seen if each.entry == entry)
        for _ in range(3):
            try:
                length = await journal.call_as(command_id, Journal.append, entry)
            except SessionExpiredError:
                break
            except MachineError:
                continue
            assert call.length in (None, length), f"{entry}: answered {call.length}, and again {length}"
            call.length, call.ended_s = length, min(call.ended_s, trio.current_time())
            if self._cluster.random.random() < 0.5:
                break
        self._saved.pop(who, None)

    async def _read(self, journal: replog.RunningMachine[Journal]) -> None:
        began_s = trio.current_time()
        try:
            entries = await journal.read(lambda state: tuple(state.entries))
        except MachineError:
            return
        self.seen.append(Seen("", began_s, trio.current_time(), len(entries), entries))

    async def failures(self) -> None:
        """Processes are killed and frozen, and their clocks jump, again and again."""
        chance = self._cluster.random
        while True:
            await trio.sleep(1 + 4 * chance.random())
            name = chance.choice(NAMES)
            self._cluster.set_clock(chance.choice(NAMES), chance.choice(WRONG_S))
            if chance.random() < 0.5:
                self._cluster.crash(name)
                await trio.sleep(2 * chance.random())
                self._cluster.restart(name)
            else:
                self._cluster.pause(name)
                await trio.sleep((25 if chance.random() < 0.1 else 5) * chance.random())
                self._cluster.resume(name)


async def app(cluster: SimulatedCluster) -> str:
    """The whole story. Returns what happened, in a line."""
    town = Town(cluster)
    began_s = trio.current_time()
    for name in NAMES:
        cluster.start(name, partial(town.process, name))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(town.failures)
        while any(town.left.values()):  # noqa: ASYNC110 - the end of the last of many processes
            await trio.sleep(1)
        nursery.cancel_scope.cancel()
    await cluster.calm()
    for name in NAMES:
        cluster.crash(name)
    async with (
        cluster.client() as client,
        client.run_machine("journal", Journal, listen=(), options=OPTIONS) as journal,
    ):
        entries = await journal.read(lambda state: tuple(state.entries))
        times_ns = await journal.read(lambda state: tuple(state.times_ns))
        metadata = await client.log_metadata("journal")
    check(town.seen, entries)
    check_times(times_ns, trio.current_time() - began_s)
    answered = sum(each.length is not None for each in town.seen)
    return f"{answered} of {len(town.seen)} calls answered, {metadata.next_segment_number - 1} segments"


def check_times(times_ns: tuple[int, ...], passed_s: float) -> None:
    """Raises AssertionError unless the time in the machine never went back, nor ran much faster than the real time (L12)."""
    assert list(times_ns) == sorted(times_ns), "the machine's time went back"
    ran_s = (times_ns[-1] - times_ns[0]) / 1e9
    assert ran_s <= 1.05 * passed_s + 0.001, f"the machine's time ran for {ran_s} s within {passed_s} s"


def check(seen: list[Seen], entries: tuple[str, ...]) -> None:
    """Raises AssertionError unless the calls are linearizable, and each append was applied at most once."""
    assert len(set(entries)) == len(entries), "an append was applied twice"
    place = {entry: number for number, entry in enumerate(entries, 1)}
    appends = [each for each in seen if each.entry]
    for each in appends:
        if each.length is not None:
            assert place.get(each.entry) == each.length, f"{each}: it is at {place.get(each.entry)}"
    reads = [each for each in seen if not each.entry]
    for read in reads:
        assert read.length is not None
        assert entries[: read.length] == read.entries, f"{read}: no prefix of {entries}"
        for each in appends:
            number = place.get(each.entry, len(entries) + 1)
            assert number <= read.length or each.ended_s > read.began_s, f"{read} misses {each}"
            assert number > read.length or each.began_s < read.ended_s, f"{read} saw {each} before it began"
    known = [each for each in seen if each.length is not None]
    for first in known:
        for second in known:
            if first.ended_s < second.began_s:
                assert first.length is not None
                assert second.length is not None
                is_before = first.length < second.length if second.entry else first.length <= second.length
                assert is_before, f"{second} came behind {first}"


def run(seed: int, trace: list[str] | None = None) -> str:
    """Simulates one seed."""
    return simulate(app, seed=seed, within_s=3000, trace=trace)


if __name__ == "__main__":
    first = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    for seed in range(first, first + (int(sys.argv[2]) if len(sys.argv) > 2 else 10)):
        print(f"seed {seed}: {run(seed)}", flush=True)
