"""The seam of placement policies: which bookies store what."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol

import attrs

from replog.protocol.model import LedgerMetadata
from replog.protocol.quorum import Quorum


class Random(Protocol):
    """The methods of `random.Random` that a placement policy may use."""

    def random(self) -> float:
        """A number in [0, 1)."""

    def shuffle(self, x: list[str]) -> None:
        """Shuffles this list in place."""


class BookieState(enum.Enum):
    """The uses of a bookie, from the most to the least useful."""

    WRITABLE = "writable"
    DRAINING = "draining"  # it takes entries, but will be stopped permanently: used only where others are too few (C8)
    READ_ONLY = "read-only"  # it takes no new entries (B5, B10)
    AWAY = "away"  # known, and not announced


@attrs.frozen
class Candidate:
    """The facts about a bookie that a placement policy gets.

    `labels` are those that its configuration and plugins give it, like `{"zone": "a"}`. `free_bytes` may be a minute old, and is
    None if the bookie has not reported it, or the policy does not ask for it (`PlacementPolicy.uses_free_bytes`)."""

    bookie_id: str
    labels: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    free_bytes: int | None = None
    state: BookieState = BookieState.WRITABLE


class PlacementPolicy(ABC):
    """Chooses the bookies of a ledger. Pure: no I/O, no state; the caller passes randomness.

    Availability comes before a policy's preferences (C8). The client passes connected, writable bookies. Only if they are too few
    for an ensemble, it passes exactly as many as the ensemble needs, some of them draining or away; it may then reorder the
    ensemble, so that enough bookies of every write set are connected (C7).

    `replog.testing.check_placement` is the conformance suite."""

    __slots__ = ()

    uses_labels = True
    """False if labels are of no use to the policy: then the client does not look up those of bookies that are away."""

    uses_free_bytes = True
    """False if `free_bytes` is of no use to the policy: then the client does not read it from the metastore."""

    is_strict = False
    """True if no ledger is created, and no bookie replaced, where `shortfall` names something that is missing."""

    @abstractmethod
    def choose_ensemble(self, quorum: Quorum, candidates: Sequence[Candidate], random: Random) -> tuple[str, ...]:
        """The ids of E distinct bookies for a new ledger, by index.

        Raises `NotEnoughBookiesError` if there are too few of them; a strict policy also if no E of them meet its wishes: then no
        ledger is created."""

    @abstractmethod
    def replace_bookies(
        self,
        metadata: LedgerMetadata,
        failed: Sequence[int],
        candidates: Sequence[Candidate],
        members: Sequence[Candidate],
        random: Random,
    ) -> dict[int, str]:
        """Replacements by index, for as many of these failed indices of the last ensemble as possible.

        They are distinct candidates, and not in the ensemble already (C2). {} if there are none. `members` are the bookies of the
        last ensemble, by index, including the failed ones. A strict policy leaves out what would not meet its wishes."""

    @abstractmethod
    def read_order(self, write_set: Sequence[int], members: Sequence[Candidate], random: Random) -> list[int]:
        """The indices of the write set, in the order in which a reader asks them. `members` are the ensemble's bookies, by index.

        A client with the option `zone` asks the bookies of that zone before the others, otherwise in this order."""

    def shortfall(self, quorum: Quorum, members: Sequence[Candidate]) -> str:
        """The wishes of the policy that this ensemble does not meet, for people; "" if it meets them."""
        return ""
