"""The unconfirmed entries of one writer: admission, and waking the callers that wait for them.

Every entry comes in by `Backlog.admit`, or with others by `admit_all`: if there is no room, nothing has happened (W6). One event
serves all tasks that wait for the same batch. When entries are sent is decided in `replog.client.pacing`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import trio

from replog.protocol.batch import ENTRY_BYTES_MAX, Payloads, check_payload
from replog.protocol.envelope import Enveloped
from replog.runtime.shared_event import SharedEvent


class Backlog:
    """The entries of one writer that are pushed and not confirmed (W6), and the events that say when they are.

    `check_usable` raises why the writer takes no more entries, once it takes none."""

    def __init__(self, bytes_max: int, last_entry_id: int, check_usable: Callable[[], None]) -> None:
        self.gathered: list[bytes] = []  # pushed and not sent, in order
        self.has_envelopes = False  # True from the first entry on that was an envelope: batches are of one kind
        self.last_add_pushed = last_entry_id
        self.confirmed = last_entry_id  # the last add confirmed
        self.unconfirmed_bytes = 0  # pushed and not confirmed
        self.in_flight = 0  # batches that were sent and are not confirmed
        self.in_flight_bytes = 0  # the part of `unconfirmed_bytes` that was sent
        self.now = trio.lowlevel.current_clock().current_time
        self._bytes_max = bytes_max  # for `unconfirmed_bytes`; -1 once the writer takes no more entries
        self._check_usable = check_usable
        self._is_over = False
        self._batches: deque[tuple[int, int, float]] = deque()  # in flight: last entry id, bytes, when sent
        self._waiting: deque[tuple[int, SharedEvent]] = deque()  # by the last entry id that is waited for
        self._gathering: SharedEvent | None = None
        self._freed: SharedEvent | None = None
        self._awaited: deque[tuple[int, Callable[[bool], None]]] = deque()  # as `_waiting`, by functions to call

    # -- coming in --------------------------------------------------------------------------------------------------

    def admit(self, data: bytes) -> int:
        """Takes an entry, and returns its id. An entry above the whole budget is taken if it is the only one.

        Raises `trio.WouldBlock` if there is no room for it, `PayloadTooLargeError` or TypeError if this can't be an
        entry, and the errors of `check_usable`: then nothing has happened."""
        # This runs for each entry: a comparison of classes is cheaper than `isinstance`, and nearly always enough.
        if data.__class__ is not bytes:
            self._check_uncommon(data)
        size_bytes = len(data)
        unconfirmed_bytes = self.unconfirmed_bytes + size_bytes
        # One comparison for three cases: no room, failed and closed.
        if unconfirmed_bytes > self._bytes_max or size_bytes > ENTRY_BYTES_MAX:
            check_payload(data)
            self._check_room(size_bytes)
        self.unconfirmed_bytes = unconfirmed_bytes
        self.gathered.append(data)
        self.last_add_pushed = entry_id = self.last_add_pushed + 1
        return entry_id

    def admit_all(self, payloads: Payloads) -> range:
        """Admits several entries, all or none of them (see `admit`). Returns their ids."""
        if self.unconfirmed_bytes + payloads.size_bytes > self._bytes_max:
            self._check_room(payloads.size_bytes)
        self.gathered += payloads
        self.has_envelopes |= payloads.has_envelopes
        return self.count_on(payloads, payloads.size_bytes)

    def count_on(self, payloads: Sequence[bytes], size_bytes: int) -> range:
        """Entries come in that do not gather: they are sent at once. Returns their ids."""
        first = self.last_add_pushed + 1
        self.last_add_pushed += len(payloads)
        self.unconfirmed_bytes += size_bytes
        return range(first, first + len(payloads))

    def _check_uncommon(self, data: bytes) -> None:
        check_payload(data)
        if data.__class__ is Enveloped:
            self.has_envelopes = True

    def _check_room(self, size_bytes: int) -> None:
        self._check_usable()
        if not self.has_room(size_bytes):
            raise trio.WouldBlock

    def has_room(self, size_bytes: int) -> bool:
        """True if entries of this size may come in now. Entries above the whole budget may come in alone."""
        return self.unconfirmed_bytes + size_bytes <= self._bytes_max or not self.unconfirmed_bytes

    def take_no_more(self) -> None:
        """From now on `admit` raises what `check_usable` raises."""
        self._bytes_max = -1

    # -- looking ----------------------------------------------------------------------------------------------------

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

    # -- going out, and being confirmed -----------------------------------------------------------------------------

    def sent(self, last_entry_id: int, size_bytes: int) -> None:
        """Entries up to this one were sent; the later ones go on gathering."""
        self._batches.append((last_entry_id, size_bytes, self.now()))
        self.in_flight += 1
        self.in_flight_bytes += size_bytes
        if self._gathering is not None:
            # The tasks that wait so far wait for the entries pushed by now. Later entries could keep them waiting without end.
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
        self.take_no_more()
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
