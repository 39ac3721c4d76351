"""Opening and closing, and what one thread writes and reads."""

from __future__ import annotations

import random
from collections.abc import Callable

import trio

from replog.errors import StorageInUseError
from replog.protocol.batch import ENTRY_ID_MAX
from replog.protocol.digest import DigestType
from replog.protocol.mutations import DELETED_TERM, Marks, PutBatch, SetMarks
from replog.testing.storage_conformance.batches import make_batch, puts
from replog.testing.storage_conformance.candidate import PLENTY_BYTES, Candidate, expect, expect_read

# -- beginnings and ends ------------------------------------------------------------------------------------------


def check_new(candidate: Candidate) -> None:
    with candidate.opened() as storage:
        expect(storage.ledger_ids() == [], "ledger_ids: all ledgers of which anything is known", storage.ledger_ids())
        expect(storage.marks(7) is None, "marks: None if this storage proves that it never saw it", storage.marks(7))
        expect_read(storage, (7, 0, 1), PLENTY_BYTES, [], "read: empty if the entry is proven absent here")
        storage.commit([])
        expect(storage.ledger_ids() == [], "commit: nothing committed changes nothing", storage.ledger_ids())
        numbers = dict(storage.statistics())
        named = all(isinstance(name, str) and isinstance(value, int | float) for name, value in numbers.items())
        expect(named, "statistics: counters and gauges by names", numbers)


def check_identity(candidate: Candidate) -> None:
    with candidate.opened() as storage, candidate.sibling().opened() as other:
        bookie_id = storage.bookie_id
        expect(bool(bookie_id), "bookie_id: the random identity made at format (B4)", bookie_id)
        expect(bookie_id != other.bookie_id, "a new storage holds an identity of its own (B4)", bookie_id)
    with candidate.opened() as storage:
        expect(storage.bookie_id == bookie_id, "the identity never changes (B4)", (bookie_id, storage.bookie_id))


def check_one_opener(candidate: Candidate) -> None:
    with candidate.opened():
        try:
            candidate.open().close()
        except StorageInUseError:
            pass
        else:
            expect(False, "opening a storage that is open already raises StorageInUseError", "no error")
    with candidate.opened():
        pass


def check_closed(candidate: Candidate) -> None:
    with candidate.opened() as storage:
        storage.commit([PutBatch(make_batch(1, 0))])
    storage.close()  # idempotent
    calls: dict[str, Callable[[], object]] = {
        "commit": lambda: storage.commit([SetMarks(1, fence_term=2)]),
        "read": lambda: storage.read(1, 0, 1, 100),
        "read_nowait": lambda: storage.read_nowait(1, 0, 1, 100),
        "marks": lambda: storage.marks(1),
        "ledger_ids": storage.ledger_ids,
        "ranges": lambda: storage.ranges(1),
    }
    for name, call in calls.items():
        try:
            answer = call()
        except trio.ClosedResourceError:
            continue
        expect(False, f"{name} after close raises trio.ClosedResourceError", answer)
    with candidate.opened() as again:
        marks = again.marks(1)
        expect(marks is not None and marks.fence_term == 0, "what is called after close changes nothing", marks)


# -- writing and reading ------------------------------------------------------------------------------------------


def check_durable(candidate: Candidate) -> None:
    batches = [make_batch(3, 0), make_batch(3, 3, 4), make_batch(3, 7, 1, digest_type=DigestType.HMAC_SHA256)]
    with candidate.opened() as storage:
        storage.commit([*puts(batches[:2]), SetMarks(3, b"key", 5, 2)])
        storage.commit(puts(batches[2:]))
    for _ in range(2):
        with candidate.opened() as storage:
            expect_read(
                storage, (3, 0, 1), PLENTY_BYTES, batches, "commit: durable when it returns, byte for byte (B1)"
            )
            marks = storage.marks(3)
            expect(marks == Marks(b"key", 5, 2, 7), "commit: marks are durable when it returns (R3)", marks)


def check_read(candidate: Candidate) -> None:
    batches = [make_batch(1, first, 10, size_bytes=50) for first in range(0, 60, 10)]
    others = [make_batch(2, 0, 10), make_batch(1, 20, 10, stamp=2), make_batch(1, 35, 1, stamp=3)]
    size = len(batches[0].data)
    for storage in candidate.twice(puts([*batches, *others])):
        # The first entry of the batch, one in the middle, and its last one: all mean the same batch.
        for entry_id in (20, 25, 29):
            expect = [
                (
                    3 * size,
                    batches[2:5],
                    "read: then those that start after it, while their bytes fit into `bytes_max`",
                ),
                (3 * size - 1, batches[2:4], "read: only while their bytes fit into `bytes_max`"),
                (1, batches[2:3], "read: the first one always fits"),
                (0, batches[2:3], "read: the first one always fits"),
                (PLENTY_BYTES, batches[2:], "read: up to the last one"),
            ]
            for bytes_max, wanted, why in expect:
                expect_read(storage, (1, entry_id, 1), bytes_max, wanted, why)
        expect_read(storage, (1, 25, 2), PLENTY_BYTES, others[1:2], "read: only batches of this stamp (T3)")
        expect_read(storage, (2, 5, 1), PLENTY_BYTES, others[:1], "read: only batches of this ledger")
        expect_read(
            storage, (1, 60, 1), PLENTY_BYTES, [], "read: empty if the entry is proven absent, whatever is before it"
        )
        expect_read(storage, (1, 35, 2), PLENTY_BYTES, [], "read: empty if the entry is absent under this stamp (T3)")
        expect_read(storage, (1, 0, 9), PLENTY_BYTES, [], "read: empty if nothing has this stamp (T3)")


