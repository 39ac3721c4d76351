"""A bank that outlives its processes: any of them takes orders, and each order is done exactly once.

python examples/bank.py METASTORE    takes orders, lines of standard input, and prints what came of each:
                                     deposit ACCOUNT AMOUNT   or   transfer FROM TO AMOUNT   or   balance ACCOUNT

METASTORE is where the bookies are announced, as `replog cluster` prints it: lmdb:DIRECTORY, zookeeper://HOST,HOST,HOST/PATH
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import attrs
import trio

import replog


@attrs.define
class Bank(replog.StateMachine):
    """Applied in every process, in the log's order. A command that raises changes nothing here: it checks first."""

    balances: dict[str, int] = attrs.field(factory=dict)

    @replog.command
    def deposit(self, account: str, amount: int) -> int:
        self.balances[account] = self.balance(account) + amount
        return self.balances[account]

    @replog.command
    def transfer(self, source: str, target: str, amount: int) -> int:
        if self.balance(source) < amount:
            raise ValueError(f"{source} has {self.balance(source)}")
        self.balances[source] -= amount
        self.balances[target] = self.balance(target) + amount
        return self.balances[source]

    def balance(self, account: str) -> int:
        return self.balances.get(account, 0)


async def once(bank: replog.RunningMachine[Bank], command: Callable[..., int], *arguments: str | int) -> int:
    """Has a command done. If no answer comes, nobody knows whether it was: then it is sent again, with the same id."""
    command_id = None
    while True:
        try:
            command_id = command_id or await bank.next_id()
            return await bank.call_as(command_id, command, *arguments)
        except replog.errors.CommandTimeoutError as error:
            print(f"sending it again, since {error}", file=sys.stderr)


async def obey(bank: replog.RunningMachine[Bank], order: str) -> str:
    """What came of an order."""
    try:
        match order.split():
            case ["deposit", account, amount] if amount.isdecimal():
                return f"ok, {account} has {await once(bank, Bank.deposit, account, int(amount))}"
            case ["transfer", source, target, amount] if amount.isdecimal():
                return f"ok, {source} has {await once(bank, Bank.transfer, source, target, int(amount))}"
            case ["balance", account]:
                return f"ok, {account} has {await bank.read(lambda state: state.balance(account))}"
    except replog.errors.CommandFailedError as error:
        return f"refused: {error}"
    except replog.errors.CommandTimeoutError as error:
        return f"ask again, since {error}"  # only for a balance
    return f"what is {order!r}? {__doc__}"


async def main(metastore: str) -> None:
    async with replog.connect(metastore) as client, client.run_machine("bank", Bank) as bank:
        async for order in trio.wrap_file(sys.stdin):
            print(await obey(bank, order), flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    trio.run(main, sys.argv[1])
