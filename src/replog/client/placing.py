"""A client's placement policy: asks it with all that is known of bookies, and sees that a strict one gets its way (C8)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import trio

from replog.abc import Candidate, PlacementPolicy, Random
from replog.client.membership import Membership
from replog.errors import MetastoreError, PlacementUnmetError
from replog.hookspecs import Event, PlacementUnmet
from replog.protocol.model import LedgerMetadata
from replog.protocol.quorum import Quorum
from replog.runtime.loggers import logger

_log = logger("replog.client")

_ZONE_LABEL = "zone"
_REFUSALS_MAX = 1000  # ledgers of which one is remembered


class Placing:
    """The policy of one client. `zone` is where the client is, or None."""

    def __init__(
        self,
        policy: PlacementPolicy,
        membership: Membership,
        random: Random,
        observe: Callable[[Event], None],
        zone: str | None = None,
    ) -> None:
        self._refusals: dict[
            int, str
        ] = {}  # by ledger: why a failed bookie of it was not replaced when that was last tried
        self._policy = policy
        self._membership = membership
        self._random = random
        self._observe = observe
        self._zone = zone

    async def ensemble(self, quorum: Quorum, bookie_ids: Sequence[str]) -> tuple[str, ...]:
        """An ensemble of these bookies. Raises `NotEnoughBookiesError`."""
        candidates = await self._candidates(bookie_ids)
        return self._policy.choose_ensemble(quorum, candidates, self._random)

    async def check_ensemble(self, quorum: Quorum, ensemble: Sequence[str]) -> str:
        """The wishes of the policy that the ensemble, maybe in another order than the policy's (C7), does not meet; ""
        if it meets all. The caller reports it with `unmet`. Raises `PlacementUnmetError` if the policy is strict."""
        shortfall = await self.shortfall(quorum, ensemble)
        if shortfall and self._policy.is_strict:
            raise PlacementUnmetError(f"no ledger was created: {shortfall}", quorum.ensemble, ensemble)
        return shortfall

    async def replacements(
        self, metadata: LedgerMetadata, failed: Sequence[int], bookie_ids: Sequence[str]
    ) -> dict[int, str]:
        """Some of these bookies for some of the failed indices of the last ensemble."""
        ensemble = metadata.last_fragment.ensemble
        candidates, members = await self._candidates(bookie_ids), await self._candidates(ensemble)
        return self._policy.replace_bookies(metadata, failed, candidates, members, self._random)

    async def accepted(
        self, metadata: LedgerMetadata, chosen: Mapping[int, str], failed: Sequence[int], others: Collection[str]
    ) -> bool:
        """False if the policy is strict, and the ensemble with these replacements would not meet its wishes. Observers
        get the unmet wishes, even if a strict policy has taken none of `others` for a failed index."""
        before, quorum = metadata.last_fragment.ensemble, metadata.quorum
        ensemble = [chosen.get(index, bookie_id) for index, bookie_id in enumerate(before)]
        shortfall = "" if tuple(ensemble) == before else await self.shortfall(quorum, ensemble)
        if not self._policy.is_strict:
            self.unmet(metadata.ledger_id, shortfall)
            return True
        left = [index for index in failed if index not in chosen]
        spare = sorted(set(others) - set(ensemble))
        if not shortfall and left and spare:
            for index, bookie_id in zip(left, spare, strict=False):
                ensemble[index] = bookie_id
            self._refuse(metadata.ledger_id, await self.shortfall(quorum, ensemble))
            return True
        self._refuse(metadata.ledger_id, shortfall)
        return not shortfall

    def refusal(self, ledger_id: int) -> str:
        """Why the policy refused a replacement when it was last asked for this ledger; "" if it did not."""
        return self._refusals.get(ledger_id, "")

    def _refuse(self, ledger_id: int, shortfall: str) -> None:
        known = self._refusals.pop(ledger_id, "")
        if not shortfall:
            return
        self._refusals[ledger_id] = shortfall
        if len(self._refusals) > _REFUSALS_MAX:
            # The one that was refused longest ago: each refusal goes to the end of the dict.
            del self._refusals[next(iter(self._refusals))]
        if shortfall != known:  # it is tried again and again
            _log.warning("ledger %d: a bookie that failed is not replaced: %s", ledger_id, shortfall)
            self._observe(PlacementUnmet(ledger_id, shortfall, is_refused=True))

    def unmet(self, ledger_id: int, shortfall: str) -> None:
        """Tells observers what the ledger's ensemble lacks of the policy's wishes, if anything."""
        if shortfall:
            _log.warning("ledger %d: %s", ledger_id, shortfall)
            self._observe(PlacementUnmet(ledger_id, shortfall, is_refused=False))

    async def know_zones(self) -> None:
        """Looks once where bookies are, if this client reads from those of its zone first."""
        if self._zone is not None and not self._membership.seen_ids:
            try:
                await self._membership.announced()
            except MetastoreError:
                return  # any order will do: the next reader looks again

    def read_order(self, random: Random, write_set: Sequence[int], ensemble: tuple[str, ...]) -> list[int]:
        """The indices of a write set as a reader asks them: those of the client's zone first, otherwise as the policy says."""
        members = self._membership.known.members(ensemble)
        order = self._policy.read_order(write_set, members, random)
        if self._zone is not None:
            order.sort(key=lambda index: members[index].labels.get(_ZONE_LABEL) != self._zone)
        return order

    async def shortfall(self, quorum: Quorum, ensemble: Sequence[str]) -> str:
        """The wishes of the policy that this ensemble does not meet; "" if it meets all."""
        return self._policy.shortfall(quorum, await self._candidates(ensemble))

    async def _candidates(self, bookie_ids: Sequence[str]) -> list[Candidate]:
        """The known facts about these bookies. Facts that the policy needs and the client lacks are read; unreadable
        ones stay unknown: a policy gives advice, and must not stop a writer."""
        membership, policy = self._membership, self._policy
        to_read: list[str] = []
        if policy.uses_labels:
            to_read += membership.known.without_labels(bookie_ids)
        if policy.uses_free_bytes:
            to_read += membership.known.without_free_bytes(bookie_ids, trio.current_time())
        try:
            for bookie_id in dict.fromkeys(to_read):
                await membership.cookie(bookie_id)
        except MetastoreError as error:
            _log.info("placement goes on without the labels or free space of some bookies: %s", error)
        return [membership.known.candidate(bookie_id) for bookie_id in bookie_ids]
