"""`examples/bank.py`: no seed breaks the bank's promises, bugs that one may write into it are found, and it runs as a program."""

from __future__ import annotations

import sys
from functools import partial
from itertools import count
from pathlib import Path
from types import ModuleType

import pytest
import trio

import replog
from examples import bank
from examples.failover_simulated import disturb
from replog.machine.options import MachineTuning
from replog.testing import SimulatedCluster, simulate
from tests import forks

EXAMPLE = Path(str(bank.__file__))
NAMES = ("ann", "ben", "eve")
ACCOUNTS = ("rent", "food", "books")
DEPOSIT = 100
CUSTOMERS = 4
ORDERS = 10  # of each customer
PATIENCE_S = 15.0  # then a customer does not know what came of an order
OPTIONS = MachineTuning(call_timeout_s=0.5, repeat_after_s=0.4, check_every=10, snapshot_every=25)
SEEDS = 3

# Bugs, each put into a copy of the bank, and a seed that finds it.
BUGS = {
    "an order that is sent again is another one": ("command_id = command_id or await", "command_id = await", 6),
    "a balance may be an old one": (
        "await bank.read(lambda state: state.balance(account))",
        "bank.local.balance(account)",
        0,
    ),
    "a transfer may leave a debt": ("if self.balance(source) < amount:", "if self.balance(source) < amount - 50:", 0),
    "a transfer that is refused has changed something": (
        """        if self.balance(source) < amount:
            raise ValueError(f"{source} has {self.balance(source)}")
        self.balances[source] -= amount
""",
        """        self.balances[source] -= amount
        if self.balance(source) < 0:
            raise ValueError(f"{source} has {self.balance(source)}")
""",
        0,
    ),
}


class Town:
    """The customers, and what they were told. Processes that die do not take it along."""

    def __init__(self, cluster: SimulatedCluster, module: ModuleType) -> None:
        self.answered: dict[str, int] = {}  # accounts of gifts that were answered, and what was given
        self.unknown: dict[str, int] = {}  # those that may be there
        self.orders: dict[str, trio.MemorySendChannel[tuple[int, str]]] = {}  # to each process that runs
        self.running: dict[str, replog.RunningMachine[bank.Bank]] = {}
        self._answers: dict[int, str] = {}
        self._changed = trio.Event()
        self._numbers = count()
        self._cluster = cluster
        self._module = module

    async def process(self, name: str, client: replog.Client) -> None:
        """The `main` of a process: as that of the example, with a channel in place of standard input."""
        self.orders[name], orders = trio.open_memory_channel(1000)
        machine = client.run_machine("bank", self._module.Bank, listen=(), options=OPTIONS)
        async with machine as self.running[name], trio.open_nursery() as nursery:
            running = self.running[name]
            async for number, order in orders:
                nursery.start_soon(self._obey, running, number, order)

    async def _obey(self, running: replog.RunningMachine[bank.Bank], number: int, order: str) -> None:
        try:
            answer = await self._module.obey(running, order)
        except (replog.errors.SessionExpiredError, replog.errors.CommandTimeoutError) as error:
            answer = f"unknown: {error}"
        self._answers[number] = answer
        self._changed.set()
        self._changed = trio.Event()

    async def ask(self, order: str) -> str:
        """What came of an order, at any of the processes; "unknown" if nobody says it."""
        number = next(self._numbers)
        name = self._cluster.random.choice([each for each in NAMES if each in self.orders])
        self.orders[name].send_nowait((number, order))
        with trio.move_on_after(PATIENCE_S):
            while number not in self._answers:
                await self._changed.wait()
            self._cluster.note(f"{order}: {self._answers[number]}")
            return self._answers[number]
        return "unknown"

    async def customer(self, number: int) -> None:
        chance = self._cluster.random
        for each in range(ORDERS):
            match chance.randrange(5):
                case 0 | 1 | 2:
                    await self._give(f"gift-{number}-{each}", chance.randint(1, 9))
                case 3 if self.answered:
                    await self._look(chance.choice(sorted(self.answered)))
                case _:
                    source, target = chance.sample(ACCOUNTS, 2)
                    answer = await self.ask(f"transfer {source} {target} {chance.randint(1, DEPOSIT)}")
                    assert answer.startswith(("ok", "refused: ", "unknown")), answer
                    assert " -" not in answer, f"a debt: {answer}"
            await trio.sleep(chance.random())

    async def _give(self, account: str, amount: int) -> None:
        self.unknown[account] = amount
        answer = await self.ask(f"deposit {account} {amount}")
        if not answer.startswith("unknown"):
            assert answer == f"ok, {account} has {amount}", f"it was deposited once: {answer}"
            self.answered[account] = self.unknown.pop(account)
            await self._look(account)  # at another process, at once

    async def _look(self, account: str) -> None:
        answer, known = await self.ask(f"balance {account}"), f"ok, {account} has {self.answered[account]}"
        assert answer == known or answer.startswith(("unknown", "ask again")), f"{known}, and it was told {answer!r}"

    async def failures(self) -> None:
        """Processes are killed and frozen, again and again."""
        chance = self._cluster.random
        while True:
            await trio.sleep(0.5 + chance.random())
            leaders = [each for each, running in self.running.items() if running.status.leads_from is not None]
            await disturb(self._cluster, chance.choice(leaders or NAMES), crashes=0.2, pause_s_max=3)


