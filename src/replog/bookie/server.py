"""The server of one bookie: takes requests in order, and answers each when everything that the answer depends on is durable.

`handle` runs in the trio thread and never waits. Every request that changes or fences a ledger passes through that
ledger's one machine (B2) and then through the group commit; plain reads go to the storage at once, in a thread if the
disk is needed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import attrs
import trio

from replog.abc import Marks, Reply, Storage
from replog.bookie.administrators import Administrators
from replog.bookie.calls import StorageCalls, broken_contract
from replog.bookie.commits import GroupCommit
from replog.bookie.doubt import Doubt
from replog.bookie.filling import Filling
from replog.bookie.metastore_guard import MetastoreGuard
from replog.bookie.mode import Mode
from replog.bookie.plain_reads import PlainReads
from replog.bookie.space import Space
from replog.bookie.traffic import Traffic
from replog.config import BookieOptions
from replog.config.bookie import tuned
from replog.errors import StorageError, StorageFailedError, StorageFullError
from replog.hookspecs import Event, StorageFailed
from replog.protocol.batch import Batch
from replog.protocol.bookie import Accepted, LedgerOnBookie, OrderedRequest, is_of_writer
from replog.protocol.messages import (
    MESSAGE_BYTES,
    AddRequest,
    AdminRequest,
    CopyRequest,
    FenceRequest,
    MetastoreRequest,
    RangesRequest,
    ReadLastAddConfirmedRequest,
    ReadRequest,
    RecoveryReadRequest,
    Request,
    Response,
    Status,
    WriteLastAddConfirmedRequest,
)
from replog.protocol.releasing import ForeignRange
from replog.runtime.latencies import LatencyHistogram
from replog.runtime.nursery import open_service_nursery

T = TypeVar("T")

_LEDGERS_MAX = 16384  # machines kept; an idle one can be made again from its durable marks
_LOOK_S = 1.0  # how often the bookie looks how much space is left
_LOOKED_UP_BYTES = (
    256 << 10
)  # counted for the batch that a recovery read finds: those of one commit are in memory together
_URGENT_BYTES_MAX = 1 << 20  # of fences and the like, that wait beside a full queue


class BookieServer:
    """Serves one storage. `observe` gets an event when the storage fails or has no space. `is_same` says whether a stored batch
    is the one that comes again (`settle_add`). Use it as the handler of a transport's listener, while `running` is open."""

    def __init__(
        self,
        storage: Storage,
        options: BookieOptions,
        observe: Callable[[Event], None],
        is_same: Callable[[Batch, Batch], bool] = Batch.__eq__,
    ) -> None:
        self.storage = storage
        options = self.options = tuned(options)
        self.calls = StorageCalls(storage)
        self.failure: StorageFailedError | None = None
        self.mode = Mode()  # read-only for want of space (B5), or permanently, because of `failure`
        self.space = Space(
            storage.bookie_id, options.read_only_below_bytes, options.writable_above_bytes, storage.place
        )
        self.traffic = Traffic()
        self._observe = observe
        self.doubt = Doubt(storage)
        self._ledgers: dict[int, LedgerOnBookie] = {}
        self._commits = GroupCommit(self.calls, options, self._commit_failed, is_same)
        self.filling = Filling()
        self._reads = PlainReads(self.calls, options, self.traffic, self.ledger, self.storage_raised, self.filling)
        self.administrators = Administrators()
        self.guard = MetastoreGuard(
            storage, self.call, self.mode, lambda request, reply: self.handle((request,), reply)
        )

    @property
    def bookie_id(self) -> str:
        """The identity of the storage (B4)."""
        return self.storage.bookie_id

    @property
    def is_read_only(self) -> bool:
        """True while it takes no new entries."""
        return self.mode.is_read_only

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runs the commit thread, the waiting questions and the watch over the space. On leaving, accepted requests are
        still made durable and answered; the storage stays open, and `calls` knows its unfinished calls."""
        # Before anything is accepted: a disk without space is announced as read-only from the start.
        await self._look()
        async with open_service_nursery() as nursery:
            self._reads.nursery = self.administrators.nursery = self.guard.newcomers.nursery = nursery
            nursery.start_soon(self._reads.polls.expire)
            nursery.start_soon(self._watch_space)
            nursery.start_soon(self.traffic.turn_at_a_pace)
            async with self._commits.running():
                yield

    # -- requests -------------------------------------------------------------------------------------------------

    def handle(self, requests: Sequence[Request], reply: Reply) -> None:
        """Takes requests in their order. Answers come through `reply`, some before this returns."""
        for request in requests:
            if request.__class__ is AddRequest:  # nearly always
                self._accept(request, reply, MESSAGE_BYTES + len(request.batch.data))
            elif isinstance(request, ReadRequest):
                self._reads.read(request, reply)
            elif isinstance(request, CopyRequest):
                if (refusal := self.filling.refuse(request)) is not None:
                    reply([refusal])
                else:
                    self._commits.queue.is_parted = True
                    self._accept(request, reply, MESSAGE_BYTES + len(request.batch.data))
            elif isinstance(request, ReadLastAddConfirmedRequest):
                self._reads.read_last_add_confirmed(request, reply)
            elif isinstance(request, RangesRequest):
                self._reads.ranges(request, reply)
            elif isinstance(request, AdminRequest):
                self.administrators.ask(request, reply)
            elif isinstance(request, MetastoreRequest):
                reply([Response(request.request_id, Status.BAD_REQUEST, detail="no metastore is kept by this process")])
            else:
                looked_up_bytes = _LOOKED_UP_BYTES if isinstance(request, RecoveryReadRequest) else 0
                self._accept(request, reply, MESSAGE_BYTES + looked_up_bytes)
        if self._commits.gathered:
            # Where several connections bring requests, they share commits.
            is_same, self.traffic.last_reply = self.traffic.last_reply is reply, reply
            self._commits.start(may_borrow=is_same and isinstance(requests[-1], AddRequest))

    def _accept(self, request: OrderedRequest, reply: Reply, size_bytes: int) -> None:
        if self.mode.is_restricted and (refusal := self._cannot_take(request)) is not None:
            reply([refusal])
            return
        is_full = self._commits.queued_bytes + size_bytes > self.options.queue_bytes_max
        if is_full and _is_too_busy_for(request, self._commits, self.options):
            detail = f"{self._commits.queued_bytes} bytes wait"
            reply([Response(request.request_id, Status.TOO_BUSY, detail=detail)])
            return
        try:
            ledger = self._ledgers.get(request.ledger_id) or self.ledger(request.ledger_id)
        except StorageError as error:
            reply([Response(request.request_id, Status.UNKNOWN, detail=str(error))])
            return
        if ledger.stored_key is None and self.guard.newcomers.keep(request, reply, size_bytes):
            return
        # The header of an add carries the last add confirmed: accepting it may be what a long poll waits for.
        known = ledger.last_add_confirmed
        accepted = ledger.accept(request)
        if accepted.refusal is None:
            ledger.readers.answer_writer = reply
            self.traffic.accepted(request)
        if ledger.readers.is_awaited and ledger.last_add_confirmed > known:
            self._reads.polls.advanced(ledger)
        self._commits.put(ledger, accepted, reply, size_bytes)

    def _cannot_take(self, request: OrderedRequest) -> Response | None:
        """A read-only bookie refuses new entries at once. But a writer that is deposed, or may not write, gets that answer,
        in its order: it must not look for another bookie and try again (L5). One that doubts its metastore refuses recoveries:
        an old record may be their cause (B6a)."""
        if self.failure is not None:
            return Response(request.request_id, Status.UNKNOWN, detail=str(self.failure))
        if self.mode.metastore_problem and not is_of_writer(request):
            return Response(request.request_id, Status.METASTORE_DOUBTED, detail=self.guard.problem)
        if not self.mode.is_read_only or not isinstance(request, AddRequest) or request.recovery:
            return None
        try:
            ledger = self.ledger(request.ledger_id)
        except StorageError as error:
            return Response(request.request_id, Status.UNKNOWN, detail=str(error))
        if request.term < ledger.fence_term or ledger.is_foreign(request.key):
            return None
        return Response(request.request_id, Status.READ_ONLY, detail=str(self.space.error))

    def ledger(self, ledger_id: int) -> LedgerOnBookie:
        """The machine of a ledger, made if need be. Raises `StorageError`."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            # Only an idle machine may be forgotten: others are ahead of the disk.
            if len(self._ledgers) >= _LEDGERS_MAX and self._commits.is_idle:
                self._ledgers.clear()
            is_in_doubt = not self.doubt.takes_adds(ledger_id)
            marks = self.storage.marks(ledger_id) or Marks()
            if not self.guard.knows_revisions(ledger_id):
                marks = attrs.evolve(marks, revision=0)
            ledger = LedgerOnBookie(ledger_id, marks, is_in_doubt=is_in_doubt)
            ledger.readers.is_awaited = self._reads.polls.are_waiting(ledger_id)
            self._ledgers[ledger_id] = ledger
        return ledger

    # -- on the bookie's own account ----------------------------------------------------------------------------------

    async def drop(self, ledger_id: int, entries: ForeignRange | None = None) -> None:
        """Forgets a deleted ledger (B6), or entries that are proven to be other bookies' alone (F5), durably. Raises
        `StorageError`. If cancelled, it happens all the same."""
        if self.failure is not None:
            raise self.failure
        ledger = self.ledger(ledger_id)

        def dropped() -> None:
            if entries is None:
                self.traffic.dropped_ledgers += 1
                self._ledgers.pop(ledger_id, None)

        if not await _is_committed(self._commits, ledger, ledger.drop(entries), dropped):
            raise self.failure or StorageFullError(f"bookie {self.bookie_id}: ledger {ledger_id} could not be dropped")

    async def fence(self, ledger_id: int, term: int) -> None:
        """Fences a ledger, durably, as its record says (B8). Raises `StorageError`. If cancelled, it happens all the same."""
        if self.failure is not None:
            raise self.failure
        ledger = self.ledger(ledger_id)
        if not await _is_committed(self._commits, ledger, ledger.fence(term), lambda: None):
            raise self.failure or StorageFullError(f"bookie {self.bookie_id}: ledger {ledger_id} could not be fenced")

    # -- disks that fill up or fail -----------------------------------------------------------------------------------

    async def _watch_space(self) -> None:
        while self.failure is None:
            await trio.sleep(_LOOK_S)
            await self._look()

    async def _look(self) -> None:
        # An error that stops the storage was reported; after another one the bookie looks again.
        with suppress(StorageError):
            free_bytes = await self.call(self.storage.free_bytes)
            self.look_at_doubt()
            self.space.looked(free_bytes, trio.current_time())
            self._turn()

    def look_at_doubt(self, *, forgets_revisions: bool = False) -> None:
        """Refuses plain adds to all ledgers whose fences the storage may have lost: it may have found damage meanwhile. With
        `forgets_revisions`, older records are right than the bookie was told of, as an operator has said (M5)."""
        if self.doubt.look() or forgets_revisions:
            for ledger in self._ledgers.values():
                ledger.is_in_doubt = not self.doubt.takes_adds(ledger.ledger_id)
                ledger.revision = 0 if forgets_revisions else ledger.revision

    async def space_was_made(self) -> None:
        """Looks at the disk now, so that requests waiting for space need not wait for the next look. Raises `StorageError`."""
        free_bytes = await self.call(self.storage.free_bytes)
        self.space.made(free_bytes, trio.current_time())
        self._turn()

    def _turn(self) -> None:
        error = self.failure or self.space.error
        if self.mode.turn(is_read_only=error is not None) and error is not None and error is self.space.error:
            self._observe(StorageFailed(self.bookie_id, error))

    async def call(self, function: Callable[[], T], *, is_long: bool = False) -> T:
        """Calls the storage, in a thread if that may wait for a disk; a long call ends early when the storage is closed.
        Raises `StorageError`. If cancelled, the call goes on."""
        try:
            return await self.calls.call(function, is_long=is_long)
        except StorageError as error:
            self.storage_raised(error)
            raise

    def storage_raised(self, error: StorageError) -> None:
        """A call to the storage raised this. If the storage has stopped, it is asked nothing more (B1), and polls end (B10)."""
        if isinstance(error, StorageFailedError) and self.failure is None:
            self._ledgers.clear()
            self.failure = error
            self._turn()
            self._reads.polls.fail(str(error))
            self._observe(StorageFailed(self.bookie_id, error))

    def _commit_failed(self, error: StorageError, is_void: bool) -> None:
        """A commit failed. If the machines went ahead of the disk, they are made again from durable state."""
        if is_void:
            self._ledgers.clear()
        if isinstance(error, StorageFullError):
            self.space.met_full(error, trio.current_time())
            self._turn()
        else:
            self.storage_raised(
                error if isinstance(error, StorageFailedError) else broken_contract(self.storage, error)
            )

    def statistics(self) -> dict[str, float]:
        """Counters and gauges of the server and its storage."""
        return {
            "queued_bytes": self._commits.queued_bytes,
            "queued_requests": self._commits.queued_requests,
            "commits": self._commits.committer.commits,
            "last_commit_s": self._commits.committer.commit_s,
            "ledgers_in_memory": len(self._ledgers),
            "waiting_polls": len(self._reads.polls),
            "read_only": float(self.is_read_only),
            "draining": float(self.mode.is_draining),
            "metastore_doubted": float(bool(self.mode.metastore_problem)),
            "times_metastore_doubted": self.guard.times_doubted,
            "doubted_below_ledger_id": self.doubt.doubted_below,
            "doubts_raised": self.doubt.raised,
            **({} if self.space.free_bytes is None else {"free_bytes": self.space.free_bytes}),
            **self.traffic.statistics(),
            **self._storage_statistics(),
            "storage_failed": float(self.failure is not None),
        }

    def _storage_statistics(self) -> Mapping[str, float]:
        """Empty once the storage has failed: it would only raise that error again, and the other figures matter more then."""
        if self.failure is None:
            try:
                return self.storage.statistics()
            except StorageError as error:
                self.storage_raised(error)
        return {}

    def latencies(self) -> dict[str, LatencyHistogram]:
        """Durations since the start, in copies: `commit`, a call to the storage; `answer`, from accepting the first
        request of a commit to answering it."""
        commits = self._commits
        return {"commit": commits.committer.commit_latencies.copy(), "answer": commits.answer_latencies.copy()}


def _is_too_busy_for(request: OrderedRequest, commits: GroupCommit, options: BookieOptions) -> bool:
    """True if a request is refused because the queue is full. There is a reserve for fences and explicit last adds
    confirmed: they are small, and with them a client stops or overtakes the writer that fills the queue (B9)."""
    if commits.is_idle:
        return False
    is_urgent = isinstance(request, FenceRequest | WriteLastAddConfirmedRequest)
    return not is_urgent or commits.queued_bytes > options.queue_bytes_max + _URGENT_BYTES_MAX


async def _is_committed(
    commits: GroupCommit, ledger: LedgerOnBookie, accepted: Accepted, committed: Callable[[], None]
) -> bool:
    """Commits what the bookie itself has accepted. Calls `committed` in the event loop's turn in which it is durable."""
    done = trio.Event()
    answers: list[Response] = []

    def answered(responses: Sequence[Response]) -> None:
        answers.extend(responses)
        if responses[0].status is Status.OK:
            committed()
        done.set()

    commits.put(ledger, accepted, answered, 0)
    commits.start()
    await done.wait()
    return answers[0].status is Status.OK
