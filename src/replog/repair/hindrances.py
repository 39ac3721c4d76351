"""Why ledgers can't leave a bookie that drains: what hinders a repair, and open ledgers without a leader (C8, F1).

The bookies are asked as an audit and a filling ask them, so that the words are the bookies' own.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from replog.client.ledger_effects import ClientContext
from replog.errors import BookieError, ConfigError, LedgerNotFoundError
from replog.protocol.fragment_copies import FixedFragment, fixed_fragments
from replog.protocol.model import LedgerMetadata, LedgerState
from replog.records.paths import log_leaders_key_path
from replog.repair.audit_report import UnderReplicatedFragment
from replog.repair.auditor import Auditor, Bookies
from replog.repair.drains import LOG_KEY, DrainStatus
from replog.repair.relocation import Relocation

_LEDGERS_MAX = 20  # that are explained: each costs questions to its bookies
_FRAGMENTS_MAX = 3  # of one ledger


class Hindrances:
    """Explains drains for one client."""

    def __init__(self, context: ClientContext, auditor: Auditor, relocation: Relocation) -> None:
        self._context = context
        self._auditor = auditor
        self._relocation = relocation

    async def explained(self, status: DrainStatus) -> DrainStatus:
        """The status with `reasons`. Raises `MetastoreError`."""
        if not status.copies and not status.open_ledgers:
            return status
        bookies = await self._auditor.bookies()
        reasons: dict[int, tuple[str, ...]] = {}
        for ledger_id in sorted({*status.copies, *(each.ledger_id for each in status.open_ledgers)})[:_LEDGERS_MAX]:
            try:
                metadata, _ = await self._context.records.get(ledger_id)
            except LedgerNotFoundError:
                continue  # it was deleted meanwhile
            found = [*await self._of_open(metadata, status.bookie_id)]
            named = [each for each in fixed_fragments(metadata) if status.bookie_id in each.ensemble]
            for fragment in named[:_FRAGMENTS_MAX]:
                found += await self._of_fragment(metadata, fragment, status.bookie_id, bookies)
            if found:
                reasons[ledger_id] = tuple(dict.fromkeys(found))
        return attrs.evolve(status, reasons=reasons)

    async def _of_open(self, metadata: LedgerMetadata, bookie_id: str) -> Sequence[str]:
        """The reason why no client takes the bookie out of the last fragment."""
        if metadata.state is LedgerState.CLOSED or bookie_id not in metadata.last_fragment.ensemble:
            return ()
        log_name = metadata.custom.get(LOG_KEY, "")
        if not log_name:
            return ("it is open: if its writer has not left within seconds it has none, and a client must recover it",)
        try:
            key = log_leaders_key_path(log_name)
        except ConfigError:
            return ()  # somebody else's word
        metastore = self._context.records.metastore
        if await self._context.records.read("looking for leaders", lambda: metastore.children(key)):
            return ()
        return (f"it is open, and the log {log_name!r} has no leader: let one take over, or recover the ledger",)

    async def _of_fragment(
        self, metadata: LedgerMetadata, fragment: FixedFragment, bookie_id: str, bookies: Bookies
    ) -> Sequence[str]:
        """Why a repair can't name another bookie for this fragment."""
        if bookie_id in bookies.away:
            return (f"bookie {bookie_id} is away: start it, or declare it lost if it never comes back",)
        index = fragment.ensemble.index(bookie_id)
        lacking = await self._auditor.fragment(metadata, fragment, bookies)
        reasons = _of_lacking(lacking, index) if lacking is not None else []
        chosen = await self._relocation.without(metadata, fragment, bookies, ())
        if index not in chosen:
            return [*reasons, "no other bookie can take its place: start another one"]
        try:
            await self._auditor.questions.holding(chosen[index], metadata, fragment)
        except BookieError as error:
            reasons.append(f"the bookie that would take its place: {error}")
        return reasons


def _of_lacking(lacking: UnderReplicatedFragment, index: int) -> list[str]:
    """Why entries that the bookie at this index should have can't be copied: no answering bookie has them."""
    own = next((each for each in lacking.missing if each.index == index), None)
    if own is None or not own.nowhere:
        return []
    problems = [each.problem for each in lacking.missing if each.problem]
    away = [each.bookie_id for each in lacking.missing if each.state == "away"]
    first, last = own.nowhere[0][0], own.nowhere[-1][1]
    words = f"no copy of entries {first}-{last} was found"
    return [*problems, f"{words}, and {', '.join(away)} is away: start it" if away else words]
