"""Faults of the network between members, and between them and their clients. Each ends by itself."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import chain

import trio

from tests.failures.namespaces import Host
from tests.failures.quorum_members import Members, in_thread

_LASTING_S = (0.5, 4.0, 7.0)  # a leader that was cut off leads for up to twice the longest election timeout, 6 s


class NetworkFaults:
    """Members and clients do not reach each other for a while."""

    def __init__(self, members: Members, clients: Host, choice: random.Random, counts: Counter[str]) -> None:
        self._members = members
        self._clients = clients
        self._choice = choice
        self._counts = counts

    async def one(self) -> None:
        """One fault."""
        fault = self._choice.choice(
            (self._cut, self._mute, self._mute, self._split, self._split, self._flap, self._lose)
        )
        self._counts[f"network: {fault.__name__[1:]}"] += 1
        await self._members.say()  # so that it is known who leads
        await fault()

    def _hosts(self) -> list[Host]:
        """Those of the members, in a random order; often the leader's comes first."""
        first = self._members.one_of(self._members.used, self._choice)
        others = [each for each in self._members.used if each is not first]
        self._choice.shuffle(others)
        return [each.host for each in (first, *others) if each.host is not None]

    async def _last(self) -> None:
        await trio.sleep(self._choice.choice(_LASTING_S))

    async def _cut(self) -> None:
        """One host, maybe that of the clients, reaches nobody."""
        host = self._choice.choice([self._hosts()[0], self._clients])
        await in_thread(host.cut_off)
        await self._last()
        await in_thread(host.join)

    async def _mute(self) -> None:
        """What one host sends vanishes: to another one, or to all; or what all others send to it."""
        one, *members = self._hosts()
        other, rest = members[0], [*members, *self._choice.choice(([], [self._clients]))]
        ways = [[(one, other)], [(one, each) for each in rest], [(each, one) for each in rest]]
        await self._without(self._choice.choice(ways))

    async def _split(self) -> None:
        """Members are in two groups that do not reach each other; the clients are with one of them, or with both."""
        hosts = self._hosts()
        place = self._choice.choice((1, len(hosts) // 2))
        left, right = hosts[:place], hosts[place:]
        self._choice.choice((left, right, [], [], [])).append(self._clients)
        await self._without([*chain(*([(one, other), (other, one)] for one in left for other in right))])

    async def _without(self, ways: Sequence[tuple[Host, Host]]) -> None:
        for one, other in ways:
            await trio.to_thread.run_sync(one.never_answers, other)
        await self._last()
        for one, other in ways:
            await trio.to_thread.run_sync(one.answers, other)

    async def _flap(self) -> None:
        """The link of one host goes and comes."""
        host = self._hosts()[0]
        for _ in range(self._choice.randrange(3, 10)):
            await in_thread(host.cut_off)
            await trio.sleep(self._choice.uniform(0.05, 0.6))
            await in_thread(host.join)
            await trio.sleep(self._choice.uniform(0.05, 0.6))

    async def _lose(self) -> None:
        """Packets of some hosts are lost."""
        chosen = self._hosts()[:2]
        for each in chosen:
            await trio.to_thread.run_sync(each.lose)
        await self._last()
        for each in chosen:
            self._counts["lost packets"] += await trio.to_thread.run_sync(each.lost_packets)
            await in_thread(each.lose_nothing)
