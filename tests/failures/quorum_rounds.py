"""Rounds of members in processes under faults, and of clients whose histories two judges see.

By hand: `python -m tests.failures.quorum_rounds --rounds 100 --seed 3`. Each process is in a network namespace, so that networks
fail, too: that needs root. The campaign of an odd seed begins with five members, that of an even one with three. In each round
some kinds of faults happen at the same time: kills, stops, jumps of clocks and failing disks; cut, mute, split, flapping and
lossy networks; members added, removed, replaced, or without their disks. Afterwards everything runs and is connected, and the
cluster has to answer soon, with all processes as members.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import trio

from replog.errors import KeyExistsError, MetastoreUnavailableError, MetastoreUncertainError
from tests.failures.campaigns import run_campaigns
from tests.failures.namespaces import Host, network
from tests.failures.outside_judge import NoJudgeError, judge, verdict, write_history
from tests.failures.quorum_clients import Clients
from tests.failures.quorum_faults import Changes, ProcessFaults
from tests.failures.quorum_members import SPARES, Members, in_thread
from tests.failures.quorum_networks import NetworkFaults
from tests.failures.register_history import by_register, violation

_CLIENTS, _READERS = 8, 3
MEMBERS = (3, 5)
CAMPAIGN_ROUNDS = 10
_ROUND_S = 4.0
_HEALED_S = 30.0  # in which a healed cluster must answer
_PAUSE_S = (0.1, 1.0)  # between two faults of a kind

Fault = Callable[[], Awaitable[None]]


class Campaign:
    """Members, and what is done to them. Everything is drawn from one seed."""

    def __init__(self, directory: Path, members: int, seed: int, hosts: Sequence[Host] = ()) -> None:
        self.directory = directory
        self.members = Members(directory, members, hosts)
        self.choice = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._faults: list[Fault] = [
            ProcessFaults(self.members, self.choice, self.counts).one,
            Changes(self.members, self.choice, self.counts).one,
        ]
        if hosts:
            self._faults.append(NetworkFaults(self.members, hosts[-1], self.choice, self.counts).one)

    async def round(self, number: int) -> None:
        """Clients and faults for some seconds, then a judgement."""
        clients = Clients(self.members, f"r{number}", self.choice)
        async with trio.open_nursery() as nursery:
            for each in range(_CLIENTS):
                nursery.start_soon(partial(clients.run, is_reader=each < _READERS))
            end_s = trio.current_time() + _ROUND_S
            nursery.start_soon(self._revive, clients)
            async with trio.open_nursery() as faults:
                for fault in self.choice.sample(self._faults, self.choice.randint(1, len(self._faults))):
                    faults.start_soon(self._repeat, fault, end_s)
            await self._answers(number)
            clients.is_ending = True
        self.counts.update(clients.counts())
        await trio.to_thread.run_sync(self._judge, number, clients)
        if problem := await self.members.settle():
            self.wrong.append(f"round {number}: {problem}")
        lost = [each.name for each in self.members.used if each.has_left_a_name]
        self.wrong += [f"round {number}: {each} took its disk for one that had lost something" for each in lost]

    async def _revive(self, clients: Clients) -> None:
        while not clients.is_ending:
            self.counts["ended by itself"] += await self.members.revive()
            await trio.sleep(_PAUSE_S[0])

    async def _repeat(self, fault: Fault, end_s: float) -> None:
        while trio.current_time() < end_s:
            await trio.sleep(self.choice.uniform(*_PAUSE_S))
            await fault()

    def _judge(self, number: int, clients: Clients) -> None:
        for key, calls in sorted(by_register(clients.calls, clients.keys).items()):
            if problem := violation(calls):
                self.wrong.append(f"round {number}, {key}: {problem}")
        history = self.directory / f"history-{number}.jsonl"
        write_history(clients.calls, history)
        try:
            said = verdict(history)
        except NoJudgeError as error:
            said = f"not asked, {error}"
        self.counts[f"Porcupine: {said}"] += 1
        if said == "violation":
            self.wrong.append(f"round {number}: Porcupine finds no order of the calls in {history}")

    async def _answers(self, number: int) -> None:
        """A cluster of which all members run again answers soon."""
        with trio.move_on_after(_HEALED_S):
            async with self.members.metastore() as metastore:
                while True:
                    try:
                        await metastore.create(f"healed/r{number}", b"")
                        return
                    except KeyExistsError:
                        return
                    except (MetastoreUnavailableError, MetastoreUncertainError):
                        continue
        self.wrong.append(f"round {number}: no change within {_HEALED_S:.0f} s, though all members run")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The members run."""
        for each in self.members.used:
            await in_thread(each.launch)
        try:
            yield
        finally:
            with trio.CancelScope(shield=True):
                for each in self.members.used:
                    await in_thread(each.kill)


async def campaign(
    directory: Path, seed: int, rounds: int, *, members: int | None = None, hosts: Sequence[Host] = ()
) -> tuple[Counter[str], list[str]]:
    """So many rounds; unless it is said, with three members or five, by the seed. Returns what happened how often, and what was
    wrong."""
    made = Campaign(directory, members or MEMBERS[seed % 2], seed, hosts)
    async with made.running():
        for number in range(rounds):
            await made.round(number)
    return made.counts, made.wrong


def main() -> int:
    """Runs what the command line says. Raises `ForbiddenError` where there are no namespaces."""
    with suppress(NoJudgeError):
        judge()  # its module is fetched now: there is no way out of the namespaces
    with network(max(MEMBERS) + SPARES + 1) as made:
        made.hosts[-1].enter()
        hosted = partial(campaign, hosts=made.hosts)
        return run_campaigns(hosted, "quorum_rounds", __doc__, CAMPAIGN_ROUNDS)


if __name__ == "__main__":
    sys.exit(main())
