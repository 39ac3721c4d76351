"""The requests of a machine to its shell. The shell performs effects in the order in which it takes them.

A machine never waits: the result of an effect comes back later as a call of one of the machine's methods.
"""

from __future__ import annotations

import attrs

from replog.errors import ReplogError
from replog.protocol.batch import Batch
from replog.protocol.model import LedgerMetadata


@attrs.define
class SendAdd:
    """Send the batch to the bookie at this index of the ensemble. With `recovery`, the request carries
    the proof of the frozen last add confirmed (R5, R11). Answer: `add_confirmed`, `add_fenced` or `bookie_failed`."""

    index: int
    bookie_id: str
    batch: Batch
    recovery: bool = False
    proof: bytes = b""


@attrs.define
class SendLastAddConfirmed:
    """Publish this last add confirmed, with its proof (W5, R11). A hint: of its answers only `add_fenced` matters."""

    index: int
    bookie_id: str
    last_add_confirmed: int
    proof: bytes


@attrs.define
class SendFence:
    """Fence the ledger on this bookie (R2). Answer: `fence_confirmed`, or `bookie_unreachable`; silence needs no answer."""

    index: int
    bookie_id: str


@attrs.define
class SendRecoveryRead:
    """Read the entry on this bookie, fencing (R4). Answer: `read_found`, `read_absent`, `read_unknown`, or
    `bookie_unreachable`; silence needs no answer."""

    index: int
    bookie_id: str
    entry_id: int
    stamp: int


@attrs.define
class AwaitSilentBookies:
    """Enough bookies deny an entry, and others neither refuse nor answer: wait for these as long as the options say. Answer:
    `silent_awaited`. The wait began with the recovery, but where one of them `has_answered` before: then it begins now."""

    has_answered: bool = False


@attrs.define
class SendRead:
    """Read the batch that holds this entry, and what follows it (D1). Answer: `read_found`, `read_absent`, `read_unknown`.

    If `archive` names one, its copy is read in place of the bookie."""

    index: int
    bookie_id: str
    entry_id: int
    stamp: int
    archive: str


@attrs.define
class SendReadLastAddConfirmed:
    """Ask for a last add confirmed above `after` (D1), and for the batches from this entry on, if the bookie has them at hand.
    Answer: `last_add_confirmed_answered`."""

    index: int
    bookie_id: str
    after: int
    entry_id: int
    stamp: int


@attrs.define
class AskHolding:
    """Ask this bookie which of these entries it holds (F3). Answer: `holding_told` or `holding_unknown`, also for silence."""

    bookie_id: str
    stamp: int
    first_entry_id: int
    last_entry_id: int


@attrs.define
class SendCopyRead:
    """Read the batch that holds this entry, and what follows it, to copy them. Answer: `copies_found` or `copies_unreadable`."""

    bookie_id: str
    entry_id: int
    stamp: int


@attrs.define
class SendCopy:
    """Store this batch there, verbatim, with the term of the ledger's record (F2). Answer: `copy_stored`, `copy_refused` or
    `copy_fenced`."""

    bookie_id: str
    batch: Batch
    term: int


@attrs.define
class ReadEntries:
    """Read some entries from this one on, none behind the last one, as a reader of the ledger gets them. Answer:
    `entries_read`."""

    first_entry_id: int
    last_entry_id: int


@attrs.define
class PutObject:
    """Create the object of these entries in the archive (`archived.pack`), and read back what the store has. Answer:
    `object_stored`."""

    first_entry_id: int
    last_entry_id: int
    batches: tuple[Batch, ...]


@attrs.define
class Delivered:
    """These entries can be handed out: all ids from the first to the last, which these batches hold between them.
    A batch may reach beyond either end: trim it (R7)."""

    first_entry_id: int
    last_entry_id: int
    batches: tuple[Batch, ...]


@attrs.define
class ChooseReplacements:
    """Ask the placement for bookies at these indices, none of `excluded`. Answer: `replacements_chosen`, if need be with {}."""

    metadata: LedgerMetadata
    failed: tuple[int, ...]
    excluded: frozenset[str]


@attrs.define
class WriteMetadata:
    """CAS the ledger's record on this version. Answer: `metadata_written`, `metadata_conflict` or `metadata_uncertain`."""

    metadata: LedgerMetadata
    expected: int


@attrs.define
class ReadMetadata:
    """Reread the ledger's record, with the fragment of the entry `at` even if that is in a chunk (M4). Answer: `metadata_read` or
    `metadata_missing`."""

    ledger_id: int
    at: int | None = None


@attrs.define
class Confirmed:
    """All entries up to this one are confirmed (W2)."""

    last_add_confirmed: int


@attrs.define
class Finished:
    """The machine is done: the ledger is closed, or its fragment filled, as this metadata says."""

    metadata: LedgerMetadata
    version: int


@attrs.define
class Failed:
    """The machine is done: nothing more is confirmed. The error says what is known."""

    error: ReplogError


Effect = (
    SendAdd
    | SendLastAddConfirmed
    | SendFence
    | SendRecoveryRead
    | AwaitSilentBookies
    | SendRead
    | SendReadLastAddConfirmed
    | AskHolding
    | SendCopyRead
    | SendCopy
    | ReadEntries
    | PutObject
    | Delivered
    | ChooseReplacements
    | WriteMetadata
    | ReadMetadata
    | Confirmed
    | Finished
    | Failed
)
