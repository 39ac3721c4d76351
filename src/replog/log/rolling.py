"""Rolling: a log's writer goes on to a new ledger, on demand or because the current one is large, long or old (L2, L5).

`CurrentSegment` is where entries go now. `NextLedger` creates a ledger and changes the log's record so that it names it.
`Rolling` decides when, and then leads the writer over:

1. the new ledger's writer becomes the current one; it gathers what is pushed, and sends nothing;
2. the previous ledger's entries are confirmed;
3. the new writer sends what it has gathered, and the previous ledger is closed.

So no entry of a ledger is confirmed before all entries of the leader's ledger before it, and at most two ledgers of a log are
open. A roll also answers a committer, whose ledgers get their places between those two (L10).
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio

from replog.client.endings import copy_for_raise
from replog.client.entry_writer import EntryWriter
from replog.client.ledgers import Ledgers
from replog.client.sending import SizeLimit
from replog.errors import FencedError, LedgerNotFoundError, ReplogError, WriteQuorumError
from replog.hookspecs import LedgersSpliced, LogRolled
from replog.log.log_driver import LogDriver
from replog.log.producers import Producers
from replog.log.record_batches import Positions
from replog.protocol.additions import AppendRequest
from replog.protocol.chaining import LogChanged
from replog.protocol.closed_contents import Contents
from replog.protocol.deposing import fenced
from replog.protocol.model import LedgerMetadata, LogMetadata, Position
from replog.protocol.rolling import LogRolling, RollBase

_RETRY_AFTER_S = 5.0
FRAGMENTS_MAX = 50  # of a ledger: a takeover that finds more rolls, so that few ledgers of logs need index chunks (M4)


class CurrentSegment:
    """The ledger that a log's writer appends to; and the one before, while not all of it is confirmed."""

    def __init__(self, writer: EntryWriter, segment: int) -> None:
        self.writer = writer
        self.segment = segment
        self.previous: EntryWriter | None = None
        self._previous_segment = segment  # the number of that one: ledgers of others may be between both (L10)
        self._confirmed: Position | None = None  # in segments before the current one
        self.producers: Producers | None = None  # of the log, once its writer has set that
        self.lacking: int | None = None  # the ledger before, if it is closed and guaranteed copies of it are missing

    @property
    def last_add_pushed(self) -> Position | None:
        """Where the last entry was put that was pushed; None before the first."""
        if self.writer.last_add_pushed >= self.writer.first_entry_id:
            return Position(self.segment, self.writer.last_add_pushed)
        if self.previous is not None and self.previous.last_add_pushed >= self.previous.first_entry_id:
            return Position(self._previous_segment, self.previous.last_add_pushed)
        return self._confirmed

    @property
    def last_add_confirmed(self) -> Position | None:
        """The last entry that is confirmed, with all before it; None before the first."""
        if self.writer.last_add_confirmed < self.writer.first_entry_id:
            if self.previous is not None and self.previous.last_add_confirmed >= self.previous.first_entry_id:
                return Position(self._previous_segment, self.previous.last_add_confirmed)
            return self._confirmed
        return Position(self.segment, self.writer.last_add_confirmed)

    def with_positions(self, error: FencedError) -> FencedError:
        """The same error, with the positions of the entries whose outcome is unknown."""
        # A roll may be under way: then entries of two ledgers are in doubt, and the caller sees them in order.
        error.positions = Positions(self.segment, self.writer.unconfirmed)
        if self.previous is not None and self.previous.unconfirmed:
            earlier = Positions(self._previous_segment, self.previous.unconfirmed)
            error.positions = [*earlier, *error.positions]
        return error

    def go_on_to(self, writer: EntryWriter, segment: int) -> EntryWriter:
        """From now on entries go to the new ledger, whose writer holds them back. Returns the previous writer."""
        previous = self.previous = self.writer
        previous.is_watched = False  # its confirmed entries count, even if a client trims it before it is closed
        self._previous_segment = self.segment
        self.writer, self.segment = writer, segment
        return previous

    def holding(self, segment: int) -> EntryWriter | None:
        """The writer of this segment, if its entries may not all be confirmed."""
        if segment == self.segment:
            return self.writer
        return self.previous if segment == self._previous_segment else None

    @property
    def last_flushed(self) -> tuple[EntryWriter, int]:
        """The writer, and its segment, whose last entry is confirmed after all that was appended."""
        # The current ledger sends nothing before the previous one is confirmed: to wait for its entries is to wait for all.
        if self.writer.last_add_pushed < 0 and self.previous is not None:
            return self.previous, self._previous_segment
        return self.writer, self.segment

    def previous_confirmed(self) -> None:
        """All entries of the previous ledger are confirmed: the current writer may send."""
        assert self.previous is not None, "a ledger was gone on from"
        if self.previous.last_add_confirmed >= self.previous.first_entry_id:
            self._confirmed = Position(self._previous_segment, self.previous.last_add_confirmed)
        self.previous = None
        self.writer.pacing.release()


