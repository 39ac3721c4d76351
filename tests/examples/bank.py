"""`examples/failover.py` as real processes, asked for commands without a pause, and what they answered as a history."""

from __future__ import annotations

import itertools
import math
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import attrs
import trio

import replog
from replog.protocol.model import Position
from replog.runtime.children import Child, running_child
from replog.runtime.nursery import open_service_nursery
from replog.testing import TcpProxy, check_history, serve_proxy
from replog.testing.history import Event
from tests.failures.options import STORAGE
from tests.failures.processes import Process, Starter, starting, until

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "failover.py"
LOG = "bank"
WINDOW = 4  # commands that are asked for at once
WITHIN_S = 40.0  # on a busy machine; nothing here waits that long otherwise
PAUSE_S = 0.01


@attrs.define
class Command:
    """What was asked of a process, when, and what came of it; `position` if it was done."""

    text: str
    term: str  # under whom it was asked
    asked_s: float
    answered_s: float = float("inf")
    position: Position | None = None
    refusal: str = ""

    def events(self, number: int) -> list[Event]:
        """What a judge is told of it."""
        found = [Event(self.asked_s, self.term, "invoked", number, self.text)]
        if self.position is not None:
            found.append(Event(self.answered_s, self.term, "confirmed", number, position=self.position))
        elif self.refusal:
            found.append(Event(self.answered_s, self.term, "not written", number, detail=self.refusal))
        return found


@attrs.define
class Term:
    """One leadership, as its process told of it."""

    actor: str
    segment: int
    began_s: float
    deposed_s: float = float("inf")


