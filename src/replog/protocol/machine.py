"""The base of the machines that change a ledger's record: one CAS at a time, and its answers (M1)."""

from __future__ import annotations

from abc import ABC, abstractmethod

import attrs

from replog.errors import LedgerNotFoundError, ReplogError
from replog.protocol.compare_and_set import Change, Settled
from replog.protocol.effects import Effect, ReadMetadata, WriteMetadata
from replog.protocol.model import LedgerMetadata


class LedgerMachine(ABC):
    """The base of `LedgerWriting` and `LedgerRecovery`. Once `is_done`, every call changes nothing."""

    def __init__(self, metadata: LedgerMetadata, version: int, nonce: str, looks_at: int | None = None) -> None:
        self.quorum = metadata.quorum
        self._change: Change[LedgerMetadata] = Change(metadata, version, nonce)
        self.effects: list[Effect] = []  # that `take_effects` returns next
        # An entry that an index chunk may have: its fragment is loaded whenever the record is read again (M4).
        self._looks_at = looks_at

    @property
    def metadata(self) -> LedgerMetadata:
        """The record as it is known to be durable in the metastore."""
        return self._change.record

    @property
    def version(self) -> int:
        """The version of `metadata`."""
        assert self._change.version is not None, "a ledger that a machine works on has a record"
        return self._change.version

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """True if the machine finished or failed."""

    def take_effects(self) -> list[Effect]:
        """Returns the effects to perform, in their order, and forgets them."""
        effects, self.effects = self.effects, []
        return effects

    def abandon(self, error: ReplogError) -> None:
        """Fails the machine, because a deadline has passed (W6)."""
        if not self.is_done:
            self._fail(error)

    # -- what the metastore said ------------------------------------------------------------------------------------

    def metadata_written(self, version: int) -> None:
        """The CAS under way succeeded."""
        if not self.is_done:
            self._change.written(version)
            self._change.record = self._change.record.settled()
            self._settle()

    def metadata_conflict(self) -> None:
        """The CAS under way met another version: another client changed the record, or an earlier copy of this CAS did."""
        if not self.is_done:
            self.effects.append(ReadMetadata(self.metadata.ledger_id, self._looks_at))

    def metadata_uncertain(self) -> None:
        """The answer to the CAS under way was lost: it may have happened, and may yet happen (M1)."""
        self.metadata_conflict()

    def metadata_silent(self, error: ReplogError) -> None:
        """The metastore did not answer in time, or could not: what a change under way has done is unknown."""
        self.abandon(error)

    def metadata_missing(self) -> None:
        """The record is gone: another client deleted the ledger."""
        if not self.is_done:
            problem = "another client deleted it while it was being recovered"
            # Nobody but a deletion removes a record, so there is nothing left to write or recover.
            self._fail(LedgerNotFoundError(self.metadata.ledger_id, problem))

    def metadata_read(self, metadata: LedgerMetadata, version: int) -> None:
        """The record as it was read after a conflict or a lost answer."""
        if self.is_done:
            return
        proposed = self._change.proposed
        assert proposed is not None, "the record is read back only for a proposal"
        settled = self._change.read_back(metadata, version)
        if settled is Settled.REPEAT:
            self._repeat()
        elif settled is Settled.WRITTEN:
            self._settle()
        else:
            self._lost(metadata, proposed)

    def _propose(self, metadata: LedgerMetadata, *, is_claim: bool = False) -> None:
        assert metadata.ledger_id == self.metadata.ledger_id, "a machine changes its own ledger's record"
        # A claim changes nothing of what there is: of a record that went back, it must not make one that looks newer (M5).
        revision = self.metadata.revision + (not is_claim)
        self._change.propose(attrs.evolve(metadata.packed(self.version), revision=revision))
        self._repeat()

    def _repeat(self) -> None:
        assert self._change.proposed is not None, "there is something to write"
        self.effects.append(WriteMetadata(self._change.proposed, self.version))

    @abstractmethod
    def _settle(self) -> None:
        """Applies the proposed record, which is now written."""

    @abstractmethod
    def _lost(self, metadata: LedgerMetadata, proposed: LedgerMetadata) -> None:
        """Somebody else changed the record first: it says this now."""

    @abstractmethod
    def _fail(self, error: ReplogError) -> None:
        """Ends the machine."""
