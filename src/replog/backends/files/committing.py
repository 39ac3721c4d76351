"""Commits: which records a commit writes, and what they change in the index once they are durable (B1-B3).

The order is: plan the records, make room for them, write and sync them as one group of the journal, then change the
index. A reader sees only indexed entries, so it never reads entries that are not durable yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from replog.backends.fences import raised
from replog.backends.files.journal import Journal, Record
from replog.backends.files.log_file import Place
from replog.backends.files.maintenance import Maintenance
from replog.backends.files.open_parts import Contents
from replog.backends.files.record import (
    RECORD_HEADER_BYTES,
    MarksOfLedger,
    RecordType,
    pack_drop,
    pack_drop_entries,
    pack_marks,
    payload_checksum,
    sealed_checksum,
)
from replog.protocol.batch import Batch
from replog.protocol.mutations import DropEntries, Marks, Mutation, PutBatch, SetMarks
from replog.runtime.kernel_sync import KernelSync

# A batch, all marks of a ledger, a ledger to drop, entries to drop
Change = Batch | MarksOfLedger | int | DropEntries


class Plan:
    """The records of one commit, and what they change, in the same order."""

    __slots__ = ("changes", "has_batches", "records", "size")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.changes: list[Change] = []
        self.has_batches = False
        self.size = 0

    def stores(self, ledger_id: int) -> bool:
        """True if a batch of this ledger is stored."""
        return any(isinstance(each, Batch) and each.ledger_id == ledger_id for each in self.changes)

    def add(self, record_type: RecordType, payload: bytes, change: MarksOfLedger | int | DropEntries) -> None:
        """Adds the record of something else than a batch."""
        self.records.append((record_type, payload, payload_checksum(payload)))
        self.changes.append(change)
        self.size += RECORD_HEADER_BYTES + len(payload)


class Committer:
    """Makes mutations durable, one commit at a time: the caller holds the storage's commit lock."""

    def __init__(self, contents: Contents, journal: Journal, maintenance: Maintenance) -> None:
        self._contents = contents
        self._index = contents.index
        self._journal = journal
        self._maintenance = maintenance
        self._is_journal_elsewhere = bool(contents.options.journal_dir)
        self._has_dropped = False
        self.commits = 0
        self.batches = 0
        self.bytes = 0

    def plan(self, mutations: Sequence[Mutation]) -> Plan:
        """The records that these mutations need, and what they change. Changes nothing."""
        plan = Plan()
        ledgers, deleted = self._index.ledgers, self._index.deleted
        dropped: set[int] = set()
        marks: dict[int, MarksOfLedger] = {}
        for mutation in mutations:
            if isinstance(mutation, PutBatch):
                batch = mutation.batch
                ledger_id = batch.ledger_id
                # The known ledgers first: nearly always that is enough, and it is cheaper than a search in ranges.
                if (ledger_id in ledgers or ledger_id not in deleted) and ledger_id not in dropped:
                    data = batch.data
                    checksum = sealed_checksum(data) if batch.is_sealed else payload_checksum(data)
                    # As `add`, which would be a call for each batch.
                    plan.records.append((RecordType.BATCH, data, checksum))
                    plan.changes.append(batch)
                    plan.has_batches = True
                    plan.size += RECORD_HEADER_BYTES + len(data)
            elif mutation.ledger_id in deleted or mutation.ledger_id in dropped:
                continue
            elif isinstance(mutation, SetMarks):
                after = self._raise_marks(mutation, marks.get(mutation.ledger_id))
                if after is not None:
                    marks[mutation.ledger_id] = after
                    plan.add(RecordType.MARKS, pack_marks(*after), after)
            elif isinstance(mutation, DropEntries):
                ledger_id = mutation.ledger_id
                # Replay knows ledgers that were stored later: what changes nothing now must change nothing then.
                if ledger_id in ledgers or ledger_id in marks or plan.stores(ledger_id):
                    numbers = mutation.stamp, mutation.first_entry_id, mutation.last_entry_id, mutation.stride
                    plan.add(RecordType.DROP_ENTRIES, pack_drop_entries(ledger_id, *numbers), mutation)
            else:
                dropped.add(mutation.ledger_id)
                plan.add(RecordType.DROP, pack_drop(mutation.ledger_id), mutation.ledger_id)
        return plan

    def _raise_marks(self, wanted: SetMarks, before: MarksOfLedger | None) -> MarksOfLedger | None:
        """All marks of the ledger after the change, or None if nothing changes."""
        ledger_id = wanted.ledger_id
        ledger = self._index.ledgers.get(ledger_id)
        if before is None and ledger is not None:
            numbers = ledger.fence_term, ledger.last_add_confirmed
            before = (ledger_id, ledger.key, *numbers, ledger.proof, ledger.revision)
        _, key, fence_term, confirmed, proof, revision = before or (ledger_id, None, 0, -1, b"", 0)
        marks = raised(Marks(key, fence_term, confirmed, proof=proof, revision=revision), wanted)
        after = (ledger_id, marks.key, marks.fence_term, marks.last_add_confirmed, marks.proof, marks.revision)
        return None if after == before else after

    def write(self, plan: Plan) -> None:
        """Writes the records durably, then changes the index.

        Raises `StorageFullError`: then nothing was written; other errors: then the outcome is unknown (B1)."""
        journal = self._journal
        if self._is_journal_elsewhere and plan.has_batches:
            # Only batches wait. Fences must not, and deletions are what frees space.
            self._maintenance.wait_for_flush()
        journal.make_room(plan.size, keep_reserve=plan.has_batches)
        self._apply_all(plan, journal.write(plan.records))

    def begin(self, plan: Plan, sync: KernelSync) -> Callable[[OSError | None], None] | None:
        """Begins the sync of a commit without waiting for it. Returns the function that ends the commit, like
        `Journal.begin`; None, with nothing done, if it might wait for the disk or for a file. Raises the errors of
        `write` if the sync did not begin."""
        is_waiting = self._is_journal_elsewhere and plan.has_batches
        if is_waiting or not self._journal.has_room(plan.size, keep_reserve=plan.has_batches):
            return None
        places_after = self._journal.begin(plan.records, sync)
        return lambda problem: self._apply_all(plan, places_after(problem))

    def _apply_all(self, plan: Plan, places: Sequence[Place]) -> None:
        """Changes the index: the records of the plan are durable in these places."""
        journal = self._journal
        with self._contents.lock:
            for place, change in zip(places, plan.changes, strict=True):
                if isinstance(change, Batch):
                    self._index.put_batch(
                        change.ledger_id,
                        change.stamp,
                        change.first_entry_id,
                        change.last_entry_id,
                        change.stride,
                        change.last_add_confirmed,
                        place,
                    )
                    self.batches += 1
                    if self._contents.damages.known:
                        self._contents.damages.stored(change)
                else:
                    self._apply(change)
            for file in journal.rolled:
                # A commit that found no space afterwards may have rolled it long ago, and a checkpoint retired it.
                if not file.is_retired:
                    self._contents.journal_file_is_full(file)
        self.bytes += plan.size
        if self._has_dropped or journal.rolled:
            self._has_dropped = False
            journal.rolled.clear()
            self._maintenance.commit_done()

    def _apply(self, change: MarksOfLedger | int | DropEntries) -> None:
        if isinstance(change, tuple):
            self._index.put_marks(*change)
        elif isinstance(change, DropEntries):
            entries = change.ledger_id, change.stamp, change.first_entry_id, change.last_entry_id, change.stride
            self._contents.cache.forget(self._index.drop_entries(*entries))
            self._has_dropped = True
            self._contents.damages.dropped_entries(change.ledger_id, change.stamp)
        else:
            self._contents.cache.forget(self._index.drop(change))
            self._has_dropped = True
            self._contents.damages.dropped(change)
