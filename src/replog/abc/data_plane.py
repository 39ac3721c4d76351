"""The seams of the data plane: what a bookie's loop and a writer's sender offer to the Python around them.

Today both are Python: `replog.bookie.server.BookieServer` and `replog.client.sending.BatchSender` have these shapes as they are.
The seams are protocols of types, so they cost nothing at run time: nobody calls through them. A compiled one would be put in the
place of either, and has to pass `replog.testing.check_bookie_loop` or `check_sender`; docs/how-to/native-data-plane.md says how.
Neither seam is crossed for each entry: the loop gets messages, which carry batches, and a writer adds its entries to a list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import trio

from replog.abc.transport import Reply
from replog.errors import ReplogError
from replog.protocol.messages import Request
from replog.protocol.releasing import ForeignRange
from replog.runtime.latencies import LatencyHistogram


class BookieLoop(Protocol):
    """Takes the requests of one bookie's clients, makes durable what they bring, and answers. It is a `RequestHandler`.

    Made with a storage, the bookie's options and a function that observes events. All of it is called in the trio thread; its
    own threads are its own affair. Rules:

    - Nothing is acknowledged before `Storage.commit` has returned, and nothing after it raised (B1).
    - The requests to a ledger that change or fence something are taken, and answered, in one order: that of their arrival (B2).
    - An answer that depends on a fence, even a refusal, leaves after the fence is durable (R3).
    - What is stored already is acknowledged and not stored again; other bytes for it are refused (T3).
    - Without space, new entries are refused; fences and recoveries go on (B5). A storage that failed is asked nothing more (B1).
    - What waits for the disk is bounded by `queue_bytes_max`; what comes above that is refused at once.
    - While a commit is under way, what arrives gathers: it shares the next one.
    """

    def running(self) -> AbstractAsyncContextManager[None]:
        """Serves while the context is open. On leaving, what was taken is made durable and answered; the storage stays open."""

    def handle(self, requests: Sequence[Request], reply: Reply) -> None:
        """As `RequestHandler.handle`: takes requests in their order, and never waits."""

    async def drop(self, ledger_id: int, entries: ForeignRange | None = None) -> None:
        """Forgets a deleted ledger (B6), or entries that are other bookies' (F5), durably. Raises `StorageError`."""

    async def fence(self, ledger_id: int, term: int) -> None:
        """Fences a ledger durably, on the bookie's own account (B8). Raises `StorageError`."""

    def statistics(self) -> Mapping[str, float]:
        """Counters and gauges; `queued_bytes` and `queued_requests` are what was taken and not answered."""

    def latencies(self) -> Mapping[str, LatencyHistogram]:
        """What took how long: `commit` and `answer`."""


class SenderBacklog(Protocol):
    """The entries of one writer that are pushed and not confirmed. The writer adds to it; a sender takes from it.

    For each entry the writer does this and nothing more: it appends to `gathered`, and counts `unconfirmed_bytes` and
    `last_add_pushed` on. Then it asks the sender once, for all that has gathered."""

    gathered: list[bytes]  # pushed and not sent, in order: a sender takes from its beginning
    last_add_pushed: int
    confirmed: int  # the last add confirmed; set by `advance`
    unconfirmed_bytes: int  # pushed and not confirmed
    in_flight: int  # batches that were sent and are not confirmed
    in_flight_bytes: int
    bytes_max: int  # -1 once the writer takes no more entries

    def sent(self, last_entry_id: int, size_bytes: int) -> None:
        """A sender says that a batch was sent whose last entry is this one."""

    def advance(self, confirmed: int) -> float:
        """A sender says that everything up to this entry is confirmed: wakes those who wait."""

    def end(self) -> None:
        """A sender says that nothing more will be confirmed: wakes everybody."""


class Sender(Protocol):
    """Sends one writer's backlog in batches to the bookies of each write set, and says what is confirmed.

    Made with the writing machine, the ledger's key, the client's context and options, a function that observes events, and the
    client's ticker. The machine stays the truth about the ledger: whatever a sender counts by itself, it has told the machine
    before anybody looks. All of it is called in the trio thread. Rules:

    - Entries are sent in their order, each to the write set of its id, whose bookies all get the same bytes (W1, W3).
    - An entry is confirmed once it and all before it have their ack quorums, each bookie counted once (W2).
    - Nothing is confirmed after a bookie said that the ledger is fenced (W4), nor while an ensemble changes (C1).
    - A bookie gets nothing of a fragment before the record that names it is durable (C3); then it gets all that is pending (C5).
    - A batch carries what was confirmed when it was sent; `leave_open` tells bookies what no batch carries (W5).
    - While a batch is under way, what is pushed gathers into the next one. No timer decides.
    """

    closed: trio.Event  # the ledger is closed, or the writer has failed
    error: ReplogError | None  # why the writer has failed
    batches_sent: int  # one for all bookies that get it, or for all rotations; the context counts them, too

    @property
    def backlog(self) -> SenderBacklog:
        """What it sends."""

    def drive(self) -> None:
        """Sends what has gathered as far as it may now, and does what the machine asks for. Never waits."""

    async def run(self) -> None:
        """What waits for the metastore, for connections and for time. Ends when `closed` is set."""

    async def settle(self) -> None:
        """Waits until no change of the ensemble is under way, or the writer has failed."""

    async def leave_open(self, timeout_s: float, *, is_fixed: bool) -> None:
        """Tells bookies what is confirmed, and sets `closed`; the ledger stays open. With `is_fixed`, its fragments end there."""

    def date(self, timestamp_ns: int) -> None:
        """Gives this time to what is sent from now on."""
