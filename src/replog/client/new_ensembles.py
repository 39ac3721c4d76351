"""Ensembles for new ledgers: bookies that are present, and if there are too few, known ones that are away (C7, C8).

A bookie is *present* if a connection to it is open and it takes new entries. Placement chooses among the present bookies that
are not draining. Only if they are fewer than an ensemble, it is filled up: with present bookies that drain, then with bookies
that have a cookie in the metastore and were not declared lost, first read-only ones, then announced ones, then those that this
client has seen before, then others. Every write set keeps as many present bookies as writing and recovery need.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import trio

from replog.abc import Random
from replog.client.connections import Connections
from replog.client.membership import Membership
from replog.client.placing import Placing
from replog.errors import MetastoreDoubtedError, NotEnoughBookiesError, ReplogError, StorageError, StorageFailedError
from replog.protocol.quorum import Quorum


class ChosenEnsemble(NamedTuple):
    """The bookies of a new ledger, by index; `missing` has the indices of those that are away, as a bit mask; `shortfall` is what
    the ensemble lacks of placement's wishes, in words."""

    bookie_ids: tuple[str, ...]
    missing: int
    shortfall: str


class EnsembleChooser:
    """Chooses ensembles for one client."""

    def __init__(self, membership: Membership, connections: Connections, placing: Placing, random: Random) -> None:
        self._membership = membership
        self._connections = connections
        self._placing = placing
        self._random = random

    async def choose(self, quorum: Quorum) -> ChosenEnsemble:
        """Returns an ensemble whose bookies can be written to, or at least as many of them as C7 demands.

        Raises `NotEnoughBookiesError` (retry: when bookies are back; nothing was written), `MetastoreError`."""
        membership, connections = self._membership, self._connections
        unreachable: set[str] = set()
        silent: set[str] = set()  # the part of `unreachable` whose connection may still succeed
        has_asked_again = False
        # What was seen a moment ago is good enough while all is well: a bookie that has left since then can't be reached, and
        # one that takes no new entries any more is replaced once it refuses them.
        usable = await membership.usable_lately()
        while True:
            if unreachable or membership.refusing or len(usable) < quorum.ensemble:
                usable = await membership.usable(unreachable)
            if len(usable) < quorum.ensemble:
                usable += membership.draining[: quorum.ensemble - len(usable)]
            wanted: Collection[str]
            absent: list[str] = []
            if len(usable) >= quorum.ensemble:
                ensemble = await self._placed(quorum, usable, unreachable)
                wanted = ensemble
            else:
                wanted = usable
                absent = await self._absent(quorum.ensemble - len(usable), usable)
                filled = await self._filled_up(quorum, usable, absent, unreachable)
                if filled is None:
                    if not has_asked_again and membership.refusing:
                        # Asked again, they tell why at once; left alone for a while, they would only seem to be away.
                        has_asked_again = True
                        membership.try_again(*membership.refusing)
                        continue
                    # The others have answered, and can't be used: only a connection that is still being made can change
                    # that.
                    if not silent:
                        raise self._not_enough(quorum, usable, absent, unreachable) from self._refusal(usable)
                    failures = await connections.connect_all(silent)  # there is no other bookie, so wait for these
                    unreachable -= silent - failures.keys()
                    silent = set()
                    continue
                ensemble = filled
            failures = {}
            with trio.move_on_after(connections.patience_s):
                failures = await connections.connect_all(wanted)
            failed = {bookie_id for bookie_id in wanted if connections.channel(bookie_id) is None}
            if not failed:
                shortfall = await self._placing.check_ensemble(quorum, ensemble)
                return ChosenEnsemble(ensemble, _mask(ensemble, absent), shortfall)
            unreachable |= failed
            silent |= failed - failures.keys()
            for bookie_id in failures:
                membership.shun(bookie_id)

    async def _placed(self, quorum: Quorum, usable: Sequence[str], unreachable: Collection[str]) -> tuple[str, ...]:
        try:
            return await self._placing.ensemble(quorum, usable)
        except NotEnoughBookiesError as error:  # the policy wants other bookies than the present ones
            raise type(error)(
                f"{error}{self._reasons(usable, unreachable)}", error.needed, usable, unreachable
            ) from error

    async def _absent(self, count: int, usable: Collection[str]) -> list[str]:
        """Up to `count` known bookies that are away or take no new entries, the most promising first (C8)."""
        membership = self._membership
        left = set(await membership.known_ids()) - set(usable)
        found: list[str] = []
        for rank in (membership.read_only, membership.announced_ids, membership.seen_ids, left.copy()):
            # Sorted before it is shuffled: a set of texts has another order in each process, and a simulation must repeat.
            candidates = sorted(left.intersection(rank))
            left.difference_update(rank)
            self._random.shuffle(candidates)
            for bookie_id in candidates:
                if len(found) == count:
                    return found
                cookie = await membership.cookie(bookie_id)
                if cookie is not None and not cookie.is_lost:
                    found.append(bookie_id)
        return found

    async def _filled_up(
        self, quorum: Quorum, usable: Sequence[str], absent: Sequence[str], unreachable: Collection[str]
    ) -> tuple[str, ...] | None:
        """All these bookies in the order of the placement policy, or in another order if only that keeps the bound of C7. None if
        no order does."""
        if len(usable) + len(absent) < quorum.ensemble:
            return None
        if not quorum.may_lack(sum(1 << index for index in quorum.spread(len(absent)))):
            return None  # this is the best order
        ensemble = await self._placed(quorum, sorted([*usable, *absent]), unreachable)
        if not quorum.may_lack(_mask(ensemble, absent)):
            there = iter([each for each in ensemble if each not in absent])
            away = iter([each for each in ensemble if each in absent])
            places = quorum.spread(len(absent))
            ensemble = tuple(next(away if index in places else there) for index in range(quorum.ensemble))
        return ensemble

    def refusing_ids(self) -> set[str]:
        """The bookies that were present at the last look, and said that their disks are full or failed."""
        return {each for each, error in self._membership.refusals.items() if isinstance(error, StorageError)}

    # -- saying why not ---------------------------------------------------------------------------------------------

    def _not_enough(
        self, quorum: Quorum, usable: Sequence[str], absent: Sequence[str], unreachable: Collection[str]
    ) -> NotEnoughBookiesError:
        names = ", ".join(usable) or "none"
        problem = (
            f"an ensemble of {quorum.ensemble} bookies was asked for, and only {len(usable)} can be used ({names})"
        )
        if len(usable) + len(absent) >= quorum.ensemble:
            problem += (
                f": with others that are away, {quorum.writable_needed} of each write set of {quorum.write} must be there, "
                "so that entries can be confirmed and recovered (C7). Bring bookies back, or ask for a smaller quorum"
            )
        else:
            problem += f", and {len(absent)} more are known: start more bookies, or ask for a smaller quorum"
        reasons = self._reasons(usable, {*unreachable, *absent})
        others = {*unreachable, *absent, *self._membership.read_only, *self._connections.problems} - set(usable)
        return NotEnoughBookiesError(problem + reasons, quorum.ensemble, usable, sorted(others))

    def _refusal(self, usable: Collection[str]) -> ReplogError | None:
        """Why a read-only bookie takes no entries, as it announced (B10): a failed storage rather than a full one."""
        told = [error for each, error in self._membership.refusals.items() if each not in usable]
        return next((each for each in told if isinstance(each, StorageFailedError)), next(iter(told), None))

    def _reasons(self, usable: Collection[str], others: Collection[str]) -> str:
        membership, problems = self._membership, self._connections.problems
        read_only = sorted(set(membership.read_only) - set(usable))
        away = sorted({*others, *problems} - set(usable) - set(read_only))
        reasons = ""
        if away:
            told = [str(problems.get(each, f"bookie {each}: it is not announced")) for each in away]
            reasons += f" (not reachable: {'; '.join(told)})"
        if read_only:
            refusals = [membership.refusals[each] for each in read_only if each in membership.refusals]
            advice = "make space on their disks, or lower read_only_below_bytes"
            if any(isinstance(each, StorageFailedError) for each in refusals):
                advice = "do what they say of their disks, and restart them"
            elif any(isinstance(each, MetastoreDoubtedError) for each in refusals):
                advice = "put the right metastore back, or confirm the one that is there (B6a)"
            words = "".join(f"; {each}" for each in dict.fromkeys(map(str, refusals)))
            reasons += f" (read-only: {', '.join(read_only)}: {advice}{words})"
        return reasons


def _mask(ensemble: Sequence[str], absent: Collection[str]) -> int:
    return sum(1 << index for index, bookie_id in enumerate(ensemble) if bookie_id in absent)
