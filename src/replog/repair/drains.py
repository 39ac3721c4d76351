"""Draining bookies: leaving one in order, before it is stopped permanently (C8).

Draining is advice, and durable: the wish is in the bookie's cookie. The bookie sees it within seconds and announces it.
From then on clients choose it only where there are too few others, and their writers replace it as if it had failed, by
an ordinary change of ensemble (C1-C5), when another bookie can be connected to. It goes on taking entries meanwhile, so
no writer loses a copy. Its stored copies stay there until a repair has copied them elsewhere: a bookie is safe to stop
when no ledger names it any more.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import trio

from replog.client.ledger_records import LedgerRecords
from replog.client.membership import Membership
from replog.client.metastore_trust import check_metastore
from replog.errors import AdministrationError, KeyNotFoundError
from replog.protocol.model import LedgerMetadata, LedgerState
from replog.records.bookies import change_cookie

_NOTICE_S = 10.0  # how long `drain` waits for the bookie to announce it
_LOOK_AGAIN_S = 0.1
LOG_KEY = "log"  # of custom metadata


@attrs.frozen
class OpenLedger:
    """A ledger that is not closed, and whose last fragment names the bookie. Its writer leaves the bookie within seconds; one
    that has no writer stays open until it is recovered (`Client.recover_ledger`). `log` is the log that it belongs to, or ""."""

    ledger_id: int
    log: str


@attrs.frozen
class DrainStatus:
    """How far a bookie has been left. `copies` are the ledgers that have entries on it, as their records say; `open_ledgers` may
    still get some. `is_noticed` is True if the bookie itself says that it drains, or is not announced at all. `reasons` says, for
    some of the ledgers that no repair can move as things are, why: by ledger, in words."""

    bookie_id: str
    is_draining: bool
    is_noticed: bool
    copies: tuple[int, ...]
    open_ledgers: tuple[OpenLedger, ...]
    reasons: Mapping[int, tuple[str, ...]] = attrs.field(factory=dict)

    @property
    def is_safe_to_stop(self) -> bool:
        """True if nothing is lost, nor has fewer copies, without the bookie.

        A client that chose it just before it began to drain may still create a ledger there, for some seconds: ask twice."""
        return self.is_draining and self.is_noticed and not self.copies and not self.open_ledgers


async def drain(bookie_id: str, records: LedgerRecords, membership: Membership) -> DrainStatus:
    """Marks a bookie as draining, waits a while until it says so, and returns what still names it."""
    await _set_draining(bookie_id, records, membership, is_draining=True)
    with trio.move_on_after(_NOTICE_S):
        while not await _is_noticed(bookie_id, membership):  # noqa: ASYNC110 - announcements have no event
            await trio.sleep(_LOOK_AGAIN_S)
    return await drain_status(bookie_id, records, membership)


async def undrain(bookie_id: str, records: LedgerRecords, membership: Membership) -> None:
    """Lets a bookie get new ledgers again."""
    await _set_draining(bookie_id, records, membership, is_draining=False)


async def drain_status(bookie_id: str, records: LedgerRecords, membership: Membership) -> DrainStatus:
    """Reads every ledger's record, and returns what names the bookie. Raises `MetastoreDoubtedError` if the metastore went back:
    then ledgers may name the bookie of which it does not know (B6a)."""
    await _check_id(bookie_id, membership)
    cookie = await membership.cookie(bookie_id)
    if cookie is None:
        raise await _unknown(bookie_id, membership)
    # Asked before the records are read: if it is true, clients could know of it all that time.
    is_noticed = await _is_noticed(bookie_id, membership)
    copies: list[int] = []
    open_ledgers: list[OpenLedger] = []

    def look(metadata: LedgerMetadata) -> None:
        if has_copies(metadata, bookie_id):
            copies.append(metadata.ledger_id)
        if metadata.state is not LedgerState.CLOSED and bookie_id in metadata.last_fragment.ensemble:
            open_ledgers.append(OpenLedger(metadata.ledger_id, metadata.custom.get(LOG_KEY, "")))

    await records.each(look)
    await check_metastore(records, membership)
    open_ledgers.sort(key=lambda each: each.ledger_id)
    return DrainStatus(bookie_id, cookie.is_draining, is_noticed, tuple(sorted(copies)), tuple(open_ledgers))


def has_copies(metadata: LedgerMetadata, bookie_id: str) -> bool:
    """True if a fragment that has entries, or may have some, names this bookie."""
    ends = [fragment.first_entry_id - 1 for fragment in metadata.fragments[1:]]
    for fragment, last in zip(metadata.fragments, [*ends, metadata.last_entry_id], strict=True):
        if (
            bookie_id in fragment.ensemble
            and not fragment.archive
            and (last is None or last >= fragment.first_entry_id)
        ):
            return True
    return False


async def _set_draining(bookie_id: str, records: LedgerRecords, membership: Membership, *, is_draining: bool) -> None:
    await _check_id(bookie_id, membership)
    try:
        await change_cookie(records.metastore, bookie_id, lambda cookie: attrs.evolve(cookie, is_draining=is_draining))
    except KeyNotFoundError:
        raise await _unknown(bookie_id, membership) from None


async def _check_id(bookie_id: str, membership: Membership) -> None:
    """Raises `AdministrationError` for an empty id: no bookie has it, and no key can be made of it."""
    if not bookie_id:
        raise await _unknown(bookie_id, membership)


async def _unknown(bookie_id: str, membership: Membership) -> AdministrationError:
    known = ", ".join(await membership.known_ids()) or "none"
    return AdministrationError(bookie_id, f"the metastore does not know it: name it by its whole id; it knows {known}")


async def _is_noticed(bookie_id: str, membership: Membership) -> bool:
    address = (await membership.announced()).get(bookie_id)
    return address is None or address.is_draining
