"""The exam of storages: what passes `check_storage` keeps the contract of `replog.abc.Storage`, as far as one process
without power losses can tell. Each failure cites the sentence or rule that it breaks."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import trio

from replog.abc import Storage
from replog.errors import StorageInUseError
from replog.protocol.batch import ENTRY_ID_MAX, Batch, build
from replog.protocol.digest import Digest, DigestType
from replog.protocol.mutations import DELETED_TERM, DropLedger, Marks, Mutation, PutBatch, SetMarks

OpenStorage = Callable[[Path], Storage]

_PLENTY_BYTES = 1 << 30
_THREAD_TIMEOUT_S = 60.0


def check_storage(open_storage: OpenStorage, directory: Path) -> None:
    """Examines a kind of storage. Raises AssertionError, with the sentence of the contract that does not hold.

    `open_storage(path)` opens what stands under the path, or makes it new if nothing does; opened again after `close`,
    it must hold what was committed. The exam uses paths below `directory`, which must exist and be empty, and leaves
    what it wrote there. It needs no test framework, takes a few seconds, and calls from several threads.
    """
    for check in _CHECKS:
        name = check.__name__.removeprefix("_check_")
        check(_Candidate(open_storage, directory / name))


class _Candidate:
    """The storage under examination, at one path."""

    def __init__(self, open_storage: OpenStorage, path: Path) -> None:
        self._open_storage = open_storage
        self.path = path

    @contextmanager
    def opened(self) -> Iterator[Storage]:
        storage = self._open_storage(self.path)
        try:
            yield storage
        finally:
            storage.close()

    def twice(self, mutations: Sequence[Mutation]) -> Iterator[Storage]:
        """The storage after these mutations, and the same after it was closed and opened again."""
        with self.opened() as storage:
            storage.commit(mutations)
            yield storage
        with self.opened() as storage:
            yield storage

    def sibling(self) -> _Candidate:
        return _Candidate(self._open_storage, self.path.with_name(self.path.name + "_2"))


def _expect(holds: bool, sentence: str, found: object) -> None:
    if not holds:
        raise AssertionError(f"broken contract of Storage: {sentence}\n  found: {found!r}")


def make_batch(
    ledger_id: int,
    first_entry_id: int,
    count: int = 3,
    *,
    stride: int = 1,
    stamp: int = 1,
    size_bytes: int = 20,
    last_add_confirmed: int | None = None,
    digest_type: DigestType = DigestType.CRC32C,
) -> Batch:
    """A batch with payloads that no other identity has."""
    ids = range(first_entry_id, first_entry_id + count * stride, stride)
    payloads = [(b"%d/%d/%d " % (ledger_id, entry_id, stamp)).ljust(size_bytes, b".")[:size_bytes] for entry_id in ids]
    return build(
        Digest(digest_type, ledger_id, b"password"),
        ledger_id=ledger_id,
        first_entry_id=first_entry_id,
        stride=stride,
        payloads=payloads,
        last_add_confirmed=min(first_entry_id - 1, -1 if last_add_confirmed is None else last_add_confirmed),
        stamp=stamp,
        timestamp_ns=first_entry_id & 0xFFFF,
        cumulative_length=size_bytes * count,
    )


def _puts(batches: Sequence[Batch]) -> list[Mutation]:
    return [PutBatch(batch) for batch in batches]


def _expect_read(
    storage: Storage, entry: tuple[int, int, int], bytes_max: int, wanted: Sequence[Batch], why: str
) -> None:
    ledger_id, entry_id, stamp = entry
    found = storage.read(ledger_id, entry_id, stamp, bytes_max)
    _expect(
        found == list(wanted), f"{why} [read({ledger_id}, {entry_id}, {stamp}, {bytes_max}), wanted {wanted}]", found
    )
    try:
        at_once = storage.read_nowait(ledger_id, entry_id, stamp, bytes_max)
    except trio.WouldBlock:
        return
    is_part = at_once == found[: len(at_once)] and bool(at_once) == bool(found)
    _expect(is_part, "read_nowait: as `read`, but raises `trio.WouldBlock` rather than wait for a disk", at_once)


# -- beginnings and ends ------------------------------------------------------------------------------------------


def _check_new(candidate: _Candidate) -> None:
    with candidate.opened() as storage:
        _expect(storage.ledger_ids() == [], "ledger_ids: all ledgers of which anything is known", storage.ledger_ids())
        _expect(storage.marks(7) is None, "marks: None if this storage proves that it never saw it", storage.marks(7))
        _expect_read(storage, (7, 0, 1), _PLENTY_BYTES, [], "read: empty if the entry is proven absent here")
        storage.commit([])
        _expect(storage.ledger_ids() == [], "commit: nothing committed changes nothing", storage.ledger_ids())
        numbers = dict(storage.statistics())
        named = all(isinstance(name, str) and isinstance(value, int | float) for name, value in numbers.items())
        _expect(named, "statistics: counters and gauges by names", numbers)


def _check_identity(candidate: _Candidate) -> None:
    with candidate.opened() as storage, candidate.sibling().opened() as other:
        bookie_id = storage.bookie_id
        _expect(bool(bookie_id), "bookie_id: the random identity made at format (B4)", bookie_id)
        _expect(bookie_id != other.bookie_id, "a new storage holds an identity of its own (B4)", bookie_id)
    with candidate.opened() as storage:
        _expect(storage.bookie_id == bookie_id, "the identity is kept for ever (B4)", (bookie_id, storage.bookie_id))


def _check_one_opener(candidate: _Candidate) -> None:
    with candidate.opened():
        try:
            candidate._open_storage(candidate.path).close()
        except StorageInUseError:
            pass
        else:
            _expect(False, "who opens what is open already gets StorageInUseError", "no error")
    with candidate.opened():
        pass


def _check_closed(candidate: _Candidate) -> None:
    with candidate.opened() as storage:
        storage.commit([PutBatch(make_batch(1, 0))])
    storage.close()  # idempotent
    calls: dict[str, Callable[[], object]] = {
        "commit": lambda: storage.commit([SetMarks(1, fence_term=2)]),
        "read": lambda: storage.read(1, 0, 1, 100),
        "read_nowait": lambda: storage.read_nowait(1, 0, 1, 100),
        "marks": lambda: storage.marks(1),
        "ledger_ids": storage.ledger_ids,
    }
    for name, call in calls.items():
        try:
            answer = call()
        except trio.ClosedResourceError:
            continue
        _expect(False, f"{name} after close raises trio.ClosedResourceError", answer)
    with candidate.opened() as again:
        marks = again.marks(1)
        _expect(marks is not None and marks.fence_term == 0, "what is called after close changes nothing", marks)


# -- writing and reading ------------------------------------------------------------------------------------------


def _check_durable(candidate: _Candidate) -> None:
    batches = [make_batch(3, 0), make_batch(3, 3, 4), make_batch(3, 7, 1, digest_type=DigestType.HMAC_SHA256)]
    with candidate.opened() as storage:
        storage.commit([*_puts(batches[:2]), SetMarks(3, b"key", 5, 2)])
        storage.commit(_puts(batches[2:]))
    for _ in range(2):
        with candidate.opened() as storage:
            _expect_read(
                storage, (3, 0, 1), _PLENTY_BYTES, batches, "commit: durable when it returns, byte for byte (B1)"
            )
            marks = storage.marks(3)
            _expect(marks == Marks(b"key", 5, 2, 7), "commit: marks are durable when it returns (R3)", marks)


def _check_read(candidate: _Candidate) -> None:
    batches = [make_batch(1, first, 10, size_bytes=50) for first in range(0, 60, 10)]
    others = [make_batch(2, 0, 10), make_batch(1, 20, 10, stamp=2), make_batch(1, 35, 1, stamp=3)]
    size = len(batches[0].data)
    for storage in candidate.twice(_puts([*batches, *others])):
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
                (_PLENTY_BYTES, batches[2:], "read: up to the last one"),
            ]
            for bytes_max, wanted, why in expect:
                _expect_read(storage, (1, entry_id, 1), bytes_max, wanted, why)
        _expect_read(storage, (1, 25, 2), _PLENTY_BYTES, others[1:2], "read: only batches of this stamp (T3)")
        _expect_read(storage, (2, 5, 1), _PLENTY_BYTES, others[:1], "read: only batches of this ledger")
        _expect_read(
            storage, (1, 60, 1), _PLENTY_BYTES, [], "read: empty if the entry is proven absent, whatever stands before"
        )
        _expect_read(storage, (1, 35, 2), _PLENTY_BYTES, [], "read: empty if the entry is absent under this stamp (T3)")
        _expect_read(storage, (1, 0, 9), _PLENTY_BYTES, [], "read: empty if nothing has this stamp (T3)")


def _check_holes(candidate: _Candidate) -> None:
    batches = [make_batch(1, 10), make_batch(1, 20), make_batch(1, 30)]
    for storage in candidate.twice(_puts(batches)):
        for entry_id in (0, 9, 13, 19, 23, 33, ENTRY_ID_MAX):
            _expect_read(
                storage, (1, entry_id, 1), _PLENTY_BYTES, [], "read: an entry in a hole is absent, never another one"
            )
        _expect_read(storage, (1, 12, 1), _PLENTY_BYTES, batches, "read: those that start after it, holes or not")


def _check_strides(candidate: _Candidate) -> None:
    batches = []
    for gathering in range(4):
        start = gathering * 5 * 7
        batches += [make_batch(1, start + index, 7, stride=5) for index in range(5)]
    batches += [make_batch(1, 140 + index, 1, stride=5) for index in range(3)]
    kept = [batch for batch in batches if batch.first_entry_id % 5 != 2]  # as a bookie outside of that write set
    for storage in candidate.twice(_puts(kept)):
        for entry_id in range(145):
            at = next((at for at, batch in enumerate(kept) if batch.holds(entry_id)), None)
            wanted = [] if at is None else kept[at:]
            _expect_read(
                storage, (1, entry_id, 1), _PLENTY_BYTES, wanted, "read: batches of one gathering interleave (W1)"
            )


def _check_order_of_arrival(candidate: _Candidate) -> None:
    batches = [make_batch(1, 0, 500), *(make_batch(1, 500 + 2 * at, 2) for at in range(60))]
    arrivals = batches[:]
    random.Random(4).shuffle(arrivals)
    with candidate.opened() as storage:
        for batch in arrivals:
            storage.commit([PutBatch(batch)])
    with candidate.opened() as storage:
        why = "read: in order of their first ids, in whatever order they came (recovery fills holes)"
        for at, batch in enumerate(batches):
            _expect_read(storage, (1, batch.last_entry_id, 1), _PLENTY_BYTES, batches[at:], why)


def _check_idempotent(candidate: _Candidate) -> None:
    batches = [make_batch(1, 0), make_batch(1, 3), make_batch(1, 6)]
    for storage in candidate.twice(_puts([*batches, *batches])):
        storage.commit(_puts(batches))
        why = "commit: the same batch again changes nothing, it is read once (T3)"
        _expect_read(storage, (1, 1, 1), _PLENTY_BYTES, batches, why)
        _expect_read(storage, (1, 4, 1), _PLENTY_BYTES, batches[1:], why)


def _check_extremes(candidate: _Candidate) -> None:
    last = make_batch(ENTRY_ID_MAX, ENTRY_ID_MAX - 2, 3, stamp=DELETED_TERM - 1, last_add_confirmed=ENTRY_ID_MAX - 3)
    empty = make_batch(0, 0, 5, size_bytes=0)
    wide = make_batch(5, 0, 2, stride=1 << 31)
    large = make_batch(6, 0, 5, size_bytes=1 << 20, digest_type=DigestType.HMAC_SHA256)
    for storage in candidate.twice([*_puts([last, empty, wide, large]), SetMarks(0, b"", DELETED_TERM - 1)]):
        why = "read: ids, stamps and sizes up to their limits"
        _expect_read(storage, (ENTRY_ID_MAX, ENTRY_ID_MAX, DELETED_TERM - 1), 1, [last], why)
        _expect_read(storage, (0, 4, 1), 1, [empty], why)
        _expect_read(storage, (5, 1 << 31, 1), 1, [wide], why)
        _expect_read(storage, (5, 1, 1), 1, [], why)
        _expect_read(storage, (6, 4, 1), 1, [large], why)
        marks = storage.marks(ENTRY_ID_MAX)
        _expect(marks == Marks(None, 0, ENTRY_ID_MAX - 3, ENTRY_ID_MAX), "marks: up to the highest id", marks)
        _expect(
            storage.marks(0) == Marks(b"", DELETED_TERM - 1, -1, 4), "marks: an empty key is a key", storage.marks(0)
        )


def _check_many(candidate: _Candidate) -> None:
    ledger_ids = [7919 * number % 100_003 for number in range(1, 401)]
    batches = [make_batch(ledger_id, first) for first in (0, 3, 6) for ledger_id in ledger_ids]
    for storage in candidate.twice(_puts(batches)):
        _expect(storage.ledger_ids() == sorted(ledger_ids), "ledger_ids: in ascending order", storage.ledger_ids())
        for ledger_id in ledger_ids[::40]:
            wanted = [batch for batch in batches if batch.ledger_id == ledger_id]
            _expect_read(
                storage, (ledger_id, 2, 1), _PLENTY_BYTES, wanted, "read: many ledgers in one commit stay apart"
            )


# -- marks and deletion -------------------------------------------------------------------------------------------


def _check_marks(candidate: _Candidate) -> None:
    steps: list[tuple[list[Mutation], Marks]] = [
        ([SetMarks(1, fence_term=2)], Marks(None, 2, -1, -1)),  # a ledger never seen before is fenced just the same
        ([SetMarks(1, fence_term=1)], Marks(None, 2, -1, -1)),
        ([SetMarks(1, key=b"first")], Marks(b"first", 2, -1, -1)),
        ([SetMarks(1, key=b"second", last_add_confirmed=4)], Marks(b"first", 2, 4, -1)),
        ([SetMarks(1, last_add_confirmed=3), SetMarks(1)], Marks(b"first", 2, 4, -1)),
        ([PutBatch(make_batch(1, 9, 3, last_add_confirmed=8))], Marks(b"first", 2, 8, 11)),
        ([PutBatch(make_batch(1, 3, 3, last_add_confirmed=2))], Marks(b"first", 2, 8, 11)),
        ([PutBatch(make_batch(1, 3, 3, stamp=2))], Marks(b"first", 2, 8, 11)),
        ([SetMarks(1, None, 3, 10), SetMarks(1, None, 5, 9), SetMarks(1, None, 4, 7)], Marks(b"first", 5, 10, 11)),
    ]
    why = (
        "marks: a fence term and last add confirmed only rise (batches' headers included), a key never changes (R3, T1)"
    )
    for mutations, wanted in steps:
        for storage in candidate.twice(mutations):
            found = storage.marks(1)
            _expect(found == wanted, f"{why} [after {mutations}, wanted {wanted}]", found)
    with candidate.opened() as storage:
        _expect(storage.ledger_ids() == [1], "ledger_ids: also of ledgers that are only fenced", storage.ledger_ids())


def _check_drop(candidate: _Candidate) -> None:
    gone = Marks(fence_term=DELETED_TERM)
    kept = make_batch(2, 0)
    before: list[Mutation] = [
        PutBatch(make_batch(1, 0)),
        SetMarks(1, b"key", 2, 1),
        PutBatch(kept),
        SetMarks(4, b"", 3),
    ]
    late: list[Mutation] = [PutBatch(make_batch(1, 3)), SetMarks(1, b"other", 7, 2)]
    with candidate.opened() as storage:
        storage.commit(before)
    for mutations in ([DropLedger(1), DropLedger(4), DropLedger(99)], [DropLedger(1)], late):
        for storage in candidate.twice(mutations):
            _expect_read(storage, (1, 0, 1), _PLENTY_BYTES, [], "DropLedger: forget the entries of a ledger (B6)")
            _expect_read(
                storage, (1, 3, 1), _PLENTY_BYTES, [], "DropLedger: nothing is stored of it any more, for ever (L5)"
            )
            for ledger_id in (1, 4, 99):
                marks = storage.marks(ledger_id)
                _expect(
                    marks == gone, f"DropLedger: it stays fenced for ever, known or not [ledger {ledger_id}]", marks
                )
            _expect(storage.ledger_ids() == [2], "DropLedger: no longer listed among the ledgers", storage.ledger_ids())
            _expect_read(storage, (2, 0, 1), _PLENTY_BYTES, [kept], "DropLedger: other ledgers stay")


def _check_order_in_commit(candidate: _Candidate) -> None:
    mutations: list[Mutation] = [
        PutBatch(make_batch(1, 0)),
        SetMarks(1, b"key", 2),
        DropLedger(1),
        SetMarks(2, b"early"),
        SetMarks(2, b"late"),
        PutBatch(make_batch(1, 3)),
    ]
    for storage in candidate.twice(mutations):
        why = "commit: in this order"
        _expect(storage.ledger_ids() == [2], why, storage.ledger_ids())
        _expect(storage.marks(2) == Marks(b"early"), why, storage.marks(2))
        _expect_read(storage, (1, 0, 1), 1, [], why)
        _expect_read(storage, (1, 3, 1), 1, [], why)


# -- threads ------------------------------------------------------------------------------------------------------


def _check_threads(candidate: _Candidate) -> None:
    batches = [make_batch(1, 5 * number, 5, size_bytes=300, last_add_confirmed=5 * number - 1) for number in range(300)]
    done = threading.Event()

    def watch(seed: int) -> int:
        chance = random.Random(seed)
        seen = 0
        while not done.is_set():
            seen = _watch(storage, batches, seen, chance)
        return _watch(storage, batches, seen, chance)

    threads = ThreadPoolExecutor(2)
    with candidate.opened() as storage:
        try:
            watchers = [threads.submit(watch, seed) for seed in range(2)]
            for at in range(0, len(batches), 3):
                storage.commit(_puts(batches[at : at + 3]))
        finally:
            done.set()
            threads.shutdown(wait=False)
        for watcher in watchers:
            count = watcher.result(_THREAD_TIMEOUT_S)
            _expect(count == len(batches), "read: by any thread at any time, also during a commit", count)


def _watch(storage: Storage, batches: Sequence[Batch], seen: int, chance: random.Random) -> int:
    """One look during commits: what was seen once stays, and what is seen is right. Returns how many are there."""
    marks = storage.marks(1)
    count = 0 if marks is None else (marks.last_entry_id + 1) // 5
    _expect(count >= seen, "a reader sees a mutation only when it is durable: it never vanishes", (count, seen))
    at = chance.randrange(len(batches))
    found = storage.read(1, 5 * at + 2, 1, 2000)
    _expect(bool(found) or at >= count, "read: empty only if the entry is proven absent", (at, count))
    _expect(found == list(batches[at : at + len(found)]), "read: while others commit", found)
    return count


_CHECKS: tuple[Callable[[_Candidate], None], ...] = (
    _check_new,
    _check_identity,
    _check_one_opener,
    _check_closed,
    _check_durable,
    _check_read,
    _check_holes,
    _check_strides,
    _check_order_of_arrival,
    _check_idempotent,
    _check_extremes,
    _check_many,
    _check_marks,
    _check_drop,
    _check_order_in_commit,
    _check_threads,
)
