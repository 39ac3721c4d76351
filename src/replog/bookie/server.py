"""The server of one bookie: takes requests, in order, and answers when what the answer depends on is durable.

`handle` runs in the trio thread and never waits. Whatever changes or fences a ledger passes through that ledger's one
machine (B2) and then through the group commit; plain reads go to the storage at once, in a thread if the disk is needed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import trio

from replog.abc import Marks, Reply, Storage
from replog.bookie.commits import GroupCommit, Work
from replog.bookie.polls import LongPolls
from replog.config import BookieOptions
from replog.errors import StorageError, StorageFailedError, StorageFullError
from replog.hookspecs import Event, StorageFailed
from replog.nursery import open_service_nursery
from replog.protocol.bookie import LedgerOnBookie, OrderedRequest, read_answer
from replog.protocol.messages import (
    AddRequest,
    ReadLastAddConfirmedRequest,
    ReadRequest,
    Request,
    Response,
    Status,
    size_of,
)

_LEDGERS_MAX = 4096  # machines kept: an idle one is made anew from its durable marks
_READING_THREADS_MAX = 8


class BookieServer:
    """Serves one storage. `observe` is told when the storage fails. Use it as the handler of a transport's listener,
    while `running` is open."""

    def __init__(self, storage: Storage, options: BookieOptions, observe: Callable[[Event], None]) -> None:
        self.storage = storage
        self.options = options
        self.failure: StorageError | None = None
        self.failed = trio.Event()  # set when a commit fails; replaced by who waits for it
        self._observe = observe
        self._ledgers: dict[int, LedgerOnBookie] = {}
        self._commits = GroupCommit(storage, options.commit_bytes_max, self._storage_failed)
        self._polls = LongPolls(options.long_poll_max_s)
        self._nursery: trio.Nursery | None = None
        self._reading_threads = trio.CapacityLimiter(_READING_THREADS_MAX)

    @property
    def bookie_id(self) -> str:
        """The identity of the storage (B4)."""
        return self.storage.bookie_id

    @property
    def is_read_only(self) -> bool:
        """Whether the last commit failed: for want of space, until one succeeds again (B5), or for good."""
        return self._commits.last_failure is not None or self.failure is not None

    def presume_space(self) -> None:
        """Counts as taking entries until the next commit shows whether there is space."""
        self._commits.last_failure = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runs the commit thread and the waiting questions. On leaving, what was accepted is still made durable and
        answered; the storage stays open."""
        async with open_service_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._polls.expire)
            async with self._commits.running():
                yield

    # -- requests -------------------------------------------------------------------------------------------------

    def handle(self, requests: Sequence[Request], reply: Reply) -> None:
        """Takes requests in their order. Answers come through `reply`, some before this returns."""
        for request in requests:
            if isinstance(request, ReadRequest):
                self._read(request, reply)
            elif isinstance(request, ReadLastAddConfirmedRequest):
                self._read_last_add_confirmed(request, reply)
            else:
                self._accept(request, reply)

    def _accept(self, request: OrderedRequest, reply: Reply) -> None:
        size_bytes = size_of(request)
        refusal = self._cannot_take(request, size_bytes)
        if refusal is not None:
            reply([refusal])
            return
        try:
            ledger = self._ledger(request.ledger_id)
        except StorageError as error:
            reply([Response(request.request_id, Status.UNKNOWN, detail=str(error))])
            return
        known = ledger.last_add_confirmed
        work = Work(ledger, ledger.accept(request), reply, size_bytes)
        if ledger.last_add_confirmed > known:
            self._polls.advanced(ledger)
        alone = isinstance(request, AddRequest) and request.alone and self.options.commit_inline_when_idle
        if alone and self._commits.is_idle and self._commits.is_fast:
            self._commits.commit_now(work)
        else:
            self._commits.put(work)

    def _cannot_take(self, request: OrderedRequest, size_bytes: int) -> Response | None:
        if self.failure is not None:
            return Response(request.request_id, Status.UNKNOWN, detail=str(self.failure))
        if self._commits.queued_bytes + size_bytes > self.options.queue_bytes_max and not self._commits.is_idle:
            return Response(request.request_id, Status.TOO_BUSY, detail=f"{self._commits.queued_bytes} bytes wait")
        return None

    def _ledger(self, ledger_id: int) -> LedgerOnBookie:
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            if len(self._ledgers) >= _LEDGERS_MAX and self._commits.is_idle:
                self._ledgers.clear()
            ledger = LedgerOnBookie(ledger_id, self.storage.marks(ledger_id) or Marks())
            self._ledgers[ledger_id] = ledger
        return ledger

    # -- plain reads ----------------------------------------------------------------------------------------------

    def _read(self, request: ReadRequest, reply: Reply) -> None:
        bytes_max = min(request.bytes_max, self.options.answer_bytes_max)
        try:
            ledger = self._ledger(request.ledger_id)
            refusal = ledger.refuse_read(request)
            if refusal is not None:
                reply([refusal])
                return
            found = self.storage.read_nowait(request.ledger_id, request.entry_id, request.stamp, bytes_max)
        except trio.WouldBlock:
            assert self._nursery is not None
            self._nursery.start_soon(self._read_in_thread, request, bytes_max, reply)
        except StorageError as error:
            reply([Response(request.request_id, Status.UNKNOWN, detail=str(error))])
        else:
            reply([read_answer(request.request_id, found, ledger.last_add_confirmed)])

    async def _read_in_thread(self, request: ReadRequest, bytes_max: int, reply: Reply) -> None:
        try:
            found = await trio.to_thread.run_sync(
                self.storage.read,
                request.ledger_id,
                request.entry_id,
                request.stamp,
                bytes_max,
                limiter=self._reading_threads,
            )
        except StorageError as error:
            if isinstance(error, StorageFailedError) and self.failure is None:
                self._storage_failed(error)
            reply([Response(request.request_id, Status.UNKNOWN, detail=str(error))])
        else:
            ledger = self._ledger(request.ledger_id)
            reply([read_answer(request.request_id, found, ledger.last_add_confirmed)])

    def _read_last_add_confirmed(self, request: ReadLastAddConfirmedRequest, reply: Reply) -> None:
        try:
            ledger = self._ledger(request.ledger_id)
        except StorageError as error:
            reply([Response(request.request_id, Status.UNKNOWN, detail=str(error))])
            return
        refusal = ledger.refuse_read(request)
        if refusal is not None:
            reply([refusal])
        elif ledger.last_add_confirmed > request.after or request.wait_ms <= 0:
            reply([Response(request.request_id, Status.OK, ledger.last_add_confirmed, ledger.fence_term)])
        else:
            self._polls.wait(request, ledger, reply)

    # -- deleted ledgers, failing disks -----------------------------------------------------------------------------

    async def drop(self, ledger_id: int) -> None:
        """Forgets a deleted ledger (B6), durably. Raises `StorageError`. If cancelled, it happens all the same."""
        if self.failure is not None:
            raise self.failure
        ledger = self._ledger(ledger_id)
        done = trio.Event()
        answers: list[Response] = []

        def dropped(responses: Sequence[Response]) -> None:
            answers.extend(responses)
            if responses[0].status is Status.OK:
                self._ledgers.pop(ledger_id, None)
            done.set()

        self._commits.put(Work(ledger, ledger.drop(), dropped, 0))
        await done.wait()
        if answers[0].status is not Status.OK:
            raise self.failure or StorageFullError(f"bookie {self.bookie_id}: ledger {ledger_id} could not be dropped")

    def _storage_failed(self, error: StorageError) -> None:
        """A commit or a read failed. The machines may have gone ahead of the disk: they are made anew from what is durable."""
        self._ledgers.clear()
        if isinstance(error, StorageFailedError):
            self.failure = error
        self.failed.set()
        self._observe(StorageFailed(self.bookie_id, error))

    def statistics(self) -> dict[str, float]:
        """Counters and gauges of the server and its storage."""
        return {
            "queued_bytes": self._commits.queued_bytes,
            "commits": self._commits.commits,
            "last_commit_s": self._commits.commit_s,
            "ledgers_in_memory": len(self._ledgers),
            "waiting_polls": len(self._polls),
            "read_only": float(self.is_read_only),
            **self.storage.statistics(),
        }
