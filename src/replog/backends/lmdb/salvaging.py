"""What goes into a new data file when the old one's trees are damaged: every record that can be read, and some made again.

Where batches of a ledger are left, and its series or its marks are not, these are made from the batches, so that the ledger
can be read, fenced and recovered. What else they said is lost: the storage is in doubt about all its ledgers then (B8).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from replog.backends.lmdb.records import (
    BATCH,
    BATCH_KEY_BYTES,
    DELETED,
    FORMAT_KEY,
    LEDGER,
    LEDGER_KEY_BYTES,
    DamagedError,
    Series,
    format_text,
    id_key,
    pack_marks,
    seal,
    series_key,
    unpack_batch_key,
    unpack_id_key,
    unpack_number,
    unseal,
)
from replog.backends.ranges import LedgerRanges
from replog.protocol.mutations import Marks

Record = tuple[bytes, bytes]


def salvaged(bookie_id: str, records: Iterable[Record]) -> Iterator[Record]:
    """The records of the new file, sorted, from those of the old one. Kinds are in the order of their letters: batches come
    first, then deleted ledgers, and what is known of the others last."""
    yield FORMAT_KEY, format_text(bookie_id)
    found = _Found()
    made: list[Record] | None = None
    for key, value in records:
        if key == FORMAT_KEY:
            continue
        # Marks and series are of the last kind, so every batch has been looked at when the first of them is due.
        if key[:1] < LEDGER:
            found.look_at(key, value)
        else:
            made = found.records() if made is None else made
            while made and made[-1][0] < key:
                yield made.pop()
            if made and made[-1][0] == key:
                made.pop()
        yield key, value
    made = found.records() if made is None else made
    yield from reversed(made)


class _Found:
    """What the batches say."""

    def __init__(self) -> None:
        self._series: dict[tuple[int, int], Series] = {}
        self._last_entry_ids: dict[int, int] = {}
        self._deleted = LedgerRanges()

    def look_at(self, key: bytes, value: bytes) -> None:
        """A record of a kind before those of ledgers. What is damaged says nothing."""
        is_batch = key[:1] == BATCH and len(key) == BATCH_KEY_BYTES
        if not is_batch and not (key[:1] == DELETED and len(key) == LEDGER_KEY_BYTES):
            return
        try:
            content = unseal(key, value)
        except DamagedError:
            return
        if not is_batch:
            self._deleted.add(unpack_id_key(key), unpack_number(content))
            return
        _, ledger_id, stamp, first, last, stride = unpack_batch_key(key)
        self._series.setdefault((ledger_id, stamp), Series()).add(first, last, stride or 1)
        self._last_entry_ids[ledger_id] = max(self._last_entry_ids.get(ledger_id, -1), last)

    def records(self) -> list[Record]:
        """Series and marks for all of them, the last one first."""
        made: list[Record] = []
        for (ledger_id, stamp), series in self._series.items():
            if ledger_id not in self._deleted:
                key = series_key(ledger_id, stamp)
                made.append((key, seal(key, series.pack())))
        for ledger_id, last_entry_id in self._last_entry_ids.items():
            if ledger_id not in self._deleted:
                key = id_key(LEDGER, ledger_id)
                made.append((key, seal(key, pack_marks(Marks(last_entry_id=last_entry_id)))))
        return sorted(made, reverse=True)
