"""The writer of a BookKeeper ledger: replog's, with entries that go by themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from replog.client.entry_writer import EntryWriter
from replog.client.ledger_effects import ClientContext
from replog.config.client import ClientTuning
from replog.errors import PayloadTooLargeError
from replog.hookspecs import Event
from replog.protocol.batch import Payloads
from replog.protocol.envelope import Enveloped
from replog.protocol.writing import LedgerWriting
from replog.runtime.ticker import Ticker
from replog_bookkeeper.errors import lacks
from replog_bookkeeper.transport import FRAME_BYTES_MAX

_FRAME_OVERHEAD_BYTES = (
    512  # of a frame beside the payload, at most: an entry's header and digest, and protobuf's fields
)
ENTRY_BYTES_MAX = FRAME_BYTES_MAX - _FRAME_OVERHEAD_BYTES


class SingleEntryWriting(LedgerWriting):
    """Makes a batch of each entry, which knows how long the ledger is up to it: BookKeeper keeps that with the entry."""

    def add(self, payloads: Sequence[bytes], timestamp_ns: int, size_bytes: int | None = None) -> None:
        """Adds entries, each as a gathering of its own (W1, W3)."""
        for payload in payloads:
            super().add((payload,), timestamp_ns, len(payload))


class SingleEntryWriter(EntryWriter):
    """Refuses what a bookie of BookKeeper would close the connection for, before it gets an id."""

    def __init__(
        self,
        machine: SingleEntryWriting,
        key: bytes,
        context: ClientContext,
        options: ClientTuning,
        observe: Callable[[Event], None],
        ticker: Ticker,
    ) -> None:
        super().__init__(machine, key, context, options, observe, ticker)
        self.admit = self._admit_checked

    def _admit_checked(self, data: bytes) -> int:
        if data.__class__ is not bytes or len(data) > ENTRY_BYTES_MAX:
            _check(data)
        return self.backlog.admit(data)

    async def extend(self, data: Sequence[bytes]) -> range:
        """Does the work of `LedgerWriter.extend`."""
        return await super().extend(_checked(data))

    def extend_nowait(self, payloads: Payloads, ended: Callable[[bool], None]) -> range:
        """Extends without blocking (see `EntryWriter.extend_nowait`)."""
        return super().extend_nowait(_checked(payloads), ended)


def _checked(data: Sequence[bytes]) -> Payloads:
    payloads = data if type(data) is Payloads else Payloads(data)
    for each in payloads:
        _check(each)
    return payloads


def _check(data: object) -> None:
    if isinstance(data, Enveloped):
        raise lacks("envelopes", "append plain entries, without keys and headers")
    if isinstance(data, bytes) and len(data) > ENTRY_BYTES_MAX:
        problem = f"an entry of {len(data)} bytes: a bookie of BookKeeper takes {ENTRY_BYTES_MAX}"
        raise PayloadTooLargeError(f"{problem}; nothing was written, split it")