class NextLedger:
    """Creates the next ledger of a log, and has the log's record name it.

    If that fails or its answer is lost, the record may name the ledger, or come to name it. So the ledger is kept, and the next
    roll is to the same one."""

    def __init__(
        self,
        ledgers: Ledgers,
        driver: LogDriver,
        changed: LogChanged,
        create_ledger: Callable[[int, bool], Awaitable[EntryWriter]],
        password: bytes,
    ) -> None:
        self.writer: EntryWriter | None = None  # while the log's record may name its ledger, or come to
        self.metadata, self.version = (
            changed.metadata,
            changed.version,
        )  # the log's record, as this leader wrote it last
        self._ledgers = ledgers
        self._driver = driver
        self._create_ledger = create_ledger
        self._password = password
        self._since_ms = 0
        self._base = RollBase(changed.metadata, changed.version)  # what the ledger was created on, or will be
        self._known: dict[int, Contents] = {}  # what ledgers hold that were closed since the record was written

    async def create(self, segment_number: int, *, is_unbounded: bool) -> int:
        """Creates a ledger (`Writers.create`): its writer gathers pushed entries, and sends nothing."""
        self.leave()  # the one that was kept was given back
        self.writer = await self._create_ledger(segment_number, is_unbounded)
        self.writer.pacing.hold()
        return self.writer.ledger_id

    async def take_over(self, ledger_id: int) -> int:
        """Never called: a roll creates."""
        raise AssertionError("a roll takes no ledger over")

    async def roll(self) -> tuple[EntryWriter, int, AppendRequest | None]:
        """Returns the new ledger's writer, which holds back what it gathers, its segment number, and the request of a committer
        that this answers (L10). Raises why not.

        After a `MetastoreError` the log's record may name the new ledger. The current ledger goes on all the same, because a
        takeover recovers both."""

        token = self._ledgers.entropy.token()
        # A ledger is added only to a version of the record that was read before the ledger became pending (L7): so one that
        # was kept goes with the version that it was created on.
        if self.writer is None:
            self._since_ms = self._ledgers.entropy.time_ms()
        kept = None if self.writer is None else self.writer.ledger_id
        machine = LogRolling(self._base, token, self._since_ms, kept, self._known)
        machine.start()
        try:
            changed = await self._driver.drive(machine, self, self._password)
        except FencedError:
            self.leave()
            raise
        finally:
            self._base = machine.base
        assert self.writer is not None
        self.metadata, self.version = changed.metadata, changed.version
        self._base = RollBase(changed.metadata, changed.version)
        self._known.clear()  # it is written now
        writer, self.writer = self.writer, None
        return writer, changed.metadata.segments[-1].number, machine.answered

    def learn(self, closed: LedgerMetadata) -> None:
        """A ledger of the log was closed: the next change of the log's record says what it holds."""
        if closed.contents is not None:
            self._known[closed.ledger_id] = closed.contents

    def is_overtaken(self, head: LogMetadata) -> bool:
        """True if this record, which was read after `metadata` was written, is of another leader, or of a deleted log."""
        if head.segments and self.writer is not None and head.segments[-1].ledger_id == self.writer.ledger_id:
            return False  # a roll whose outcome is not known yet was written
        # Compared by the last ledger: trims, requests and cursors change the record, too, and depose nobody. An older
        # record is of a metastore that went back, which is noticed elsewhere (W9).
        return _age(head) > _age(self.metadata)

    def leave(self) -> None:
        """Ends the writer that was kept, if any: its ledger gets no entries."""
        if self.writer is not None:
            self.writer.leave()
            self.writer = None


