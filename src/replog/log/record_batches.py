"""Records of a log, batches of them as they were stored, and the positions of many entries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple, overload

from replog.client.entries import Entry, EntryBatch
from replog.protocol.envelope import PLAIN, EntryId, Envelope
from replog.protocol.model import Position


class Record(NamedTuple):
    """One entry of a log, as a named tuple. `timestamp_ns` is when it was sent, by its writer's clock, in ns since the epoch.
    `envelope` has its key, headers and id."""

    segment: int
    entry: int
    data: bytes
    timestamp_ns: int
    envelope: Envelope = PLAIN

    @property
    def position(self) -> Position:
        """Its position; prints as "17:42" and parses back."""
        return Position(self.segment, self.entry)

    @property
    def timestamp(self) -> datetime:
        """When its writer sent it, by the writer's clock, in UTC."""
        return datetime.fromtimestamp(self.timestamp_ns / 1e9, UTC)

    @property
    def key(self) -> bytes | None:
        """Its key, or None."""
        return self.envelope.key

    @property
    def headers(self) -> Mapping[str, bytes]:
        """Its headers; none if it was appended without."""
        return self.envelope.headers

    @property
    def is_tombstone(self) -> bool:
        """True if it says that its key has no value any more; `data` is empty then."""
        return self.envelope.is_tombstone

    @property
    def id(self) -> EntryId | None:
        """Its producer and sequence, or None if it was appended without."""
        return self.envelope.id


_record = partial(tuple.__new__, Record)  # as a call of Python's for each record would cost the most of reading it


class RecordBatch:
    """Consecutive records of one segment, as they were stored. It has a length, and iterating gives each `Record`.

    Where records have keys or headers (`has_envelopes`), `payloads` and `to_arrow` copy the data out."""

    __slots__ = ("_batch", "segment")

    def __init__(self, segment: int, batch: EntryBatch) -> None:
        self.segment = segment  #: The number of the segment that the records are in.
        self._batch = batch

    def __len__(self) -> int:
        return len(self._batch)

    @property
    def first_position(self) -> Position:
        """The position of the first record."""
        return Position(self.segment, self._batch.first_entry_id)

    @property
    def last_position(self) -> Position:
        """The position of the last record: read on after it."""
        return Position(self.segment, self._batch.last_entry_id)

    @property
    def timestamp_ns(self) -> int:
        """When the first record was sent, by its writer's clock, in ns since the epoch."""
        return self._batch.timestamp_ns

    @property
    def size_bytes(self) -> int:
        """The memory that it keeps: the stored batches, with their headers, in bytes."""
        return self._batch.size_bytes

    @property
    def has_envelopes(self) -> bool:
        """True if some of these records may have a key, headers or an id: iterate the batch to see them."""
        return self._batch.has_envelopes

    def payloads(self) -> list[bytes]:
        """The records' data, in order. Raises `EnvelopeError` if one is marked as an envelope and is none."""
        return self._batch.payloads()

    def to_arrow(self) -> Any:
        """A pyarrow BinaryArray of the records' data, without a copy if they are one stored batch without compression and
        envelopes. A tombstone is a null. Raises as `payloads`. Needs `replog[arrow]`."""
        return self._batch.to_arrow()

    def __iter__(self) -> Iterator[Record]:
        if self._batch.has_envelopes:
            return map(self._record, self._batch)
        entries = range(self._batch.first_entry_id, self._batch.last_entry_id + 1)
        payloads, times_ns = self._batch.payloads(), self._batch.timestamps_ns()
        return map(_record, zip(repeat(self.segment), entries, payloads, times_ns, repeat(PLAIN)))

    def _record(self, entry: Entry) -> Record:
        return Record(self.segment, *entry)


class Positions(Sequence[Position]):
    """The positions of consecutive entries of one segment. Each is created when it is accessed, not before."""

    __slots__ = ("entries", "segment")

    def __init__(self, segment: int, entries: range) -> None:
        self.segment = segment
        self.entries = entries

    def __len__(self) -> int:
        return len(self.entries)

    @overload
    def __getitem__(self, place: int) -> Position: ...

    @overload
    def __getitem__(self, place: slice) -> Positions: ...

    def __getitem__(self, place: int | slice) -> Position | Positions:
        if isinstance(place, slice):
            return Positions(self.segment, self.entries[place])
        return Position(self.segment, self.entries[place])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(Position.__eq__, self, other))

    def __hash__(self) -> int:
        return hash((self.segment, self.entries))

    def __repr__(self) -> str:
        return f"<positions {self[0]} to {self[-1]}>" if self.entries else "<no positions>"
