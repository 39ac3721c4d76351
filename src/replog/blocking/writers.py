"""Writers for every thread: the same verbs as in trio, each a plain call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from replog.blocking.portal import Portal
from replog.client.writer import LedgerWriter as AsyncLedgerWriter
from replog.log.writer import LogWriter as AsyncLogWriter
from replog.protocol.batch import Payloads
from replog.protocol.model import LedgerMetadata, Position

Place = TypeVar("Place", covariant=True)


class _AsyncWriter(Protocol[Place]):
    async def append(self, data: bytes) -> Place: ...

    async def extend(self, data: Sequence[bytes]) -> Sequence[Place]: ...

    async def push(self, data: bytes) -> Place: ...

    def push_nowait(self, data: bytes) -> Place: ...

    async def flush(self) -> None: ...

    @property
    def unconfirmed_bytes(self) -> int: ...

    def statistics(self) -> dict[str, float]: ...


class Writer(Generic[Place]):
    """What the writers of ledgers and of logs have in common. Any number of threads may use one at once: entries that
    wait at the same time share batches, and one sync.

    A call that is interrupted (`KeyboardInterrupt`) is cancelled: what it was to write has an unknown outcome, as in trio.
    """

    def __init__(self, portal: Portal, writer: _AsyncWriter[Place]) -> None:
        self._portal = portal
        self._shared = writer

    @property
    def unconfirmed_bytes(self) -> int:
        """Payload bytes that were pushed and are not confirmed."""
        return self._portal.call_sync(lambda: self._shared.unconfirmed_bytes)

    def append(self, data: bytes) -> Place:
        """Appends an entry, and returns its place once it is confirmed: it survives from then on (W2).

        Raises `FencedError`, `AddTimeoutError` or `NotEnoughBookiesError` (outcome unknown, the writer has ended),
        `PayloadTooLargeError` or TypeError (not written)."""
        return self._portal.call(self._shared.append, data)

    def extend(self, data: Iterable[bytes]) -> Sequence[Place]:
        """Appends many entries in as few batches as can be, and returns their places once all are confirmed. By far the
        cheapest way to write many from one thread. Raises as `append`, then each has an unknown outcome."""
        return self._portal.call(self._shared.extend, Payloads(data))

    def push(self, data: bytes) -> Place:
        """Puts an entry in flight, and returns where it will stand; `flush` tells when it is confirmed. Waits while the
        byte budget `in_flight_bytes_max` is used up (W6)."""
        return self._portal.call(self._shared.push, data)

    def push_nowait(self, data: bytes) -> Place:
        """As `push`, but raises `trio.WouldBlock` if the byte budget is used up: then nothing was pushed."""
        return self._portal.call_sync(self._shared.push_nowait, data)

    def flush(self) -> None:
        """Waits until everything pushed so far is confirmed. If interrupted, it goes on being in flight."""
        self._portal.call(self._shared.flush)

    def statistics(self) -> dict[str, float]:
        """Counters and gauges."""
        return self._portal.call_sync(self._shared.statistics)


class LedgerWriter(Writer[int]):
    """The one writer of a ledger, for every thread. Made by `Client.create_ledger`; places are entry ids."""

    def __init__(self, portal: Portal, writer: AsyncLedgerWriter) -> None:
        super().__init__(portal, writer)
        self._writer = writer
        self.ledger_id = writer.ledger_id

    @property
    def last_add_pushed(self) -> int:
        """The last entry that was pushed; -1 before the first."""
        return self._portal.call_sync(lambda: self._writer.last_add_pushed)

    @property
    def last_add_confirmed(self) -> int:
        """The last entry that is confirmed, with all before it; -1 if there is none."""
        return self._portal.call_sync(lambda: self._writer.last_add_confirmed)

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's record, as this writer knows it."""
        return self._portal.call_sync(lambda: self._writer.metadata)


class LogWriter(Writer[Position]):
    """The one writer of a log, until somebody else takes over, for every thread. Made by `Client.write_log`."""

    def __init__(self, portal: Portal, writer: AsyncLogWriter) -> None:
        super().__init__(portal, writer)
        self._writer = writer
        self.name = writer.name

    @property
    def segment(self) -> int:
        """The number of the segment that is appended to."""
        return self._portal.call_sync(lambda: self._writer.segment)

    @property
    def ledger_id(self) -> int:
        """The ledger that is appended to."""
        return self._portal.call_sync(lambda: self._writer.ledger_id)

    @property
    def last_add_pushed(self) -> Position | None:
        """Where the last entry was put that was pushed by this writer; None before the first."""
        return self._portal.call_sync(lambda: self._writer.last_add_pushed)

    @property
    def last_add_confirmed(self) -> Position | None:
        """The last entry of this writer that is confirmed, with all before it; None before the first."""
        return self._portal.call_sync(lambda: self._writer.last_add_confirmed)

    def roll(self) -> Position:
        """Goes on to a new ledger (L2), so that all before it can be trimmed; returns its first position. Other threads may
        append meanwhile. Raises `FencedError`; `NotEnoughBookiesError` or `MetastoreError` if there can be no new ledger
        now: then the current one goes on."""
        return self._portal.call(self._writer.roll)
