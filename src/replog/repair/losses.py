"""Declaring bookies permanently lost, and finding the confirmed entries that may be gone with them (B8a).

An entry is confirmed by an ack quorum of its write set, so it may be gone once that many members of one write set are lost. Then
the administrator who declares the loss must accept that. The declaration is durable and holds for every client: it is part of
the bookie's cookie.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import attrs

from replog.client.ledger_records import LedgerRecords
from replog.client.membership import Membership
from replog.client.metastore_trust import check_metastore
from replog.errors import AdministrationError, LossNotAcceptedError
from replog.protocol.model import LedgerMetadata
from replog.records.bookies import change_cookie

_SHOWN_MAX = 20  # ranges that an error lists


@attrs.frozen
class EntriesAtRisk:
    """Entries of a ledger that may be gone. `last_entry_id` is None where the ledger has no end yet."""

    ledger_id: int
    first_entry_id: int
    last_entry_id: int | None
    lost: tuple[str, ...]

    def __str__(self) -> str:
        last = "the end" if self.last_entry_id is None else self.last_entry_id
        return f"ledger {self.ledger_id}: entries {self.first_entry_id} to {last} ({', '.join(self.lost)})"


def entries_at_risk(metadata: LedgerMetadata, lost: Collection[str]) -> Iterator[EntriesAtRisk]:
    """The fragments of a ledger in which an ack quorum of a write set is lost."""
    quorum = metadata.quorum
    ends = [fragment.first_entry_id - 1 for fragment in metadata.fragments[1:]]
    for fragment, last in zip(metadata.fragments, [*ends, metadata.last_entry_id], strict=True):
        if fragment.archive:
            continue
        indices = [index for index, bookie_id in enumerate(fragment.ensemble) if bookie_id in lost]
        mask = sum(1 << index for index in indices)
        # Of a fragment that has fewer entries than its ensemble has bookies, some write sets store nothing.
        first, size = fragment.first_entry_id, quorum.ensemble
        stored = range(size) if last is None else range(first, min(first + size, last + 1))
        is_at_risk = any(quorum.is_acknowledged(entry_id % size, mask) for entry_id in stored)
        if is_at_risk and (last is None or last >= fragment.first_entry_id):
            names = tuple(fragment.ensemble[index] for index in indices)
            yield EntriesAtRisk(metadata.ledger_id, fragment.first_entry_id, last, names)


async def declare_lost(
    bookie_ids: Sequence[str], records: LedgerRecords, membership: Membership, *, accept_loss: bool
) -> list[EntriesAtRisk]:
    """Declares these bookies lost, all or none; returns the entries that may be gone with them and with those lost before.

    Raises `AdministrationError` if one is unknown or announced, `MetastoreDoubtedError`; `LossNotAcceptedError` if confirmed
    entries may be gone and that is not accepted: then nothing was declared. `MetastoreError`: some may be declared; declaring
    again is harmless."""
    if not bookie_ids:
        return []  # earlier declarations are accepted, and only repairs make up for them
    for bookie_id in bookie_ids:
        await _check_may_be_lost(bookie_id, membership)
    # Together with those of before: losses one after the other may add up to an ack quorum.
    lost = {*bookie_ids, *await _lost_before(membership)}
    at_risk = await _all_at_risk(records, lost)
    # A metastore that went back does not know all that is at risk (B6a).
    await check_metastore(records, membership)
    if at_risk and not accept_loss:
        shown = "".join(f"\n  {each}" for each in at_risk[:_SHOWN_MAX])
        more = f"\n  and {len(at_risk) - _SHOWN_MAX} more" if len(at_risk) > _SHOWN_MAX else ""
        raise LossNotAcceptedError(
            f"confirmed entries may be gone with {', '.join(sorted(lost))}:{shown}{more}\nNothing was declared. Bring one of "
            "these bookies back with its data, or declare them lost once more and accept the loss",
            at_risk,
        )
    for bookie_id in bookie_ids:
        # Noted even if nothing seems at risk: another bookie may have lost something, which only a recovery learns.
        await change_cookie(
            records.metastore,
            bookie_id,
            lambda cookie: attrs.evolve(cookie, is_lost=True, is_loss_accepted=cookie.is_loss_accepted or accept_loss),
        )
    return at_risk


async def _check_may_be_lost(bookie_id: str, membership: Membership) -> None:
    if await membership.cookie(bookie_id) is None:
        known = ", ".join(await membership.known_ids()) or "none"
        raise AdministrationError(
            bookie_id, f"the metastore does not know it: name it by its whole id; it knows {known}"
        )
    # Recoveries no longer wait for a lost bookie. One that is alive could still acknowledge entries that they then cut off.
    if bookie_id in await membership.announced():
        raise AdministrationError(bookie_id, "it is announced, so it may be alive: stop it first. Nothing was declared")


async def _lost_before(membership: Membership) -> list[str]:
    found = []
    for bookie_id in await membership.known_ids():
        cookie = await membership.cookie(bookie_id)
        if cookie is not None and cookie.is_lost:
            found.append(bookie_id)
    return found


async def _all_at_risk(records: LedgerRecords, lost: Collection[str]) -> list[EntriesAtRisk]:
    found: list[EntriesAtRisk] = []
    await records.each(lambda metadata: found.extend(entries_at_risk(metadata, lost)))
    return sorted(found, key=lambda each: (each.ledger_id, each.first_entry_id))
