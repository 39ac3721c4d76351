"""The background work of a ledger's writer: deadlines, slow and missing bookies, the explicit last add confirmed.

A client's ticker calls `Watching.look` a few times a second for each writer that has something under way (W6, W5). Work
that waits for the metastore or for a connection runs in the writer's own task, `Watching.run`. Everything is in the
trio thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

import trio

from replog.client.backlog import Backlog
from replog.client.channel import Answer, BookieChannel
from replog.client.connections import Connections
from replog.client.ledger_effects import ClientContext, WaitingEffects
from replog.client.refusals import Refusals
from replog.config.client import ClientTuning
from replog.hookspecs import EnsembleChanged, Event
from replog.protocol.writing import LedgerWriting
from replog.runtime.event_loop import CallSoon
from replog.runtime.ticker import Ticker

_LAG_BYTES_MAX = 32 << 20  # that the slowest bookie may be behind before the writer waits for it, unless that hangs
_SUSPECT_BYTES = 4 << 20  # that a bookie may be behind before the writer notes since when it is silent
_KEPT_BYTES_MAX = 16 << 20  # a new bookie that is sent so much at once is not too far behind from the start
LAG_CHECK_BYTES = 1 << 20  # sent between two looks at how far bookies are behind
_SILENCE_MIN_S = 0.1  # a bookie that is silent for less may only wait for its disk, or for a processor
_SILENCE_ROUNDS = 8  # a bookie that is silent for so many rounds of the others hangs


def kept_bytes_max(options: ClientTuning) -> int:
    """How many confirmed bytes a writer keeps during a change for the bookies that it takes in (C9)."""
    return min(options.in_flight_bytes_max, _KEPT_BYTES_MAX)


class Publishing:
    """Tells bookies how far the ledger is confirmed when no batch follows that would carry it (W5)."""

    def __init__(
        self,
        machine: LedgerWriting,
        backlog: Backlog,
        closed: trio.Event,
        call_soon: CallSoon,
        drive: Callable[[], None],
    ) -> None:
        self.published = -1  # the last add confirmed that every bookie was told
        self.awaited_sends = (
            0  # a follower waits at a bookie, or will after its answer: until so many batches were sent
        )
        self.unanswered = 0  # messages to bookies
        self.all_answered = trio.Event()  # replaced by a task that waits
        # A batch tells the bookies of its write set. So many in a row may miss the one that said that a follower waits; and a
        # follower that was answered by a batch comes back only after that was acknowledged.
        self._awaited_sends_max = machine.quorum.ensemble - machine.quorum.write + 2
        self._machine = machine
        self._backlog = backlog
        self._closed = closed
        self._call_soon = call_soon
        self._drive = drive

    @property
    def is_due(self) -> bool:
        """True if something is confirmed that bookies were not told."""
        return self.published < self._backlog.confirmed

    def answered(self) -> None:
        """A bookie was told, or did not answer in time."""
        self.unanswered -= 1
        if not self.unanswered:
            self.all_answered.set()

    def awaited(self) -> None:
        """A follower waits at a bookie: publishes as soon as nothing else would tell it."""
        if self.awaited_sends < self._awaited_sends_max:
            self.awaited_sends = self._awaited_sends_max
            if not self._backlog.in_flight:
                # Otherwise it happens when everything is confirmed.
                self.publish_soon()

    def publish_soon(self) -> None:
        """Publishes if the writer is idle a turn later. The task that waited for the confirmation may append again first: then
        that batch tells the bookies, and costs nothing."""
        self._call_soon.soon(self._publish_if_idle, after_woken=True)

    def _publish_if_idle(self) -> None:
        is_idle = not self._backlog.in_flight and not self._backlog.gathered and not self._closed.is_set()
        if is_idle and self.awaited_sends:
            self.publish()
            self._drive()

    def publish(self) -> None:
        """The machine tells the bookies, unless they know; during a change of the ensemble those that stay (C9). The
        caller drives the machine."""
        self.awaited_sends = 0
        if self.is_due:
            self.published = self._backlog.confirmed
            self._machine.publish()


class SlowBookies:
    """Keeps a writer from running ahead of its slowest bookie without bound, and gives up one that hangs.

    A writer waits for a bookie that is far behind and answers. It goes on without waiting for one that has been silent for a
    multiple of what the others take: if entries need that one, they wait for it anyway, and otherwise nothing does (C9)."""

    def __init__(
        self,
        machine: LedgerWriting,
        connections: Connections,
        silence_max_s: float,
        bookie_failed: Callable[[int, str], None],
        round_s: Callable[[], float],
    ) -> None:
        self.unchecked_bytes = 0  # sent since the writer last had to wait for no bookie
        self._machine = machine
        self._connections = connections
        self._silence_max_s = silence_max_s
        self._bookie_failed = bookie_failed
        self._round_s = round_s  # what the last batch took until it was confirmed
        # By channel of a bookie that is behind: its oldest unanswered add, and since when it is known to be that
        self._silent_since: dict[BookieChannel, tuple[int | None, float]] = {}

    def keep_up(self) -> bool:
        """True if the writer need not wait for any bookie."""
        now_s, before, self._silent_since = trio.current_time(), self._silent_since, {}
        for _, channel in self._behind(_SUSPECT_BYTES):
            known, oldest = before.get(channel), channel.oldest_add()
            self._silent_since[channel] = known if known is not None and known[0] == oldest else (oldest, now_s)
        patience_s = max(_SILENCE_MIN_S, _SILENCE_ROUNDS * self._round_s())
        if any(self._silence_s(channel) < patience_s for _, channel in self._behind(_LAG_BYTES_MAX)):
            return False
        self.unchecked_bytes = 0
        return True

    def replace_silent(self) -> None:
        """Gives up the bookies that are far behind and have answered nothing for a while."""
        if self._silent_since:
            for index, channel in self._behind(_LAG_BYTES_MAX):
                if self._silence_s(channel) >= self._silence_max_s:
                    self._bookie_failed(index, channel.bookie_id)

    def _silence_s(self, channel: BookieChannel) -> float:
        """For how long the bookie has left its oldest add unanswered, as far as that was noted: never too much."""
        oldest, since_s = self._silent_since.get(channel, (None, 0.0))
        return 0.0 if oldest is None or oldest != channel.oldest_add() else trio.current_time() - since_s

    def _behind(self, size_bytes: int) -> list[tuple[int, BookieChannel]]:
        """The bookies that are behind by more than this, by index. Bookies without pending sends don't count."""
        found = []
        for index, bookie_id in enumerate(self._machine.ensemble()):
            channel = self._connections.channel(bookie_id)
            is_behind = channel is not None and channel.outstanding_bytes > size_bytes
            if channel is not None and is_behind and not self._machine.unused >> index & 1:
                found.append((index, channel))
        return found


