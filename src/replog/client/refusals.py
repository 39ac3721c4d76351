"""Why bookies refuse entries, and whether any bookie is left that may take them (B10).

A bookie that cannot be reached may come back, so a writer waits for it. A bookie that reported a failed disk will not: if no ack
quorum is possible without such bookies, and no other bookie is known that could replace them, the writer fails at once, with
their reports in its error. A bookie whose disk is full gets most of a second, in which it may free the space of deleted ledgers;
then it is asked once more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import trio

from replog.client.channel import Answer
from replog.client.membership import Membership
from replog.client.placing import Placing
from replog.errors import (
    AddTimeoutError,
    MetastoreDoubtedError,
    MetastoreError,
    NotEnoughBookiesError,
    PlacementUnmetError,
    ReplogError,
    StorageFailedError,
    StorageFullError,
    UnauthorizedError,
)
from replog.protocol.messages import Response, Status
from replog.protocol.quorum import Quorum
from replog.protocol.writing import LedgerWriting
from replog.records.bookies import BookieAddress

_SPACE_PATIENCE_S = 0.8  # a bookie whose disk is full collects garbage, compacts, and looks how much is free


class Refusals:
    """The refusals that one writer has received."""

    def __init__(self, ledger_id: int, membership: Membership, placing: Placing) -> None:
        self._placing = placing
        self._ledger_id = ledger_id
        self._membership = membership
        self._heard: dict[str, ReplogError] = {}  # by bookie
        self._full_since_s: dict[str, float] = {}
        self._full_again: set[str] = set()  # that said so after they had been waited for
        self.asks_again = False  # a bookie whose disk was full is to be asked once more

    def heard(self, bookie_id: str, answer: Answer) -> None:
        """Notes a bookie's answer to a request that it did not execute. Silence is not a refusal."""
        refusal = refusal_of(self._ledger_id, bookie_id, answer)
        # The last answer counts: a bookie that executes a request, or is silent, no longer refuses.
        if refusal is None:
            self._membership.refusing.discard(bookie_id)
            self._heard.pop(bookie_id, None)
            self._full_since_s.pop(bookie_id, None)
            self._full_again.discard(bookie_id)
            return
        self._membership.refusing.add(bookie_id)
        self._heard[bookie_id] = refusal
        if isinstance(refusal, StorageFullError):
            now_s = trio.current_time()
            if now_s - self._full_since_s.setdefault(bookie_id, now_s) >= _SPACE_PATIENCE_S:
                self._full_again.add(bookie_id)

    def words(self, bookie_ids: Collection[str]) -> dict[str, ReplogError]:
        """The refusals of these bookies, by bookie: received as answers, or else announced."""
        told = {**self._membership.refusals, **self._heard}
        return {bookie_id: told[bookie_id] for bookie_id in bookie_ids if bookie_id in told}

    async def final_error(self, machine: LedgerWriting, unconfirmed: range) -> ReplogError | None:
        """The error of a writer for which no ack quorum is possible any more; None if a bookie may still come back, or replace
        one that refused."""
        refusals = await self.final(machine.quorum, machine.ensemble(), machine.missing)
        if not refusals:
            return None
        usable = [bookie_id for bookie_id in machine.ensemble() if bookie_id not in refusals]
        what = f"{_fate(unconfirmed)}; its bookies refuse entries, and no other bookie can replace them"
        return error_of(self._ledger_id, what, machine.quorum, usable, refusals)

    async def final(self, quorum: Quorum, ensemble: Sequence[str], missing: int) -> dict[str, ReplogError]:
        """The refusals, by bookie, because of which no ack quorum of this ensemble is possible; {} if one may be. `missing` has
        the indices that failed, as a bit mask."""
        try:
            announced = await self._membership.announced()
            if not await self._is_nobody_else_known(ensemble):
                return {}
        # Nothing is known for sure, so nothing is final.
        except MetastoreError:
            return {}
        refusals = self.words(_missing(ensemble, missing))
        for bookie_id, error in list(refusals.items()):
            if isinstance(error, StorageFullError) and self._may_have_space_soon(bookie_id, announced.get(bookie_id)):
                del refusals[bookie_id]
        refused = sum(1 << index for index, bookie_id in enumerate(ensemble) if bookie_id in refusals)
        masks = [quorum.write_mask(rotation) for rotation in range(quorum.ensemble)]
        return refusals if any((mask & ~refused).bit_count() < quorum.ack for mask in masks) else {}

    def deadline_error(self, machine: LedgerWriting, unconfirmed: range, timeout_s: float) -> ReplogError:
        """The error of a writer whose entries were not confirmed in time."""
        ack, ensemble = machine.quorum.ack, machine.ensemble()
        problem = f"not confirmed within {timeout_s} s by {ack} bookies of each write set; {_fate(unconfirmed)}"
        if not machine.missing:
            return AddTimeoutError(self._ledger_id, problem)
        gone = _missing(ensemble, machine.missing)
        refusals = self.words(gone)
        words = "".join(f"; {each}" for each in refusals.values())
        refusal = self._placing.refusal(self._ledger_id)
        words += f"; placement is strict: {refusal}" if refusal else ""
        problem = f"ledger {self._ledger_id}: {problem}; {', '.join(gone)} failed, and no other bookie can replace them{words}"
        kind = PlacementUnmetError if refusal else NotEnoughBookiesError
        error = kind(problem, ack, [each for each in ensemble if each not in gone], gone)
        error.__cause__ = next(iter(refusals.values()), None)
        return error

    async def _is_nobody_else_known(self, ensemble: Collection[str]) -> bool:
        """True if all other bookies that this client has ever seen refuse as well, or were declared lost."""
        membership = self._membership
        others = membership.seen_ids - set(ensemble)
        for bookie_id in sorted(others - self.words(others).keys()):
            cookie = await membership.cookie(bookie_id)
            if cookie is None or not cookie.is_lost:
                return False
        return True

    def _may_have_space_soon(self, bookie_id: str, address: BookieAddress | None) -> bool:
        """True while the writer waits for a bookie whose disk was full: for a while, and longer if the bookie announces that it
        takes entries, and has not refused since."""
        now_s = trio.current_time()
        if now_s - self._full_since_s.setdefault(bookie_id, now_s) < _SPACE_PATIENCE_S:
            return True
        if address is None or address.read_only or bookie_id in self._full_again:
            return False
        # It is asked again at once. It refuses if its announcement is out of date, as where the metastore's disk is full too.
        self._membership.try_again(bookie_id)
        self.asks_again = True
        return True


