"""Lets copies arrive that are on their way when a ledger is closed.

An entry is confirmed once its ack quorum has it (W2). A program that ends right after its last append would often leave the other
copies of it on their way: connections end with the client, and an audit finds the ledger short, though every bookie is well. So a
close waits a moment for these answers, beside its compare-and-set. It changes nothing but the time: what they say is not needed.

Rules:

- A close is late by `WAIT_S` at most, and a close that is cancelled, or whose writer failed, waits for nothing.
- A bookie that did not answer within that time is not waited for again until it answers: beside one that hangs, only the first of
  many closes is late.
"""

from __future__ import annotations

from collections.abc import Iterable

import trio

from replog.client.channel import BookieChannel
from replog.errors import ReplogError

WAIT_S = 1.0  # many times the latency of a healthy bookie; durability="write-quorum" guarantees more


class LateAdds:
    """The adds to one ledger that are on their way as this is made."""

    def __init__(self, channels: Iterable[BookieChannel], ledger_id: int) -> None:
        self._until_s = trio.current_time() + WAIT_S
        self._outstanding = {
            channel: request_ids
            for channel in channels
            if not channel.is_late(WAIT_S) and (request_ids := channel.adds_outstanding(ledger_id))
        }
        self._left = sum(map(len, self._outstanding.values()))
        self._all_answered = trio.Event()
        for channel, request_ids in self._outstanding.items():
            for request_id in request_ids:
                channel.call_after(request_id, self._answered)

    def _answered(self) -> None:
        self._left -= 1
        if not self._left:
            self._all_answered.set()

    async def wait(self, error: ReplogError | None) -> None:
        """Returns once all are answered or have failed, or the time is over; at once if the writer failed with this error."""
        if not self._left or error is not None:
            return
        with trio.move_on_at(self._until_s):
            await self._all_answered.wait()
        for channel, request_ids in self._outstanding.items():
            channel.note_late(request_ids)
