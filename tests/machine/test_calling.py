"""How a member finds its machine's leader."""

from __future__ import annotations

from itertools import pairwise

import attrs
import pytest
import trio
import trio.testing

from replog.errors import CommandTimeoutError
from replog.machine.calling import Caller
from replog.machine.context import MachineContext
from replog.machine.entries import Kind, MachineEntry
from replog.metastores.memory import MemoryMetastore
from tests.machine.counters import OPTIONS


class Watched(MemoryMetastore):
    """Notes when somebody looks for a leader."""

    def __init__(self) -> None:
        super().__init__()
        self.looked_at_s: list[float] = []

    async def announced(self, key: str) -> dict[str, bytes]:
        self.looked_at_s.append(trio.current_time())
        return await super().announced(key)


def no_transport(_: object) -> object:
    raise AssertionError("nobody is announced")


async def test_leader_is_looked_for_more_often_than_a_takeover_is_long(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A leader that is announced at any time is found a tenth of that time later, and no process asks without a pause."""
    metastore = Watched()
    options = attrs.evolve(OPTIONS, call_timeout_s=20.0)
    caller = Caller("m", MachineContext(metastore, no_transport, no_transport, None), options, b"")  # type: ignore[arg-type]
    began_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(caller.run)
        with pytest.raises(CommandTimeoutError):
            await caller.ask(MachineEntry(Kind.READ))
        nursery.cancel_scope.cancel()
    for before_s, after_s in pairwise(metastore.looked_at_s):
        assert after_s - before_s <= max(0.021, min(0.101 * (before_s - began_s), 0.501))
    assert len(metastore.looked_at_s) < 100
