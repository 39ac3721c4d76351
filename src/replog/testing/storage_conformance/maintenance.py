"""Compaction, scrubbing, damage, space and statistics: they change nothing that can be read, and end on `close`."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import trio

from replog.abc import Storage
from replog.protocol.batch import Batch
from replog.protocol.mutations import DELETED_TERM, DropLedger, Marks, Mutation, PutBatch, SetMarks
from replog.testing.storage_conformance.background import Background
from replog.testing.storage_conformance.batches import make_batch, puts
from replog.testing.storage_conformance.candidate import PLENTY_BYTES, Candidate, expect, expect_read
from replog.testing.storage_conformance.model import Model
from replog.testing.storage_conformance.workload import Workload

_NOTHING_CHANGES = "compact: what can be read stays the same throughout (B6)"
_HEALTHY = "damage: the damaged batches; there are none in a healthy storage"
_CLOSE_ENDS = "close: gives up files and locks; nobody who is busy with it makes it wait for long"
_STABLE_LEDGERS = (1001, 1002)


def _all_maintenance(storage: Storage) -> None:
    storage.compact()
    storage.compact(is_major=True)
    storage.scrub()
    _expect_healthy(storage)


def _expect_healthy(storage: Storage) -> None:
    damage = list(storage.damage())
    expect(not damage, _HEALTHY, damage)
    free_bytes = storage.free_bytes()
    is_count = free_bytes is None or (type(free_bytes) is int and free_bytes >= 0)
    expect(is_count, "free_bytes: how many bytes the disk still takes, or None if nothing limits it", free_bytes)
    numbers = dict(storage.statistics())
    named = all(type(name) is str and isinstance(value, int | float) for name, value in numbers.items())
    expect(named, "statistics: counters and gauges, by names", numbers)


# -- one thread ---------------------------------------------------------------------------------------------------


def check_maintenance_of_nothing(candidate: Candidate) -> None:
    """On a new storage, and again after everything was dropped."""
    with candidate.opened() as storage:
        _all_maintenance(storage)
        _all_maintenance(storage)
        expect(storage.ledger_ids() == [], _NOTHING_CHANGES, storage.ledger_ids())
        for ledger_id in range(1, 20):
            batches = [make_batch(ledger_id, 3 * at, size_bytes=1000) for at in range(10)]
            storage.commit([*puts(batches), SetMarks(ledger_id, b"key", 3)])
        storage.commit([DropLedger(ledger_id) for ledger_id in range(1, 20)])
        _all_maintenance(storage)
    for _ in range(2):
        with candidate.opened() as storage:
            expect(storage.ledger_ids() == [], "DropLedger: not listed, also after compact", storage.ledger_ids())
            for ledger_id in range(1, 20):
                why = "DropLedger: it stays fenced permanently, also after compact (L5)"
                expect(storage.marks(ledger_id) == Marks(fence_term=DELETED_TERM), why, storage.marks(ledger_id))
                expect_read(storage, (ledger_id, 1, 1), PLENTY_BYTES, [], "DropLedger: forget the entries (B6)")
            _all_maintenance(storage)


def check_compact(candidate: Candidate) -> None:
    """Between commits: data that is kept, dropped, and written again."""
    workload, model = Workload(11), Model()
    with candidate.opened() as storage:
        for _ in range(6):
            for _ in range(40):
                _commit_both(storage, model, workload.next_commit())
            for _ in range(2):
                _all_maintenance(storage)
                _expect_same(storage, model, _NOTHING_CHANGES)
    with candidate.opened() as storage:
        _expect_same(storage, model, "compact: what can be read stays the same, also after it is opened again (B6)")
        for ledger_id in model.ledger_ids:
            _commit_both(storage, model, [DropLedger(ledger_id)])
            storage.compact()
        storage.compact(is_major=True)
        _expect_same(storage, model, _NOTHING_CHANGES)
    with candidate.opened() as storage:
        _expect_same(storage, model, "compact: what was dropped stays so, also after it is opened again (B6, L5)")


def _commit_both(storage: Storage, model: Model, mutations: Sequence[Mutation]) -> None:
    storage.commit(mutations)
    model.commit(mutations)


def _expect_same(storage: Storage, model: Model, why: str) -> None:
    if wrong := model.difference(storage):
        expect(False, why, wrong)


def check_closed_maintenance(candidate: Candidate) -> None:
    with candidate.opened() as storage:
        storage.commit([PutBatch(make_batch(1, 0))])
    calls: dict[str, Callable[[], object]] = {
        "compact": storage.compact,
        "scrub": storage.scrub,
        "damage": storage.damage,
        "free_bytes": storage.free_bytes,
        "statistics": storage.statistics,
    }
    for name, call in calls.items():
        if getattr(type(storage), name) is getattr(Storage, name):
            # The seam's own default, which knows of no end.
            continue
        try:
            answer = call()
        except trio.ClosedResourceError:
            continue
        expect(False, f"{name} after close raises trio.ClosedResourceError", answer)


# -- several threads ----------------------------------------------------------------------------------------------


def check_compact_meanwhile(candidate: Candidate) -> None:
    """Maintenance while one thread commits and two read."""
    stable = {
        ledger_id: [make_batch(ledger_id, 3 * at, size_bytes=700) for at in range(60)] for ledger_id in _STABLE_LEDGERS
    }
    workload, model, done = Workload(12), Model(), threading.Event()

    def read(seed: int) -> None:
        chance = random.Random(seed)
        while not done.is_set():
            _read_some(storage, stable, chance)
            time.sleep(0.00005)  # a thread that never yields delays all others for the interpreter's lock

    def commit() -> None:
        for at in range(250):
            _commit_both(storage, model, workload.next_commit())
            if at % 10 == 0:
                garbage = make_batch(5000 + at, 0, size_bytes=5000)
                _commit_both(storage, model, [PutBatch(garbage)])
                _commit_both(storage, model, [DropLedger(5000 + at)])

    with candidate.opened() as storage:
        # In turn, so that there is something to put in order.
        for at in range(60):
            _commit_both(storage, model, puts([batches[at] for batches in stable.values()]))
        readers = [Background(partial(read, seed), f"reader {seed}") for seed in range(2)]
        writer = Background(commit, "writer")
        try:
            for at in range(1000):
                storage.compact(is_major=at % 2 == 1)
                storage.scrub()
                if writer.is_done:
                    break
                # So that a compaction without work does not starve the others.
                time.sleep(0.001)
        finally:
            done.set()
        for thread in (writer, *readers):
            thread.result("compact, scrub: commits and reads go on meanwhile")
        _expect_healthy(storage)
        _expect_same(storage, model, _NOTHING_CHANGES)
    with candidate.opened() as storage:
        _expect_same(storage, model, "compact: what was committed meanwhile is there when it is opened again (B1, B6)")


def _read_some(storage: Storage, stable: dict[int, list[Batch]], chance: random.Random) -> None:
    ledger_id = chance.choice(_STABLE_LEDGERS)
    batches = stable[ledger_id]
    at = chance.randrange(len(batches))
    expect_read(storage, (ledger_id, 3 * at + 1, 1), PLENTY_BYTES, batches[at:], _NOTHING_CHANGES)
    marks = storage.marks(ledger_id)
    expect(marks == Marks(None, 0, -1, 179), f"{_NOTHING_CHANGES} [marks of ledger {ledger_id}]", marks)
    listed = set(_STABLE_LEDGERS).issubset(storage.ledger_ids())
    expect(listed, "ledger_ids: all ledgers of which anything is known, also during compact", storage.ledger_ids())


def check_close_meanwhile(candidate: Candidate) -> None:
    """`close` while other threads compact, scrub, read and commit: all calls end, and nothing is lost."""
    chance = random.Random(13)
    crowd = _Crowd()
    for life in range(10):
        storage = candidate.open()
        try:
            crowd.settle(storage, life)
            crowd.work(storage)
            time.sleep(chance.random() * 0.03)  # not a wait: the moment at which it is closed
        finally:
            Background(storage.close, "close").result(_CLOSE_ENDS)
            crowd.go_home()
    with candidate.opened() as storage:
        crowd.settle(storage, 10)


class _Crowd:
    """Threads that use a storage until it is closed."""

    def __init__(self) -> None:
        self._workload = Workload(14)
        self._model = Model()
        self._in_flight: list[Mutation] | None = None
        self._is_over = threading.Event()
        self._threads: list[Background[None]] = []
        self._stable = [make_batch(_STABLE_LEDGERS[0], 3 * at, size_bytes=2000) for at in range(40)]

    def settle(self, storage: Storage, life: int) -> None:
        """Before other checks: everything is there, and the commit that `close` cut off completely or not at all."""
        self._model.settle(storage, self._in_flight, f"close: what was committed stays [{life} times in a crowd] (B1)")
        self._in_flight = None
        if not life:
            _commit_both(storage, self._model, puts(self._stable))

    def work(self, storage: Storage) -> None:
        """Start the threads; each calls one method again and again."""
        self._is_over.clear()
        calls: dict[str, Callable[[], object]] = {
            "compact": lambda: storage.compact(is_major=True),
            "minor compact": storage.compact,
            "scrub": storage.scrub,
            "read": lambda: self._read(storage),
            "commit": lambda: self._commit(storage),
        }
        self._threads = [Background(partial(self._repeat, call), name) for name, call in calls.items()]

    def go_home(self) -> None:
        """Every call returned, or raised that the storage is closed."""
        self._is_over.set()
        for thread in self._threads:
            thread.result(
                "compact, scrub: return early if the storage is closed meanwhile, and raise that it is closed"
            )

    def _repeat(self, call: Callable[[], object]) -> None:
        while not self._is_over.is_set():
            try:
                call()
            except trio.ClosedResourceError:
                return
            # So that what has nothing to do does not starve the others.
            time.sleep(0.0005)

    def _read(self, storage: Storage) -> None:
        entry = (_STABLE_LEDGERS[0], 60, 1)
        found = storage.read(*entry, PLENTY_BYTES)
        expect(found == self._stable[20:], f"{_NOTHING_CHANGES} [read{entry} while it is being closed]", found)

    def _commit(self, storage: Storage) -> None:
        self._in_flight = self._workload.next_commit()
        _commit_both(storage, self._model, self._in_flight)
        self._in_flight = None


CHECKS: tuple[Callable[[Candidate], None], ...] = (
    check_maintenance_of_nothing,
    check_compact,
    check_closed_maintenance,
    check_compact_meanwhile,
    check_close_meanwhile,
)
