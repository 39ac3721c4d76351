"""What readers give: entries of a ledger, one by one or in batches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar

from replog.errors import ConfigError
from replog.protocol.effects import Delivered

if TYPE_CHECKING:
    from replog.protocol.batch import Batch


AnyBatch = TypeVar("AnyBatch")


class Entry(NamedTuple):
    """One entry of a ledger. `timestamp_ns` is when its writer sent it, by the writer's clock."""

    entry_id: int
    data: bytes
    timestamp_ns: int


class EntryBatch:
    """Consecutive entries of a ledger, from `first_entry_id` to `last_entry_id`. Holds the bytes as they were stored:
    `payloads` cuts them, `to_arrow` doesn't even do that."""

    __slots__ = ("_batches", "first_entry_id", "last_entry_id")

    def __init__(self, delivered: Delivered) -> None:
        self.first_entry_id = delivered.first_entry_id
        self.last_entry_id = delivered.last_entry_id
        self._batches: tuple[Batch, ...] = delivered.batches

    def __len__(self) -> int:
        return self.last_entry_id - self.first_entry_id + 1

    def through(self, last_entry_id: int) -> EntryBatch:
        """The same, without the entries after this one, which is one of them."""
        assert self.first_entry_id <= last_entry_id <= self.last_entry_id, "it has this entry"
        return EntryBatch(Delivered(self.first_entry_id, last_entry_id, self._batches))

    @property
    def timestamp_ns(self) -> int:
        """When the first of them was sent, by its writer's clock, in ns since the epoch."""
        return min(batch.timestamp_ns for batch in self._batches)

    @property
    def size_bytes(self) -> int:
        """The memory that it holds: the stored batches, with their headers."""
        return sum(len(batch.data) for batch in self._batches)

    @property
    def ledger_bytes(self) -> int:
        """The payload bytes of the ledger up to the last of these entries. With a stride (E > Qw) or after a recovery that ended
        amid what its writer had gathered, some bytes of the entries after it are counted, too."""
        last = next(batch for batch in self._batches if batch.holds(self.last_entry_id))
        if last.stride > 1:
            return last.cumulative_length
        later = last.payloads()[self.last_entry_id - last.first_entry_id + 1 :]
        return last.cumulative_length - sum(map(len, later))

    def payloads(self) -> list[bytes]:
        """The entries' bytes, in order. Raises `RemoteProtocolError` if their writer was broken."""
        if len(self._batches) == 1:
            batch = self._batches[0]
            payloads = batch.payloads()
            if len(payloads) == len(self):
                return payloads
            start = self.first_entry_id - batch.first_entry_id
            return (
                payloads[start // batch.stride : start // batch.stride + len(self)]
                if batch.stride == 1
                else self._merge()
            )
        return self._merge()

    def _merge(self) -> list[bytes]:
        """Entries of several write sets, put in order (W1)."""
        merged: list[bytes | None] = [None] * len(self)
        for batch in self._batches:
            payloads = batch.payloads()
            ids = batch.entry_ids
            skipped = sum(1 for entry_id in ids if entry_id < self.first_entry_id)
            kept = [payload for entry_id, payload in zip(ids, payloads, strict=True) if entry_id <= self.last_entry_id]
            kept = kept[skipped:]
            if kept:
                merged[ids[skipped] - self.first_entry_id :: batch.stride] = kept
        assert all(payload is not None for payload in merged), "a delivery without a gap"
        return merged  # type: ignore[return-value]

    def to_arrow(self) -> Any:
        """A pyarrow BinaryArray of the entries' bytes, without a copy if they are one stored batch. Needs `replog[arrow]`."""
        try:
            import pyarrow as arrow
        except ImportError as error:
            raise ConfigError("to_arrow needs pyarrow: pip install 'replog[arrow]'") from error
        if len(self._batches) == 1 and self._batches[0].stride == 1:
            batch = self._batches[0]
            buffers = [None, *map(arrow.py_buffer, batch.arrow_buffers())]
            array = arrow.Array.from_buffers(arrow.binary(), batch.count, buffers)
            return array.slice(self.first_entry_id - batch.first_entry_id, len(self))
        return arrow.array(self.payloads(), arrow.binary())

    def __iter__(self) -> Iterator[Entry]:
        if len(self._batches) == 1:
            timestamp_ns = self._batches[0].timestamp_ns
            for entry_id, data in enumerate(self.payloads(), self.first_entry_id):
                yield Entry(entry_id, data, timestamp_ns)
        else:
            for entry_id, data in enumerate(self.payloads(), self.first_entry_id):
                holder = next(batch for batch in self._batches if batch.holds(entry_id))
                yield Entry(entry_id, data, holder.timestamp_ns)


class Batches(Generic[AnyBatch]):
    """An async iterator over batches, as `receive` gives them until there is None."""

    def __init__(self, receive: Callable[[], Awaitable[AnyBatch | None]]) -> None:
        self._receive = receive

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnyBatch:
        batch = await self._receive()
        if batch is None:
            raise StopAsyncIteration
        return batch
