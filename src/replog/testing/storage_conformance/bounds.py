"""Sizes: commits of many bytes and of many batches, ledgers of many batches, many ledgers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from replog.abc import Storage
from replog.protocol.batch import BATCH_BYTES_MAX, Batch
from replog.protocol.mutations import Marks, PutBatch, SetMarks
from replog.testing.storage_conformance.batches import make_batch, puts
from replog.testing.storage_conformance.candidate import PLENTY_BYTES, Candidate, expect, expect_read
from replog.testing.storage_conformance.model import told

_MEBIBYTE = 1 << 20
_LARGEST_PAYLOAD_BYTES = (BATCH_BYTES_MAX - 88) // 2  # two of them fill a batch


def check_large_commit(candidate: Candidate) -> None:
    batches = [make_batch(1, 4 * at, 4, size_bytes=_MEBIBYTE // 4) for at in range(32)]
    largest = make_batch(2, 0, 2, size_bytes=_LARGEST_PAYLOAD_BYTES)
    assert len(largest.data) == BATCH_BYTES_MAX
    with candidate.opened() as storage:
        storage.commit(puts(batches))
        storage.commit([PutBatch(largest), SetMarks(2, b"key", 7)])
    with candidate.opened() as storage:
        why = "commit: durable when it returns, 32 MiB at once like anything else (B1)"
        expect_read(storage, (1, 0, 1), PLENTY_BYTES, batches, why)
        expect_read(storage, (1, 66, 1), 8 * _MEBIBYTE, batches[16:23], "read: while their bytes fit into `bytes_max`")
        expect_read(storage, (2, 1, 1), 0, [largest], "read: the first one always fits, the largest there is too")
        expect(storage.marks(2) == Marks(b"key", 7, -1, 1), why, storage.marks(2))


def check_many_in_one_commit(candidate: Candidate) -> None:
    batches = [make_batch(1, entry_id, 1, size_bytes=0) for entry_id in range(10_000)]
    size = len(batches[0].data)
    chance = random.Random(10_000)
    for storage in candidate.twice(puts(batches)):
        _expect_each_once(storage, batches, 500 * size, "commit: 10 000 batches at once, all of them (B1)")
        for _ in range(25):
            at, count = chance.randrange(len(batches)), chance.randrange(1, 400)
            why = "read: as many as fit into `bytes_max`, in however long a ledger"
            expect_read(storage, (1, at, 1), count * size + chance.randrange(size), batches[at : at + count], why)
        expect_read(
            storage, (1, 0, 1), PLENTY_BYTES, batches, "read: as many as fit into `bytes_max`, and no other limit"
        )
        expect_read(storage, (1, len(batches), 1), PLENTY_BYTES, [], "read: empty if the entry is proven absent")


def check_reading_on(candidate: Candidate) -> None:
    batches = [make_batch(1, 3 * at, 3, size_bytes=100) for at in range(2000)]
    with candidate.opened() as storage:
        for at in range(0, 2000, 50):
            storage.commit(puts(batches[at : at + 50]))
        for bytes_max in (0, 10_000, PLENTY_BYTES):
            _expect_each_once(storage, batches, bytes_max, "read: reading on gives each batch once, in order (D3)")
    with candidate.opened() as storage:
        _expect_each_once(storage, batches, 10_000, "read: reading on gives each batch once, in order (D3)")


def check_many_ledgers(candidate: Candidate) -> None:
    ledger_ids = [(7 * number) % 1000 + (1 << 40) * (number % 3) for number in range(1000)]
    rounds = [[make_batch(ledger_id, 2 * at, 2, size_bytes=50) for ledger_id in ledger_ids] for at in range(5)]
    with candidate.opened() as storage:
        for batches in rounds:
            for at in range(0, 1000, 100):
                storage.commit(puts(batches[at : at + 100]))
    for is_major in (False, True):
        with candidate.opened() as storage:
            expect(
                storage.ledger_ids() == sorted(ledger_ids), "ledger_ids: all, in ascending order", storage.ledger_ids()
            )
            # All of them, and once more some of them, when the storage has put them in order.
            for at, ledger_id in list(enumerate(ledger_ids))[:: 4 if is_major else 1]:
                why = "read: a thousand ledgers written in turn stay apart"
                expect_read(storage, (ledger_id, 0, 1), PLENTY_BYTES, [batches[at] for batches in rounds], why)
            storage.compact(is_major=is_major)


def _expect_each_once(storage: Storage, batches: Sequence[Batch], bytes_max: int, why: str) -> None:
    ledger_id, entry_id, at = batches[0].ledger_id, 0, 0
    while at < len(batches):
        found = storage.read(ledger_id, entry_id, 1, bytes_max)
        wanted = batches[at : at + max(1, len(found))]
        if found != wanted:
            expect(False, f"{why} [from entry {entry_id} on, wanted {told(wanted)}]", told(found))
        at += len(found)
        entry_id = found[-1].last_entry_id + 1


CHECKS: tuple[Callable[[Candidate], None], ...] = (
    check_large_commit,
    check_many_in_one_commit,
    check_reading_on,
    check_many_ledgers,
)
