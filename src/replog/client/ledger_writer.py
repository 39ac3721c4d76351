"""The writer of one ledger: what an application pushes, appends, flushes and closes.

It is made of parts: `replog.client.batching` decides when and how much is sent, `replog.client.sending` drives the writing
machine and sends, `replog.client.watching` does what is due by time. A push only adds to a list: it never waits for the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import trio

from replog.client.completing import LedgerCompletion
from replog.client.driving import ClientContext
from replog.client.endings import WriterContext, copy_for_raise
from replog.client.sending import BatchSender, SizeLimit
from replog.config import ClientOptions
from replog.errors import FencedError, MetastoreUncertainError, ReplogError
from replog.hookspecs import Event
from replog.protocol.batch import ENTRY_BYTES_MAX, PackedPayloads, Payloads, check_payload
from replog.protocol.model import LedgerMetadata, LedgerState
from replog.protocol.writing import LedgerWriting
from replog.runtime.ticker import Ticker

_CLOSE_PATIENCE = 3  # times the metastore's own timeout
_LOOK_AROUND_EVERY = 8  # entries of a task that appends one by one, and alone
_FAREWELL_S = 5.0  # for closing after the application failed or was cancelled


class LedgerWriter(WriterContext):
    """The one writer of a ledger, or of one term of an unbounded ledger. Made by `Client.create_ledger` and
    `Client.take_over_ledger`; use it as a context manager.

    Leaving the context without an error confirms everything and closes the ledger; leaving it on an error closes it at the last
    confirmed entry, as far as that can be done in a few seconds. An unbounded ledger stays open instead, for the writer of the
    next term; `finish` closes it. After that every method raises `trio.ClosedResourceError`. Once the writer has failed, every
    method raises why: `FencedError` if another client recovers the ledger, `AddTimeoutError` or `NotEnoughBookiesError` if
    entries could not be confirmed in time. The outcome of unconfirmed entries is then unknown (W4).
    """

    def __init__(
        self,
        machine: LedgerWriting,
        key: bytes,
        context: ClientContext,
        options: ClientOptions,
        observe: Callable[[Event], None],
        ticker: Ticker,
        completion: LedgerCompletion | None = None,
    ) -> None:
        self.ledger_id = machine.metadata.ledger_id
        self.first_entry_id = machine.last_add_pushed + 1  # of this writer: those before are of earlier terms
        self.is_created_for_certain = True  # False if another request to create its ledger may still arrive
        self._machine = machine
        self._sender = BatchSender(machine, key, context, options, observe, ticker)
        self.backlog = self._sender.backlog
        self._batching = self._sender.batching
        self.gather = self._batching.gather  # the first half of `append`, of bytes that there is room for
        self._records = context.records
        self._close_timeout_s = _CLOSE_PATIENCE * options.metastore_timeout_s
        self._is_closing = False  # takes no more entries
        self.is_watched = True  # its record is looked at while it appends (W9); not once a log has rolled
        self._stays_open = machine.metadata.is_unbounded  # its ledger, for the writer of the next term
        self._add_timeout_s = options.add_timeout_s
        self._is_machine_closed = False
        self._is_error_raised = False
        self._left: LedgerMetadata | None = None  # the record that this writer left, if another client changed it since
        self._completion = completion  # if the write quorum is guaranteed, until this writer has left its ledger full

    # -- looking --------------------------------------------------------------------------------------------------

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's record, as this writer knows it."""
        return self._left or self._machine.metadata

    @property
    def last_add_pushed(self) -> int:
        """The last entry that was pushed; -1 if there is none."""
        return self.backlog.last_add_pushed

    @property
    def last_add_confirmed(self) -> int:
        """The last entry that is confirmed, with all before it; -1 if there is none."""
        return self.backlog.confirmed

    @property
    def unconfirmed(self) -> range:
        """The ids that were pushed and are not confirmed."""
        return self.backlog.unconfirmed

    @property
    def unconfirmed_bytes(self) -> int:
        """Payload bytes that were pushed and are not confirmed."""
        return self.backlog.unconfirmed_bytes

    @property
    def length_bytes(self) -> int:
        """Payload bytes pushed since the ledger was created."""
        return self._machine.length + self.backlog.gathered_bytes

    @property
    def batches_sent(self) -> int:
        """Batches sent since the ledger was created; one for all the bookies that get it."""
        return self._sender.batches_sent

    @property
    def entries_sent(self) -> int:
        """Entries sent since the ledger was created."""
        return self._machine.last_add_pushed + 1

    @property
    def error(self) -> ReplogError | None:
        """Why the writer failed, or None."""
        return self._sender.error

    @property
    def is_ending(self) -> bool:
        """True if it takes no more entries: it was closed, is being closed, or has failed."""
        return self._is_closing or self.error is not None

    def statistics(self) -> dict[str, float]:
        """Counters and gauges."""
        return {
            "last_add_pushed": self.last_add_pushed,
            "last_add_confirmed": self.last_add_confirmed,
            "unconfirmed_bytes": self.unconfirmed_bytes,
            "batches_sent": self.batches_sent,
            "entries_sent": self.entries_sent,
            "batches_in_flight": self.backlog.in_flight,
            "batches_in_flight_max": self._batching.depth,
            "fragments": len(self._machine.metadata.fragments),
            "indices_missing": self._machine.missing.bit_count(),
        }

    # -- pushing and appending --------------------------------------------------------------------------------------

    def push_nowait(self, data: bytes) -> int:
        """Puts an entry in flight and returns its id; `flush` or `last_add_confirmed` tells when it is confirmed.

        Raises `trio.WouldBlock` if the byte budget `in_flight_bytes_max` is used up (W6), `PayloadTooLargeError` or
        TypeError for what can't be an entry: then nothing was pushed. Costs no system call while others are in flight.
        """
        # This runs for each entry: a comparison of classes is cheaper than `isinstance`, and nearly always enough.
        if data.__class__ is not bytes:
            self._batching.check_uncommon(data)
        size_bytes = len(data)
        backlog = self.backlog
        unconfirmed_bytes = backlog.unconfirmed_bytes + size_bytes
        # One comparison for three cases: no room, failed and closed. `bytes_max` is -1 after the writer's end.
        if unconfirmed_bytes > backlog.bytes_max or size_bytes > ENTRY_BYTES_MAX:
            check_payload(data)
            self.check_usable()
            if unconfirmed_bytes > size_bytes:  # otherwise it is the only one, and may exceed the budget
                raise trio.WouldBlock
        backlog.unconfirmed_bytes = unconfirmed_bytes
        backlog.gathered.append(data)
        backlog.last_add_pushed = entry_id = backlog.last_add_pushed + 1
        if backlog.turn is None:
            self._batching.pushed()
        return entry_id

    async def push(self, data: bytes) -> int:
        """As `push_nowait`, but waits for the byte budget. If cancelled, nothing was pushed."""
        check_payload(data)
        await trio.lowlevel.checkpoint()
        await self.wait_for_room(len(data))
        return self.push_nowait(data)

    async def append(self, data: bytes) -> int:
        """Appends an entry, and returns its id once it is confirmed (W2). Many tasks may append at once: their entries
        share batches. If cancelled, or if it raises, the outcome is unknown (W4), except as for `push`."""
        if data.__class__ is not bytes:
            self._batching.check_uncommon(data)
        size_bytes, backlog = len(data), self.backlog
        if backlog.unconfirmed_bytes + size_bytes > backlog.bytes_max or size_bytes > ENTRY_BYTES_MAX:
            check_payload(data)
            await self.wait_for_room(size_bytes)
        waiting, entry_id = self.gather(data), backlog.last_add_pushed
        await (self.lead(entry_id, 1) if waiting is None else waiting.wait())
        if backlog.confirmed < entry_id:
            self.check_usable()
        return entry_id

    async def lead(self, entry_id: int, entries: int) -> None:
        """Sends what has gathered, up to this entry, after letting every other task that is ready append too; and waits for it.

        A turn of the event loop costs a tenth of a lone append. So while nobody else was seen to append, a task that appends
        single entries gives way only when eight of them were confirmed at once, without a wait: that bounds how long other tasks
        wait, and how many of their entries miss this batch."""
        backlog, batching = self.backlog, self._batching
        try:
            if entries > 1 or not batching.lone_appends % _LOOK_AROUND_EVERY:
                backlog.turn = self  # meanwhile other tasks' entries gather
                await trio.lowlevel.checkpoint()
        finally:
            # Even if cancelled: other tasks' entries may have gathered, and wait for this one to send them.
            backlog.turn = None
            batching.is_pushed, batching.expected_bytes = False, 0
            batching.is_alone = len(backlog.gathered) == entries and not backlog.in_flight
            batching.lone_appends = batching.lone_appends + 1 if batching.is_alone else 0
            self._sender.drive()
            batching.is_alone = False
        if backlog.confirmed >= entry_id:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            await backlog.confirmation(entry_id).wait()
            if batching.lone_appends:
                batching.lone_appends = 1  # every other task has had a turn

    async def extend(self, data: Sequence[bytes]) -> range:
        """Appends many entries, and returns their ids once all are confirmed. They are sent as few batches. If cancelled, or
        if it raises, each of them has an unknown outcome; an invalid one raises before any is sent."""
        payloads = data if type(data) is Payloads else Payloads(data)
        await self.wait_for_room(payloads.size_bytes)
        backlog, batching = self.backlog, self._batching
        if payloads.has_envelopes:
            batching.has_envelopes = True
        backlog.gathered += payloads
        backlog.unconfirmed_bytes += payloads.size_bytes
        ids = range(backlog.last_add_pushed + 1, backlog.last_add_pushed + 1 + len(payloads))
        backlog.last_add_pushed += len(payloads)
        if payloads:
            batching.is_pushed = False
            if backlog.turn is not None or (backlog.in_flight and not batching.may_send()):
                batching.lone_appends = 0  # another task appends as well
                await backlog.gathering().wait()
            elif batching.lone_appends:
                await self.lead(ids[-1], len(payloads))
            else:
                batching.lone_appends = 1
                self._sender.drive()
                if backlog.confirmed < ids[-1]:
                    await backlog.confirmation(ids[-1]).wait()
            self.check_confirmed(ids[-1])
        return ids

    async def flush(self) -> None:
        """Waits until everything pushed so far is confirmed. If cancelled, it goes on being in flight."""
        await trio.lowlevel.checkpoint()
        self.check_usable()
        await self._confirm_all()

    async def roll(self) -> None:
        """Begins a new fragment, maybe on other bookies, once everything that was sent is confirmed. Entries that are pushed
        meanwhile are sent after that. Nothing happens if the last fragment is empty.

        With a guaranteed write quorum all entries before it have all their copies then (W8). Raises what `flush` raises,
        `MetastoreUncertainError` if it takes too long: then it may happen later; `WriteQuorumError`: then it has happened."""
        await trio.lowlevel.checkpoint()
        self.check_usable()
        await self.begin_fragment()
        self.check_usable()
        if self._machine.is_changing:
            raise MetastoreUncertainError(f"ledger {self.ledger_id}: rolling took too long; it may happen later")
        await self.complete()

    async def _confirm_all(self) -> None:
        backlog, last = self.backlog, self.backlog.last_add_pushed
        # What has gathered goes now, and not only when the next answer comes.
        if backlog.confirmed < last:
            self._sender.drive()
            await backlog.confirmation(last).wait()
            self.check_confirmed(last)

    async def wait_for_room(self, size_bytes: int, *, is_batch: bool = False) -> None:
        """Returns once an entry of this size can be pushed, or a whole batch be sent. Raises as `push` does."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self.check_usable()
        while not self.backlog.has_room(size_bytes) or (is_batch and self._batching.is_busy):
            if self.backlog.turn is not None:
                self._batching.send_now()  # this task pushes nothing more: there is nothing to wait for
            else:
                await self.backlog.freed().wait()
            self.check_usable()

    def check_usable(self) -> None:
        """Raises what every method raises once the writer has failed or was closed."""
        if self.error is not None:
            self._is_error_raised = True
            raise copy_for_raise(self.error)
        if self._is_closing:
            raise trio.ClosedResourceError(f"ledger {self.ledger_id}: this writer was closed")

    # -- for callers outside of the trio run ----------------------------------------------------------------------

    def append_nowait(self, data: bytes, ended: Callable[[bool], None]) -> int:
        """As `append`, but returns the id at once, and calls `ended(True)` when the entry is confirmed; `ended(False)` when the
        writer ends before: then `check_confirmed` raises why. Maybe before this returns. Raises as `push_nowait` does."""
        if data.__class__ is not bytes or len(data) > ENTRY_BYTES_MAX:
            self._batching.check_uncommon(data)
        self._take_nowait((data,), len(data))
        self.backlog.call_when_confirmed(self.backlog.last_add_pushed, ended)
        return self.backlog.last_add_pushed

    def extend_nowait(self, payloads: Payloads, ended: Callable[[bool], None]) -> range:
        """As `extend`, and as `append_nowait`."""
        backlog = self.backlog
        first = backlog.last_add_pushed + 1
        if payloads:
            self._batching.has_envelopes |= payloads.has_envelopes
            self._take_nowait(payloads, payloads.size_bytes)
        else:
            self.check_usable()
        ids = range(first, backlog.last_add_pushed + 1)
        backlog.call_when_confirmed(backlog.last_add_pushed if ids else backlog.confirmed, ended)
        return ids

    def flush_nowait(self, ended: Callable[[bool], None]) -> int:
        """As `flush`, and as `append_nowait`; returns the last id that was pushed."""
        self.check_usable()
        last = self.backlog.last_add_pushed
        if self.backlog.confirmed < last:
            self._sender.drive()
        self.backlog.call_when_confirmed(last, ended)
        return last

    def check_confirmed(self, entry_id: int) -> None:
        """Raises why this entry is not confirmed, if it is not, and the writer has ended."""
        if self.backlog.confirmed < entry_id:
            self.check_usable()

    def _take_nowait(self, payloads: Sequence[bytes], size_bytes: int) -> None:
        backlog = self.backlog
        unconfirmed_bytes = backlog.unconfirmed_bytes + size_bytes
        if unconfirmed_bytes > backlog.bytes_max:
            self.check_usable()
            if unconfirmed_bytes > size_bytes:  # otherwise they are the only ones, and may exceed the budget
                raise trio.WouldBlock
        backlog.gathered += payloads
        backlog.unconfirmed_bytes = unconfirmed_bytes
        backlog.last_add_pushed += len(payloads)
        if backlog.turn is None:
            self._batching.appended()

    # -- used by the log's writer, the client and Spark -------------------------------------------------------------

    async def push_packed(self, packed: PackedPayloads) -> None:
        """As `push`, of entries in one piece. They become one batch as they are, where that can be. Waits also for what has
        gathered, and while as many batches are in flight as may be."""
        await self.wait_for_room(packed.size_bytes, is_batch=True)
        if not self._sender.send_packed(packed):
            self._take_nowait(Payloads(packed), packed.size_bytes)

    def report_to(self, limit: SizeLimit | None, on_failure: Callable[[], None] | None) -> None:
        """Has `on_failure` called when the writer fails; and `limit.reached` now and after confirmations, while it is reached."""
        self._sender.limit, self._sender.on_failure = limit, on_failure
        if limit is not None:
            limit.check(self.last_add_pushed + 1, self.length_bytes)

    async def begin_fragment(self) -> None:
        """As `roll`, but raises nothing: for the client's own task. Those who use the writer are told why it failed."""
        sender = self._sender
        self._batching.is_held = True
        try:
            sent = self._machine.last_add_pushed
            # A bookie that is slow, or failed, does not hold up the roll: what is pending moves along (C5).
            with trio.move_on_after(self._add_timeout_s):
                if self.backlog.confirmed < sent:
                    await self.backlog.confirmation(sent).wait()
            if self.is_ending:
                return
            with trio.move_on_after(self._close_timeout_s):
                if self._completion is not None:
                    # What a change under way leaves in the last fragment is before the roll, too (W8).
                    await sender.settle()
                self._machine.roll()
                sender.drive()
                await sender.settle()
        finally:
            self.release()

    async def complete(self) -> None:
        """Returns once all that is fixed of the ledger has all its copies, if that is guaranteed. Raises `WriteQuorumError`."""
        if self._completion is not None:
            metadata, was_left = self.metadata, self._sender.closed.is_set()
            found = await self._completion.complete(metadata, self._machine.version)
            if was_left:
                self._left, self._completion = found, None
            else:
                self._machine.found_full(metadata.last_fragment.first_entry_id)

    def hold(self) -> None:
        """Gathers entries and sends nothing until `release`: the entries before these are not all confirmed (L2)."""
        self._batching.is_held = True

    def release(self) -> None:
        """Sends what has gathered, and goes on as usual."""
        self._batching.is_held = False
        self._sender.drive()

    def reader_waits(self) -> None:
        """A bookie says that a reader waits for what is confirmed (W5)."""
        self._sender.watching.publishing.awaited()

    def date(self, timestamp_ns: int) -> None:
        """Gives this time to what is sent from now on, instead of the clock's: for entries that are older than their ledger."""
        self._sender.date(timestamp_ns)

    def leave_bookies(self, draining: Collection[str]) -> None:
        """Replaces those of its bookies that drain, if others can be connected to (C8). Nothing waits for it."""
        self._sender.watching.missing.leave(draining)

    def leave(self) -> None:
        """Ends the writer and leaves its ledger as it is: nobody was to write to it after all."""
        self._sender.closed.set()

    def abandon(self, error: ReplogError) -> None:
        """Fails the writer: unconfirmed entries have an unknown outcome. The ledger is left as it is."""
        self._machine.abandon(error)
        self._sender.drive()

    async def run(self) -> None:
        """The writer's background task. Ends when the writer is closed or has failed."""
        try:
            await self._sender.run()
        finally:
            # It was closed, or cancelled with its client: nobody drives it any more, so no task may wait for it.
            self._take_no_more()
            self._is_machine_closed = True
            self.backlog.end()
            self._sender.closed.set()

    # -- closing --------------------------------------------------------------------------------------------------

    async def finish(self) -> None:
        """Confirms what was pushed, and closes the ledger, even an unbounded one: nobody can take it over any more. Raises as
        `aclose`; and again why the writer failed, or `trio.ClosedResourceError` once it was left: then the ledger stays open."""
        if self._stays_open and (self._is_closing or self._is_error_raised):
            self.check_usable()
        self._stays_open = False
        await self.aclose()

    async def aclose(self) -> None:
        """Confirms what was pushed, takes nothing more, and closes the ledger (R1); an unbounded one stays open. Idempotent.

        Raises the writer's failure if it failed, unless that was raised before, or it was fenced with nothing unconfirmed and its
        ledger is closed where it would have closed it; then `WriteQuorumError` if guaranteed copies are missing (W8). If
        cancelled, the ledger may be open or closed; recover it to know."""
        self._take_no_more()
        if self.error is None and not self._is_machine_closed:
            await self._confirm_all()
        late = self._sender.late_adds()
        await self._close()
        await late.wait(self.error)
        if self.error is None or self._left is not None:
            await self.complete()

    def _take_no_more(self) -> None:
        self._is_closing = True
        self.backlog.bytes_max = -1

    async def _close(self) -> None:
        self._take_no_more()
        closed = self._sender.closed
        if self.error is None and not self._is_machine_closed:
            self._is_machine_closed = True
            self.backlog.gathered = []
            if self._stays_open:
                await self._sender.leave_open(self._close_timeout_s, is_fixed=self._completion is not None)
            else:
                self._machine.close()
                self._sender.drive()
        self.backlog.end()
        with trio.move_on_after(self._close_timeout_s):
            await closed.wait()
        if not closed.is_set():
            self.abandon(MetastoreUncertainError(f"ledger {self.ledger_id}: closing it took too long"))
        # An error that a call has raised already is not raised again on leaving: it would hide what the application made of
        # it.
        if self.error is not None and not self._is_error_raised and not await self._was_closed_in_its_place():
            self._is_error_raised = True
            raise copy_for_raise(self.error)

    async def _was_closed_in_its_place(self) -> bool:
        """True if another client has deposed this writer, and closed the ledger where this writer would have. Then nothing is in
        doubt, and it makes no difference whether the writer learnt of its fence by closing or before (R1)."""
        if not isinstance(self.error, FencedError) or self.error.unconfirmed:
            return False
        try:
            metadata, _ = await self._records.get_head(self.ledger_id)
        except ReplogError:
            return False  # the writer's own error is raised
        if metadata.state is not LedgerState.CLOSED or metadata.last_entry_id != self.last_add_confirmed:
            return False
        self._left = metadata
        return True

    async def say_farewell(self, error: BaseException) -> None:
        """Closes at the last confirmed entry, if that can be done in a few seconds."""
        with trio.CancelScope(deadline=trio.current_time() + _FAREWELL_S, shield=True):
            try:
                await self._close()
            except ReplogError as problem:
                error.add_note(f"and its ledger was not closed: {problem}")
        # If the deadline passed, the background task ends all the same.
        self._sender.closed.set()
