"""Entries of a ledger as readers return them, one by one or in batches."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import lru_cache, partial
from itertools import repeat
from typing import Any, Generic, NamedTuple, Self, TypeVar

from replog.errors import ConfigError, EnvelopeError
from replog.protocol.batch import HIGH_FLAGS, Batch
from replog.protocol.effects import Delivered
from replog.protocol.envelope import PLAIN, EntryId, Envelope, Enveloped, unpack

_CACHED_COUNT_MAX = 1 << 15  # larger index tables are not cached: they have four bytes for each entry

AnyBatch = TypeVar("AnyBatch")


class Entry(NamedTuple):
    """One entry of a ledger. `timestamp_ns` is when its writer sent it, by the writer's clock. `envelope` has its key, headers
    and id."""

    entry_id: int
    data: bytes
    timestamp_ns: int
    envelope: Envelope = PLAIN

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


_entry = partial(tuple.__new__, Entry)


class EntryBatch:
    """Consecutive entries of a ledger, from `first_entry_id` to `last_entry_id`. Holds the bytes as they were stored:
    `payloads` cuts them, `to_arrow` doesn't even do that. Compressed bytes are expanded when they are first read; the
    data of entries with envelopes (`has_envelopes`) is copied out."""

    __slots__ = ("_batches", "first_entry_id", "last_entry_id")

    def __init__(self, delivered: Delivered) -> None:
        self.first_entry_id = delivered.first_entry_id  #: The id of the first entry.
        self.last_entry_id = delivered.last_entry_id  #: The id of the last entry: read on after it.
        self._batches: tuple[Batch, ...] = delivered.batches

    def __len__(self) -> int:
        return self.last_entry_id - self.first_entry_id + 1

    def through(self, last_entry_id: int) -> EntryBatch:
        """Returns the same batch without the entries after `last_entry_id`, which must be in it."""
        assert self.first_entry_id <= last_entry_id <= self.last_entry_id, "it has this entry"
        return EntryBatch(Delivered(self.first_entry_id, last_entry_id, self._batches))

    @property
    def stored_batches(self) -> tuple[Batch, ...]:
        """The stored batches that hold these entries between them; some may reach beyond."""
        return self._batches

    @property
    def timestamp_ns(self) -> int:
        """When the first entry was sent, by its writer's clock, in ns since the epoch."""
        return min(batch.timestamp_ns for batch in self._batches)

    @property
    def size_bytes(self) -> int:
        """The memory that it keeps: the stored batches, with their headers, in bytes."""
        return sum(len(batch.data) for batch in self._batches)

    @property
    def payload_bytes(self) -> int:
        """The bytes of these entries as they count for the ledger's length: envelopes included."""
        return sum(map(len, self._stored()))

    @property
    def has_envelopes(self) -> bool:
        """True if some of these entries may have a key, headers or an id."""
        return any(batch.has_envelopes for batch in self._batches)

    @property
    def ledger_bytes(self) -> int:
        """The payload bytes of the ledger up to the last of these entries. With a stride (E > Qw), or after a recovery that cut a
        group of batches, it includes some bytes of later entries."""
        last = next(batch for batch in self._plain() if batch.holds(self.last_entry_id))
        if last.stride > 1:
            return last.cumulative_length
        later = last.payloads()[self.last_entry_id - last.first_entry_id + 1 :]
        return last.cumulative_length - sum(map(len, later))

    def payloads(self) -> list[bytes]:
        """The entries' data, in order. Raises `RemoteProtocolError` if their writer was broken, `EnvelopeError` if one is marked
        as an envelope and is none, and `CompressionUnavailableError`."""
        batch, count = self._batches[0], len(self)
        if len(self._batches) == 1 and batch.stride == 1 and not batch.data[HIGH_FLAGS]:
            payloads, begin = batch.payloads(), self.first_entry_id - batch.first_entry_id
            # The common case: nothing is put in order, and seldom is anything cut.
            return payloads if len(payloads) == count else payloads[begin : begin + count]
        return [entry.data for entry in self] if self.has_envelopes else self._stored()

    def stored(self) -> list[bytes]:
        """The entries as a writer takes them, to be written again with all that they carry: `Enveloped` where they are envelopes,
        which are not looked into. Raises as `payloads` otherwise."""
        if not self.has_envelopes:
            return self.payloads()
        rows = zip(self._stored(), self._are_enveloped(), strict=False)
        return [Enveloped(each) if is_enveloped else each for each, is_enveloped in rows]

    def _stored(self) -> list[bytes]:
        parts = self._parts()
        merged = [b""] * len(self)
        for at, part in enumerate(parts):
            merged[at :: len(parts)] = part.batch.payloads()[part.begin : part.end]
        return merged

    def to_arrow(self) -> Any:
        """A pyarrow BinaryArray of the entries' data, without a copy if they are one stored batch without compression and
        envelopes. A tombstone is a null. Raises as `payloads`. Needs `replog[arrow]`."""
        try:
            import pyarrow as arrow
        except ImportError as error:
            raise ConfigError("to_arrow needs pyarrow: pip install 'replog[arrow]'") from error
        if self.has_envelopes:
            return arrow.array([None if entry.is_tombstone else entry.data for entry in self], arrow.binary())
        arrays = []
        for part in self._parts():
            buffers = [None, *map(arrow.py_buffer, part.batch.arrow_buffers())]
            array = arrow.Array.from_buffers(arrow.binary(), part.batch.count, buffers)
            arrays.append(array.slice(part.begin, part.end - part.begin))
        if len(arrays) == 1:
            return arrays[0]
        return arrow.concat_arrays(arrays).take(_dealt(len(self), len(arrays)))

    def __iter__(self) -> Iterator[Entry]:
        entry_ids = range(self.first_entry_id, self.last_entry_id + 1)
        if self.has_envelopes:
            # A damaged one raises when it is its turn; later ones can be read after that.
            return map(self._opened, entry_ids, self._stored(), self._are_enveloped(), self.timestamps_ns())
        # Without a call of Python's for each: that would cost more than all else that reading an entry does.
        return map(_entry, zip(entry_ids, self.payloads(), self.timestamps_ns(), repeat(PLAIN)))

    def _opened(self, entry_id: int, stored: bytes, is_enveloped: bool, timestamp_ns: int) -> Entry:
        if not is_enveloped:
            return Entry(entry_id, stored, timestamp_ns)
        try:
            data, envelope = unpack(stored)
        except EnvelopeError as error:
            raise EnvelopeError(f"entry {entry_id} of ledger {self._batches[0].ledger_id}: {error}") from error
        return Entry(entry_id, data, timestamp_ns, envelope)

    def _are_enveloped(self) -> Iterator[bool]:
        return itertools.cycle([part.batch.has_envelopes for part in self._parts()])

    def timestamps_ns(self) -> Iterator[int]:
        """When each entry was sent, in order; as `timestamp_ns`. Does not end."""
        if len(self._batches) == 1:
            return itertools.repeat(self._batches[0].timestamp_ns)
        return itertools.cycle([part.batch.timestamp_ns for part in self._parts()])

    def _plain(self) -> tuple[Batch, ...]:
        """The stored batches; those that were compressed are expanded once, and kept so."""
        for batch in self._batches:
            if batch.is_compressed:
                self._batches = tuple(each.plain() for each in self._batches)
                break
        return self._batches

    def _parts(self) -> list[_Part]:
        """The part of each stored batch that belongs to these entries.

        The writer has dealt them out in turn (W1): the first entry is in the first part, the second in the second part, and after
        the last part the first one follows again."""
        parts = []
        for batch in self._plain():
            begin = max(0, -((batch.first_entry_id - self.first_entry_id) // batch.stride))
            end = min(batch.count, (self.last_entry_id - batch.first_entry_id) // batch.stride + 1)
            if begin < end:
                parts.append(_Part(batch, begin, end))
        if len(parts) > 1:
            parts.sort(key=lambda part: part.batch.first_entry_id + part.begin * part.batch.stride)
        assert sum([part.end - part.begin for part in parts]) == len(self), "a delivery without a gap"
        return parts


class _Part(NamedTuple):
    """The entries of a stored batch from index `begin` to before index `end`."""

    batch: Batch
    begin: int
    end: int


def _dealt(count: int, parts: int) -> Any:
    """Arrow indices that put `count` entries in order which were dealt out to `parts` parts that now follow one another."""
    return _cached_dealt(count, parts) if count <= _CACHED_COUNT_MAX else _cached_dealt.__wrapped__(count, parts)


@lru_cache(maxsize=16)
def _cached_dealt(count: int, parts: int) -> Any:
    import pyarrow as arrow

    places, begin = [0] * count, 0
    for at in range(parts):
        end = begin + len(range(at, count, parts))
        places[at::parts] = range(begin, end)
        begin = end
    return arrow.array(places, arrow.int32())


class Batches(Generic[AnyBatch]):
    """An async iterator over the batches that `receive` returns, until it returns None."""

    def __init__(self, receive: Callable[[], Awaitable[AnyBatch | None]]) -> None:
        self._receive = receive

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnyBatch:
        batch = await self._receive()
        if batch is None:
            raise StopAsyncIteration
        return batch
