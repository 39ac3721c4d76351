"""Requests for ledgers that this bookie has never seen: they wait until the metastore is known to have given out the id (B6a).

So one stray request can neither make the bookie doubt its metastore nor use up ids. While the bookie doubts its
metastore, it refuses such requests. Requests for one ledger are taken in their order (B2). A metastore that does not
answer stops nothing: the writer has created its ledger there, so an id that is plausible is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import trio

from replog.abc import Reply
from replog.errors import MetastoreError
from replog.protocol.bookie import OrderedRequest
from replog.protocol.messages import Response, Status

_ANSWER_S = 1.0  # that the metastore may take
_WAITING_BYTES_MAX = 32 << 20  # of requests, for all ledgers together

_Waiting = list[tuple[OrderedRequest, Reply, int]]


class LedgerIds(Protocol):
    """The ids that the metastore has given out, as far as a bookie knows; `problem` says why it doubts its metastore."""

    problem: str

    def may_begin(self, ledger_id: int) -> bool: ...

    def is_plausible(self, ledger_id: int) -> bool: ...

    async def read_ids(self) -> None: ...


class Newcomers:
    """The requests of one bookie that wait. `take` takes those that may be taken; `nursery` is set while the bookie runs."""

    def __init__(self, ids: LedgerIds, take: Callable[[OrderedRequest, Reply], None]) -> None:
        self.nursery: trio.Nursery | None = None
        self._ids = ids
        self._take = take
        self._waiting: dict[int, _Waiting] = {}  # by ledger
        self._waiting_bytes = 0
        self._taking: int | None = None  # the ledger whose requests are given back

    def keep(self, request: OrderedRequest, reply: Reply, size_bytes: int) -> bool:
        """Decides on a request for an unknown ledger. False: take it now. True: it was answered, or waits."""
        if request.ledger_id == self._taking:
            return False
        waiting = self._waiting.get(request.ledger_id)
        if waiting is None and not self._ids.problem and self._ids.may_begin(request.ledger_id):
            return False
        if self._ids.problem:
            reply([Response(request.request_id, Status.METASTORE_DOUBTED, detail=self._ids.problem)])
        elif self._waiting_bytes + size_bytes > _WAITING_BYTES_MAX:
            detail = f"{self._waiting_bytes} bytes wait for the metastore"
            reply([Response(request.request_id, Status.TOO_BUSY, detail=detail)])
        else:
            self._waiting_bytes += size_bytes
            if waiting is not None:
                waiting.append((request, reply, size_bytes))
            else:
                self._waiting[request.ledger_id] = [(request, reply, size_bytes)]
                assert self.nursery is not None, "requests come while the bookie runs"
                self.nursery.start_soon(self._ask, request.ledger_id)
        return True

    async def _ask(self, ledger_id: int) -> None:
        is_answered = False
        with suppress(MetastoreError), trio.move_on_after(_ANSWER_S):
            await self._ids.read_ids()
            is_answered = True
        waiting = self._waiting.pop(ledger_id)
        self._waiting_bytes -= sum(size_bytes for _, _, size_bytes in waiting)
        problem = self._ids.problem or f"the metastore has not given out ledger id {ledger_id}"
        may_begin = not self._ids.problem and (
            self._ids.may_begin(ledger_id) or (not is_answered and self._ids.is_plausible(ledger_id))
        )
        for request, reply, _ in waiting:
            if may_begin:
                self._taking = ledger_id
                self._take(request, reply)
                self._taking = None
            else:
                reply([Response(request.request_id, Status.METASTORE_DOUBTED, detail=problem)])
