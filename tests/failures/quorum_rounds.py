"""Rounds of members in processes that are killed and stopped, under clients whose histories a judge sees.

By hand, with more rounds: `python -m tests.failures.quorum_rounds --rounds 100 --seed 3`.
"""

from __future__ import annotations

import random
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

from replog.abc import Metastore
from replog.errors import (
    KeyExistsError,
    KeyNotFoundError,
    MetastoreUnavailableError,
    MetastoreUncertainError,
    VersionConflictError,
)
from replog.registry import Registry
from tests.failures.campaigns import run_campaigns
from tests.failures.register_history import CONFLICT, EXISTS, MISSING, Call, violation
from tests.servers.processes import HOST, Server, free_port

_CLIENTS, _KEYS = 8, 4
CAMPAIGN_ROUNDS = 10
_ROUND_S = 3.0
_HEALED_S = 30.0  # in which a healed cluster must answer


class Member(Server):
    """A process with a bookie and a member."""

    def __init__(self, directory: Path, number: int, addresses: list[str]) -> None:
        place = directory / f"m{number}"
        place.mkdir()
        self.address = addresses[number]
        command = [sys.executable, "-m", "replog.cli", "bookie", "--data", str(place), "--listen", self.address]
        super().__init__(f"m{number}", [*command, "--peers", ",".join(addresses)], directory, {})


@attrs.define
class Clients:
    """Clients that call the metastore until they are told to stop; `calls` by key. Each round has keys of its own."""

    url: str
    choice: random.Random
    calls: defaultdict[str, list[Call]] = attrs.field(factory=lambda: defaultdict(list))
    is_ending: bool = False
    _writes: int = 0

    async def run(self, prefix: str) -> None:
        """Calls from one client, one behind the other."""
        metastore = Registry().open_metastore(self.url)
        versions: dict[str, int] = {}
        try:
            while not self.is_ending:
                key = f"{prefix}/k{self.choice.randrange(_KEYS)}"
                call = await self._call(metastore, key, versions)
                if call is not None:
                    self.calls[key].append(call)
        finally:
            with trio.CancelScope(shield=True):
                await metastore.aclose()

    async def _call(self, metastore: Metastore, key: str, versions: dict[str, int]) -> Call | None:
        what = self.choice.choice(("get", "get", "create", "put", "put", "delete"))
        expected = versions.get(key, 1) if what in ("put", "delete") else None
        self._writes += 1
        value = b"" if what in ("get", "delete") else b"%d" % self._writes
        begun_s = trio.current_time()
        answer: int | str | None
        try:
            match what:
                case "get":
                    found = await metastore.get(key)
                    answer, value = found.version, found.value
                case "create":
                    answer = await metastore.create(key, value)
                case "put":
                    assert expected is not None
                    answer = await metastore.put(key, value, expected)
                case _:
                    await metastore.delete(key, expected)
                    answer = 0
        except KeyExistsError:
            answer = EXISTS
        except KeyNotFoundError:
            answer = MISSING
        except VersionConflictError:
            answer = CONFLICT
        except MetastoreUncertainError:
            answer = None
        except MetastoreUnavailableError:
            return None  # nothing was written
        if isinstance(answer, int) and what != "delete":
            versions[key] = answer
        return Call(what, begun_s, trio.current_time(), value, expected, answer)


class Campaign:
    """Members, and what is done to them. Everything is drawn from one seed."""

    def __init__(self, directory: Path, members: int, seed: int) -> None:
        addresses = [f"{HOST}:{free_port()}" for _ in range(members)]
        self.members = [Member(directory, number, addresses) for number in range(members)]
        self.url = f"quorum:{','.join(addresses)}/rounds?timeout_s=3"
        self.choice = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []

    async def round(self, number: int) -> None:
        """Clients and faults for some seconds, then a judgement."""
        clients = Clients(self.url, self.choice)
        async with trio.open_nursery() as nursery:
            for _ in range(_CLIENTS):
                nursery.start_soon(clients.run, f"r{number}")
            end_s = trio.current_time() + _ROUND_S
            while trio.current_time() < end_s:
                await trio.sleep(self.choice.uniform(0.1, 0.8))
                await self.choice.choice((self._kill, self._stop))()
            await self._answers(number)
            clients.is_ending = True
        for key, calls in sorted(clients.calls.items()):
            self.counts.update(f"{each.what}: {'unknown' if each.answer is None else 'answered'}" for each in calls)
            if problem := violation(calls):
                self.wrong.append(f"round {number}, {key}: {problem}")

    async def _answers(self, number: int) -> None:
        """A cluster of which all members run again answers soon."""
        metastore = Registry().open_metastore(self.url)
        try:
            with trio.move_on_after(_HEALED_S):
                while True:
                    try:
                        await metastore.create(f"healed/r{number}", b"")
                        return
                    except KeyExistsError:
                        return
                    except (MetastoreUnavailableError, MetastoreUncertainError):
                        continue
            self.wrong.append(f"round {number}: no change within {_HEALED_S:.0f} s, though all members run")
        finally:
            with trio.CancelScope(shield=True):
                await metastore.aclose()

    async def _kill(self) -> None:
        """One member, or as often as not all of them, is killed and started again."""
        chosen = self.members if self.choice.random() < 0.3 else [self.choice.choice(self.members)]
        self.counts["kill"] += len(chosen)
        for each in chosen:
            await in_thread(each.kill)
        await trio.sleep(self.choice.uniform(0, 0.5))
        for each in chosen:
            await in_thread(each.launch)

    async def _stop(self) -> None:
        """One member hangs for a while: longer than an election takes, sometimes."""
        chosen = self.choice.choice(self.members)
        self.counts["stop"] += 1
        await in_thread(chosen.freeze)
        await trio.sleep(self.choice.choice((0.3, 1.0, 4.0)))
        await in_thread(chosen.thaw)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The members run."""
        for each in self.members:
            await in_thread(each.launch)
        try:
            yield
        finally:
            with trio.CancelScope(shield=True):
                for each in self.members:
                    await in_thread(each.kill)


async def in_thread(call: Callable[[], None]) -> None:
    await trio.to_thread.run_sync(call)


async def campaign(
    directory: Path, seed: int, rounds: int, members: int | None = None
) -> tuple[Counter[str], list[str]]:
    """So many rounds; unless it is said, with three members or five, by the seed. Returns what happened how often, and what was
    wrong."""
    made = Campaign(directory, members or (3, 5)[seed % 2], seed)
    async with made.running():
        for number in range(rounds):
            await made.round(number)
    return made.counts, made.wrong


if __name__ == "__main__":
    sys.exit(run_campaigns(campaign, "quorum_rounds", __doc__, CAMPAIGN_ROUNDS))
