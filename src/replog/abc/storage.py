"""The seam of storages: where one bookie keeps its ledgers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence

import attrs
import trio

from replog.protocol.batch import Batch
from replog.protocol.messages import Status
from replog.protocol.mutations import DropEntries, Marks, Mutation


@attrs.frozen
class Damage:
    """A stored batch that cannot be read: its identity (T3), and a description of the damage, for people."""

    ledger_id: int
    stamp: int
    first_entry_id: int
    last_entry_id: int
    description: str


@attrs.frozen
class StoredRange:
    """Entries that a storage holds under one stamp: first, first + stride, and so on up to the last."""

    stamp: int
    first_entry_id: int
    last_entry_id: int
    stride: int = 1


UNBOUNDED = (1 << 63) - 1  # above every ledger id: the doubt concerns every ledger, until `bound_doubt`


@attrs.frozen
class Doubt:
    """The ledgers for which a storage cannot vouch (B8): those with ids below some bounds.

    Below `doubted_below`, the storage cannot prove that it still has every entry that it made durable. Below `lost_below`,
    it knows that it lost some. `lost_below <= doubted_below`. `reasons` name files and offsets, for people.

    Below `fences_lost_below`, the storage was in doubt once, and may have lost fences. That bound never sinks: of a ledger that
    was deleted, nothing is left that could be fenced again. `fenced_again` are the ledgers below it that the bookie fenced again,
    and that may still have a writer."""

    doubted_below: int = 0
    lost_below: int = 0
    reasons: tuple[str, ...] = ()
    fences_lost_below: int = 0
    fenced_again: frozenset[int] = frozenset()

    @property
    def is_unbounded(self) -> bool:
        """True until `bound_doubt` says which ledgers existed before the storage was opened."""
        return self.doubted_below == UNBOUNDED

    def denial(self, ledger_id: int) -> Status:
        """The status that a bookie answers instead of "no such entry" in this ledger (R10)."""
        if ledger_id >= self.doubted_below:
            return Status.NO_ENTRY
        return Status.NO_ENTRY_AFTER_LOSS if ledger_id < self.lost_below else Status.NO_ENTRY_IN_DOUBT

    def takes_adds(self, ledger_id: int) -> bool:
        """True if the ledger's fence cannot have been lost: only then a writer's adds are taken."""
        if ledger_id < self.doubted_below:
            return False
        return ledger_id >= self.fences_lost_below or ledger_id in self.fenced_again

    def raised(self, reasons: tuple[str, ...], *, is_lost: bool) -> Doubt:
        """This doubt after the storage found less than it had: it concerns every ledger, and no fence is certain any more."""
        lost_below = UNBOUNDED if is_lost else self.lost_below
        return Doubt(UNBOUNDED, lost_below, reasons, self.fences_lost_below)

    def bounded(self, below_ledger_id: int) -> Doubt:
        """This doubt where ledgers with this id or a higher one are known to be later than the loss."""
        doubted, lost = (
            below_ledger_id if bound == UNBOUNDED else bound for bound in (self.doubted_below, self.lost_below)
        )
        return attrs.evolve(self, doubted_below=doubted, lost_below=lost)

    def settled(self, below_ledger_id: int, fenced: Iterable[int] = ()) -> Doubt:
        """This doubt where it is left only about ledgers below this id. `fenced` are those that the bookie has fenced, durably,
        and that may have a writer: only they take plain adds again."""
        assert not self.is_unbounded, "a doubt is bounded before it is settled (B8)"
        doubted, lost = min(self.doubted_below, below_ledger_id), min(self.lost_below, below_ledger_id)
        fences_lost_below = max(self.fences_lost_below, self.doubted_below)
        return Doubt(doubted, lost, self.reasons if doubted else (), fences_lost_below, self.fenced_again.union(fenced))


@attrs.frozen
class Sighting:
    """A bookie's last sighting of its metastore: by it a metastore that was emptied, or went back, is recognised (B6a).

    `token` is the random text of the bookie's cookie there, and `times_raised` how often the bookie has raised the
    counter in it; "" and 0 before it has seen any. `next_ledger_id` is the highest next ledger id that it has seen. The
    revisions of records that the bookie knows count for ledgers from `revisions_from_ledger_id` on: ledgers below have
    older records permanently, as an operator has said (M5)."""

    token: str = ""
    times_raised: int = 0
    next_ledger_id: int = 0
    revisions_from_ledger_id: int = 0


class Storage(ABC):
    """The ledgers of one bookie. Synchronous: the bookie owns the threads.

    Only one thread at a time calls `commit`; any thread may call the other methods at any time, even during a commit. After
    `StorageFailedError` every call except `close` raises it again: a failed sync is fatal (B1). A new storage makes a random
    identity, which never changes (B4).
    """

    __slots__ = ()

    @property
    @abstractmethod
    def bookie_id(self) -> str:
        """The random identity that was made with the storage (B4)."""

    @abstractmethod
    def commit(self, mutations: Sequence[Mutation]) -> None:
        """Makes all mutations durable, in this order, before it returns: they survive power loss (B1).

        Raises `StorageFullError` if there is no space: then no mutation happened, and reads and later commits work. Raises
        `StorageFailedError` if a write or a sync failed: then each mutation may have happened or not, and the storage has
        stopped. A reader sees a mutation only when it is durable."""

    @abstractmethod
    def read(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        """The batch of this stamp that holds the entry, and the following batches of the same stamp, by their first ids.

        Returns as many as fit into `bytes_max`, and the first one in any case. Returns [] only if the entry is proven absent.
        Raises `StorageUncertainError` if the entry may exist but cannot be read, and if it was dropped. Every returned batch
        was checked for damage."""

    @abstractmethod
    def marks(self, ledger_id: int) -> Marks | None:
        """The durable marks of a ledger; None only if the storage can prove that it never had this ledger."""

    @abstractmethod
    def ledger_ids(self) -> list[int]:
        """The ids of all ledgers with entries or marks, in ascending order: a snapshot."""

    @abstractmethod
    def ranges(self, ledger_id: int) -> Sequence[StoredRange]:
        """The entries of a ledger that are stored, by stamp and first entry, in as few ranges as possible (F3).

        A batch that is known to be damaged, or whose place cannot be read, is left out: so an entry that is in no range
        may still be stored, and only `read` proves absence. Dropped entries are left out. Looks at no payloads, and may
        wait for a disk. A snapshot: commits go on meanwhile, and their entries may be left out."""

    def drop(self, ledger_id: int, stamp: int, first_entry_id: int, last_entry_id: int, stride: int = 1) -> None:
        """Drops the entries of one stamp from the first to the last, or each `stride`-th of them, durably (F5): a commit of
        `DropEntries`.

        The caller has proof that this bookie should not hold them. It drops many entries in pieces: a commit may wait for as
        long as removing one piece takes. Raises what `commit` raises."""
        self.commit([DropEntries(ledger_id, stamp, first_entry_id, last_entry_id, stride)])

    @abstractmethod
    def sighting(self) -> Sighting:
        """The sighting that `keep_sighting` kept last, or `Sighting()`. May wait for a disk. Raises `StorageFailedError`."""

    @abstractmethod
    def keep_sighting(self, sighting: Sighting) -> None:
        """Keeps this, durably, in place of the earlier one. Blocks for a sync. Raises `StorageFullError` (the earlier
        one stays), `StorageFailedError`."""

    @abstractmethod
    def close(self) -> None:
        """Releases files and locks. Idempotent. Committed mutations stay."""

    @property
    def place(self) -> str:
        """The directory of its ledgers, for people; "" if there is none."""
        return ""

    @property
    def is_instant(self) -> bool:
        """True if no call ever waits for a disk: then the bookie calls from its event loop, without threads."""
        return False

    def read_nowait(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        """Reads like `read`, but raises `trio.WouldBlock` instead of waiting for a disk."""
        raise trio.WouldBlock

    def free_bytes(self) -> int | None:
        """Free bytes on the disk, or None without a known limit. May look at the disk, but never waits for a commit.

        The bookie takes no new entries while this is low (B5)."""
        return None

    def compact(self, *, is_major: bool = False) -> None:  # noqa: B027 - a default, not an oversight
        """Frees unused space now, before the storage's own schedule does; a minor run only where it gains most (B6).

        Blocks until done; commits and reads go on meanwhile. All entries stay readable throughout, even after a crash at any
        moment. Returns early if the storage is closed meanwhile. Raises `StorageFullError` if there is no room to work
        (nothing is lost), `StorageFailedError`."""

    def scrub(self) -> None:  # noqa: B027 - a default, not an oversight
        """Checks all entries for damage now, before the storage's own schedule does; `damage` returns what it finds.

        Blocks until done; commits and reads go on meanwhile. Returns early if the storage is closed meanwhile. Raises
        `StorageFailedError`."""

    def damage(self) -> Sequence[Damage]:
        """The known damaged batches that were not stored again: reading them raises `StorageUncertainError` (R4)."""
        return ()

    def lock_name(self) -> str | None:
        """The name of the lock that keeps other processes from opening this storage; None without such a lock.

        It is unique on this machine since it was booted; a copy of the storage has another name. A bookie that holds the lock
        under which it is still announced has proof that its former process is gone (B4)."""
        return None

    def doubt(self) -> Doubt:
        """The ledgers for which this storage cannot vouch (B8). Durable, and known when the storage is opened."""
        return Doubt()

    def bound_doubt(self, below_ledger_id: int) -> None:  # noqa: B027 - a default, not an oversight
        """Ends the doubt about ledgers with this id or a higher one: they did not exist before the storage was opened.

        Lowers each bound of `doubt` that is `UNBOUNDED` to this id, durably. Blocks for a sync. Raises `StorageFullError`
        (the doubt stays as it was), `StorageFailedError`."""

    def settle_doubt(self, found: Doubt, left: Doubt) -> None:  # noqa: B027 - a default, not an oversight
        """Replaces the doubt by the rest of it (`Doubt.settled`), durably: the bookie vouches again for other ledgers.

        Changes nothing if the doubt is not the one that was found: something more was lost meanwhile. Blocks for a sync. Raises
        as `bound_doubt`."""

    def statistics(self) -> Mapping[str, float]:
        """Counters and gauges, by names with units, for people and metrics."""
        return {}
