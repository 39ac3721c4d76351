"""What administrators may ask of a bookie, and what they are told."""

from __future__ import annotations

import json

import attrs
import trio

from replog.bookie.server import BookieServer
from replog.bookie.upkeep import Upkeep
from replog.errors import MetastoreError, StorageError
from replog.protocol.messages import AdminCommand, Status


class Administration:
    """Performs what is asked. Who may ask, the transport has seen to."""

    def __init__(self, server: BookieServer, upkeep: Upkeep) -> None:
        self._server = server
        self._upkeep = upkeep

    async def perform(self, command: AdminCommand) -> tuple[Status, str]:
        """The status and the JSON object to answer with; with UNKNOWN what went wrong."""
        try:
            return Status.OK, json.dumps(await self._perform(command))
        except (MetastoreError, StorageError, trio.ClosedResourceError) as error:
            return Status.UNKNOWN, str(error)

    async def _perform(self, command: AdminCommand) -> dict[str, object]:
        if command is AdminCommand.COLLECT_GARBAGE:
            return {"dropped_ledgers": await self._upkeep.collect_garbage()}
        if command in (AdminCommand.COMPACT, AdminCommand.COMPACT_ALL):
            await self._upkeep.compact(is_major=command is AdminCommand.COMPACT_ALL)
            return {}
        if command is AdminCommand.SCRUB:
            return {"damage": [attrs.asdict(each) for each in await self._upkeep.scrub()]}
        await trio.lowlevel.checkpoint()
        return {**self._server.statistics(), **self._upkeep.statistics()}