async def app(cluster: SimulatedCluster, module: ModuleType = bank) -> str:
    """The whole story. Returns what happened, in a line."""
    town = Town(cluster, module)
    for name in NAMES:
        cluster.start(name, partial(town.process, name))
    while len(town.orders) < len(NAMES):  # noqa: ASYNC110 - the start of the last of several processes
        await trio.sleep(0.1)
    for account in ACCOUNTS:
        assert await town.ask(f"deposit {account} {DEPOSIT}") == f"ok, {account} has {DEPOSIT}"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(town.failures)
        async with trio.open_nursery() as customers:
            for number in range(CUSTOMERS):
                customers.start_soon(town.customer, number)
        nursery.cancel_scope.cancel()
    await cluster.calm()
    for name in NAMES:
        cluster.crash(name)
    async with cluster.client() as client, client.run_machine("bank", module.Bank, listen=()) as again:
        balances = await again.read(lambda state: dict(state.balances))
        status = again.status
    check(balances, town)
    return f"{status.commands} commands, {len(town.answered)} gifts, {trio.current_time():.0f} s"


def check(balances: dict[str, int], town: Town) -> None:
    """No money was made or lost, and each gift was given once, or not at all if nobody was told of it."""
    assert sum(balances[account] for account in ACCOUNTS) == DEPOSIT * len(ACCOUNTS), balances
    assert all(amount >= 0 for amount in balances.values()), balances
    for account, amount in town.answered.items():
        assert balances.get(account) == amount, f"{account} was given {amount}, and has {balances.get(account)}"
    for account, amount in town.unknown.items():
        assert balances.get(account, 0) in (0, amount), f"{account} may have {amount}, and has {balances[account]}"


def run(seed: int, module: ModuleType = bank, trace: list[str] | None = None) -> str:
    """Simulates one seed."""
    return simulate(partial(app, module=module), seed=seed, within_s=4000, trace=trace)


def copy_with(old: str, new: str) -> ModuleType:
    """A copy of the bank with other text in one place."""
    text = EXAMPLE.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"mend this bug: {old!r}"
    module = ModuleType("bank_with_a_bug")
    sys.modules[module.__name__] = module
    exec(compile(text.replace(old, new), "<bank with a bug>", "exec"), module.__dict__)
    return module


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(each, marks=pytest.mark.long(is_sampled=False)) for each in range(1, SEEDS))]
)
def test_no_seed_breaks_the_bank(seed: int) -> None:
    assert "gifts" in run(seed)


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_of_the_bank_is_found(bug: str) -> None:
    old, new, first = BUGS[bug]
    module = copy_with(old, new)
    for seed in range(first, first + SEEDS):
        try:
            run(seed, module)
        except (AssertionError, ExceptionGroup):
            return
    raise AssertionError(f"not found within {SEEDS} seeds: {bug}")


async def test_program_takes_orders_from_standard_input(tmp_path: Path) -> None:
    metastore = f"lmdb:{tmp_path / 'metadata'}"
    served = replog.BookieOptions(listen=("tcp:127.0.0.1:0",))
    async with replog.embed(tmp_path / "wal", bookies=3, metastore=metastore, bookie_options=served):

        async def told(orders: bytes) -> list[str]:
            command = [sys.executable, str(EXAMPLE), metastore]
            done = await trio.to_thread.run_sync(partial(forks.run, command, given=orders.decode(), timeout=120))
            done.check_returncode()
            return str(done.stdout).splitlines()

        answers = await told(b"deposit rent 100\ntransfer rent food 30\ntransfer rent food 71\n")
        assert answers == ["ok, rent has 100", "ok, rent has 70", "refused: ValueError: rent has 70"]
        assert await told(b"balance food\n") == ["ok, food has 30"], "another process finds what the first one left"
        assert (await told(b"deposit rent much\n"))[0].startswith("what is 'deposit rent much")
