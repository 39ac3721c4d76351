"""Writes one ledger's entries: the part of a writer that ledgers, logs and Spark share.

It is made of parts: `replog.client.backlog` admits entries and says when they are confirmed, `replog.client.pacing` decides when
they are sent and `replog.client.batch_sizes` how many at a time, `replog.client.sending` drives the writing machine and sends,
`replog.client.writer_background` does what is due by time. A push only adds to a list: it never waits for the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import trio

from replog.client.endings import WriterContext, copy_for_raise
from replog.client.ledger_effects import ClientContext
from replog.client.pacing import Stage
from replog.client.sending import BatchSender, SizeLimit
from replog.config.client import ClientTuning
from replog.errors import FencedError, MetastoreUncertainError, ReplogError
from replog.hookspecs import Event
from replog.protocol.batch import PackedPayloads, Payloads
from replog.protocol.model import LedgerMetadata, LedgerState
from replog.protocol.writing import LedgerWriting
from replog.runtime.ticker import Ticker

_CLOSE_PATIENCE = 3  # times the metastore's own timeout
_FAREWELL_S = 5.0  # for closing after the application failed or was cancelled


class Completion(Protocol):
    """Brings a ledger to its full write quorum (W8)."""

    async def complete(self, metadata: LedgerMetadata, version: int) -> LedgerMetadata:
        """Returns the record, as far as it is known, once all that is fixed in this one has all its copies. Raises
        `WriteQuorumError`."""


class EntryWriter(WriterContext):
    """Writes the entries of one ledger, or of one term of an unbounded ledger: what ledgers, logs and Spark write with. An
    application has `LedgerWriter` for it."""

    def __init__(
        self,
        machine: LedgerWriting,
        key: bytes,
        context: ClientContext,
        options: ClientTuning,
        observe: Callable[[Event], None],
        ticker: Ticker,
        completion: Completion | None = None,
    ) -> None:
        self.ledger_id = machine.metadata.ledger_id
        self.first_entry_id = machine.last_add_pushed + 1  # of this writer: those before are of earlier terms
        self.is_created_for_certain = True  # False if another request to create its ledger may still arrive
        self._machine = machine
        self._sender = BatchSender(machine, key, context, options, observe, ticker, self.check_usable)
        self.backlog = self._sender.backlog
        self.pacing = self._sender.pacing
        # The two halves of `append`, for logs, too.
        self.admit = self.backlog.admit
        self.confirmed = self.pacing.confirmed
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
            "batches_in_flight_max": self.pacing.depth,
            "fragments": len(self._machine.metadata.fragments),
            "indices_missing": self._machine.missing.bit_count(),
        }

    # -- pushing and appending --------------------------------------------------------------------------------------

    async def extend(self, data: Sequence[bytes]) -> range:
        """Does the work of `LedgerWriter.extend`."""
        payloads = data if type(data) is Payloads else Payloads(data)
        await self.wait_for_room(payloads.size_bytes)
        ids = self.backlog.admit_all(payloads)
        if payloads:
            await self.confirmed(ids[-1], len(payloads))
            self.check_confirmed(ids[-1])
        return ids

    async def flush(self) -> None:
        """Does the work of `LedgerWriter.flush`."""
        await trio.lowlevel.checkpoint()
        self.check_usable()
        await self._confirm_all()

    async def roll(self) -> None:
        """Does the work of `LedgerWriter.roll`."""
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
        """Returns once an entry of this size can be pushed, or a whole batch be sent. Raises as `check_usable`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self.check_usable()
        while not self.backlog.has_room(size_bytes) or (is_batch and self.pacing.is_busy):
            if self.pacing.stage is Stage.GATHERING:
                self.pacing.send_now()  # this task pushes nothing more: there is nothing to wait for
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
        """Appends without blocking: returns the id at once, and calls `ended(True)` when the entry is confirmed;
        `ended(False)` when the writer ends before: then `check_confirmed` raises the reason. It may be called before
        this returns. Raises the errors of `push_nowait`."""
        entry_id = self.admit(data)
        self.pacing.appended(1)
        self.backlog.call_when_confirmed(entry_id, ended)
        return entry_id

    def extend_nowait(self, payloads: Payloads, ended: Callable[[bool], None]) -> range:
        """Appends several entries without blocking (see `extend` and `append_nowait`)."""
        self.check_usable()
        ids = self.backlog.admit_all(payloads)
        if ids:
            self.pacing.appended(len(ids))
        self.backlog.call_when_confirmed(ids[-1] if ids else self.backlog.confirmed, ended)
        return ids

    def flush_nowait(self, ended: Callable[[bool], None]) -> int:
        """Flushes without blocking (see `flush` and `append_nowait`); returns the last id that was pushed."""
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

    # -- used by the log's writer, the client and Spark -------------------------------------------------------------

    async def push_packed(self, packed: PackedPayloads) -> None:
        """Pushes entries in one piece (see `push`). They become one batch as they are, where that can be. It also waits
        until gathered entries are sent, and while the maximal number of batches is in flight."""
        await self.wait_for_room(packed.size_bytes, is_batch=True)
        if not self._sender.send_packed(packed):
            self.pacing.appended(len(self.backlog.admit_all(Payloads(packed))))

    def report_to(self, limit: SizeLimit | None, on_failure: Callable[[], None] | None) -> None:
        """Has `on_failure` called when the writer fails; and `limit.reached` now and after confirmations, while it is reached."""
        self._sender.limit, self._sender.on_failure = limit, on_failure
        if limit is not None:
            limit.check(self.last_add_pushed + 1, self.length_bytes)

    async def begin_fragment(self) -> None:
        """Begins a fragment like `roll`, but raises nothing: for the client's own task. Callers of the writer get the
        reason if it failed."""
        sender, is_held_here = self._sender, self.pacing.hold()
        try:
            sent = self._machine.last_add_pushed
            # A bookie that is slow, or failed, does not hold up the roll: pending entries move along (C5).
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
            if is_held_here:  # else a log holds it still (L2)
                self.pacing.release()

    async def complete(self) -> None:
        """Returns once all that is fixed of the ledger has all its copies, if that is guaranteed. Raises `WriteQuorumError`."""
        if self._completion is not None:
            metadata, was_left = self.metadata, self._sender.closed.is_set()
            found = await self._completion.complete(metadata, self._machine.version)
            if was_left:
                self._left, self._completion = found, None
            else:
                self._machine.found_full(metadata.last_fragment.first_entry_id)

    def reader_waits(self) -> None:
        """A bookie says that a reader waits for what is confirmed (W5)."""
        self._sender.watching.publishing.awaited()

    def date(self, timestamp_ns: int) -> None:
        """Gives this time to entries sent from now on, instead of the clock's: for entries that are older than their
        ledger."""
        self._sender.date(timestamp_ns)

    def leave_bookies(self, draining: Collection[str]) -> None:
        """Replaces those of its bookies that drain, if others can be connected to (C8). Nothing waits for it."""
        self._sender.watching.missing.leave(draining)

    def leave(self) -> None:
        """Ends the writer and leaves its ledger as it is: no caller needs it after all."""
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
            # It was closed, or cancelled with its client: it is not driven any more, so no task may wait for it.
            self._take_no_more()
            self._is_machine_closed = True
            self.backlog.end()
            self._sender.closed.set()

    # -- closing --------------------------------------------------------------------------------------------------

    async def finish(self) -> None:
        """Does the work of `LedgerWriter.finish`."""
        if self._stays_open and (self._is_closing or self._is_error_raised):
            self.check_usable()
        self._stays_open = False
        await self.aclose()

    async def aclose(self) -> None:
        """Does the work of `LedgerWriter.aclose`."""
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
        self.backlog.take_no_more()

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
        """True if another client has deposed this writer, and left the ledger as this writer would have: a bounded one closed at
        the same entry, an unbounded one with all that is confirmed. Then nothing is in doubt, and it makes no difference whether
        the writer learnt of its fence by leaving or before (R1)."""
        if not isinstance(self.error, FencedError) or self.error.unconfirmed:
            return False
        try:
            metadata, _ = await self._records.get_head(self.ledger_id)
        except ReplogError:
            return False  # the writer's own error is raised
        if self._stays_open:
            return True  # the next term keeps what this one confirmed, and has the copies that are guaranteed (L9, W8)
        if metadata.state is not LedgerState.CLOSED or metadata.last_entry_id != self.last_add_confirmed:
            return False
        self._left = metadata
        return True

    async def _say_farewell(self, error: BaseException) -> None:
        await self.say_farewell(error)

    async def say_farewell(self, error: BaseException) -> None:
        """Closes at the last confirmed entry, if that can be done in a few seconds."""
        with trio.CancelScope(deadline=trio.current_time() + _FAREWELL_S, shield=True):
            try:
                await self._close()
            except ReplogError as problem:
                error.add_note(f"and its ledger was not closed: {problem}")
        # If the deadline passed, the background task ends all the same.
        self._sender.closed.set()
