"""The state machines of these tests, and members that run them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs

import replog
from replog.machine.options import MachineTuning
from tests.kit import ONE, Cluster

OPTIONS = MachineTuning(call_timeout_s=60.0)


@attrs.define
class Counters(replog.StateMachine):
    values: dict[str, int] = attrs.field(factory=dict)

    @replog.command
    def add(self, name: str, amount: int = 1) -> int:
        self.values[name] = self.values.get(name, 0) + amount
        return self.values[name]

    @replog.command
    def take(self, name: str, amount: int) -> int:
        """Fails behind its change, so that tests see that this counts."""
        self.values[name] = self.values.get(name, 0) - amount
        if self.values[name] < 0:
            raise ValueError(f"{name} is {self.values[name]}")
        return self.values[name]

    @replog.command
    def time(self) -> int:
        return self.now_ns


@asynccontextmanager
async def member(
    cluster: Cluster,
    machine: type[replog.StateMachine] = Counters,
    options: replog.MachineOptions = OPTIONS,
    client_options: replog.ClientOptions | None = None,
    *,
    password: bytes = b"",
) -> AsyncIterator[replog.RunningMachine[Counters]]:
    """A member with a client of its own."""
    quorum = ONE if len(cluster.bookies) == 1 else None
    async with cluster.client(client_options, quorum) as client:
        async with client.run_machine("counters", machine, listen=(), options=options, password=password) as running:
            yield running  # type: ignore[misc]