def _missing(ensemble: Sequence[str], missing: int) -> list[str]:
    return [bookie_id for index, bookie_id in enumerate(ensemble) if missing >> index & 1]


def _fate(unconfirmed: range) -> str:
    return f"entries {unconfirmed[0]}..{unconfirmed[-1]} have an unknown fate: recover the ledger to know"


def refusal_of(ledger_id: int, bookie_id: str, answer: Answer) -> ReplogError | None:
    """The error for a bookie's permanent refusal, in its own words; None if the answer is not one."""
    if not isinstance(answer, Response):
        return None
    name = f"bookie {bookie_id}: "
    words = answer.detail.removeprefix(name)
    if answer.status is Status.READ_ONLY:
        return StorageFullError(name + (words or "it takes no new entries"))
    if answer.status is Status.UNKNOWN:
        return StorageFailedError(name + (words or "its storage failed"))
    if answer.status is Status.METASTORE_DOUBTED:
        return MetastoreDoubtedError(name + (words or "it doubts its metastore"))
    if answer.status is Status.UNAUTHORIZED:
        return UnauthorizedError(ledger_id, f"refused by {name}{words}")
    return None


def error_of(
    ledger_id: int, what: str, quorum: Quorum, usable: Sequence[str], refusals: Mapping[str, ReplogError]
) -> ReplogError:
    """The error for too few bookies because of refusals: its cause is one refusal, its message names all."""
    words = "; ".join(str(refusals[bookie_id]) for bookie_id in sorted(refusals))
    cause = next((each for each in refusals.values() if isinstance(each, UnauthorizedError)), None)
    error: ReplogError
    if cause is not None:
        error = UnauthorizedError(ledger_id, f"{what}: {words}")
    else:
        problem = f"ledger {ledger_id}: {what}: {words}"
        error = NotEnoughBookiesError(problem, quorum.ack, usable, sorted(refusals))
    error.__cause__ = cause or refusals[min(refusals)]
    return error
