"""The shared objects of all clients of one run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tests.simulator.bookies import SimulatedBookie
from tests.simulator.invariants import Oracle
from tests.simulator.metastore import SimulatedMetastore


class Recovery(Protocol):
    """A recovery, as other recoveries of the same ledger see it."""

    ledger_id: int
    is_reading: bool

    @property
    def has_ended(self) -> bool:
        """Whether its machine is done."""


class Setting:
    """The metastore and the bookies that clients use, and the oracle that watches them."""

    def __init__(self, oracle: Oracle, metastore: SimulatedMetastore, bookies: Mapping[str, SimulatedBookie]) -> None:
        self.oracle = oracle
        self.metastore = metastore
        self.bookies = bookies
        self.declared_lost: dict[str, None] = {}  # bookies, by an operator
        self.recoveries: list[Recovery] = []
