"""The bank of `failover.py`, simulated: its processes die and freeze, bookies fail, messages are lost, and no money is.

python -m examples.failover_simulated [FIRST_SEED [SEEDS]]    in the directory above; a seed takes a few seconds

Customers transfer money between accounts through whichever process leads. A command that is not answered is sent again,
with the same id. In the end the log is read, and a second, simpler bank decides whether every answer was right.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from types import ModuleType

import trio

import replog
from examples import failover
from replog.testing import SimulatedCluster, simulate

NAMES = ("ann", "ben", "eve")
ACCOUNTS = ("rent", "food", "books")
DEPOSIT = 100  # into each account, at the beginning
CUSTOMERS = 4
COMMANDS = 30  # of each customer
ANSWER_WITHIN_S = 4.0  # then a customer asks again


class Town:
    """Everything outside of the bank: its customers, and what they were told. Processes that die do not take it along."""

    def __init__(self, cluster: SimulatedCluster, bank: ModuleType) -> None:
        self.answers: dict[str, str] = {}  # by the id of a command: "POSITION ANSWER"
        self.leader = NAMES[0]  # who said so last
        self.changed = trio.Event()
        self.requests: dict[str, trio.MemorySendChannel[str]] = {}  # to each process that runs
        self._cluster = cluster
        self._bank = bank

    def process(self, name: str) -> Callable[[replog.Client], Awaitable[None]]:
        """The `main` of a process: what `failover.py serve` does, with a channel in place of standard input."""

        async def main(client: replog.Client) -> None:
            self.requests[name], commands = trio.open_memory_channel(1000)
            candidate = self._bank.Candidate(client, name, self.hear)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(candidate.bank.follow)
                nursery.start_soon(candidate.compete)
                async for command in commands:
                    await candidate.ask(command)

        return main

    def hear(self, line: str) -> None:
        """A process says something."""
        self._cluster.note(line)
        match line.split(maxsplit=2):
            case [name, "leads", _]:
                self.leader = name
            case [_, "was" | "not", _]:
                return  # deposed, or the command was not done: it is sent again
            case [identity, position, answer]:
                self.answers[identity] = f"{position} {answer}"
        self.changed.set()
        self.changed = trio.Event()

    async def command(self, text: str) -> None:
        """Sends a command until it is answered."""
        while (identity := text.split()[0]) not in self.answers:
            name = self.leader if self._cluster.random.random() < 0.8 else self._cluster.random.choice(NAMES)
            if name in self.requests:
                self.requests[name].send_nowait(text)
            with trio.move_on_after(ANSWER_WITHIN_S):
                while identity not in self.answers:
                    await self.changed.wait()

    async def customer(self, number: int) -> None:
        chance = self._cluster.random
        for each in range(COMMANDS):
            source, target = chance.sample(ACCOUNTS, 2)
            await self.command(f"c{number}.{each} transfer {source} {target} {chance.randint(1, DEPOSIT)}")
            await trio.sleep(0.3 * chance.random())

    async def failovers(self) -> None:
        """Who leads is killed or frozen, again and again."""
        while True:
            await trio.sleep(1 + 3 * self._cluster.random.random())
            await disturb(self._cluster, self.leader, crashes=0.5, pause_s_max=5)


async def disturb(cluster: SimulatedCluster, name: str, *, crashes: float, pause_s_max: float) -> None:
    """Kills a process for up to two seconds, or freezes it; `crashes` is the share of kills."""
    chance = cluster.random
    if chance.random() < crashes:
        cluster.crash(name)
        await trio.sleep(2 * chance.random())
        cluster.restart(name)
    else:
        cluster.pause(name)
        await trio.sleep(pause_s_max * chance.random())
        cluster.resume(name)


async def app(cluster: SimulatedCluster, bank: ModuleType = failover) -> str:
    """The whole story. Returns what happened, in a line."""
    town = Town(cluster, bank)
    for name in NAMES:
        cluster.start(name, town.process(name))
    for account in ACCOUNTS:
        await town.command(f"begin.{account} deposit {account} {DEPOSIT}")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(town.failovers)
        async with trio.open_nursery() as customers:
            for number in range(CUSTOMERS):
                customers.start_soon(town.customer, number)
        nursery.cancel_scope.cancel()
    await cluster.calm()
    for name in NAMES:
        cluster.crash(name)
    async with cluster.client() as client:
        async with client.write_log(failover.LOG):
            pass  # fences the leader before it, and recovers what was on its way
        async with client.read_log(failover.LOG) as reader:
            records = [(str(record.position), record.data.decode()) async for record in reader]
    check(records, town.answers)
    leads = sum(text.startswith("lead ") for _, text in records)
    return f"{len(town.answers)} commands, {leads} leaders, {trio.current_time():.0f} s"


def check(records: list[tuple[str, str]], answers: dict[str, str]) -> None:
    """A second bank, of the log alone: every answer is what it says, and no money was made or lost."""
    balances: Counter[str] = Counter()
    done: dict[str, str] = {}
    at: dict[str, str] = {}
    for position, text in records:
        at[position] = text
        match text.split():
            case [identity, "deposit", account, amount] if identity not in done:
                balances[account] += int(amount)
                done[identity] = f"ok, {account} has {balances[account]}"
            case [identity, "transfer", source, target, amount] if identity not in done:
                done[identity] = "refused"
                if balances[source] >= int(amount):
                    balances[source] -= int(amount)
                    balances[target] += int(amount)
                    done[identity] = f"ok, {source} has {balances[source]}"
    for identity, told in answers.items():
        position, answer = told.split(maxsplit=1)
        assert at.get(position, "").startswith(f"{identity} "), f"{identity}: was told {told!r}, and it is not there"
        assert answer == done[identity], f"{identity}: was told {answer!r}, and it is {done[identity]!r}"
    assert sum(balances.values()) == DEPOSIT * len(ACCOUNTS), f"money was made or lost: {balances}"


def run(seed: int, bank: ModuleType = failover, trace: list[str] | None = None) -> str:
    """Simulates one seed."""
    return simulate(partial(app, bank=bank), seed=seed, within_s=1000, trace=trace)


if __name__ == "__main__":
    first = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    for seed in range(first, first + (int(sys.argv[2]) if len(sys.argv) > 2 else 10)):
        print(f"seed {seed}: {run(seed)}", flush=True)
