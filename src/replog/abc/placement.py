"""The seam of placement policies: which bookies store what."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from replog.protocol.model import LedgerMetadata
from replog.protocol.quorum import Quorum


class Random(Protocol):
    """The methods of `random.Random` that a placement policy may use."""

    def random(self) -> float:
        """A number in [0, 1)."""

    def shuffle(self, x: list[str]) -> None:
        """Shuffles this list in place."""


class PlacementPolicy(ABC):
    """Chooses the bookies of a ledger. Pure: no I/O, no state; the caller passes randomness.

    Availability comes before a policy's preferences (C8). The client passes connected bookies. Only if they are too few for an
    ensemble, it passes exactly as many as the ensemble needs, some of them away; it may then reorder the ensemble, so that
    enough bookies of every write set are connected (C7)."""

    __slots__ = ()

    @abstractmethod
    def choose_ensemble(self, quorum: Quorum, usable: Sequence[str], random: Random) -> tuple[str, ...]:
        """E distinct bookies for a new ledger.

        May raise `NotEnoughBookiesError` even if E bookies are usable: then no ledger is created. So a policy can insist on
        its preferences, at the cost of availability."""

    @abstractmethod
    def replace_bookies(
        self, metadata: LedgerMetadata, failed: Sequence[int], usable: Sequence[str], random: Random
    ) -> dict[int, str]:
        """Replacements by index, for as many of these failed indices of the last ensemble as possible.

        They are distinct, and not in the ensemble already (C2). {} if there are none."""

    @abstractmethod
    def read_order(self, write_set: Sequence[int], random: Random) -> list[int]:
        """These indices, in the order in which a reader asks them."""
