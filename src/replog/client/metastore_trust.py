"""Whether clients may delete on the word of the metastore: not if it was emptied or went back (B6a).

A sweep or a repair deletes something because something else is missing in the metastore. Bookies know more about that
than a client does: they announce whether they doubt the metastore, and their sightings of it.
"""

from __future__ import annotations

from collections.abc import Collection

from replog.client.ledger_records import LedgerRecords
from replog.client.membership import Membership
from replog.errors import MetastoreDoubtedError
from replog.records.ids import read_next_ledger_id


async def check_metastore(
    records: LedgerRecords, membership: Membership, holders: Collection[str] = frozenset()
) -> None:
    """Checks that no bookie doubts the metastore, and that it has a cookie of each bookie in `holders`, which hold what is to be
    deleted. Raises `MetastoreDoubtedError`, `MetastoreError`: then nothing may be deleted."""
    announced = await membership.announced()
    next_ledger_id = await records.read("reading the next ledger id", lambda: read_next_ledger_id(records.metastore))
    problems = [f"bookie {each}: {address.problem}" for each, address in announced.items() if address.doubts_metastore]
    if next_ledger_id < membership.ledgers_below:
        problems.append(f"its next ledger id is {next_ledger_id}, and bookies have seen {membership.ledgers_below}")
    unknown = [each for each in sorted(holders) if await membership.cookie(each) is None]
    problems += [f"it has no cookie of bookie {each}" for each in unknown]
    if problems:
        raise MetastoreDoubtedError(
            f"the metastore seems to have gone back: {'; '.join(problems)}. Nothing was changed: put the right one back (B6a)"
        )
