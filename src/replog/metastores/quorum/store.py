"""The disk of one member: its vote, its log, and the state as far as it was written, in one LMDB environment.

    m name           the member's name (Q11)                       m vote     term (u64), name that was voted for
    m cluster        the cluster's id, once it belongs to one       m offers   clusters that it promised its name to, as JSON
    m base           the base of the log                           m applied  the last entry whose effects are in the rows
    m position       how many transactions there were (u64)
    l INDEX          entries                                       r ROW      the rows of the state

One transaction writes a vote, entries, a base and rows together. So what is on the disk is always one moment of the member.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs
import lmdb

from replog.errors import RemoteProtocolError
from replog.metastores.quorum.copies import StateCopy
from replog.metastores.quorum.mark import DurableMark
from replog.metastores.quorum.spare import SpareRoom
from replog.protocol.consensus.codec import decode_base, decode_entry, encode_base, encode_entry
from replog.protocol.consensus.log import Base, EntryLog
from replog.protocol.consensus.outbox import Write
from replog.runtime.disk_errors import free_bytes_at, is_full
from replog.runtime.lmdb_map import LMDBMap
from replog.runtime.lmdb_pages import PAGES_CHECKED

_NAME, _VOTE, _BASE, _APPLIED = b"mname", b"mvote", b"mbase", b"mapplied"
_CLUSTER, _OFFERS, _POSITION = b"mcluster", b"moffers", b"mposition"
_ENTRY, _ROW = b"l", b"r"
_NUMBER = struct.Struct(">Q")
_MARK_FILE, _SPARE_FILE = "durable-mark", "spare"
_MAP_BYTES, _MAP_BYTES_MAX = 64 << 20, 64 << 30
_MAP_TIMES = 2  # as large as the rows of a copy: pages are not full
_ROWS_AT_ONCE, _BYTES_AT_ONCE = 256, 1 << 20  # read in one transaction

Changes = Mapping[bytes, bytes | None]  # rows, and None for those that are deleted


@attrs.frozen
class Stored:
    """The facts that a member starts with."""

    term: int
    voted_for: str | None
    log: EntryLog
    applied: int


class MemberStore:
    """One directory. `write` may wait for the disk, and is called by one thread at a time; reads may come from any thread."""

    def __init__(self, directory: str) -> None:
        """Opens the directory, which exists. Raises `lmdb.Error`, OSError, `DataFileDamagedError`."""
        self._map = LMDBMap(directory, _MAP_BYTES, _MAP_BYTES_MAX, pages_checked=PAGES_CHECKED)
        try:
            self._mark = DurableMark(f"{directory}/{_MARK_FILE}")
            self._spare = SpareRoom(f"{directory}/{_SPARE_FILE}")
        except BaseException:
            self._map.close()
            raise
        self._position = int.from_bytes(self._fact(_POSITION))

    def load(self) -> Stored:
        """Reads the disk. Raises `RemoteProtocolError` for what this version does not read (Q20), `lmdb.Error`."""
        with self._map.gate, self._map.environment.begin() as transaction:
            vote = transaction.get(_VOTE, bytes(_NUMBER.size))
            found = transaction.get(_BASE)
            base = Base() if found is None else decode_base(found)
            entries = [decode_entry(value) for _, value in _from(transaction, _ENTRY, _ENTRY)]
            (applied,) = _NUMBER.unpack(transaction.get(_APPLIED, bytes(_NUMBER.size)))
        voted_for = vote[_NUMBER.size :].decode() or None
        return Stored(_NUMBER.unpack_from(vote)[0], voted_for, EntryLog(base, entries), max(applied, base.index))

    @property
    def has_lost(self) -> bool:
        """True if it has less than was durable once, or cannot tell (Q11)."""
        marked = self._mark.position
        return self._position > 0 and (marked is None or marked > self._position)

    # -- who it is ----------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The member's name (Q11); "" for a directory that has none."""
        return self._fact(_NAME).decode()

    @property
    def cluster(self) -> str:
        """The id of the cluster that this belongs to; "" if it belongs to none."""
        return self._fact(_CLUSTER).decode()

    @property
    def offers(self) -> tuple[str, ...]:
        """The clusters to which it has promised its name, before it belonged to one (Q16)."""
        return tuple(map(str, json.loads(self._fact(_OFFERS) or b"[]")))

    def put_offers(self, offers: Sequence[str]) -> None:
        """Remembers to which clusters it has promised its name, durably."""
        self._put_facts({_OFFERS: json.dumps(list(offers)).encode()})

    def put_name(self, name: str) -> None:
        """Gives this directory its name, durably."""
        self._put_facts({_NAME: name.encode()}, is_synced=True)

    def put_cluster(
        self, cluster: str, base: Base | None, name: str = "", rows: Mapping[bytes, bytes] | None = None
    ) -> None:
        """From now on this belongs to a cluster, durably: to one that begins with this base and these rows, or to one that will
        send its state; under another name, if one is given."""
        facts = {_CLUSTER: cluster.encode()} | ({_NAME: name.encode()} if name else {})
        if base is not None:
            facts[_BASE] = encode_base(base)
        self._put_facts(facts | {_ROW + row: value for row, value in (rows or {}).items()})

    def _fact(self, key: bytes) -> bytes:
        with self._map.gate, self._map.environment.begin() as transaction:
            return bytes(transaction.get(key, b""))

    def _put_facts(self, facts: Mapping[bytes, bytes], *, is_synced: bool = False) -> None:
        def put(transaction: lmdb.Transaction) -> None:
            for key, value in facts.items():
                transaction.put(key, value)

        self._commit(put, is_mark_synced=is_synced)

    def _commit(self, change: Callable[[lmdb.Transaction], None], *, is_mark_synced: bool = False) -> None:
        """Makes a change durable, in as many tries as the map has to grow, and one more on a full disk (Q18)."""
        while True:
            position = self._position
            try:
                with self._map.writing, self._map.environment.begin(write=True) as transaction:
                    change(transaction)
                    self._advance(transaction)
                self._mark.put(self._position, is_synced=is_mark_synced)
                return
            except lmdb.MapFullError:
                self._position = position
                if not self._map.grow():
                    raise
            except (lmdb.Error, OSError) as error:
                with self._map.writing:
                    if not is_full(error, free_bytes_at(self._map.path)) or not self._spare.give_up():
                        raise
                    self._map.mend()
                self._position = int.from_bytes(self._fact(_POSITION))

    def _advance(self, transaction: lmdb.Transaction) -> None:
        self._position += 1
        transaction.put(_POSITION, _NUMBER.pack(self._position))

    @property
    def is_short(self) -> bool:
        """True if the disk is nearly full: only what needs little more of it is to be taken (Q18)."""
        return not self._spare.is_held

    def make_up(self) -> None:
        """Holds space back again, if there is some. Raises OSError."""
        with self._map.writing:
            if self.is_short:
                self._spare.hold()

    # -- what it has --------------------------------------------------------------------------------------------------

    def write(self, write: Write | None, changes: Changes, applied: int) -> None:
        """Makes one moment durable. Raises `lmdb.Error`, OSError: then it may be on the disk or not, and the member must stop."""

        def change(transaction: lmdb.Transaction) -> None:
            _put_moment(transaction, write, applied)
            for row, value in changes.items():
                if value is None:
                    transaction.delete(_ROW + row)
                else:
                    transaction.put(_ROW + row, value)

        self._commit(change)

    def replace(self, write: Write | None, copy: StateCopy, applied: int) -> None:
        """As `write`, with a state instead of all rows that there are. Raises `RemoteProtocolError`, too, and then nothing has
        changed: the rows don't ascend."""

        def change(transaction: lmdb.Transaction) -> None:
            _put_moment(transaction, write, applied)
            _delete_from(transaction, _ROW, _ROW)
            with transaction.cursor() as cursor:
                # Nothing is behind the rows, so each of them is appended, and no place is looked up.
                rows = ((_ROW + row, value) for row, value in copy.rows())
                taken, added = cursor.putmulti(rows, append=True)
            if added != taken:
                raise RemoteProtocolError(
                    "the rows of a copy of the metastore's state don't ascend: it was made by another program?"
                )

        while self._map.map_bytes < _MAP_TIMES * copy.size_bytes and self._map.grow():
            pass  # before, since a transaction that finds the map full begins anew
        self._commit(change)

    def get(self, row: bytes) -> bytes | None:
        """A row as it was last written."""
        with self._map.gate, self._map.environment.begin() as transaction:
            found = transaction.get(_ROW + row)
        return None if found is None else bytes(found)

    def rows_from(self, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The rows from this one on, in order, as they are when they are reached: in many short transactions."""
        start, at_once = _ROW + first, 1  # most readers want one row, others all
        while True:
            found: list[tuple[bytes, bytes]] = []
            size_bytes = 0
            is_end = True
            with self._map.gate, self._map.environment.begin() as transaction:
                for row, value in _from(transaction, start, _ROW):
                    found.append((row[len(_ROW) :], value))
                    size_bytes += len(value)
                    if len(found) == at_once or size_bytes > _BYTES_AT_ONCE:
                        is_end = False
                        break
            yield from found
            if is_end:
                return
            start, at_once = _ROW + found[-1][0] + b"\0", min(4 * at_once, _ROWS_AT_ONCE)

    def state(self) -> tuple[int, StateCopy]:
        """The index of the last entry whose effects are in the rows, and all of them, of one moment."""
        with self._map.gate, self._map.environment.begin() as transaction:
            (applied,) = _NUMBER.unpack(transaction.get(_APPLIED, bytes(_NUMBER.size)))
            return applied, StateCopy.of((row[len(_ROW) :], value) for row, value in _from(transaction, _ROW, _ROW))

    def close(self) -> None:
        """Gives the files back. Nothing may be under way."""
        self._map.close()
        self._mark.close()


def _put_moment(transaction: lmdb.Transaction, write: Write | None, applied: int) -> None:
    if write is not None:
        _put_log(transaction, write)
    transaction.put(_APPLIED, _NUMBER.pack(applied))


def _put_log(transaction: lmdb.Transaction, write: Write) -> None:
    transaction.put(_VOTE, _NUMBER.pack(write.term) + (write.voted_for or "").encode())
    if write.base is not None:
        transaction.put(_BASE, encode_base(write.base))
        _delete_from(transaction, _ENTRY, _ENTRY, end=_place(write.base.index + 1))
    if write.first:
        _delete_from(transaction, _place(write.first), _ENTRY)
        for index, entry in enumerate(write.entries, write.first):
            transaction.put(_place(index), encode_entry(entry))


def _place(index: int) -> bytes:
    return _ENTRY + _NUMBER.pack(index)


def _from(transaction: lmdb.Transaction, start: bytes, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    with transaction.cursor() as cursor:
        if cursor.set_range(start):
            for key, value in cursor:
                found = bytes(key)
                if not found.startswith(prefix):
                    return
                yield found, bytes(value)


def _delete_from(transaction: lmdb.Transaction, start: bytes, prefix: bytes, end: bytes | None = None) -> None:
    with transaction.cursor() as cursor:
        more = cursor.set_range(start)
        while more and bytes(cursor.key()).startswith(prefix) and (end is None or bytes(cursor.key()) < end):
            more = cursor.delete()
