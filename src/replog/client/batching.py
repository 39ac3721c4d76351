"""When a ledger's writer sends, and how much at a time.

`Backlog` has the entries that were pushed and are not confirmed, and wakes the tasks that wait for them: one event serves all
tasks that wait for the same batch. `Batching` decides when the gathered entries become the next batch, and how large it is.

No timer decides. Entries that are pushed while batches are in flight gather, and an answer sends them: a slow bookie gets few
large batches, a fast one many small ones, and a lone entry goes at once. Neither class sends anything; `replog.client.sending`
does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

import trio

from replog.config import ClientOptions
from replog.protocol.batch import PackedPayloads, check_payload
from replog.protocol.envelope import Enveloped
from replog.runtime.event_loop import Turns
from replog.runtime.shared_event import SharedEvent

_DEPTH_MIN = 2  # batches in flight on a fast disk; more would only make them smaller
_FAR_ROUND_S = 0.01  # no disk takes as long as this: the bookies are far away
_HALVED_BYTES_MIN = 512 << 10  # less is sent as one batch: a second batch would cost more than the overlap saves
_SLOW_ROUND_S = 0.002  # for each of these that a round takes, one more batch may be in flight
_ENTRY_OVERHEAD_BYTES = 4  # of an entry in a batch, beside its payload
_BATCH_ENTRIES_MAX = 1 << 16


class Backlog:
    """The entries of one writer that are pushed and not confirmed (W6), and the events that say when they are.

    The writer appends to `gathered` directly, and counts `last_add_pushed` and `unconfirmed_bytes` on: a function call for each
    entry would cost more than the rest of a push."""

    def __init__(self, bytes_max: int, last_entry_id: int = -1) -> None:
        self.gathered: list[bytes] = []  # pushed and not sent, in order
        self.last_add_pushed = last_entry_id
        self.confirmed = last_entry_id  # the last add confirmed
        self.unconfirmed_bytes = 0  # pushed and not confirmed
        self.in_flight = 0  # batches that were sent and are not confirmed
        self.in_flight_bytes = 0  # the part of `unconfirmed_bytes` that was sent
        self.bytes_max = bytes_max  # for `unconfirmed_bytes`; -1 once the writer takes no more entries
        self.turn: object | None = None  # the turn of the event loop that will send what has gathered
        self.now = trio.lowlevel.current_clock().current_time
        self._is_over = False
        self._batches: deque[tuple[int, int, float]] = deque()  # in flight: last entry id, bytes, when sent
        self._waiting: deque[tuple[int, SharedEvent]] = deque()  # by the last entry id that is waited for
        self._gathering: SharedEvent | None = None
        self._freed: SharedEvent | None = None
        self._awaited: deque[tuple[int, Callable[[bool], None]]] = deque()  # as `_waiting`, by functions to call

    @property
    def unconfirmed(self) -> range:
        """The ids that were pushed and are not confirmed."""
        return range(self.confirmed + 1, self.last_add_pushed + 1)

    @property
    def gathered_bytes(self) -> int:
        """Pushed and not sent. It is a difference, so that an entry costs one sum and not two."""
        return self.unconfirmed_bytes - self.in_flight_bytes

    @property
    def oldest_sent_at(self) -> float | None:
        """When the oldest unconfirmed batch was sent."""
        return self._batches[0][2] if self._batches else None

    def has_room(self, size_bytes: int) -> bool:
        """True if an entry of this size may be pushed now. An entry above the whole budget may go if it is the only one."""
        return self.unconfirmed_bytes + size_bytes <= self.bytes_max or not self.unconfirmed_bytes

    def sent(self, last_entry_id: int, size_bytes: int) -> None:
        """Entries up to this one were sent; the later ones go on gathering."""
        self._batches.append((last_entry_id, size_bytes, self.now()))
        self.in_flight += 1
        self.in_flight_bytes += size_bytes
        if self._gathering is not None:
            # The tasks that wait so far wait for what is pushed by now. Later entries could keep them waiting without end.
            self._waiting.append((self.last_add_pushed, self._gathering))
            self._gathering = None

    def advance(self, confirmed: int) -> float:
        """Everything up to this entry is confirmed: wakes the tasks that waited for it. Returns when its last batch was sent."""
        self.confirmed = confirmed
        sent_at = 0.0
        while self._batches and self._batches[0][0] <= confirmed:
            _, size_bytes, sent_at = self._batches.popleft()
            self.unconfirmed_bytes -= size_bytes
            self.in_flight_bytes -= size_bytes
            self.in_flight -= 1
        while self._waiting and self._waiting[0][0] <= confirmed:
            self._waiting.popleft()[1].set()
        awaited = self._awaited
        while awaited and awaited[0][0] <= confirmed:
            awaited.popleft()[1](True)
        # Every task that waits for room looks again: which of them can go on depends on the size of its entry.
        if self._freed is not None:
            self._freed.set()
            self._freed = None
        return sent_at

    def gathering(self) -> SharedEvent:
        """The event that is set once all that has gathered when the next batch is sent is confirmed, or the writer has ended."""
        if self._gathering is None:
            self._gathering = SharedEvent()
        return self._gathering

    def confirmation(self, entry_id: int) -> SharedEvent:
        """The event that is set once this entry is confirmed, with others that are pushed by now, or at the writer's end."""
        if self._is_over:
            ended = SharedEvent()
            ended.set()
            return ended
        # The events are in the order of ids, so one that was asked for later serves this entry, too.
        if not self._waiting or self._waiting[-1][0] < entry_id:
            self._waiting.append((self.last_add_pushed, SharedEvent()))
        return self._waiting[-1][1]

    def call_when_confirmed(self, entry_id: int, ended: Callable[[bool], None]) -> None:
        """Calls `ended(True)` once this entry is confirmed, or `ended(False)` at the writer's end; maybe before this returns. Ids
        only grow from call to call."""
        if self.confirmed >= entry_id or self._is_over:
            ended(self.confirmed >= entry_id)
        else:
            self._awaited.append((entry_id, ended))

    def freed(self) -> SharedEvent:
        """The event that is set when bytes are confirmed next, or the writer has ended."""
        if self._freed is None:
            self._freed = SharedEvent()
        return self._freed

    def end(self) -> None:
        """The writer has failed or was closed: forgets the entries that gather, and wakes every task that waits."""
        self._is_over = True
        self.bytes_max = -1
        self.gathered = []
        while self._waiting:
            self._waiting.popleft()[1].set()
        while self._awaited:
            self._awaited.popleft()[1](False)
        if self._gathering is not None:
            self._gathering.set()
            self._gathering = None
        if self._freed is not None:
            self._freed.set()
            self._freed = None