def check_holes(candidate: Candidate) -> None:
    batches = [make_batch(1, 10), make_batch(1, 20), make_batch(1, 30)]
    for storage in candidate.twice(puts(batches)):
        for entry_id in (0, 9, 13, 19, 23, 33, ENTRY_ID_MAX):
            expect_read(
                storage, (1, entry_id, 1), PLENTY_BYTES, [], "read: an entry in a hole is absent, never another one"
            )
        expect_read(storage, (1, 12, 1), PLENTY_BYTES, batches, "read: those that start after it, holes or not")


def check_strides(candidate: Candidate) -> None:
    batches = []
    for gathering in range(4):
        start = gathering * 5 * 7
        batches += [make_batch(1, start + index, 7, stride=5) for index in range(5)]
    batches += [make_batch(1, 140 + index, 1, stride=5) for index in range(3)]
    kept = [batch for batch in batches if batch.first_entry_id % 5 != 2]  # as a bookie outside of that write set
    for storage in candidate.twice(puts(kept)):
        for entry_id in range(145):
            at = next((at for at, batch in enumerate(kept) if batch.holds(entry_id)), None)
            wanted = [] if at is None else kept[at:]
            expect_read(
                storage, (1, entry_id, 1), PLENTY_BYTES, wanted, "read: batches of one gathering interleave (W1)"
            )


def check_order_of_arrival(candidate: Candidate) -> None:
    batches = [make_batch(1, 0, 500), *(make_batch(1, 500 + 2 * at, 2) for at in range(60))]
    arrivals = batches[:]
    random.Random(4).shuffle(arrivals)
    with candidate.opened() as storage:
        for batch in arrivals:
            storage.commit([PutBatch(batch)])
    with candidate.opened() as storage:
        why = "read: in order of their first ids, in whatever order they came (recovery fills holes)"
        for at, batch in enumerate(batches):
            expect_read(storage, (1, batch.last_entry_id, 1), PLENTY_BYTES, batches[at:], why)


def check_idempotent(candidate: Candidate) -> None:
    batches = [make_batch(1, 0), make_batch(1, 3), make_batch(1, 6)]
    for storage in candidate.twice(puts([*batches, *batches])):
        storage.commit(puts(batches))
        why = "commit: the same batch again changes nothing, it is read once (T3)"
        expect_read(storage, (1, 1, 1), PLENTY_BYTES, batches, why)
        expect_read(storage, (1, 4, 1), PLENTY_BYTES, batches[1:], why)


def check_extremes(candidate: Candidate) -> None:
    last = make_batch(ENTRY_ID_MAX, ENTRY_ID_MAX - 2, 3, stamp=DELETED_TERM - 1, last_add_confirmed=ENTRY_ID_MAX - 3)
    empty = make_batch(0, 0, 5, size_bytes=0)
    wide = make_batch(5, 0, 2, stride=1 << 31)
    large = make_batch(6, 0, 5, size_bytes=1 << 20, digest_type=DigestType.HMAC_SHA256)
    for storage in candidate.twice([*puts([last, empty, wide, large]), SetMarks(0, b"", DELETED_TERM - 1)]):
        why = "read: ids, stamps and sizes up to their limits"
        expect_read(storage, (ENTRY_ID_MAX, ENTRY_ID_MAX, DELETED_TERM - 1), 1, [last], why)
        expect_read(storage, (0, 4, 1), 1, [empty], why)
        expect_read(storage, (5, 1 << 31, 1), 1, [wide], why)
        expect_read(storage, (5, 1, 1), 1, [], why)
        expect_read(storage, (6, 4, 1), 1, [large], why)
        marks = storage.marks(ENTRY_ID_MAX)
        expect(marks == Marks(None, 0, ENTRY_ID_MAX - 3, ENTRY_ID_MAX), "marks: up to the highest id", marks)
        expect(
            storage.marks(0) == Marks(b"", DELETED_TERM - 1, -1, 4), "marks: an empty key is a key", storage.marks(0)
        )


def check_many(candidate: Candidate) -> None:
    ledger_ids = [7919 * number % 100_003 for number in range(1, 401)]
    batches = [make_batch(ledger_id, first) for first in (0, 3, 6) for ledger_id in ledger_ids]
    for storage in candidate.twice(puts(batches)):
        expect(storage.ledger_ids() == sorted(ledger_ids), "ledger_ids: in ascending order", storage.ledger_ids())
        for ledger_id in ledger_ids[::40]:
            wanted = [batch for batch in batches if batch.ledger_id == ledger_id]
            expect_read(storage, (ledger_id, 2, 1), PLENTY_BYTES, wanted, "read: many ledgers in one commit stay apart")


CHECKS: tuple[Callable[[Candidate], None], ...] = (
    check_new,
    check_identity,
    check_one_opener,
    check_closed,
    check_durable,
    check_read,
    check_holes,
    check_strides,
    check_order_of_arrival,
    check_idempotent,
    check_extremes,
    check_many,
)