class MissingBookies:
    """Retries replacements for which no spare was available, and finds out when no bookie can return or replace another
    (B10)."""

    def __init__(
        self,
        machine: LedgerWriting,
        backlog: Backlog,
        closed: trio.Event,
        context: ClientContext,
        retry_after_s: float,
        drive: Callable[[], None],
    ) -> None:
        self.refusals = Refusals(machine.metadata.ledger_id, context.membership, context.placing)
        self.nursery: trio.Nursery | None = None  # of the writer's background tasks
        self._machine = machine
        self._backlog = backlog
        self._closed = closed
        self._context = context
        self._retry_after_s = retry_after_s
        self._drive = drive
        self._seen = 0  # the indices that were missing when they were last looked at, as a bit mask
        self._retry_at = 0.0
        self._is_asking = False
        self._is_leaving = False  # looks for a replacement of a bookie that drains

    def look(self) -> None:
        """Looks for replacements some time after bookies went missing, and again and again after that."""
        if self._machine.missing != self._seen:
            self._seen = self._machine.missing
            self._retry_at = trio.current_time() + self._retry_after_s
        elif self._seen and trio.current_time() >= self._retry_at:
            self._seen = 0
            if self.nursery is not None:
                self.nursery.start_soon(self._look_for_replacements)

    async def _look_for_replacements(self) -> None:
        """Begins an ensemble change only if a bookie can be connected to that is not in use. A change without hope would hold up
        every append where entries cannot be confirmed meanwhile (C1, C9)."""
        machine = self._machine
        present = {each for index, each in enumerate(machine.ensemble()) if not machine.missing >> index & 1}
        # This waits for the metastore and for connections: the writer may have been closed meanwhile.
        if await self._context.is_anybody_there(present) and not self._closed.is_set():
            machine.bookies_changed()
            self._drive()

    def leave(self, draining: Collection[str]) -> None:
        """Has the bookies replaced that drain, as if they had failed (C1-C5), but only if another one can be connected to. Until
        then, and if that one fails after all, they are written to as before: no copy is given up for it (C8)."""
        machine = self._machine
        pairs = [
            (index, bookie_id)
            for index, bookie_id in enumerate(machine.ensemble())
            if bookie_id in draining and not machine.missing >> index & 1
        ]
        if pairs and not self._is_leaving and self.nursery is not None and not self._closed.is_set():
            self._is_leaving = True
            self.nursery.start_soon(self._leave, pairs)

    async def _leave(self, pairs: Sequence[tuple[int, str]]) -> None:
        machine = self._machine
        is_anybody_there = await self._context.is_anybody_there(machine.ensemble())
        self._is_leaving = False
        # While the ensemble changes anyway, the next look at draining bookies comes soon enough.
        if is_anybody_there and not machine.is_changing and not self._closed.is_set():
            for index, bookie_id in pairs:
                machine.bookie_failed(index, bookie_id)
            self._drive()

    def ask_who_is_left(self) -> None:
        """Finds out in the background whether the missing bookies refused permanently. Only while entries wait for them."""
        is_stuck = self._machine.missing and self._backlog.unconfirmed and not self._machine.is_changing
        if is_stuck and not self._is_asking and self.nursery is not None and not self._closed.is_set():
            self._is_asking = True
            self.nursery.start_soon(self._fail_if_nobody_is_left)

    async def _fail_if_nobody_is_left(self) -> None:
        machine, backlog = self._machine, self._backlog
        error = await self.refusals.final_error(machine, backlog.unconfirmed)
        self._is_asking = False
        if self.refusals.asks_again:
            self.refusals.asks_again = False
            self._retry_at = trio.current_time()
        # The answer came from elsewhere: meanwhile the entries may have been confirmed, or a change may have begun.
        if error is not None and backlog.unconfirmed and not machine.is_changing and not self._closed.is_set():
            machine.abandon(error)
            self._drive()