class Competitor:
    """A process that competes. While it believes that it leads, it is asked for commands."""

    def __init__(self, name: str, numbers: itertools.count[int], proxy: TcpProxy | None) -> None:
        self.name = name
        self.proxy = proxy  # before its metastore
        self.terms: list[Term] = []
        self.commands: dict[str, Command] = {}  # by id
        self.is_asked = True  # whether it is asked for commands while it believes that it leads
        self._child: Child | None = None
        self._numbers = numbers
        self._asking = trio.Lock()
        self._echoes = 0

    @property
    def child(self) -> Child:
        """Its process."""
        assert self._child is not None, f"{self.name} was not started"
        return self._child

    @property
    def input(self) -> trio.abc.SendStream:
        """The standard input of its process."""
        assert self.child.input is not None
        return self.child.input

    @property
    def believes(self) -> bool:
        """Whether it has said that it leads, and not yet that it does not."""
        return bool(self.terms) and self.terms[-1].deposed_s == float("inf") and self.child.is_running

    def confirmed(self, since_s: float = 0.0) -> int:
        """How many commands are done that were asked of it since then."""
        return sum(each.position is not None and each.asked_s >= since_s for each in self.commands.values())

    async def run(self, metastore: str, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Start it, and ask it for commands until it ends."""
        command = [sys.executable, str(EXAMPLE), metastore, "serve", self.name]
        async with running_child(self.name, command, self._hear, may_end=True, takes_input=True) as self._child:
            task_status.started()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._ask)
                await self.child.ended(math.inf)
                nursery.cancel_scope.cancel()

    def _hear(self, line: bytes) -> None:
        now_s = time.monotonic()
        match line.decode().split():
            case [self.name, "leads", "from", position]:
                segment = Position.parse(position).segment
                self.terms.append(Term(f"{self.name} from {segment}", segment, now_s))
            case [self.name, "was", "deposed,", *_]:
                self.terms[-1].deposed_s = now_s
            case [identity, "not", "done,", *why]:
                command = self.commands[identity]
                command.answered_s, command.refusal = now_s, " ".join(why)
            case [identity, position, "ok,", *_]:
                command = self.commands[identity]
                command.answered_s, command.position = now_s, Position.parse(position)
            case ["what", "is", *_]:
                self._echoes += 1
            # Other lines are on standard error, where it says why it tries again, and where libraries warn.

    async def _ask(self) -> None:
        while True:
            waiting = sum(each.answered_s == float("inf") for each in self.commands.values())
            if self.believes and self.is_asked and waiting < WINDOW:
                await self.ask()
            await trio.sleep(PAUSE_S)

    async def ask(self) -> Command:
        """Asks for one more."""
        async with self._asking:
            identity = str(next(self._numbers))
            text = f"{identity} deposit account-{int(identity) % 5} 1"
            command = self.commands[identity] = Command(text, self.terms[-1].actor, time.monotonic())
            with trio.CancelScope(shield=True):  # a command is asked for as a whole
                try:
                    await self.input.send_all(f"{text}\n".encode())
                except trio.BrokenResourceError:  # it was killed a moment ago
                    command.answered_s, command.refusal = time.monotonic(), "nobody has read it"
            return command

    async def has_sent(self) -> None:
        """Waits until what was asked before is on its way to the bookies: two more questions were read and answered since."""
        for _ in range(2):
            echoes = self._echoes
            async with self._asking:
                await self.input.send_all(b"?\n")
            await until(lambda known=echoes: self._echoes > known, WITHIN_S, f"{self.name} answers")  # type: ignore[misc]

    async def has_answered(self) -> None:
        """Waits until it has answered all that it was asked for."""

        def is_answered() -> bool:
            return all(each.answered_s < float("inf") for each in self.commands.values())

        await until(is_answered, WITHIN_S, f"{self.name} answers: {self.errors()}")

    async def has_lost_the_lead(self, since_s: float) -> None:
        """Waits until it has said since then that it was deposed."""
        what = f"{self.name} knows that it was deposed: {self.errors()}"
        await until(lambda: any(since_s < each.deposed_s < float("inf") for each in self.terms), WITHIN_S, what)

    async def waits_for(self, words: str) -> None:
        """Waits until it has said that it tries again because of this, a regular expression."""

        def is_told() -> bool:
            return re.search(f"tries again, since .*({words})", self.errors()) is not None

        await until(is_told, WITHIN_S, f"{self.name} tries again since {words}: {self.errors()}")

    def errors(self) -> str:
        """The last of what it wrote."""
        return self.child.tail

    async def kill(self) -> None:
        """Kill it (SIGKILL), and wait until it is dead."""
        await self.child.kill()

    def freeze(self) -> None:
        """Stop it (SIGSTOP). It is not asked for anything any more."""
        self.is_asked = False
        self.child.process.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on (SIGCONT)."""
        self.child.wake()

    async def leave(self) -> None:
        """End its standard input, and wait until it has ended in order."""
        if self.child.is_running:
            async with self._asking:
                await self.input.aclose()
            assert await self.child.ended(WITHIN_S) == 0, self.errors()


class Bank:
    """Three bookies, two followers, and who competes."""

    def __init__(
        self,
        directory: Path,
        starter: Starter,
        nursery: trio.Nursery,
        proxies: AsyncExitStack,
        metastore: str,
        server: str | None,
    ) -> None:
        self.competitors: list[Competitor] = []
        self.bookies: list[Process] = []
        self.followers: list[Process] = []
        self._directory = directory
        self._starter = starter
        self._nursery = nursery
        self._proxies = proxies
        self._metastore = metastore
        self._server = server
        self._numbers = itertools.count(1)

    async def add_bookie(self, number: int) -> None:
        """One more bookie that serves."""
        directory = str(self._directory / f"bookie-{number}")
        command = ["replog.cli", "bookie", "--log-format", "json", "--metastore", self._metastore]
        command += ["--data", directory, "--storage", STORAGE, "--listen", "127.0.0.1:0"]
        process = await self._starter.run(f"bookie-{number}", command)
        await process.says("listen", WITHIN_S)
        self.bookies.append(process)

    async def begin(self) -> None:
        """Its bookies and followers run."""
        async with trio.open_nursery() as beginning:
            for number in range(3):
                beginning.start_soon(self.add_bookie, number)
            for name in ("follower-1", "follower-2"):
                beginning.start_soon(self.add_follower, name)

    async def add_follower(self, name: str) -> None:
        """One more that follows from the beginning. It says nothing until there is something to say."""
        self.followers.append(await self._starter.run(name, ["examples.failover", self._metastore, "follow"]))

    async def add_competitor(self, name: str) -> Competitor:
        """One more that competes, behind a proxy of its own if there are any."""
        proxy, metastore = None, self._metastore
        if self._server is not None:
            proxy = await self._proxies.enter_async_context(serve_proxy(self._server))
            metastore = self._metastore.replace(self._server, proxy.address)
        competitor = Competitor(name, self._numbers, proxy)
        await self._nursery.start(competitor.run, metastore)
        self.competitors.append(competitor)
        return competitor

    async def leader(self, since_s: float = 0.0) -> Competitor:
        """Who leads now, once somebody does who has taken over since then. Whoever was elected last, whatever others believe."""

        def last() -> Competitor | None:
            led = [each for each in self.competitors if each.terms]
            found = max(led, key=lambda each: each.terms[-1].segment, default=None)
            return found if found is not None and found.believes and found.terms[-1].began_s >= since_s else None

        await until(lambda: last() is not None, WITHIN_S, f"somebody leads: {self._said()}")
        leader = last()
        assert leader is not None
        return leader

    async def confirms(self, commands: int = 20) -> None:
        """Waits until so many commands are done that are asked for from now on, by whoever leads."""
        since_s = time.monotonic()
        what = f"{commands} commands are done"
        await until(lambda: sum(each.confirmed(since_s) for each in self.competitors) >= commands, WITHIN_S, what)

    def _said(self) -> str:
        return "; ".join(f"{each.name}: {each.errors()}" for each in self.competitors)

    # -- judging ------------------------------------------------------------------------------------------------------

    async def judged(self) -> None:
        """Ends all that compete, and compares what they said, what followers saw, and what the log has."""
        for competitor in self.competitors:
            competitor.is_asked = False
        for competitor in self.competitors:
            await competitor.leave()
        async with replog.connect(self._metastore) as client:
            with trio.fail_after(WITHIN_S):
                async with client.write_log(LOG):
                    pass
                async with client.read_log(LOG) as reader:
                    records = [(record.position, record.data.decode()) async for record in reader]
        final = [(position, text) for position, text in records if not text.startswith("lead ")]
        seen = [await self._followed(follower, records) for follower in self.followers]
        assert seen[0] == seen[1], "two followers made different states of one log"
        findings = check_history(sorted(self._events(), key=lambda event: event.at_s), final)
        assert findings == [], "\n".join(map(str, findings))
        self._check_balances(final, seen[0])

    async def _followed(self, follower: Process, records: Sequence[tuple[Position, str]]) -> list[str]:
        """What a follower showed: each record once, in its place, with the state that it made."""
        output = self._directory / f"{follower.name}.output"
        last = f"{records[-1][0]} "

        def shown() -> list[str]:
            lines = output.read_text().splitlines() if output.exists() else []
            return [line for line in lines if re.match(r"\d+:\d+ ", line)]

        await until(lambda: any(line.startswith(last) for line in shown()), WITHIN_S, f"{follower.name} shows {last}")
        assert [line.rpartition(": ")[0] for line in shown()] == [f"{position} {text}" for position, text in records]
        return shown()

    def _check_balances(self, final: Sequence[tuple[Position, str]], shown: Sequence[str]) -> None:
        """Every command deposits 1: so an account has what the log has of it, and what each answer said is so."""
        balances: dict[str, int] = {}
        answers = {Position.parse(line.split()[0]): line.rpartition(": ")[2] for line in shown}
        for position, text in final:
            account = text.split()[2]
            balances[account] = balances.get(account, 0) + 1
            assert answers[position] == f"ok, {account} has {balances[account]}"

    def _events(self) -> list[Event]:
        events = []
        for competitor in self.competitors:
            for term in competitor.terms:
                events.append(Event(term.began_s, term.actor, "served", segment=term.segment))
                if term.deposed_s < float("inf"):
                    events.append(Event(term.deposed_s, term.actor, "fenced"))
                commands = [each for each in competitor.commands.values() if each.term == term.actor]
                for number, command in enumerate(commands, 1):
                    events += command.events(number)
        return events


@asynccontextmanager
async def bank(
    directory: Path, metastore: str, server: str | None = None, *, is_empty: bool = False
) -> AsyncIterator[Bank]:
    """Bookies and followers that run, unless it `is_empty`; nobody competes yet. Nothing outlives it. If `server` is given,
    "HOST:PORT" in the metastore's URL, who competes reaches it through a proxy."""
    async with starting(directory) as starter, open_service_nursery() as nursery, AsyncExitStack() as proxies:
        made = Bank(directory, starter, nursery, proxies, metastore, server)
        try:
            if not is_empty:
                await made.begin()
            yield made
        finally:
            for competitor in made.competitors:
                await competitor.kill()
