"""The writer of one ledger: what the application pushes, appends, flushes and closes.

What is pushed while batches are under way gathers into the next one: no timer, and nothing is paid for an entry but a
list's append. A push never waits for the machine; the machine's answers send what has gathered (`replog.client.sending`).
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from replog.client.contexts import WriterContext
from replog.client.failure import another
from replog.client.sending import BatchSender
from replog.errors import FencedError, MetastoreUncertainError, ReplogError
from replog.protocol.batch import ENTRY_BYTES_MAX, Payloads, check_payload
from replog.protocol.model import LedgerMetadata, LedgerState

_CLOSE_PATIENCE = 3  # times the metastore's own timeout
_LOOK_AROUND_EVERY = 8  # entries of a task that appends one by one, and alone
_FAREWELL_S = 5.0  # for closing after the application failed or was cancelled


class LedgerWriter(BatchSender, WriterContext):
    """The one writer of a ledger. Made by `Client.create_ledger`; use it as a context.

    Leaving the context without an error confirms everything and closes the ledger; leaving it on an error closes it at
    the last confirmed entry, as far as that can be done in a few seconds. After that every method raises
    `trio.ClosedResourceError`. Once the writer has failed, every method raises why: `FencedError` if another client
    recovers the ledger, `AddTimeoutError` or `NotEnoughBookiesError` if entries could not be confirmed in time. The
    outcome of unconfirmed entries is then unknown (W4).
    """

    is_created_for_certain = True  # False if another request to create its ledger may still be under way

    # -- looking --------------------------------------------------------------------------------------------------

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's record, as this writer knows it."""
        return self._closed_by_another or self._machine.metadata

    @property
    def unconfirmed_bytes(self) -> int:
        """Payload bytes that were pushed and are not confirmed."""
        return self._confirmations.unconfirmed_bytes

    @property
    def length_bytes(self) -> int:
        """Payload bytes pushed since the ledger was created."""
        return self._machine.length + self._gathered_bytes

    @property
    def error(self) -> ReplogError | None:
        """Why the writer failed, or None."""
        return self._error

    def statistics(self) -> dict[str, float]:
        """Counters and gauges."""
        return {
            "last_add_pushed": self.last_add_pushed,
            "last_add_confirmed": self.last_add_confirmed,
            "unconfirmed_bytes": self.unconfirmed_bytes,
            "batches_sent": self.batches_sent,
            "entries_sent": self.entries_sent,
            "batches_in_flight": self._confirmations.in_flight,
            "batches_in_flight_max": self._depth,
            "fragments": len(self._machine.metadata.fragments),
            "indices_missing": self._machine.missing.bit_count(),
        }

    # -- pushing and appending --------------------------------------------------------------------------------------

    def push_nowait(self, data: bytes) -> int:
        """Puts an entry in flight and returns its id; `flush` or `last_add_confirmed` tells when it is confirmed.

        Raises `trio.WouldBlock` if the byte budget `in_flight_bytes_max` is used up (W6), `PayloadTooLargeError` or
        TypeError for what is no entry: then nothing was pushed. Costs no system call while others are in flight.
        """
        if type(data) is not bytes:
            check_payload(data)
        size_bytes = len(data)
        confirmations = self._confirmations
        unconfirmed_bytes = confirmations.unconfirmed_bytes + size_bytes
        if unconfirmed_bytes > self._push_bytes_max or size_bytes > ENTRY_BYTES_MAX:
            check_payload(data)
            self.check_usable()
            if unconfirmed_bytes > size_bytes:  # else it is the only one
                raise trio.WouldBlock
        confirmations.unconfirmed_bytes = unconfirmed_bytes
        self._gathered.append(data)
        self.last_add_pushed = entry_id = self.last_add_pushed + 1
        if not self._send_scheduled:
            self._schedule_send()
        return entry_id

    async def push(self, data: bytes) -> int:
        """As `push_nowait`, but waits for the byte budget. If cancelled, nothing was pushed."""
        check_payload(data)
        await trio.lowlevel.checkpoint()
        await self._wait_for_budget(len(data))
        return self.push_nowait(data)

    async def append(self, data: bytes) -> int:
        """Appends an entry, and returns its id once it is confirmed (W2). Many tasks may append at once: their entries
        share batches. If cancelled, or if it raises, the outcome is unknown (W4), except as for `push`."""
        if type(data) is not bytes:
            check_payload(data)
        size_bytes, confirmations = len(data), self._confirmations
        if confirmations.unconfirmed_bytes + size_bytes > self._push_bytes_max or size_bytes > ENTRY_BYTES_MAX:
            check_payload(data)
            await self._wait_for_budget(size_bytes)
        confirmations.unconfirmed_bytes += size_bytes
        self._gathered.append(data)
        self.last_add_pushed = entry_id = self.last_add_pushed + 1
        event = confirmations.gathering()
        if self._send_scheduled or not self._may_send():
            await event.wait()
        else:
            await self._lead(event, 1)
        if self._confirmations.confirmed < entry_id:
            self.check_usable()
        return entry_id

    async def _lead(self, event: trio.Event, entries: int) -> None:
        """Lets every other task that is ready append too, then sends what has gathered.

        A turn of the event loop costs a tenth of a lone append. So while nobody else was seen to append, a task that appends
        single entries gives way only when eight of them were confirmed at once, without a wait: a bound on how long others
        wait, and on how many of their entries miss this batch."""
        try:
            if entries > 1 or not self._lone_appends % _LOOK_AROUND_EVERY:
                self._send_scheduled = True
                await trio.lowlevel.checkpoint()
        finally:
            self._send_scheduled = False
            self._is_pushed, self._expected_bytes = False, 0
            self._alone = len(self._gathered) == entries and not self._confirmations.in_flight
            self._lone_appends = self._lone_appends + 1 if self._alone else 0
            self._drive()
            self._alone = False
        if event.is_set():
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            await event.wait()
            if self._lone_appends:
                self._lone_appends = 1  # everybody else has had a turn

    async def extend(self, data: Sequence[bytes]) -> range:
        """Appends many entries, and returns their ids once all are confirmed. They are sent as few batches. If cancelled, or
        if it raises, each of them has an unknown outcome; an invalid one raises before any is sent."""
        payloads = data if type(data) is Payloads else Payloads(data)
        await self._wait_for_budget(payloads.size_bytes)
        self._gathered += payloads
        self._confirmations.unconfirmed_bytes += payloads.size_bytes
        first = self.last_add_pushed + 1
        self.last_add_pushed += len(payloads)
        ids = range(first, self.last_add_pushed + 1)
        if payloads:
            self._is_pushed = False
            event = self._confirmations.gathering()
            if self._send_scheduled or not self._may_send():
                self._lone_appends = 0  # somebody else appends as well
                await event.wait()
            elif self._lone_appends:
                await self._lead(event, len(payloads))
            else:
                self._lone_appends = 1
                self._drive()
                if not event.is_set():
                    await event.wait()
            if self._confirmations.confirmed < ids[-1]:
                self.check_usable()
        return ids

    async def flush(self) -> None:
        """Waits until everything pushed so far is confirmed. If cancelled, it goes on being in flight."""
        await trio.lowlevel.checkpoint()
        self.check_usable()
        await self._confirm_all()

    async def _confirm_all(self) -> None:
        last = self.last_add_pushed
        if self._confirmations.confirmed >= last:
            return
        event = self._confirmations.gathering() if self._gathered else self._confirmations.all_sent(last)
        self._drive()
        await event.wait()
        if self._confirmations.confirmed < last:
            self.check_usable()

    def has_room(self, size_bytes: int) -> bool:
        """Whether an entry of this size can be pushed without waiting for the byte budget."""
        unconfirmed_bytes = self._confirmations.unconfirmed_bytes
        return unconfirmed_bytes + size_bytes <= self._in_flight_bytes_max or not unconfirmed_bytes

    async def wait_for_room(self, size_bytes: int) -> None:
        """Returns once there is room. Raises as `push` does."""
        await self._wait_for_budget(size_bytes)

    def leave(self) -> None:
        """Ends the writer, and leaves its ledger as it is: nobody was to write to it after all."""
        self._closed.set()

    async def _wait_for_budget(self, size_bytes: int) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        self.check_usable()
        while not self.has_room(size_bytes):
            if self._send_scheduled:  # whoever has no room pushes nothing: there is no more to come
                self._send_gathered()
            await self._confirmations.freed().wait()
            self.check_usable()

    def check_usable(self) -> None:
        """Raises what every method raises once the writer has failed or was closed."""
        if self._error is not None:
            self._is_error_told = True
            raise another(self._error)
        if self._closing:
            raise trio.ClosedResourceError(f"ledger {self.ledger_id}: this writer was closed")

    # -- closing --------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Confirms what was pushed, takes nothing more, and closes the ledger (R1). Idempotent. Raises the writer's failure
        if it failed, unless that was raised before, or it was fenced with nothing unconfirmed, and its ledger is closed where it
        would have closed it. If cancelled, the ledger may be open or closed; recover it to know."""
        self._take_no_more()
        if self._error is None and not self._is_machine_closed:
            await self._confirm_all()
        await self._close()

    async def _close(self) -> None:
        self._take_no_more()
        if self._error is None and not self._is_machine_closed:
            self._is_machine_closed = True
            self._gathered = []
            self._machine.close()
            self._drive()
        self._confirmations.fail()
        with trio.move_on_after(_CLOSE_PATIENCE * self._options.metastore_timeout_s):
            await self._closed.wait()
        if not self._closed.is_set():
            self._machine.abandon(MetastoreUncertainError(f"ledger {self.ledger_id}: closing it took too long"))
            self._drive()
        if self._error is not None and not self._is_error_told and not await self._was_closed_in_its_place():
            self._is_error_told = True
            raise another(self._error)

    async def _was_closed_in_its_place(self) -> bool:
        """Whether who deposed it has closed the ledger where this writer would have: then nothing is in doubt, and whether it
        learnt of its fence by closing or before makes no difference (R1)."""
        if not isinstance(self._error, FencedError) or self._error.unconfirmed:
            return False
        try:
            metadata, _ = await self._surroundings.records.get(self.ledger_id)
        except ReplogError:
            return False  # what it failed with is raised
        if metadata.state is not LedgerState.CLOSED or metadata.last_entry_id != self.last_add_confirmed:
            return False
        self._closed_by_another = metadata
        return True

    async def say_farewell(self, error: BaseException) -> None:
        """Closes at the last confirmed entry, if that can be done in a few seconds."""
        with trio.CancelScope(deadline=trio.current_time() + _FAREWELL_S, shield=True):
            try:
                await self._close()
            except ReplogError as problem:
                error.add_note(f"and its ledger was not closed: {problem}")
        self._closed.set()  # if the deadline passed, the background task ends all the same
