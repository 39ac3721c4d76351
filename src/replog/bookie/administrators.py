"""Requests of administrators, on their way through a bookie: performed in tasks of their own, a few at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from replog.abc import Reply
from replog.protocol.messages import AdminCommand, AdminRequest, Response, Status

_UNDER_WAY_MAX = 32


async def _nothing_to_administer(command: AdminCommand) -> tuple[Status, str]:
    return Status.BAD_REQUEST, f"nobody does {command.name.lower()} here"


class Administrators:
    """Gives requests to `administer`, and hints of clients that a ledger was deleted to `ledger_deleted`; both are set before
    the bookie serves. `nursery` is set while the bookie runs."""

    def __init__(self) -> None:
        self.administer: Callable[[AdminCommand], Awaitable[tuple[Status, str]]] = _nothing_to_administer
        self.ledger_deleted: Callable[[int], None] = lambda _ledger_id: None
        self.nursery: trio.Nursery | None = None
        self._under_way = 0

    def ask(self, request: AdminRequest, reply: Reply) -> None:
        """Takes a request; it is answered when it was performed."""
        if request.command is AdminCommand.LEDGER_DELETED:
            self.ledger_deleted(request.ledger_id)
            reply([Response(request.request_id, Status.OK)])
            return
        assert self.nursery is not None, "requests come while the bookie runs"
        if self._under_way >= _UNDER_WAY_MAX:
            reply([Response(request.request_id, Status.TOO_BUSY, detail="too much is being asked by administrators")])
            return
        self._under_way += 1
        self.nursery.start_soon(self._perform, request, reply)

    async def _perform(self, request: AdminRequest, reply: Reply) -> None:
        try:
            status, detail = await self.administer(request.command)
            reply([Response(request.request_id, status, detail=detail)])
        finally:
            self._under_way -= 1
