"""A compare-and-set of a record whose answer may be lost (M1).

The proposal carries a token that nobody else uses. Unless the metastore answered "written", the record is read back:
our token means written; the expected version means that the same proposal may be sent again (at most one of the two can
apply); anything else means that another change was first.
"""

from __future__ import annotations

import enum
from typing import Generic, TypeVar

import attrs

from replog.protocol.model import LedgerMetadata, LogMetadata

Record = TypeVar("Record", bound=LedgerMetadata | LogMetadata)


class Settled(enum.Enum):
    """The outcome of a proposal, as the record shows it when it is read back."""

    WRITTEN = enum.auto()
    REPEAT = enum.auto()
    LOST = enum.auto()


class Change(Generic[Record]):
    """The proposals of one machine: one at a time. `nonce` must be unique to the machine: 128 random bits.

    A version of None means that the record does not exist: then the proposal creates it."""

    def __init__(self, record: Record, version: int | None, nonce: str) -> None:
        self.record = record
        self.version = version
        self.proposed: Record | None = None
        self._nonce = nonce
        self._attempts = 0

    def propose(self, record: Record) -> Record:
        """Returns what to write: a new proposal for the known version."""
        assert self.proposed is None, "one change at a time (C1)"
        self._attempts += 1
        self.proposed = attrs.evolve(record, token=f"{self._nonce}.{self._attempts}")
        return self.proposed

    def written(self, version: int) -> None:
        """The proposal is true now, as this version."""
        assert self.proposed is not None, "only what was proposed is written"
        self.record, self.version, self.proposed = self.proposed, version, None

    def read_back(self, record: Record, version: int | None) -> Settled:
        """Compares the record with the proposal. WRITTEN and LOST adopt the record."""
        assert self.proposed is not None, "only a proposal is read back"
        # Nothing was written, or not yet: if the lost attempt still arrives, only one of the two finds this version.
        if record.token != self.proposed.token and version == self.version:
            return Settled.REPEAT
        settled = Settled.WRITTEN if record.token == self.proposed.token else Settled.LOST
        self.record, self.version, self.proposed = record, version, None
        return settled