def _age(log: LogMetadata) -> tuple[int, int, int]:
    """Rises with each change that gives a log another last ledger, or another term of that (L1, L9)."""
    return log.deletions, log.next_segment_number, log.segments[-1].term if log.segments else 0


class _Request:
    """A call of `roll` that waits."""

    __slots__ = ("done", "error", "segment")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.error: ReplogError | None = None
        self.segment = 0  # the new one, if it succeeded


class Rolling:
    """Decides when a log's writer rolls, and leads it over to the next ledger."""

    def __init__(
        self,
        name: str,
        current: CurrentSegment,
        following: NextLedger,
        ledgers: Ledgers,
        driver: LogDriver,
        password: bytes,
    ) -> None:
        self.rolls = 0
        self.failures = 0
        self.busy = trio.Lock()  # held during a roll
        self.leaving = trio.Event()  # the log's writer is being closed
        self._name = name
        self._current = current
        self._next = following
        self._ledgers = ledgers
        self._driver = driver
        self._password = password
        self._wanted = trio.Event()
        self._requests: list[_Request] = []
        # The segment of an unbounded log may be older than this leader, and have the fragments of many (L9).
        age_ms = ledgers.entropy.time_ms() - following.metadata.segments[-1].created_at_ms
        self._segment_started = trio.current_time() - max(0, age_ms) / 1000
        if len(current.writer.metadata.fragments) >= FRAGMENTS_MAX:
            self._wanted.set()
        entries_max, bytes_max = ledgers.options.roll_entries, ledgers.options.roll_bytes
        self._limit = SizeLimit(
            math.inf if entries_max is None else entries_max, math.inf if bytes_max is None else bytes_max, self.want
        )
        self._report()

    @property
    def version(self) -> int:
        """The version of the log's record that this leader wrote last."""
        return self._next.version

    @property
    def is_asked(self) -> bool:
        """True if that has a committer's request, which was not granted yet (L10)."""
        return bool(self._next.metadata.requests)

    def _report(self) -> None:
        self._current.writer.report_to(self._limit, self.want)

    def heed(self, head: LogMetadata) -> bool:
        """Looks at the log's record, read after this leader last wrote it: fails the writer if another leader has written it
        since, as one that appends nothing would not hear otherwise. Returns True if it has failed."""
        writer = self._current.writer
        if self._next.is_overtaken(head):
            did = "deleted" if head.is_deleted else "took over"
            writer.abandon(fenced(writer.ledger_id, writer.unconfirmed, f"somebody {did} log {self._name!r} (L5)"))
        return writer.error is not None

    def want(self) -> None:
        """Wakes the background task, which rolls, or ends if the writer has failed."""
        self._wanted.set()

    async def roll(self) -> int:
        """Waits for a roll that begins now or later; returns the new segment's number, or 0 if the background task has ended.
        Raises why it could not roll, unless the current writer has failed with that."""
        request = _Request()
        self._requests.append(request)
        self._wanted.set()
        await request.done.wait()
        # The failure of the writer is raised by the caller's own check: with the positions in doubt, and once.
        if request.error is not None and request.error is not self._current.writer.error:
            raise copy_for_raise(request.error)
        return request.segment

    async def run(self) -> None:
        """Rolls when that is wanted, until the current writer has failed."""
        while self._current.writer.error is None:
            age_s = self._ledgers.options.roll_age_s
            deadline = float("inf") if age_s is None else self._segment_started + age_s
            with trio.move_on_at(deadline):
                await self._wanted.wait()
            async with self.busy:
                self._wanted = trio.Event()
                requests = tuple(self._requests)
                error = await self._roll_or_say_why(is_demanded=bool(requests))
                for request in requests:
                    if not request.done.is_set():  # it was not told that copies are missing
                        request.error, request.segment = error, 0 if error else self._current.segment
                        request.done.set()
                self._requests = [each for each in self._requests if not each.done.is_set()]
                # Meanwhile the previous ledger may have asked for the roll that has just happened.
                self._wanted = trio.Event()
                if self._requests:
                    self._wanted.set()
            if error is not None and self._current.writer.error is None:
                await trio.sleep(_RETRY_AFTER_S)
                if self._next.writer is not None:
                    self._wanted.set()
            self._report()

    def end(self) -> None:
        """The background task ends: nothing is rolled any more."""
        self._next.leave()
        for request in self._requests:
            request.done.set()

    async def _roll_or_say_why(self, *, is_demanded: bool) -> ReplogError | None:
        writer = self._current.writer
        if writer.error is not None:
            return writer.error
        self._segment_started = trio.current_time()
        if writer.last_add_pushed < 0 and not is_demanded and self._next.writer is None:
            # An empty ledger need not be rolled for its age.
            return None
        try:
            await self._roll()
        except ReplogError as error:
            self.failures += 1  # the current ledger goes on, unless it failed itself
            return error
        return None

    async def _roll(self) -> None:
        try:
            writer, segment, answered = await self._next.roll()
        except FencedError as error:
            self._current.writer.abandon(error)
            raise
        if answered is not None:
            ledger_ids = answered.addition.ledger_ids
            self._ledgers.observe(LedgersSpliced(self._name, segment - len(ledger_ids), ledger_ids, writer.ledger_id))
        await self._go_on_to(writer, segment)
        await self._driver.settle(self._name, writer)

    async def _go_on_to(self, writer: EntryWriter, segment: int) -> None:
        previous = self._current.go_on_to(writer, segment)
        # It is no longer the current ledger: its size must not ask for a roll of the next one.
        previous.report_to(None, None)
        self.rolls += 1
        try:
            # Until all of it is confirmed, the new ledger sends nothing (L2).
            await previous.flush()
        except ReplogError as error:
            writer.abandon(error)
            raise
        self._report()
        self._current.previous_confirmed()
        is_closed = await self._close_previous(previous)
        self._ledgers.observe(LogRolled(self._name, segment, writer.ledger_id, previous.ledger_id))
        if is_closed and self._current.producers is not None:
            try:
                # Those between the two were closed when a committer handed them in (L10): all ids are final (L11).
                await self._current.producers.closed(segment - 1)
            except ReplogError:
                self.failures += 1  # the next roll does it

    async def _close_previous(self, previous: EntryWriter) -> bool:
        """Closes the ledger before the current one; False if this writer ends before. The next roll must wait for it, because a
        takeover recovers only two."""
        try:
            # Nobody goes on with an unbounded one either: readers cross to the next ledger when it is closed (L6, L9).
            await previous.finish()
            self._next.learn(previous.metadata)
            return True
        except WriteQuorumError as error:
            self._is_rolled_short(previous, error)
        except ReplogError:
            # The metastore fails, or a client recovers it that may die: it is closed as any client would close it.
            pass
        while self._current.writer.error is None and not self.leaving.is_set():  # a takeover recovers both
            try:
                self._next.learn(await self._ledgers.recover(previous.ledger_id, self._password))
                self._current.lacking = None
                return True
            except LedgerNotFoundError:
                self._current.lacking = None
                return True  # it was trimmed already
            except ReplogError as error:
                if isinstance(error, WriteQuorumError):
                    self._is_rolled_short(previous, error)
                self.failures += 1
                with trio.move_on_after(_RETRY_AFTER_S):
                    await self.leaving.wait()
        return False

    def _is_rolled_short(self, previous: EntryWriter, error: WriteQuorumError) -> None:
        """Ends the requests for this roll: it has happened, but copies of the previous ledger are missing (W8); and
        later requests: there is no other roll before these copies exist."""
        self._current.lacking = previous.ledger_id
        for request in self._requests:
            request.error = error
            request.done.set()

    async def complete(self) -> None:
        """Waits once more for guaranteed copies of the previous ledger, while no roll is under way. Raises `WriteQuorumError`."""
        if self._current.lacking is not None:
            with suppress(LedgerNotFoundError):
                await self._ledgers.recover(self._current.lacking, self._password)
            self._current.lacking = None
