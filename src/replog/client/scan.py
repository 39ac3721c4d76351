"""One scan of one ledger: drives the reading machine (rules D). Readers of ledgers and of logs are built on it."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from functools import partial

import attrs
import trio

from replog.client.channel import Answer, BookieChannel
from replog.client.connections import Connections
from replog.client.entries import EntryBatch
from replog.client.ledger_effects import ClientContext, EffectLoop
from replog.config.client import ClientTuning
from replog.errors import (
    ArchiveError,
    BookieAnswerError,
    BookieError,
    BookieUnreachableError,
    EntryUnreadableError,
    LedgerNotFoundError,
    RemoteProtocolError,
    ReplogError,
)
from replog.protocol.batch import Batch
from replog.protocol.digest import Digest
from replog.protocol.effects import Delivered, Effect, Failed, SendRead, SendReadLastAddConfirmed
from replog.protocol.messages import ReadLastAddConfirmedRequest, ReadRequest, Response, Status
from replog.protocol.model import LedgerMetadata, LedgerState
from replog.protocol.proofs import claimed
from replog.protocol.reading import LedgerReading

_READ_BYTES_MAX = 1 << 20  # requested at a time
_SHORT_ENTRY_BYTES = 4096  # the assumed size of an entry where only a few are wanted; larger ones need another request
_WAITING_MIN = 2  # deliveries: while fewer wait to be taken, more is requested
# Entries that come with the answer to a long poll. Each bookie of a write set sends the same ones, and only the first answer
# counts: for larger batches a second request costs less than the copies.
_BROUGHT_BYTES_MAX = 16 << 10


@attrs.frozen
class PendingQuery:
    """One outstanding query for the last add confirmed; with `waits`, a long poll that ends when that is above `after`."""

    index: int
    bookie_id: str
    in_round: int
    after: int
    waits: bool


class _State:
    """The shared state of a scan and its queries."""

    def __init__(self, machine: LedgerReading) -> None:
        self.machine = machine  # a failed one is replaced
        self.deliveries: deque[Delivered] = deque()  # to be taken
        self.error: ReplogError | None = None  # to be raised by the next call
        self.arrived = trio.Event()  # replaced by each task that waits; set when anything has changed
        self.rereads = 0  # how often the machine wants the record to be read again

    @property
    def last_readable(self) -> int:
        """The last entry that may be read, as far as is known."""
        return self.machine.last_readable

    @property
    def has_news(self) -> bool:
        """True if there is more to take, as far as is known."""
        return bool(self.deliveries or self.rereads) or self.machine.next_entry_id <= self.machine.last_readable

    def fail(self, error: ReplogError) -> None:
        """The next call raises this, unless an earlier error waits."""
        if self.error is None:
            self.error = error
        self.arrived.set()


class _Queries:
    """Asks the bookies of the last fragment how far the ledger is confirmed, in rounds. In a round each bookie is heard once.

    Long polls stay with bookies when the call that sent them has returned: the next round uses their answers, and asks only the
    bookies at which none waits."""

    def __init__(
        self,
        state: _State,
        ledger_id: int,
        key: bytes,
        connections: Connections,
        options: ClientTuning,
        perform: Callable[[Effect], None],
        drive: Callable[[], None],
    ) -> None:
        self._state = state
        self._ledger_id = ledger_id
        self._key = key
        self._connections = connections
        self._options = options
        self._perform = perform
        self._drive = drive
        self._round = 0
        self._heard_from = 0  # the bookies that were heard in this round, or failed, by index, as a bit mask
        self._answered = 0  # those of them that told how far the ledger is confirmed
        self._settled = 0  # those that are not asked again in this round, because they answered or can't be asked
        self._polling: set[tuple[int, str]] = set()  # index and bookie where a long poll waits: one at each

    @property
    def has_answer(self) -> bool:
        """True if a bookie told how far the ledger is confirmed, in this round."""
        return bool(self._answered)

    async def poll(self, known: int, question_s: float, patience_s: float) -> None:
        """One round. With `question_s` it ends when more than `known` is confirmed; otherwise when enough bookies answered."""
        connecting_s = self._options.speculative_read_after_s
        await self._connections.connect_most(self._state.machine.metadata.last_fragment.ensemble, connecting_s)
        self._round += 1
        self._heard_from = self._settled = self._answered = 0
        ends_at_s = trio.current_time() + question_s
        with trio.move_on_after(patience_s):
            while True:
                self._state.arrived = trio.Event()
                self._ask_last_add_confirmed(max(0.0, ends_at_s - trio.current_time()) if question_s else None)
                if self._enough_heard(known, question_s):
                    break
                await self._state.arrived.wait()

    def _enough_heard(self, known: int, question_s: float) -> bool:
        if self._state.error is not None or (question_s and self._state.last_readable > known):
            return True
        # The record is read again first: with the old one, the proofs of bookies are useless.
        if self._state.rereads:
            return True
        quorum = self._state.machine.metadata.quorum
        if question_s:
            return quorum.is_covered(self._heard_from)
        # Failures come at once, and tell nothing: while a bookie may still answer, they do not end the round.
        is_everybody = self._heard_from == (1 << quorum.ensemble) - 1
        return is_everybody or quorum.is_covered(self._answered)

    def _ask_last_add_confirmed(self, wait_s: float | None) -> None:
        """Asks the bookies that have not answered in this round; none of them gets a second long poll at the same time."""
        self._state.machine.poll_last_add_confirmed()
        for effect in self._state.machine.take_effects():
            if not isinstance(effect, SendReadLastAddConfirmed):
                self._perform(effect)
            elif not self._settled >> effect.index & 1:
                self._send_poll(effect, wait_s)

    def _send_poll(self, effect: SendReadLastAddConfirmed, wait_s: float | None) -> None:
        channel = self._connections.channel(effect.bookie_id)
        waits = wait_s is not None
        context = PendingQuery(effect.index, effect.bookie_id, self._round, effect.after, waits)
        if channel is None:
            self._heard(BookieUnreachableError(effect.bookie_id, "it can't be connected to"), context)
            return
        request = ReadLastAddConfirmedRequest(next(channel.request_ids), self._ledger_id, self._key, effect.after, 0)
        if wait_s is None:
            self._settled |= 1 << effect.index  # it is asked once
        else:
            place = (effect.index, effect.bookie_id)
            if place in self._polling:
                return
            self._polling.add(place)
            request.wait_ms = math.ceil(wait_s * 1000)
            if not self._state.has_news:  # else a caller that takes nothing would be sent more and more
                request.entry_id, request.stamp, request.bytes_max = effect.entry_id, effect.stamp, _BROUGHT_BYTES_MAX
        channel.ask(request, self._heard, context, (wait_s or 0.0) + self._options.read_timeout_s)

    def _heard(self, answer: Answer, asked: PendingQuery) -> None:
        """An answer, or the error in its place.

        A bookie that failed is not asked again in this round, which would be a loop without a pause. Only a query of an earlier
        round is repeated, and a long poll whose answer was known already."""
        if asked.waits:
            self._polling.discard((asked.index, asked.bookie_id))
        is_current = asked.in_round == self._round
        is_used = True
        if isinstance(answer, Response) and answer.status is Status.OK:
            try:
                confirmed = self._state.machine.proven(answer.proof)
            except RemoteProtocolError as error:
                answer = BookieAnswerError(asked.bookie_id, str(error))
            else:
                self._answered |= is_current << asked.index
                self._state.machine.last_add_confirmed_answered(confirmed, answer.batches)
                self._drive()
                # Of what this reader can't use yet, the same answer would come again and again.
                is_used = claimed(answer.proof) <= self._state.last_readable
                is_current = is_current and not (asked.waits and is_used and claimed(answer.proof) > asked.after)
        elif isinstance(answer, Response) and answer.status is Status.UNAUTHORIZED:
            # The key is that of the record: the bookie has another creation of this id, and knows nothing of this one (M5).
            answer = BookieAnswerError(asked.bookie_id, answer.detail)
        if is_current:
            self._settled |= 1 << asked.index
            # An answer that can't be used comes at once, in each round: a round must take its time all the same.
            if not (asked.waits and (isinstance(answer, BookieError) or not is_used)):
                self._heard_from |= 1 << asked.index
        self._state.arrived.set()


class LedgerScan:
    """The entries of a ledger in order, from `first_entry_id` on.

    `confirmed_here` returns the term and the last add confirmed of a writer in the same client, or (0, -1)."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        digest: Digest,
        key: bytes,
        first_entry_id: int,
        context: ClientContext,
        options: ClientTuning,
        confirmed_here: Callable[[int], tuple[int, int]],
    ) -> None:
        self.ledger_id = metadata.ledger_id
        # Each scan has its own, so that readers of a ledger choose different bookies: one seed would send all to the same one.
        self._random = random.Random(context.entropy.random.getrandbits(64))
        self._digest = digest
        self._key = key
        self._context = context
        self._options = options
        self._confirmed_here = confirmed_here
        self._bytes_max = _READ_BYTES_MAX
        # Deliveries, as many as the last answer gave: while they are taken, more comes.
        self._read_on_below = _WAITING_MIN
        self._to_connect: list[SendRead] = []
        self._state = state = _State(self._start(metadata, first_entry_id))
        self._drive = EffectLoop(lambda: state.machine.take_effects(), self._perform)
        self._deliveries = state.deliveries
        self._queries: _Queries | None = None  # made when it is needed: most scans know how far they may read

    def _start(self, metadata: LedgerMetadata, first_entry_id: int) -> LedgerReading:
        read_order = partial(self._context.placing.read_order, self._random)
        return LedgerReading(metadata, self._digest, first_entry_id, read_order)

    async def _poll(self, known: int, question_s: float, patience_s: float) -> bool:
        if self._queries is None:
            connections = self._context.connections
            self._queries = _Queries(
                self._state, self.ledger_id, self._key, connections, self._options, self._perform, self._drive
            )
        await self._queries.poll(known, question_s, patience_s)
        self._check()
        return self._queries.has_answer

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's record, as this reader knows it."""
        return self._state.machine.metadata

    @property
    def last_readable(self) -> int:
        """The last entry that may be read as far as is known: the last add confirmed, or the last of a closed ledger."""
        return self._state.machine.last_readable

    @property
    def is_at_end(self) -> bool:
        """True if the ledger is closed and all its entries were taken."""
        return self._state.machine.is_at_end and not self._deliveries

    # -- how far the ledger is confirmed -----------------------------------------------------------------------------------

    async def refresh(self, wait_s: float = 0.0) -> bool:
        """Finds out how far the ledger is confirmed: rereads its record, and asks the bookies of its last fragment.

        Returns False if no bookie answered: then `last_readable` may be far behind. With `wait_s`, waits up to that long, and
        returns as soon as more is confirmed. Raises `MetastoreError`, `LedgerNotFoundError`, `UnauthorizedError`. If
        cancelled, nothing is lost."""
        before = self.last_readable
        metadata, _ = await self._context.records.get_head(self.ledger_id, at=self._state.machine.next_entry_id)
        self.record_read(metadata)
        if metadata.state is LedgerState.CLOSED:
            return True
        # The writer in this client knows more than any bookie, and asking it costs no message.
        term, here = self._confirmed_here(self.ledger_id)
        self._state.machine.writer_heard(term, here)
        # A writer whose term has passed may not know that yet.
        is_known = here >= 0 and term == metadata.term
        if not (self.last_readable > before if wait_s else is_known):
            is_known = await self._poll(before, wait_s, wait_s or self._options.read_timeout_s)
        if self._state.rereads:
            await self._reread()
        return is_known

    def record_read(self, metadata: LedgerMetadata) -> None:
        """The caller has read the ledger's record."""
        self._state.machine.metadata_read(metadata)
        self._drive()

    @property
    def has_news(self) -> bool:
        """True if more entries are known to be confirmed, or have arrived."""
        return self._state.has_news

    async def wait_for_news(self, patience_s: float, question_s: float) -> None:
        """Returns when there is more to take, or after `patience_s`. The record is not reread.

        Long polls stay at bookies for `question_s`, even after this has returned or was cancelled: the next call uses what they
        bring. Raises `UnauthorizedError`, and the error with which reading failed."""
        self._state.machine.writer_heard(*self._confirmed_here(self.ledger_id))
        self._drive()
        if self.has_news:
            await trio.lowlevel.checkpoint()
            return
        await self._poll(self._state.machine.next_entry_id - 1, question_s, patience_s)

    def adopt(self, last_add_confirmed: int) -> None:
        """The caller knows that entries up to this one are confirmed. Of an unbounded ledger, the record is read again
        before that is used: the caller may know it from a client with a newer one (R11)."""
        machine = self._state.machine
        if machine.metadata.is_unbounded:
            machine.told(last_add_confirmed)
            self._drive()
        else:
            machine.last_add_confirmed_heard(last_add_confirmed)

    # -- reading --------------------------------------------------------------------------------------------------

    def want_only(self, first: int, last: int) -> None:
        """Only these entries are wanted: nothing after them is requested."""
        self._state.machine.last_wanted = last
        self._bytes_max = min(_READ_BYTES_MAX, (last - first) * _SHORT_ENTRY_BYTES)

    def take_nowait(self) -> EntryBatch:
        """The next entries. Raises `trio.WouldBlock` if none have arrived, and the error with which reading failed."""
        if not self._deliveries:
            self._check()
            self._read_on()
            if not self._deliveries:
                self._check()
                raise trio.WouldBlock
        delivered = self._deliveries.popleft()
        if len(self._deliveries) < self._read_on_below:
            self._read_on()
        return EntryBatch(delivered)

    async def take(self) -> EntryBatch | None:
        """The next entries, or None if no more are known to be confirmed. Raises `EntryUnreadableError` (retry:
        yes), `EntryNotFoundError`, `LedgerNotFoundError`. If cancelled, nothing is lost."""
        # Not later: entries that were taken must be returned.
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            try:
                batch = self.take_nowait()
            except trio.WouldBlock:
                if self._state.rereads:
                    await self._reread()
                elif self._state.machine.next_entry_id > self.last_readable:
                    await trio.lowlevel.checkpoint()
                    return None
                else:
                    await self._wait_for_delivery()
            else:
                await trio.lowlevel.cancel_shielded_checkpoint()
                return batch

    async def _wait_for_delivery(self) -> None:
        self._state.arrived = trio.Event()
        if self._to_connect:
            waiting = list(self._to_connect)
            wanted = dict.fromkeys(effect.bookie_id for effect in waiting)
            patience_s = self._options.speculative_read_after_s
            await self._context.connections.connect_most(wanted, patience_s)  # if cancelled, they stay in the list
            del self._to_connect[: len(waiting)]
            for effect in waiting:
                self._send_read(effect, self._context.connections.channel(effect.bookie_id))
            self._drive()
        if self._state.rereads:
            await self._reread()
            return
        if self._deliveries or self._state.error is not None:
            return
        with trio.move_on_after(self._options.speculative_read_after_s) as scope:
            await self._state.arrived.wait()
        if scope.cancelled_caught:
            # The bookies that were asked are slow: others are asked, too.
            machine = self._state.machine
            for entry_id in machine.waiting_for():
                machine.read_slow(entry_id)
            self._drive()

    async def _reread(self) -> None:
        answered = self._state.rereads
        try:
            metadata, _ = await self._context.records.get_head(self.ledger_id, at=self._state.machine.next_entry_id)
            self._state.machine.metadata_read(metadata)
        except LedgerNotFoundError:
            self._state.machine.metadata_missing()
        self._state.rereads -= answered
        self._drive()

    def _read_on(self) -> None:
        machine = self._state.machine
        if machine.next_entry_id <= machine.last_wanted:
            machine.read_on()
            self._drive()

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, SendRead) and effect.archive:
            reader = self._context.archive_reader
            assert reader is not None, "a client whose records can name archives has a reader of them"
            # In place of the bookie at this index: all else stays as it is.
            context = effect.index, effect.entry_id
            reader.ask(self.ledger_id, effect.archive, effect.entry_id, self._bytes_max, self._read_answered, context)
        elif isinstance(effect, SendRead):
            channel = self._context.connections.channel(effect.bookie_id)
            if channel is None:
                self._to_connect.append(effect)
                self._state.arrived.set()
            else:
                self._send_read(effect, channel)
        elif isinstance(effect, Delivered):
            self._deliveries.append(effect)
            self._state.arrived.set()
        elif isinstance(effect, Failed):
            self._state.fail(effect.error)
        else:  # ReadMetadata
            self._state.rereads += 1
            self._state.arrived.set()

    def _send_read(self, effect: SendRead, channel: BookieChannel | None) -> None:
        if channel is None:
            self._state.machine.read_unknown(effect.index, effect.entry_id)
            return
        request = ReadRequest(
            next(channel.request_ids), self.ledger_id, self._key, effect.entry_id, effect.stamp, self._bytes_max
        )
        channel.ask(request, self._read_answered, (effect.index, effect.entry_id), self._options.read_timeout_s)

    def _read_answered(self, answer: Answer | list[Batch] | ArchiveError, context: tuple[int, int]) -> None:
        index, entry_id = context
        machine, waiting = self._state.machine, len(self._deliveries)
        if isinstance(answer, Response) and answer.status is Status.OK:
            machine.read_found(index, entry_id, answer.batches)
        elif isinstance(answer, Response) and answer.status is Status.NO_ENTRY:
            machine.read_absent(index, entry_id)
        elif isinstance(answer, list):
            machine.read_found(index, entry_id, answer)
        elif isinstance(answer, ArchiveError):
            machine.read_unknown(index, entry_id, str(answer))
        else:
            # As UNAUTHORIZED: the key is that of the record, so the bookie has another creation of this id (M5).
            machine.read_unknown(index, entry_id, answer.detail if isinstance(answer, Response) else "")
        self._drive()
        if (given := len(self._deliveries) - waiting) > 0:
            self._read_on_below = max(given, _WAITING_MIN)

    def _check(self) -> None:
        """Raises the error with which reading failed, once: the next call tries again."""
        if self._state.error is not None:
            error, self._state.error = self._state.error, None
            # A machine that failed is done. A new one goes on where it was, so the next call may succeed.
            failed = self._state.machine
            self._state.machine = self._start(failed.metadata, failed.next_entry_id)
            self._state.machine.last_add_confirmed_heard(failed.last_readable)
            self._state.machine.last_wanted = failed.last_wanted
            self._to_connect, self._state.rereads = [], 0
            raise error


async def find_end(scan: LedgerScan) -> None:
    """As `LedgerScan.refresh`, where nothing must look like the end that is none. Raises `EntryUnreadableError` (retry: yes)
    if no bookie answered."""
    if not await scan.refresh():
        members = ", ".join(scan.metadata.last_fragment.ensemble)
        problem = (
            f"none of {members} says how far the ledger is confirmed, and it is not closed: retry when one is back"
        )
        raise EntryUnreadableError(scan.ledger_id, scan.last_readable + 1, problem)
