"""A storage in memory, under the scheme `memory`: for tests, and for bookies whose data may die with the process.

`memory:name` opens the content committed under this name before, as long as the process lives and `forget` is not
called. `memory:` alone is a new storage each time. It keeps every promise of `Storage`, but its data die with the
process.
"""

from __future__ import annotations

import threading
import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

import attrs
import trio

from replog.abc import Sighting, Storage, StoredRange
from replog.backends.dropped import DroppedEntries
from replog.backends.fences import raised
from replog.backends.holdings import Holdings
from replog.backends.ranges import LedgerRanges
from replog.errors import StorageInUseError
from replog.hookspecs import Backend, NoOptions, hookimpl
from replog.protocol.batch import Batch
from replog.protocol.mutations import DELETED_TERM, DropEntries, DropLedger, Marks, Mutation, PutBatch, SetMarks


class _Batches:
    """The batches of one ledger and stamp, in the order of their first ids."""

    def __init__(self) -> None:
        self.keys: list[tuple[int, int, int]] = []  # first id, last id, stride
        self._batches: list[Batch] = []
        self._reaches: list[int] = []  # the highest last id up to here: how far back an entry may hide

    def put(self, batch: Batch) -> None:
        key = (batch.first_entry_id, batch.last_entry_id, batch.stride)
        at = bisect_left(self.keys, key)
        if at < len(self.keys) and self.keys[at] == key:
            self._batches[at] = batch
            return
        self.keys.insert(at, key)
        self._batches.insert(at, batch)
        self._reaches.insert(at, max(batch.last_entry_id, self._reaches[at - 1] if at else -1))
        # Reaches never fall, so the first one that is high enough ends the change.
        for later in range(at + 1, len(self._reaches)):
            if self._reaches[later] >= batch.last_entry_id:
                break
            self._reaches[later] = batch.last_entry_id

    def drop(self, stamp: int, dropped: DroppedEntries) -> None:
        """Removes the batches of which all entries were dropped."""
        kept = [
            batch
            for batch in self._batches
            if not dropped.covers(stamp, batch.first_entry_id, batch.last_entry_id, batch.stride)
        ]
        self.keys = [(batch.first_entry_id, batch.last_entry_id, batch.stride) for batch in kept]
        self._batches = kept
        self._reaches = list(accumulate((batch.last_entry_id for batch in kept), max))

    def find(self, entry_id: int) -> int:
        """The position of the batch that holds the entry, or -1."""
        at = bisect_right(self.keys, entry_id, key=lambda key: key[0]) - 1
        # Where entries stripe, batches overlap: the one that holds the entry may begin well before the nearest.
        while at >= 0 and self._reaches[at] >= entry_id:
            if self._batches[at].holds(entry_id):
                return at
            at -= 1
        return -1

    def read(self, entry_id: int, bytes_max: int) -> list[Batch]:
        at = self.find(entry_id)
        if at < 0:
            return []
        found = [self._batches[at]]
        size = len(found[0].data)
        # Behind all batches with the same first id: they would say the same entries again.
        after = bisect_right(self.keys, self.keys[at][0], key=lambda key: key[0])
        for batch in self._batches[after:]:
            size += len(batch.data)
            if size > bytes_max:
                break
            found.append(batch)
        return found


@attrs.define
class _Ledger:
    marks: Marks = attrs.field(factory=Marks)  # those that `SetMarks` set; what batches say is beside them
    last_add_confirmed: int = -1
    last_entry_id: int = -1
    stamps: dict[int, _Batches] = attrs.field(factory=dict)
    dropped: DroppedEntries | None = None


@attrs.define(eq=False)
class _Content:
    """The content of the storage of one name."""

    bookie_id: str = attrs.field(factory=lambda: f"bookie-{uuid.uuid4().hex}")
    ledgers: dict[int, _Ledger] = attrs.field(factory=dict)
    deleted: LedgerRanges = attrs.field(factory=LedgerRanges)
    lock: threading.Lock = attrs.field(factory=threading.Lock)
    is_open: bool = False
    sighting: Sighting = attrs.field(factory=Sighting)
    commits: int = 0
    batches: int = 0


