"""The requests of administrators that a bookie performs, and its answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Protocol

import attrs
import trio

from replog.bookie.maintenance import Maintenance
from replog.errors import MetastoreError, StorageError
from replog.protocol.messages import AdminCommand, Status
from replog.runtime.entropy import current_entropy
from replog.runtime.installed import replog_version
from replog.runtime.latencies import LatencyHistogram

# A frame of the wire has a limit, and a bookie may have millions of damaged batches.
# In one answer, which takes half a MiB:
_DROPPED_LISTED_MAX = 20_000  # ledgers
_DAMAGE_LISTED_MAX = 500  # batches
_DESCRIPTION_CHARACTERS_MAX = 200  # of each


class _Looked(Protocol):
    """The part of a bookie that is looked at."""

    def statistics(self) -> dict[str, float]: ...

    def latencies(self) -> Mapping[str, LatencyHistogram]: ...


class Administration:
    """Performs requests. The transport has checked that the sender may make them."""

    def __init__(self, bookie: _Looked, maintenance: Maintenance) -> None:
        self._bookie = bookie
        self._maintenance = maintenance
        self._entropy = current_entropy()

    async def perform(self, command: AdminCommand) -> tuple[Status, str]:
        """The status and the JSON object to answer with; with UNKNOWN what went wrong."""
        if command is AdminCommand.UNKNOWN:
            return (
                Status.BAD_REQUEST,
                f"this bookie, of replog {replog_version()}, does not know what that is: upgrade it",
            )
        try:
            return Status.OK, json.dumps(await self._perform(command), ensure_ascii=False)
        except (MetastoreError, StorageError, trio.ClosedResourceError) as error:
            return Status.UNKNOWN, str(error)

    async def _perform(self, command: AdminCommand) -> dict[str, object]:
        if command is AdminCommand.COLLECT_GARBAGE:
            dropped = await self._maintenance.collect_garbage()
            return {"dropped_ledgers": dropped[:_DROPPED_LISTED_MAX], "dropped": len(dropped)}
        if command is AdminCommand.CONFIRM_METASTORE:
            await self._maintenance.confirm_metastore()
            return {}
        if command in (AdminCommand.COMPACT, AdminCommand.COMPACT_ALL):
            await self._maintenance.compact(is_major=command is AdminCommand.COMPACT_ALL)
            return {}
        if command is AdminCommand.SCRUB:
            damage = await self._maintenance.scrub()
            listed = [
                attrs.evolve(each, description=each.description[:_DESCRIPTION_CHARACTERS_MAX])
                for each in damage[:_DAMAGE_LISTED_MAX]
            ]
            return {"damage": [attrs.asdict(each) for each in listed], "damaged_batches": len(damage)}
        await trio.lowlevel.checkpoint()
        return {
            **self._bookie.statistics(),
            "version": replog_version(),
            "time_ms": self._entropy.time_ms(),  # by which clients judge their own clocks (L3a)
            "latencies": {name: each.to_json() for name, each in self._bookie.latencies().items()},
        }