class Watching:
    """The background of one writer: its task, and what the ticker has it look after."""

    def __init__(
        self,
        machine: LedgerWriting,
        backlog: Backlog,
        closed: trio.Event,
        context: ClientContext,
        options: ClientTuning,
        observe: Callable[[Event], None],
        ticker: Ticker,
        drive: Callable[[], None],
        bookie_failed: Callable[[int, str], None],
        round_s: Callable[[], float],
    ) -> None:
        self.observe = observe
        self.publishing = Publishing(machine, backlog, closed, context.call_soon, drive)
        connections, silence_max_s = context.connections, options.lagging_bookie_timeout_s
        self.slow = SlowBookies(machine, connections, silence_max_s, bookie_failed, round_s)
        retry_after_s = options.bookie_retry_after_s
        self.missing = MissingBookies(machine, backlog, closed, context, retry_after_s, drive)
        self.waiting_effects = WaitingEffects(context, machine, self._metastore_answered)
        self.is_wanted = False  # the ticker calls `look`
        self.settled = trio.Event()  # set when a change of the ensemble has ended, or the writer has failed
        self._machine = machine
        self._backlog = backlog
        self._closed = closed
        self._timeout_s = options.add_quorum_timeout_s
        self._drive = drive
        self._start = partial(ticker.watch, self)
        self._sent_at_look = -1  # the last entry that was sent before the last look
        self._fragments = machine.metadata.fragments

    async def run(self) -> None:
        """The background task. Ends when the writer is closed."""
        async with trio.open_nursery() as nursery:
            self.missing.nursery = nursery
            nursery.start_soon(self.waiting_effects.run)
            if self._machine.missing:  # from the start (C7)
                self.want()
            await self._closed.wait()
            nursery.cancel_scope.cancel()

    def want(self) -> None:
        """Has the ticker call `look` from now on, until that returns False."""
        self.is_wanted = True
        self._start()

    def look(self) -> bool:
        """Does the timed work: the ticker calls it a few times a second while it returns True."""
        self.is_wanted = not self._closed.is_set() and self._look()
        return self.is_wanted

    def _look(self) -> bool:
        backlog, machine, publishing = self._backlog, self._machine, self.publishing
        is_idle = not backlog.in_flight and self._sent_at_look == machine.last_add_pushed
        if is_idle:
            publishing.publish()
        self._sent_at_look = machine.last_add_pushed
        self.missing.look()
        self.slow.replace_silent()
        self._check_deadline()
        self._drive()
        self.missing.ask_who_is_left()
        is_waiting = bool(backlog.in_flight or backlog.gathered)
        return is_waiting or publishing.is_due or bool(machine.missing)

    def _check_deadline(self) -> None:
        backlog, timeout_s = self._backlog, self._timeout_s
        sent_at = backlog.oldest_sent_at
        if sent_at is not None and trio.current_time() - sent_at >= timeout_s:
            refusals = self.missing.refusals
            self._machine.abandon(refusals.deadline_error(self._machine, backlog.unconfirmed, timeout_s))

    async def wait_settled(self) -> None:
        """Waits until the next change of the ensemble has ended, or the writer fails."""
        # Several tasks may wait, and none of them may take the event away from the others.
        if self.settled.is_set():
            self.settled = trio.Event()
        await self.settled.wait()

    def add_refused(self, bookie_id: str, answer: Answer) -> None:
        """A bookie's answer to an add that it did not do."""
        self.missing.refusals.heard(bookie_id, answer)

    def _metastore_answered(self) -> None:
        if self._machine.metadata.fragments is not self._fragments:
            self._report_ensemble_change()
        self._drive()
        if not self._machine.is_changing:
            self.settled.set()
        if self.publishing.awaited_sends:
            self.publishing.publish_soon()  # a bookie that was taken in has not been told yet
        self.missing.ask_who_is_left()

    def _report_ensemble_change(self) -> None:
        before, self._fragments = self._fragments[-1], self._machine.metadata.fragments
        after = self._fragments[-1]
        pairs = enumerate(zip(before.ensemble, after.ensemble, strict=True))
        replaced = {index: (old, new) for index, (old, new) in pairs if old != new}
        self.publishing.published = -1  # a new bookie was not told yet
        self.want()
        if replaced:  # otherwise the close has dropped a fragment without entries
            ledger_id = self._machine.metadata.ledger_id
            self.observe(EnsembleChanged(ledger_id, after.first_entry_id, replaced))
