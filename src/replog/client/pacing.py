"""When a ledger's writer sends its gathered entries.

No timer decides. Entries that come in while batches are in flight gather, and an answer sends them: a slow bookie gets
few large batches, a fast one many small ones, and a lone entry goes at once. A turn of the event loop lets every task
that is ready add its entry first; it costs a tenth of a lone append. So whether entries come one by one, or from many
tasks, has to be guessed:

    stage       meaning                                                       what happens to an entry that comes in
    ALONE       the last batch had one entry                                  it is sent at once
    TOGETHER    the last batch had several, or others have waited for a turn  it is sent in a turn of the event loop
    GATHERING   a turn was asked for                                          that turn sends it
    HELD        nothing may be sent: what is before is not confirmed (L2)     `release` sends it

Beside the stage counts how many batches are in flight. On a disk that takes 0.1 ms two are enough: more would be smaller, and
cost more each. Where a round takes longer, each 2 ms of it is worth one batch more: that hides a sync. Sending whenever
fewer than the limit are in flight lost: a caller that keeps a number of entries in flight then always has one large batch and one
tiny one, which cost as much as two large ones, and do not overlap.

Invariants:

- `when` alone decides. The caller that brings entries sends them, asks for a turn, or leaves them to an answer or a
  release.
- Entries that gather are sent by a turn that was asked for, by the answer of a batch in flight, or by `release` (L2).
- Nothing is sent while it is HELD (L2).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import trio

from replog.client.backlog import Backlog
from replog.protocol.stages import Transitions, after, from_each
from replog.runtime.event_loop import CallSoon
from replog.runtime.lent_thread import lent_thread

_DEPTH_MIN = 2  # batches in flight on a fast disk; more would only make them smaller
_FAR_ROUND_S = 0.01  # no disk takes as long as this: the bookies are far away
_SLOW_ROUND_S = 0.002  # for each of these that a round takes, one more batch may be in flight
_AT_ONCE_MAX = 8  # appends of one task, before others have a turn: bounds how long they wait, and miss its batches


class Stage(enum.Enum):
    """See above."""

    ALONE = enum.auto()
    TOGETHER = enum.auto()
    GATHERING = enum.auto()
    HELD = enum.auto()


_SENDING = (Stage.ALONE, Stage.TOGETHER)

TRANSITIONS: Transitions[Stage] = {
    (Stage.ALONE, "several were sent"): Stage.TOGETHER,
    (Stage.ALONE, "others are due"): Stage.TOGETHER,
    (Stage.TOGETHER, "one was sent"): Stage.ALONE,
    **from_each(_SENDING, "a turn was asked for", Stage.GATHERING),
    (Stage.GATHERING, "the turn came"): Stage.TOGETHER,
    **from_each((*_SENDING, Stage.GATHERING), "hold", Stage.HELD),
    (Stage.HELD, "release"): Stage.TOGETHER,
}


class When(enum.Enum):
    """When entries that come in now are sent: by their caller, in a turn of the event loop, or by the caller that decides."""

    NOW = enum.auto()
    SOON = enum.auto()
    LATER = enum.auto()


class Pacing:
    """Decides when one writer's backlog is sent. `send` sends what may be sent."""

    def __init__(self, backlog: Backlog, depth_max: int, call_soon: CallSoon, send: Callable[[], None]) -> None:
        self.stage = Stage.ALONE
        self.is_pushed = False  # the caller of the last entries goes on, and does not wait for them
        self.expected_bytes = 0  # confirmed since the last batch was sent: as many may be pushed again
        self.depth = _DEPTH_MIN  # how many batches may be in flight
        self.round_s = 0.0  # the time of the last batch from being sent to being confirmed, beside others
        self._backlog = backlog
        self._depth_max = depth_max
        self._call_soon = call_soon
        self._send = send
        self._lent_thread = lent_thread()
        self._turn: object = None  # the one that was asked for last
        self._at_once = 0  # appends that were sent and confirmed while no other task had a turn

    @property
    def is_busy(self) -> bool:
        """True while entries gather, or as many batches are in flight as may be."""
        return bool(self._backlog.gathered) or self._backlog.in_flight >= self.depth

    # -- the one decision -------------------------------------------------------------------------------------------

    def when(self) -> When:
        """When the gathered entries are sent."""
        stage, backlog = self.stage, self._backlog
        if stage is Stage.GATHERING or stage is Stage.HELD:
            return When.LATER
        if not backlog.in_flight:
            return When.NOW if stage is Stage.ALONE else When.SOON
        if backlog.in_flight >= self.depth:
            return When.LATER
        # While much more is in flight than has gathered, it is worth waiting for that on a fast disk.
        is_little = backlog.gathered_bytes * 4 < backlog.unconfirmed_bytes
        return When.LATER if is_little and self.round_s < _FAR_ROUND_S else When.SOON

    def waits_for_more(self) -> bool:
        """True if less has gathered than was just confirmed: then the tasks that waited for that may push as much again, and the
        event loop gets one turn before the batch is sent."""
        expected_bytes, self.expected_bytes = self.expected_bytes, 0
        if self.stage is Stage.ALONE or self._backlog.gathered_bytes >= expected_bytes:
            return False
        self._ask_turn(after_woken=True)
        return True

    # -- entries that came in ---------------------------------------------------------------------------------------

    def pushed(self) -> None:
        """Entries came in, and no caller waits for them."""
        self.is_pushed = True
        if self.when() is When.NOW:
            self._send()
        elif self.stage in _SENDING:
            self._ask_turn()

    def appended(self, entries: int) -> None:
        """So many entries came in, whose caller waits for them without a task of trio's."""
        when = self.when()
        if when is When.NOW:
            self.is_pushed = False
            self._send_waiting(entries)
        elif when is When.SOON:
            self.is_pushed = False
            self._ask_turn()

    def confirmed(self, entry_id: int, entries: int = 1) -> Coroutine[Any, Any, None]:
        """To be awaited at once by the task whose entries, up to this one, just came in: sees to it that they are sent, and
        returns once they are confirmed, or the writer has ended. If cancelled, they go on being sent."""
        when = self.when()
        if when is When.LATER:
            return self._backlog.gathering().wait()
        return self._lead(entry_id, entries, is_now=when is When.NOW and entries == 1)

    async def _lead(self, entry_id: int, entries: int, *, is_now: bool) -> None:
        """Sends what has gathered, after every other task that is ready has added its entries, too; and waits for it."""
        backlog = self._backlog
        try:
            if not is_now:
                self._enter("a turn was asked for")
                await trio.lowlevel.checkpoint()
        finally:
            # Even if cancelled: other tasks' entries may have gathered, and wait for this one to send them.
            if not is_now:
                self._turn_came()
            self.is_pushed, self.expected_bytes = False, 0
            self._send_waiting(entries)
        if backlog.confirmed < entry_id:
            await backlog.confirmation(entry_id).wait()
            self._at_once = 0  # every other task has had a turn
            return
        await trio.lowlevel.checkpoint_if_cancelled()
        self._at_once += 1
        if self._at_once >= _AT_ONCE_MAX and self.stage is Stage.ALONE:
            self._enter("others are due")
            self._at_once = 0

    def _send_waiting(self, entries: int) -> None:
        """Sends for a caller that has nothing else to do until its entries are confirmed, if it is the only one."""
        if len(self._backlog.gathered) == entries and not self._backlog.in_flight:
            self._lent_thread.lend(self._send)
        else:
            self._send()

    # -- turns of the event loop, and holding back ------------------------------------------------------------------

    def _ask_turn(self, *, after_woken: bool = False) -> None:
        self._enter("a turn was asked for")
        self._turn = turn = object()
        self._call_soon.soon(partial(self._take_turn, turn), after_woken=after_woken)

    def _take_turn(self, turn: object) -> None:
        # Somebody may have sent everything without waiting for this turn, and another be asked for.
        if turn is self._turn:
            self.send_now()

    def _turn_came(self) -> None:
        self._turn = None
        if self.stage is Stage.GATHERING:  # else it was held meanwhile
            self._enter("the turn came")

    def send_now(self) -> None:
        """Sends without waiting for the turn that was to send, if one was asked for."""
        self._turn_came()
        self._send()

    def hold(self) -> bool:
        """Nothing is sent until `release`. False, and nothing has happened, if it is held already."""
        if self.stage is Stage.HELD:
            return False
        self._enter("hold")
        return True

    def release(self) -> None:
        """Sends what has gathered, and goes on as usual."""
        if self.stage is Stage.HELD:
            self._enter("release")
        self._send()

    # -- what became of them ----------------------------------------------------------------------------------------

    def sent(self, entries: int) -> None:
        """A batch of so many entries was sent."""
        self.expected_bytes = 0
        if self.stage is Stage.ALONE and entries > 1:
            self._enter("several were sent")
        elif self.stage is Stage.TOGETHER and entries == 1:
            self._enter("one was sent")

    def round_ended(self, sent_at: float) -> None:
        """A batch that was sent then is confirmed: the longer that took, the more batches may be in flight."""
        self.round_s = self._backlog.now() - sent_at
        slow_rounds = int(self.round_s / _SLOW_ROUND_S)
        self.depth = max(_DEPTH_MIN, min(self._depth_max, _DEPTH_MIN + slow_rounds))

    def _enter(self, event: str) -> None:
        self.stage = after(TRANSITIONS, self.stage, event)
