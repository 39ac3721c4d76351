"""The reports of inspections. Sizes are in bytes, ids as the files have them; paths are as they were given."""

from __future__ import annotations

import attrs

from replog.abc import Doubt
from replog.backends.durable_mark import DOUBT_FILE, MARK_FILE, read_doubt, read_mark
from replog.backends.inspection.read_only import READ_ONLY
from replog.errors import RemoteProtocolError, StorageFailedError
from replog.protocol.batch import Batch, check_damage, decode
from replog.protocol.digest import DigestType

_DIGESTS = {DigestType.CRC32C: "crc32c", DigestType.HMAC_SHA256: "hmac-sha256"}


@attrs.frozen
class Problem:
    """Something is wrong at a place of a file. It makes an inspection fail if `is_damage`; otherwise it is only shown.

    `kind`: "damage"; "torn tail": the last group isn't whole, as after a power loss, or while it is being written; "gone":
    the file was removed, renamed or used again since its name was read; "unreadable": the system refused."""

    path: str
    offset: int
    kind: str
    reason: str

    @property
    def is_damage(self) -> bool:
        """Whether something that was durable can't be read."""
        return self.kind in ("damage", "unreadable")

    def __str__(self) -> str:
        return f"{self.path} at {self.offset}: {self.kind}: {self.reason}"


@attrs.define
class BatchReport:
    """A batch and its place. `timestamp_ns` is the writer's clock. `problem` says why it isn't intact, or is empty.

    `is_current`: it is the copy that reads get; False if a newer file has the same batch, or if the ledger is deleted."""

    path: str
    offset: int
    size_bytes: int
    ledger_id: int
    stamp: int
    first_entry_id: int
    last_entry_id: int
    stride: int
    entries: int
    last_add_confirmed: int
    timestamp_ns: int
    digest: str
    problem: str = ""
    is_current: bool = True


@attrs.define
class MarksReport:
    """The marks that a record sets. Of the key only whether there is one."""

    fence_term: int
    last_add_confirmed: int
    has_key: bool


@attrs.define
class RecordReport:
    """A record of a journal file or an entry log. `offset` is that of its header, `size_bytes` includes it.

    `ledger_id` is None for records of no ledger; `batches` has one in a BATCH record and several in a RUN, if it is intact;
    `detail` says in words what the other types hold, `fault` why what an intact record holds makes no sense."""

    path: str
    offset: int
    size_bytes: int
    type: str
    sequence: int
    position: int
    is_last_of_group: bool
    is_intact: bool
    ledger_id: int | None = None
    batches: list[BatchReport] = attrs.field(factory=list)
    marks: MarksReport | None = None
    detail: str = ""
    fault: str = ""


@attrs.define
class JournalFileReport:
    """A file of the journal. `used_bytes` is where its last whole group ends, `file_bytes` how long the file is.

    `state`: "full"; "current": the last one with groups, or the very first; "unused": prepared, never written to; "adopted":
    full, and indexed; "dropped": not needed any more; "spare": waits for reuse, what it holds means nothing; "gone";
    "unreadable": not even its header is."""

    path: str
    number: int | None
    state: str
    file_bytes: int = 0
    used_bytes: int = 0
    groups: int = 0
    records: int = 0
    batches: int = 0
    first_sequence: int | None = None
    last_sequence: int | None = None
    epoch: str | None = None
    problems: list[Problem] = attrs.field(factory=list)


@attrs.define
class LedgerUsage:
    """How much of a log file one ledger uses."""

    ledger_id: int
    batches: int
    batch_bytes: int
    is_deleted: bool = False


@attrs.define
class EntryLogReport:
    """An entry log, or a journal file that is the log. `source`: whether the "index" said it, or the file was read: "scan".

    `live_bytes` are those of ledgers that aren't deleted. `ledgers` are sorted by their bytes, the largest first."""

    path: str
    kind: str
    number: int
    age: int | None
    file_bytes: int = 0
    source: str = "scan"
    batches: int = 0
    batch_bytes: int = 0
    live_bytes: int = 0
    ledgers: list[LedgerUsage] = attrs.field(factory=list)
    problems: list[Problem] = attrs.field(factory=list)

    @property
    def live_share(self) -> float | None:
        """Of its batches' bytes those that are needed, or None if it has no batch."""
        return self.live_bytes / self.batch_bytes if self.batch_bytes else None


@attrs.define
class SectionReport:
    """One section of an index: the batches of one ledger and stamp."""

    ledger_id: int
    stamp: int
    first_entry_id: int
    last_entry_id: int
    batches: int
    batch_bytes: int
    page_offset: int
    is_intact: bool


@attrs.define
class IndexedBatch:
    """A batch as an index has it. `problem` is empty, or says how the log file differs, if it was compared."""

    path: str
    offset: int
    size_bytes: int
    ledger_id: int
    stamp: int
    first_entry_id: int
    last_entry_id: int
    stride: int
    problem: str = ""


@attrs.define
class IndexReport:
    """An index file. `verified_batches` is None unless it was compared with its log file."""

    path: str
    file_bytes: int = 0
    kind: str = ""
    number: int | None = None
    end_bytes: int = 0
    switches: int = 0
    batches: int = 0
    batch_bytes: int = 0
    sections: list[SectionReport] = attrs.field(factory=list)
    verified_batches: int | None = None
    problems: list[Problem] = attrs.field(factory=list)


@attrs.define
class Hole:
    """Ids that no batch here holds, from first to last by stride. If entries stripe, a hole alone is not a fault."""

    first_entry_id: int
    last_entry_id: int
    stride: int

    @property
    def entries(self) -> int:
        """How many ids."""
        return (self.last_entry_id - self.first_entry_id) // self.stride + 1


