"""Accounts that outlive their bank: several processes compete to lead it, and when the one that does dies, the next takes over.

python examples/failover.py METASTORE serve NAME    one of them. Commands are lines of standard input, for the one that leads:
                                                    ID deposit ACCOUNT AMOUNT   or   ID transfer FROM TO AMOUNT
python examples/failover.py METASTORE follow        shows all that is done, as it is done

METASTORE is where the bookies are announced, as `replog cluster` prints it: lmdb:DIRECTORY, zookeeper://HOST,HOST,HOST/PATH
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable

import trio

import replog

LOG = "bank"
AGAIN_S = 0.5


class Bank:
    """What the log makes of it: leader, stand-bys and followers all apply its records in their order, so all have the same."""

    def __init__(self, client: replog.Client, told: Callable[[replog.Position, str, str], None]) -> None:
        self.position = self.led_from = replog.Position(0, 0)  # what was applied; where the leader of now began
        self.leader = "nobody"
        self.balances: Counter[str] = Counter()
        self.answers: dict[str, str] = {}  # by the id of a command: one that is sent twice is done once
        self.changed = trio.Event()
        self._client, self._told = client, told

    async def follow(self) -> None:
        """Applies what is in the log, and what comes. After an error it goes on where it stood: no gap, nothing twice."""
        while True:
            try:
                after = self.position if self.position.segment else None
                async with self._client.read_log(LOG, after=after, follow=True) as reader:
                    async for record in reader:
                        self.apply(record.position, record.data.decode(errors="replace"))
            except replog.TransientError as error:
                print(f"reading again, since {error}", file=sys.stderr)
                await trio.sleep(AGAIN_S)

    def apply(self, position: replog.Position, command: str) -> None:
        """Applies the next record. One that was applied is passed over: a leader does not wait until it can read its own."""
        if position <= self.position:
            return
        answer = "ok"
        match command.split():
            case ["lead", name]:
                self.led_from, self.leader = position, name
            case [identity, *words]:
                if identity not in self.answers:
                    self.answers[identity] = self._execute(words)
                answer = self.answers[identity]
        self.position = position
        self._told(position, command, answer)
        self.tell()

    def _execute(self, words: list[str]) -> str:
        match words:
            case ["deposit", account, amount] if amount.isdecimal():
                self.balances[account] += int(amount)
                return f"ok, {account} has {self.balances[account]}"
            case ["transfer", source, target, amount] if amount.isdecimal() and self.balances[source] >= int(amount):
                self.balances[source] -= int(amount)
                self.balances[target] += int(amount)
                return f"ok, {source} has {self.balances[source]}"
        return "refused"

    def tell(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self.changed.wait()


class Candidate:
    """Leads when it is its turn, and always keeps a bank, so that it can begin at once. `say` gets each line of its output."""

    def __init__(self, client: replog.Client, name: str, say: Callable[[str], None]) -> None:
        self.name = name
        self.bank = Bank(client, self._answer)
        self._client = client
        self._say = say
        self._log: replog.LogWriter | None = None  # while it leads, as far as it knows
        self._asked: dict[replog.Position, str] = {}  # commands that are in the log there, or nowhere

    async def compete(self) -> None:
        while True:
            try:
                async with self._client.lead_log(LOG) as log:  # waits for its turn, and fences the leader before it
                    await self._lead(log)
                self._say(f"{self.name} was deposed, nothing in doubt")
            except replog.FencedError as error:
                self._say(f"{self.name} was deposed, {len(error.positions)} in doubt")
            except replog.TransientError as error:
                print(f"{self.name} tries again, since {error}", file=sys.stderr)
                await trio.sleep(AGAIN_S)

    async def _lead(self, log: replog.LogWriter) -> None:
        here = await log.append(f"lead {self.name}".encode())
        await self.bank.until(lambda: self.bank.position >= here)  # all that was ever confirmed is applied
        self._say(f"{self.name} leads from {here}")
        self._log = log
        try:
            while self.bank.led_from == here:  # else another one leads, and this one waits for its turn again
                changed = self.bank.changed
                await log.flush()
                for position, command in list(self._asked.items()):
                    if position <= (log.last_add_confirmed or here):
                        self.bank.apply(position, command)
                await changed.wait()
        finally:
            self._log = None

    async def ask(self, command: str) -> None:
        """Has a command done, and answers as soon as it is known whether it was."""
        words = command.split()
        if len(words) < 4 or not words[-1].isdecimal():
            self._say(f"what is {command!r}? ID deposit ACCOUNT AMOUNT, or: ID transfer FROM TO AMOUNT")
        elif self._log is None:
            self._say(f"{words[0]} not done, ask {self.bank.leader}")
        else:
            try:
                self._asked[await self._log.push(command.encode())] = command
            except (replog.ReplogError, trio.ClosedResourceError) as error:  # then nothing was pushed
                self._say(f"{words[0]} not done, since {error}")
            self.bank.tell()

    def _answer(self, applied: replog.Position, _command: str, answer: str) -> None:
        """What was asked for and stands before this without having been applied is nowhere: the next leader has decided that."""
        while self._asked and (position := next(iter(self._asked))) <= applied:
            identity = self._asked.pop(position).split()[0]
            known = f"{position} {answer}" if position == applied else "not done, its leader was deposed"
            self._say(f"{identity} {known}")

    async def serve(self) -> None:
        """Competes until standard input ends, and all that was asked for is answered."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.bank.follow)
            nursery.start_soon(self.compete)
            rest = b""
            while data := await trio.to_thread.run_sync(os.read, 0, 1 << 16, abandon_on_cancel=True):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    await self.ask(line.decode(errors="replace"))
            await self.bank.until(lambda: not self._asked)
            nursery.cancel_scope.cancel()


def say(line: str) -> None:
    print(line, flush=True)


def show(position: replog.Position, command: str, answer: str) -> None:
    say(f"{position} {command}: {answer}")


async def serve(metastore: str, name: str) -> None:
    async with replog.connect(metastore) as client:
        await Candidate(client, name, say).serve()


async def follow(metastore: str) -> None:
    async with replog.connect(metastore) as client:
        await Bank(client, show).follow()


if __name__ == "__main__":
    try:
        match sys.argv[1:]:
            case [url, "serve", name] if len(name.split()) == 1:
                trio.run(serve, url, name)
            case [url, "follow"]:
                trio.run(follow, url)
            case _:
                sys.exit(__doc__)
    except* KeyboardInterrupt:
        sys.exit(130)
