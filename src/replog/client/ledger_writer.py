"""The writer of one ledger, as applications use it. `replog.client.entry_writer` does the work."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from replog.client.endings import WriterContext
from replog.client.entry_writer import EntryWriter
from replog.client.pacing import Stage
from replog.errors import ReplogError
from replog.protocol.batch import check_payload
from replog.protocol.model import LedgerMetadata


class LedgerWriter(WriterContext):
    """The one writer of a ledger, or of one term of an unbounded ledger; use it as a context manager. Made by
    `Client.create_ledger` and `Client.take_over_ledger`.

    It has the methods of a `LogWriter`, without keys and headers, and with entry ids in place of positions: 0, 1, 2 and so on.
    It has no `wait_ended`: its end shows at the next append. Once the writer has failed, every method raises why: `FencedError`
    if another client recovers the ledger, `AddTimeoutError` or `NotEnoughBookiesError` if entries could not be confirmed in
    time. The outcome of unconfirmed entries is then unknown (W4).

    Leaving the context without an error confirms everything and closes the ledger; leaving it on an error closes it at the last
    confirmed entry, as far as that can be done in a few seconds. An unbounded ledger stays open instead, for the writer of the
    next term; `finish` closes it. After that every method raises `trio.ClosedResourceError`."""

    def __init__(self, entries: EntryWriter) -> None:
        self._entries = entries
        # The two halves of `append`.
        self._admit, self._confirmed = entries.admit, entries.confirmed

    # -- looking --------------------------------------------------------------------------------------------------

    @property
    def ledger_id(self) -> int:
        """The ledger that is written."""
        return self._entries.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's record, as this writer knows it."""
        return self._entries.metadata

    @property
    def last_add_pushed(self) -> int:
        """The last entry that was pushed; -1 if there is none."""
        return self._entries.last_add_pushed

    @property
    def last_add_confirmed(self) -> int:
        """The last entry that is confirmed, with all before it; -1 if there is none."""
        return self._entries.last_add_confirmed

    @property
    def unconfirmed(self) -> range:
        """The ids that were pushed and are not confirmed."""
        return self._entries.unconfirmed

    @property
    def unconfirmed_bytes(self) -> int:
        """Payload bytes that were pushed and are not confirmed."""
        return self._entries.unconfirmed_bytes

    @property
    def length_bytes(self) -> int:
        """Payload bytes pushed since the ledger was created."""
        return self._entries.length_bytes

    @property
    def error(self) -> ReplogError | None:
        """Why the writer failed, or None."""
        return self._entries.error

    def statistics(self) -> dict[str, float]:
        """Counters and gauges."""
        return self._entries.statistics()

    # -- pushing and appending --------------------------------------------------------------------------------------

    def push_nowait(self, data: bytes) -> int:
        """Puts an entry in flight and returns its id; `flush` or `last_add_confirmed` tells when it is confirmed.

        Raises `trio.WouldBlock` if the byte budget `in_flight_bytes_max` is used up (W6), `PayloadTooLargeError` or
        TypeError if this can't be an entry: then nothing was pushed. Costs no system call while others are in flight.
        """
        entry_id = self._admit(data)
        if self._entries.pacing.stage is not Stage.GATHERING:
            self._entries.pacing.pushed()
        return entry_id

    async def push(self, data: bytes) -> int:
        """Pushes an entry, and returns its id; waits for the byte budget, which `push_nowait` does not.

        Raises as `push_nowait` does, without `trio.WouldBlock`. If cancelled, nothing was pushed."""
        check_payload(data)
        await trio.lowlevel.checkpoint()
        await self._entries.wait_for_room(len(data))
        return self.push_nowait(data)

    async def append(self, data: bytes) -> int:
        """Appends an entry, and returns its id once it is confirmed (W2). Entries of many tasks share batches.

        Raises why the writer failed (outcome unknown, W4), `PayloadTooLargeError` or TypeError (not written). If cancelled, the
        outcome is unknown."""
        try:
            entry_id = self._admit(data)
        except trio.WouldBlock:
            await self._entries.wait_for_room(len(data))
            entry_id = self._admit(data)
        await self._confirmed(entry_id)
        if self._entries.backlog.confirmed < entry_id:
            self._entries.check_usable()
        return entry_id

    async def extend(self, data: Sequence[bytes]) -> range:
        """Appends many entries, in as few batches as can be; returns their ids once all are confirmed.

        Raises as `append` does, and an invalid entry raises before any is sent (nothing written). If it raises otherwise or is
        cancelled, each of them has an unknown outcome."""
        return await self._entries.extend(data)

    async def flush(self) -> None:
        """Waits until everything pushed so far is confirmed.

        Raises why the writer failed: the outcome of `unconfirmed` entries is unknown (W4). If cancelled, they stay in flight."""
        await self._entries.flush()

    async def roll(self) -> None:
        """Begins a new fragment, maybe on other bookies, once everything that was sent is confirmed. Entries that are pushed
        meanwhile are sent after that. Nothing happens if the last fragment is empty.

        With a guaranteed write quorum all entries before it have all their copies then (W8). Raises what `flush` raises,
        `MetastoreUncertainError` if it takes too long: then it may happen later; `WriteQuorumError`: then it has happened."""
        await self._entries.roll()

    # -- closing --------------------------------------------------------------------------------------------------

    async def finish(self) -> None:
        """Confirms pushed entries, and closes the ledger, even an unbounded one: no client can take it over any more.
        Raises as `aclose`; and again why the writer failed, or `trio.ClosedResourceError` once it was left: then the
        ledger stays open."""
        await self._entries.finish()

    async def aclose(self) -> None:
        """Confirms pushed entries, takes no more, and closes the ledger (R1); an unbounded one stays open. Idempotent.

        Raises the writer's failure if it failed, unless that was raised before, or it was fenced with nothing unconfirmed and its
        ledger is closed where it would have closed it, or goes on in another term; then `WriteQuorumError` if guaranteed copies
        are missing (W8). If cancelled, the ledger may be open or closed; recover it to know."""
        await self._entries.aclose()

    async def _say_farewell(self, error: BaseException) -> None:
        await self._entries.say_farewell(error)