@attrs.define
class LedgerReport:
    """A storage's facts about a ledger. `holes` are at most the first thousand of `hole_count`; `absent_stripes` are
    the remainders by `stripes` of which no entry is here: another bookie's, where entries stripe (W1)."""

    ledger_id: int
    is_known: bool
    is_deleted: bool
    fence_term: int = 0
    last_add_confirmed: int = -1
    last_entry_id: int = -1
    has_key: bool = False
    batches: int = 0
    copies: int = 0
    batch_bytes: int = 0
    damaged_batches: int = 0
    stripes: int = 1
    absent_stripes: list[int] = attrs.field(factory=list)
    holes: list[Hole] = attrs.field(factory=list)
    hole_count: int = 0
    problems: list[Problem] = attrs.field(factory=list)


@attrs.define
class EntryReport:
    """One entry of a ledger."""

    ledger_id: int
    entry_id: int
    stamp: int
    payload: bytes


@attrs.define
class StorageReport:
    """A storage. `is_open` is None if the system does not say whether a process has it open; then `pid` is who had it last.

    Numbers are None where the storage has no such thing, or where the journal directory is needed to know them."""

    path: str
    storage: str
    version: int
    bookie_id: str
    is_open: bool | None
    pid: int | None
    journal_path: str | None
    total_bytes: int = 0
    journal_bytes: int | None = None
    spare_bytes: int | None = None
    entry_log_bytes: int | None = None
    index_bytes: int | None = None
    catalog_bytes: int | None = None
    free_bytes: int = 0
    journal_free_bytes: int | None = None
    ledgers: int = 0
    deleted_ledgers: int = 0
    journal_files: int | None = None
    adopted_files: int | None = None
    spare_files: int | None = None
    entry_logs: int | None = None
    batches: int | None = None
    batch_bytes: int | None = None
    live_bytes: int | None = None
    last_sequence: int | None = None
    catalog_generation: int | None = None
    first_journal_to_replay: int | None = None
    catalog_sequence: int | None = None
    durable_mark: int | None = None
    doubted_below: int | None = None
    lost_below: int | None = None
    doubt_reasons: list[str] = attrs.field(factory=list)
    problems: list[Problem] = attrs.field(factory=list)

    @property
    def live_share(self) -> float | None:
        """Of its batches' bytes those that are needed, or None if that isn't known, or there are no batches."""
        return None if self.live_bytes is None or not self.batch_bytes else self.live_bytes / self.batch_bytes


def report_batch(path: str, offset: int, data: bytes) -> BatchReport:
    """The batch with these bytes. If they are not a batch of this format, only its place and what is wrong."""
    try:
        batch = decode(data)
    except RemoteProtocolError as error:
        return BatchReport(path, offset, len(data), -1, 0, -1, -1, 1, 0, -1, 0, "", str(error))
    report = described(path, offset, batch)
    try:
        check_damage(batch)
    except RemoteProtocolError as error:
        report.problem = str(error)
    return report


def described(path: str, offset: int, batch: Batch) -> BatchReport:
    """The facts in a batch's header."""
    return BatchReport(
        path,
        offset,
        len(batch.data),
        batch.ledger_id,
        batch.stamp,
        batch.first_entry_id,
        batch.last_entry_id,
        batch.stride,
        batch.count,
        batch.last_add_confirmed,
        batch.timestamp_ns,
        _DIGESTS[batch.digest_type],
    )


# -- vouching ---------------------------------------------------------------------------------------------------------
#
# How far a storage was durable and what it doubts, as an inspection shows it (B8).


@attrs.frozen
class Vouching:
    """The durable mark and the doubt as they are now. `position` is None if the mark is unreadable."""

    position: int | None = None
    accounted: int = 0
    doubt: Doubt = attrs.field(factory=Doubt)
    problems: tuple[Problem, ...] = ()

    def describe(self, report: StorageReport) -> None:
        """Adds this to the report of the storage."""
        report.durable_mark = self.position
        report.doubted_below, report.lost_below = self.doubt.doubted_below, self.doubt.lost_below
        report.doubt_reasons = list(self.doubt.reasons)
        report.problems += self.problems


def read_vouching(directory: str, identity: bytes) -> Vouching:
    """The contents of both files, and their faults. Never raises."""
    problems: list[Problem] = []

    def note(name: str, why: str) -> None:
        problems.append(Problem(f"{directory}/{name}", 0, "damage", f"it {why}: the next start doubts every ledger"))

    slot = record = None
    try:
        slot, why = read_mark(READ_ONLY, directory, identity)
        if slot is None:
            note(MARK_FILE, why)
    except StorageFailedError as error:
        note(MARK_FILE, f"can't be read: {error}")
    try:
        record, why = read_doubt(READ_ONLY, directory, identity)
        if record is None:
            note(DOUBT_FILE, why)
    except StorageFailedError as error:
        note(DOUBT_FILE, f"can't be read: {error}")
    doubt = Doubt() if record is None else record.doubt
    if slot is not None:
        # Both files have the bounds, and the higher one counts: a crash may have come between writing one and the other.
        doubted_below, lost_below = max(doubt.doubted_below, slot.doubted_below), max(doubt.lost_below, slot.lost_below)
        doubt = attrs.evolve(doubt, doubted_below=doubted_below, lost_below=lost_below)
    position = None if slot is None else slot.position
    return Vouching(position, 0 if record is None else record.accounted, doubt, tuple(problems))
