"""Several threads: what `read`, `read_nowait` and `marks` return while another thread commits."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import trio

from replog.abc import Storage
from replog.protocol.batch import Batch
from replog.protocol.mutations import DropLedger, Mutation, PutBatch, SetMarks
from replog.testing.storage_conformance.background import Background
from replog.testing.storage_conformance.batches import make_batch, puts
from replog.testing.storage_conformance.candidate import PLENTY_BYTES, Candidate, expect
from replog.testing.storage_conformance.model import told

_LOOK_S = 0.0002  # between commits, so that readers see each state, however quick the storage is
_PAUSE_S = 0.00005  # between looks: a thread that never yields delays all others for the interpreter's lock
_AT_ANY_TIME = "read, marks: by any thread at any time, also during a commit"


def _watched(looks: Sequence[Callable[[random.Random], None]], commit_all: Callable[[], None]) -> None:
    """Commit, while each of these functions is called again and again in a thread of its own, and once more at the end."""
    is_over = threading.Event()

    def watch(look: Callable[[random.Random], None], seed: int) -> None:
        chance = random.Random(seed)
        while not is_over.is_set():
            look(chance)
            time.sleep(_PAUSE_S)
        look(chance)

    watchers = [Background(partial(watch, look, seed), f"reader {seed}") for seed, look in enumerate(looks)]
    try:
        commit_all()
    finally:
        is_over.set()
    for watcher in watchers:
        watcher.result(_AT_ANY_TIME)


# -- what was seen stays ------------------------------------------------------------------------------------------


def check_threads(candidate: Candidate) -> None:
    batches = [make_batch(1, 5 * number, 5, size_bytes=300, last_add_confirmed=5 * number - 1) for number in range(300)]
    with candidate.opened() as storage:
        watchers = [_Watcher(storage, batches) for _ in range(2)]

        def commit_all() -> None:
            for at in range(0, len(batches), 3):
                storage.commit(puts(batches[at : at + 3]))
                time.sleep(_LOOK_S)

        _watched([watcher.look for watcher in watchers], commit_all)
        for watcher in watchers:
            expect(watcher.seen == len(batches), _AT_ANY_TIME, watcher.seen)


class _Watcher:
    """Read during commits: a batch that was seen once stays, and all batches are right."""

    def __init__(self, storage: Storage, batches: Sequence[Batch]) -> None:
        self._storage = storage
        self._batches = batches
        self.seen = 0

    def look(self, chance: random.Random) -> None:
        """One read; `seen` is how many batches it returned before."""
        marks = self._storage.marks(1)
        count = 0 if marks is None else (marks.last_entry_id + 1) // 5
        why = "a reader sees a mutation only when it is durable: it never vanishes"
        expect(count >= self.seen, why, (count, self.seen))
        at = chance.randrange(len(self._batches))
        found = self._storage.read(1, 5 * at + 2, 1, 2000)
        expect(bool(found) or at >= count, "read: empty only if the entry is proven absent", (at, count))
        expect(found == list(self._batches[at : at + len(found)]), "read: while others commit", found)
        self.seen = count


# -- the order within a commit ------------------------------------------------------------------------------------

_GROUPS = 150
_GROUP_BATCHES = 8


def check_order_seen(candidate: Candidate) -> None:
    """Each commit has batches of one ledger, and a fence term before, between and after them."""
    groups = [
        [make_batch(1, 2 * (_GROUP_BATCHES * at + index), 2, size_bytes=200) for index in range(_GROUP_BATCHES)]
        for at in range(_GROUPS)
    ]
    committed = [0]  # how many commits have returned

    def look(storage: Storage, chance: random.Random) -> None:
        """Read the later mutation first: if it is there, the earlier one must be there, too."""
        returned = committed[0]
        at = min(_GROUPS - 1, max(0, returned + chance.choice((-1, 0, 0, 0, 1))))
        later, earlier = sorted((chance.randrange(_GROUP_BATCHES), chance.randrange(_GROUP_BATCHES)), reverse=True)
        is_later = bool(storage.read(1, groups[at][later].last_entry_id, 1, 0))
        is_earlier = bool(storage.read(1, groups[at][earlier].last_entry_id, 1, 0))
        why = "commit: in this order; a reader never sees a later mutation of a ledger without an earlier one"
        expect(is_earlier or not is_later, why, f"{groups[at][later]} is there, {groups[at][earlier]} is not")
        expect(is_later or at >= returned, "commit: seen by every thread once it has returned", groups[at][later])
        _expect_marks_fit(storage, groups, returned, why)

    with candidate.opened() as storage:

        def commit_all() -> None:
            for at, batches in enumerate(groups):
                half = _GROUP_BATCHES // 2
                mutations: list[Mutation] = [
                    SetMarks(1, None, 3 * at + 1),
                    *puts(batches[:half]),
                    SetMarks(1, None, 3 * at + 2),
                    *puts(batches[half:]),
                    SetMarks(1, None, 3 * at + 3),
                ]
                storage.commit(mutations)
                committed[0] = at + 1
                time.sleep(_LOOK_S)

        _watched([partial(look, storage)] * 2, commit_all)


def _expect_marks_fit(storage: Storage, groups: Sequence[Sequence[Batch]], returned: int, why: str) -> None:
    """The fence term and the last entry belong to the same commit, and the entries up to it can be read."""
    marks = storage.marks(1)
    if marks is None:
        expect(not returned, "commit: seen by every thread once it has returned", "marks(1) is None")
        return
    at, part = divmod(marks.fence_term - 1, 3)
    half = _GROUP_BATCHES // 2
    first = 2 * _GROUP_BATCHES * at - 1  # the last entry before the group
    least = first + 2 * half * part
    most = first + 2 * half * min(2, part + 1)
    expect(least <= marks.last_entry_id <= most, f"marks: of one moment; {why}", marks)
    expect(at + 1 >= returned, "commit: seen by every thread once it has returned", marks)
    if marks.last_entry_id >= 0:
        found = storage.read(1, marks.last_entry_id, 1, 0)
        expect(bool(found), "marks: last_entry_id is the highest that is stored", (marks, found))


# -- read_nowait --------------------------------------------------------------------------------------------------

_KEPT, _FIRST_DROPPED = 1, 100
_NOWAIT = "read_nowait: as `read`, but raises `trio.WouldBlock` rather than wait for a disk"


def check_read_nowait(candidate: Candidate) -> None:
    """One ledger grows, others are dropped, and three readers compare."""
    kept = [make_batch(_KEPT, 3 * at, size_bytes=300) for at in range(300)]
    dropped = [make_batch(_FIRST_DROPPED + at, 0, size_bytes=300) for at in range(300)]
    # How many commits, and how many deletions, have returned.
    progress = [0, 0]

    def look(storage: Storage, chance: random.Random) -> None:
        at = max(0, min(len(kept) - 1, progress[0] - chance.choice((-1, 0, 0, 1, 2, 100))))
        _compare(storage, (_KEPT, 3 * at + 1, 1), chance.choice((0, 1000, 10_000, PLENTY_BYTES)))
        gone = max(0, progress[1] - chance.choice((0, 1, 2, 50)))
        is_gone = gone < progress[1]
        found = _nowait(storage, (_FIRST_DROPPED + gone, 1, 1), 0)
        right = not found if is_gone else found in ([], [dropped[gone]])
        expect(found is None or right, f"{_NOWAIT}; what was dropped is gone (B6)", found)

    with candidate.opened() as storage:

        def commit_all() -> None:
            for at in range(len(kept)):
                storage.commit([PutBatch(kept[at]), PutBatch(dropped[at])])
                progress[0] = at + 1
                time.sleep(_LOOK_S)
                if at >= 5:
                    storage.commit([DropLedger(_FIRST_DROPPED + at - 5)])
                    progress[1] = at - 4
                    time.sleep(_LOOK_S)

        _watched([partial(look, storage)] * 3, commit_all)
    with candidate.opened() as storage:
        for at in range(0, len(kept), 7):
            _compare(storage, (_KEPT, 3 * at + 2, 1), 2000)


def _nowait(storage: Storage, entry: tuple[int, int, int], bytes_max: int) -> list[Batch] | None:
    try:
        return storage.read_nowait(*entry, bytes_max)
    except trio.WouldBlock:
        return None


def _compare(storage: Storage, entry: tuple[int, int, int], bytes_max: int) -> None:
    """A ledger that only grows: what was there before the read must be returned, and what is returned must be there after it."""
    before = storage.read(*entry, bytes_max)
    found = _nowait(storage, entry, bytes_max)
    after = storage.read(*entry, bytes_max)
    if found is None:
        return
    words = f"{told(found)}; before it, `read` gave {told(before)}, after it {told(after)}"
    expect(bool(found) or not before, f"{_NOWAIT}: never empty for what is there", words)
    expect(found == after[: len(found)], _NOWAIT, words)


CHECKS: tuple[Callable[[Candidate], None], ...] = (check_threads, check_order_seen, check_read_nowait)
