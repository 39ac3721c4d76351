"""Plain reads of one bookie (D1): answered at once if no disk is waited for, otherwise from a thread.

They carry no term and fence nothing, so they do not wait behind adds. A read that the disk cannot answer is answered with
doubt, never with a denial (R4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from replog.abc import Reply, StoredRange
from replog.bookie.calls import StorageCalls
from replog.bookie.filling import Filling
from replog.bookie.polls import LongPolls
from replog.bookie.proving import read_proof
from replog.bookie.traffic import Traffic
from replog.config.bookie import BookieTuning
from replog.errors import StorageError
from replog.protocol.batch import Batch
from replog.protocol.bookie import LedgerOnBookie, read_answer
from replog.protocol.holding import encode_holding, hold
from replog.protocol.messages import RangesRequest, ReadLastAddConfirmedRequest, ReadRequest, Response, Status


class PlainReads:
    """The reads of one bookie. `find_ledger` returns the machine of a ledger, or raises `StorageError`; `raised` gets
    what the storage raised in a thread; `filling` says what is about to be dropped (F5). `nursery` is set while the bookie
    runs."""

    def __init__(
        self,
        calls: StorageCalls,
        options: BookieTuning,
        traffic: Traffic,
        find_ledger: Callable[[int], LedgerOnBookie],
        raised: Callable[[StorageError], None],
        filling: Filling,
    ) -> None:
        self.polls = LongPolls(options.long_poll_max_s, self._at_hand)
        self.nursery: trio.Nursery | None = None
        self._calls = calls
        self._storage = calls.storage
        self._answer_bytes_max = options.answer_bytes_max
        self._traffic = traffic
        self._find_ledger = find_ledger
        self._raised = raised
        self._filling = filling

    def read(self, request: ReadRequest, reply: Reply) -> None:
        """Answers with the batch that holds an entry and with what follows it."""
        bytes_max = min(request.bytes_max, self._answer_bytes_max)
        try:
            ledger = self._find_ledger(request.ledger_id)
            refusal = ledger.refuse_read(request)
            if refusal is not None:
                reply([refusal])
                return
            # What is in memory is answered here: a change of thread would cost more than the read.
            found = self._storage.read_nowait(request.ledger_id, request.entry_id, request.stamp, bytes_max)
        except trio.WouldBlock:
            assert self.nursery is not None, "requests come while the bookie runs"
            self.nursery.start_soon(self._read_in_thread, request, bytes_max, reply)
        except StorageError as error:
            reply([Response(request.request_id, Status.UNKNOWN, detail=str(error))])
        else:
            self._traffic.read(found)
            self._answer_read(request, found, ledger, reply)

    def _answer_read(self, request: ReadRequest, found: Sequence[Batch], ledger: LedgerOnBookie, reply: Reply) -> None:
        denial = Status.NO_ENTRY if found else self._storage.doubt().denial(request.ledger_id)
        reply([read_answer(request.request_id, found, ledger.last_add_confirmed, denial)])

    async def _read_in_thread(self, request: ReadRequest, bytes_max: int, reply: Reply) -> None:
        try:
            found = await self._calls.read(
                self._storage.read, request.ledger_id, request.entry_id, request.stamp, bytes_max
            )
            # Again: while the disk was read, the ledger may have been dropped, or its machine forgotten.
            ledger = self._find_ledger(request.ledger_id)
        except StorageError as error:
            self._raised(error)
            reply([Response(request.request_id, Status.UNKNOWN, detail=str(error))])
        else:
            self._traffic.read(found)
            self._answer_read(request, found, ledger, reply)

    def ranges(self, request: RangesRequest, reply: Reply) -> None:
        """Answers which entries are stored (F3)."""
        try:
            refusal = self._find_ledger(request.ledger_id).refuse_read(request)
        except StorageError as error:
            refusal = Response(request.request_id, Status.UNKNOWN, detail=str(error))
        if refusal is None and not 0 <= request.first_entry_id <= request.last_entry_id:
            detail = f"entries {request.first_entry_id} to {request.last_entry_id} of ledger {request.ledger_id}: none"
            refusal = Response(request.request_id, Status.BAD_REQUEST, detail=detail)
        if refusal is not None:
            reply([refusal])
            return
        assert self.nursery is not None, "requests come while the bookie runs"
        self.nursery.start_soon(self._tell_ranges, request, reply)

    async def _tell_ranges(self, request: RangesRequest, reply: Reply) -> None:
        try:
            with self._filling.looking(request.ledger_id) as releases:
                stored, damaged = await self._calls.read(self._look_what_is_stored, request.ledger_id, request.stamp)
            ledger = self._find_ledger(request.ledger_id)
        except StorageError as error:
            reply([Response(request.request_id, Status.UNKNOWN, detail=str(error))])
            self._raised(error)
            return
        ranges = [
            (each.first_entry_id, each.last_entry_id, each.stride) for each in stored if each.stamp == request.stamp
        ]
        # Also of those that are over by now: a thread may have looked before the drop, and be told of after it.
        for release in releases:
            ranges = release.shown(request.stamp, ranges)
        holding = hold(ranges, self._storage.doubt().denial(request.ledger_id), request, damaged)
        answer = Response(request.request_id, Status.OK, ledger.last_add_confirmed, ledger.fence_term)
        answer.detail = encode_holding(holding)
        reply([answer])

    def _look_what_is_stored(
        self, ledger_id: int, stamp: int
    ) -> tuple[Sequence[StoredRange], Sequence[tuple[int, int]]]:
        """The storage's ranges of a ledger, and those of them that are known to be damaged."""
        damage = [each for each in self._storage.damage() if (each.ledger_id, each.stamp) == (ledger_id, stamp)]
        damaged = [(each.first_entry_id, each.last_entry_id) for each in damage]
        # Looked at first: what is found damaged in between is left out of both, and missing for one audit.
        return self._storage.ranges(ledger_id), damaged

    def read_last_add_confirmed(self, request: ReadLastAddConfirmedRequest, reply: Reply) -> None:
        """Answers how far a ledger is confirmed, at once or when that has advanced."""
        try:
            ledger = self._find_ledger(request.ledger_id)
        except StorageError as error:
            reply([Response(request.request_id, Status.UNKNOWN, detail=str(error))])
            return
        refusal = ledger.refuse_read(request)
        if refusal is not None:
            reply([refusal])
        elif ledger.lacks_proof:
            self._read_proof(request, ledger, reply)
        else:
            self.polls.ask(request, ledger, reply)

    def _read_proof(self, request: ReadLastAddConfirmedRequest, ledger: LedgerOnBookie, reply: Reply) -> None:
        """After a restart only a stored batch proves the last add confirmed: it is read once, before the answer (R11)."""
        try:
            if ledger.may_have_later_terms:
                raise trio.WouldBlock
            ledger.proof_read(self._storage.read_nowait(request.ledger_id, *ledger.proof_place, 1)[:1])
        except trio.WouldBlock:
            assert self.nursery is not None, "requests come while the bookie runs"
            self.nursery.start_soon(self._read_proof_in_thread, request, ledger, reply)
            return
        except StorageError:
            ledger.proof_read(
                None
            )  # answers with the best proof at hand; a fence or a recovery read reports the damage
        self.polls.ask(request, ledger, reply)

    async def _read_proof_in_thread(
        self, request: ReadLastAddConfirmedRequest, ledger: LedgerOnBookie, reply: Reply
    ) -> None:
        found = None
        try:
            found = await self._calls.read(read_proof, self._storage, ledger)
        except StorageError as error:
            self._raised(error)
        try:
            ledger = self._find_ledger(request.ledger_id)
        except StorageError as error:
            reply([Response(request.request_id, Status.UNKNOWN, detail=str(error))])
            return
        if ledger.lacks_proof:
            ledger.proof_read(found)
        self.polls.ask(request, ledger, reply)

    def _at_hand(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> tuple[Batch, ...]:
        """The result of a read, if it needs no disk and no more than these bytes. An empty result says nothing: only a
        read distinguishes an absent entry from doubt (R4)."""
        try:
            found = self._storage.read_nowait(ledger_id, entry_id, stamp, bytes_max)
        except (trio.WouldBlock, StorageError):
            return ()
        # A storage returns the first batch at any size.
        if found and len(found[0].data) > bytes_max:
            return ()
        if found:
            self._traffic.read(found)
        return tuple(found)