class MemoryStorage(Storage):
    """Keeps ledgers in this process. Each call after `close` raises `trio.ClosedResourceError`."""

    def __init__(self, content: _Content | None = None) -> None:
        self._content = content or _Content()
        self._is_closed = False

    @property
    def bookie_id(self) -> str:
        """The random identity made at format (B4)."""
        return self._content.bookie_id

    @property
    def is_instant(self) -> bool:
        """There is no disk to wait for."""
        return True

    def sighting(self) -> Sighting:
        """The last sighting of the metastore (`Storage.sighting`)."""
        with self._opened() as content:
            return content.sighting

    def keep_sighting(self, sighting: Sighting) -> None:
        """Keeps a sighting of the metastore (`Storage.keep_sighting`)."""
        with self._opened() as content:
            content.sighting = sighting

    def commit(self, mutations: Sequence[Mutation]) -> None:
        """Commits the mutations (`Storage.commit`); it is never full and never fails."""
        with self._opened() as content:
            for mutation in mutations:
                self._apply(content, mutation)
            content.commits += 1

    def _apply(self, content: _Content, mutation: Mutation) -> None:
        match mutation:
            case PutBatch(Batch(ledger_id=ledger_id)) | SetMarks(ledger_id) if ledger_id in content.deleted:
                pass  # it is gone permanently
            case PutBatch(batch):
                ledger = content.ledgers.get(batch.ledger_id) or content.ledgers.setdefault(batch.ledger_id, _Ledger())
                batches = ledger.stamps.get(batch.stamp) or ledger.stamps.setdefault(batch.stamp, _Batches())
                batches.put(batch)
                if ledger.dropped is not None:
                    ledger.dropped.stored(batch.stamp, batch.first_entry_id, batch.last_entry_id, batch.stride)
                ledger.last_add_confirmed = max(ledger.last_add_confirmed, batch.last_add_confirmed)
                ledger.last_entry_id = max(ledger.last_entry_id, batch.last_entry_id)
                content.batches += 1
            case SetMarks(ledger_id):
                ledger = content.ledgers.setdefault(ledger_id, _Ledger())
                ledger.marks = raised(ledger.marks, mutation)
            case DropLedger(ledger_id):
                content.ledgers.pop(ledger_id, None)
                content.deleted.add(ledger_id)
            case DropEntries(ledger_id, stamp, first, last, stride) if ledger_id in content.ledgers:
                ledger = content.ledgers[ledger_id]
                ledger.dropped = ledger.dropped or DroppedEntries()
                ledger.dropped.add(stamp, first, last, stride)
                if stamp in ledger.stamps:
                    ledger.stamps[stamp].drop(stamp, ledger.dropped)

    def read(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        """The batches from the entry on (`Storage.read`)."""
        with self._opened() as content:
            ledger = content.ledgers.get(ledger_id)
            batches = ledger.stamps.get(stamp) if ledger else None
            found = batches.read(entry_id, bytes_max) if batches else []
            if not found and ledger and ledger.dropped is not None:
                ledger.dropped.check(ledger_id, entry_id, stamp)
            return found

    def read_nowait(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        """The same as `read`, since there is no disk to wait for (`Storage.read_nowait`)."""
        return self.read(ledger_id, entry_id, stamp, bytes_max)

    def marks(self, ledger_id: int) -> Marks | None:
        """The ledger's marks, or None (`Storage.marks`)."""
        with self._opened() as content:
            if ledger_id in content.deleted:
                return Marks(fence_term=DELETED_TERM)
            ledger = content.ledgers.get(ledger_id)
            if ledger is None:
                return None
            confirmed = max(ledger.marks.last_add_confirmed, ledger.last_add_confirmed)
            return attrs.evolve(ledger.marks, last_add_confirmed=confirmed, last_entry_id=ledger.last_entry_id)

    def ledger_ids(self) -> list[int]:
        """The ids of all ledgers (`Storage.ledger_ids`)."""
        with self._opened() as content:
            return sorted(content.ledgers)

    def ranges(self, ledger_id: int) -> list[StoredRange]:
        """The stored ranges of a ledger (`Storage.ranges`)."""
        holdings = Holdings()
        with self._opened() as content:
            ledger = content.ledgers.get(ledger_id)
            for stamp, batches in ledger.stamps.items() if ledger else ():
                for first, last, stride in batches.keys:
                    holdings.add(stamp, first, last, stride)
        return holdings.ranges()

    def statistics(self) -> Mapping[str, float]:
        """The numbers of commits, batches and ledgers (`Storage.statistics`)."""
        with self._opened() as content:
            return {"commits": content.commits, "batches": content.batches, "ledgers": len(content.ledgers)}

    def close(self) -> None:
        """Closes the storage (`Storage.close`). Its contents stay in memory if it has a name."""
        with self._content.lock:
            if not self._is_closed:
                self._is_closed = True
                self._content.is_open = False

    def _opened(self) -> _Locked:
        return _Locked(self)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed


class _Locked:
    """The content under its lock, of a storage that is open."""

    __slots__ = ("_storage",)

    def __init__(self, storage: MemoryStorage) -> None:
        self._storage = storage

    def __enter__(self) -> _Content:
        content = self._storage._content
        content.lock.acquire()
        if self._storage.is_closed:
            content.lock.release()
            raise trio.ClosedResourceError("this storage was closed: open it again")
        return content

    def __exit__(self, *_: object) -> None:
        self._storage._content.lock.release()


_named: dict[str, _Content] = {}
_named_lock = threading.Lock()


def open_storage(name: str = "", options: NoOptions | None = None) -> MemoryStorage:
    """Opens the storage of this name; without a name, a new one that cannot be opened again. Raises `StorageInUseError`."""
    del options
    if not name:
        return MemoryStorage()
    with _named_lock:
        content = _named.setdefault(name, _Content())
        if content.is_open:
            raise StorageInUseError(f"memory storage {name!r} is open already", "Close it first")
        content.is_open = True
    return MemoryStorage(content)


def forget(name: str) -> None:
    """Gives up the memory of the storage of this name, as a disk that dies does. Unknown names are not an error."""
    with _named_lock:
        _named.pop(name, None)


@hookimpl
def replog_storages() -> list[Backend[Storage]]:
    """The scheme `memory`."""
    return [Backend("memory", open_storage, NoOptions, "ledgers in this process's memory: for tests")]