class Batching:
    """Decides when one writer's backlog is sent, and how much of it at a time. `send` sends what may be sent."""

    def __init__(
        self, backlog: Backlog, options: ClientOptions, stride: int, turns: Turns, send: Callable[[], None]
    ) -> None:
        self.has_envelopes = False  # True from the first entry on that was an envelope: batches are of one kind
        self.is_held = False  # entries only gather, because those of the previous ledger are not all confirmed (L2)
        self.is_pushed = False  # the last entries were pushed: their caller goes on, and does not wait for them
        self.is_alone = False  # no other task had an entry to append when the batch was sent
        self.are_many = False  # the last batch had several entries
        self.expected_bytes = 0  # confirmed since the last batch was sent: as many may be pushed again
        self.lone_appends = 0  # since another task was last seen to append
        self._backlog = backlog
        self._options = options
        self._stride = stride
        self._turns = turns
        self._send = send
        self._depth = _DEPTH_MIN
        self._round_s = 0.0  # from sending the last batch to its confirmation

    @property
    def depth(self) -> int:
        """How many batches may be in flight."""
        return self._depth

    @property
    def round_s(self) -> float:
        """What the last batch took from being sent to being confirmed, beside others."""
        return self._round_s

    @property
    def is_busy(self) -> bool:
        """True while entries gather, or as many batches are in flight as may be."""
        return bool(self._backlog.gathered) or self._backlog.in_flight >= self._depth

    # -- when -------------------------------------------------------------------------------------------------------

    def gather(self, data: bytes) -> SharedEvent | None:
        """Adds an entry whose task waits: returns the event to wait for, or None if the task has to see to it that it is sent."""
        backlog = self._backlog
        backlog.unconfirmed_bytes += len(data)
        backlog.gathered.append(data)
        backlog.last_add_pushed += 1
        if backlog.turn is not None or (backlog.in_flight and not self.may_send()):
            return backlog.gathering()
        return None

    def pushed(self) -> None:
        """An entry was pushed, and nothing will send it yet: sends it now if nothing is in flight and entries come one by one,
        because then nothing is gained by waiting for more. Otherwise sends soon."""
        self.is_pushed = True
        if not self._backlog.in_flight and not self.is_held and not self.are_many:
            self._send()
        else:
            self.send_soon()

    def appended(self) -> None:
        """As `pushed`, but the caller waits for the entries, without a task of trio's."""
        backlog = self._backlog
        if backlog.in_flight or self.is_held or self.are_many:
            # Otherwise an answer sends them.
            if not backlog.in_flight or self.may_send():
                self.is_pushed = False
                self.send_soon()
            return
        self.is_pushed, self.is_alone = False, len(backlog.gathered) == 1
        self._send()
        self.is_alone = False

    def send_soon(self, *, after_woken: bool = False) -> None:
        """Sends in a later turn of the event loop; until then entries gather."""
        self._backlog.turn = turn = object()
        self._turns.soon(partial(self._take_turn, turn), after_woken=after_woken)

    def _take_turn(self, turn: object) -> None:
        # Somebody may have sent everything without waiting for this turn.
        if turn is self._backlog.turn:
            self.send_now()

    def send_now(self) -> None:
        """Sends without waiting for the turn that was to send."""
        self._backlog.turn = None
        self._send()

    def may_send(self) -> bool:
        """True if another batch may be in flight now."""
        in_flight = self._backlog.in_flight
        if in_flight >= self._depth or self.is_held:
            return False
        # While much more is in flight than has gathered, it is worth waiting for that on a fast disk. Otherwise a caller that
        # keeps a number of entries in flight would always have one large batch and one tiny one: they cost as much as two
        # large ones, and don't overlap.
        is_near = self._round_s < _FAR_ROUND_S
        return not (in_flight and is_near and self._backlog.gathered_bytes * 4 < self._backlog.unconfirmed_bytes)

    def waits_for_more(self) -> bool:
        """True if less has gathered than was just confirmed: then the tasks that waited for that may push as much again, and the
        event loop gets one turn before the batch is sent."""
        expected_bytes, self.expected_bytes = self.expected_bytes, 0
        if not self.are_many or self._backlog.gathered_bytes >= expected_bytes:
            return False
        self.send_soon(after_woken=True)
        return True

    def round_ended(self, sent_at: float) -> None:
        """A batch that was sent then is confirmed: the longer that took, the more batches may be in flight."""
        self._round_s = self._backlog.now() - sent_at
        # On a slow disk more batches hide the time of a sync. On a fast one they would only be smaller, and cost more each.
        slow_rounds = int(self._round_s / _SLOW_ROUND_S)
        self._depth = max(_DEPTH_MIN, min(self._options.batches_in_flight_max, _DEPTH_MIN + slow_rounds))

    # -- how much ---------------------------------------------------------------------------------------------------

    def take_batch(self) -> tuple[list[bytes], int]:
        """Takes the entries for the next batch, and their size in bytes: as many as fit into one batch for each rotation, and at
        least one for each."""
        backlog, gathered = self._backlog, self._backlog.gathered
        # A lone append is judged by its latency: it needs none of the arithmetic below.
        if len(gathered) == 1:
            backlog.gathered = []
            return gathered, len(gathered[0])
        size_bytes = backlog.gathered_bytes
        stride, limit_bytes = self._stride, self._batch_bytes_max()
        fits = size_bytes + _ENTRY_OVERHEAD_BYTES * len(gathered) <= limit_bytes
        if fits and len(gathered) <= _BATCH_ENTRIES_MAX:
            backlog.gathered = []
            return gathered, size_bytes
        # By the average size: to look at each entry would cost more than the rare second try.
        fitting = len(gathered) * limit_bytes * stride // (size_bytes + _ENTRY_OVERHEAD_BYTES * len(gathered))
        batch = gathered[: max(1, min(_BATCH_ENTRIES_MAX, fitting))]
        while len(batch) > stride and self._largest_bytes(batch) > limit_bytes:
            # The estimate was wrong because the sizes differ much.
            del batch[len(batch) // 2 :]
        del gathered[: len(batch)]
        return batch, sum(map(len, batch))

    def fits(self, packed: PackedPayloads) -> bool:
        """True if these entries may be one batch as they are."""
        stored_bytes = packed.size_bytes + _ENTRY_OVERHEAD_BYTES * len(packed)
        is_small = stored_bytes <= self._options.batch_bytes_max and len(packed) <= _BATCH_ENTRIES_MAX
        return is_small and self._stride == 1

    def check_uncommon(self, data: bytes) -> None:
        """As `check_payload`, of what is not plain bytes; notes that batches of two kinds are to be kept apart from now on."""
        check_payload(data)
        if data.__class__ is Enveloped:
            self.has_envelopes = True

    def keep_one_kind(self, batch: list[bytes], size_bytes: int) -> tuple[list[bytes], int]:
        """Gives back what of a taken batch follows its first entries that all are envelopes, or none of them is."""
        count = _same_kind(list(map(type, batch)))
        if count == len(batch):
            return batch, size_bytes
        self._backlog.gathered[:0] = batch[count:]
        del batch[count:]
        return batch, sum(map(len, batch))

    def _batch_bytes_max(self) -> int:
        """The limit, or half of the gathered bytes if nearly everything unconfirmed has gathered: then the bookies write one half
        while the client builds the other. Entries that a caller waits for go as a whole."""
        backlog, limit_bytes = self._backlog, self._options.batch_bytes_max
        gathered_bytes = backlog.gathered_bytes
        is_nearly_all = gathered_bytes * 4 >= backlog.unconfirmed_bytes * 3
        if not self.is_pushed or not is_nearly_all or gathered_bytes < _HALVED_BYTES_MIN:
            return limit_bytes
        stored_bytes = gathered_bytes + _ENTRY_OVERHEAD_BYTES * len(backlog.gathered)
        return min(limit_bytes, stored_bytes // (2 * self._stride))

    def _largest_bytes(self, entries: list[bytes]) -> int:
        """The size of the largest batch that these entries make (W1)."""
        rotations = [entries[rotation :: self._stride] for rotation in range(self._stride)]
        return max(sum(map(len, rotation)) + _ENTRY_OVERHEAD_BYTES * len(rotation) for rotation in rotations)


def _same_kind(kinds: list[type]) -> int:
    """How many of the first entries of these types are envelopes, or are none, as the first one."""
    if len(set(kinds)) == 1:
        return len(kinds)
    is_envelope = [kind is Enveloped for kind in kinds]
    return is_envelope.index(not is_envelope[0]) if (not is_envelope[0]) in is_envelope else len(kinds)
