"""Changes a log's record for what is beside its segments: cursors, and what these let a trim drop.

A change is a function of the record, asked again whenever another client was faster. So it must be repeatable: asked about a
record that has the change already, it asks for nothing. Then a lost answer needs no care: the record is read, and the function
is asked again. A request that arrives late finds another version, and changes nothing (M1).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import attrs
import trio

from replog.client.ledgers import Ledgers
from replog.errors import LogNotFoundError, MetastoreUncertainError, VersionConflictError
from replog.log.log_records import LogRecords
from replog.protocol.model import LogMetadata
from replog.records.encoding import encode
from replog.records.paths import log_key_path

Change = Callable[[LogMetadata], Awaitable[LogMetadata | None]]


async def edit(name: str, change: Change, ledgers: Ledgers, logs: LogRecords) -> LogMetadata:
    """Changes a log's record by CAS; returns the record with the change. `change` returns None if there is nothing to change.

    Whatever `change` reads, it reads after the record upon which the CAS depends. Raises what `change` raises,
    `LogNotFoundError`, and `MetastoreError` within the metastore's timeout: then it may be changed or not."""
    store, key = ledgers.records, log_key_path(name)
    deadline = trio.current_time() + store.timeout_s
    begun: int | None = None
    while True:
        head, version = await logs.get(name)
        if begun is None:
            begun = head.deletions
        elif head.deletions != begun:
            raise LogNotFoundError(name, "it was deleted meanwhile, and created again")
        changed = await change(head)
        if changed is None:
            return head
        # With a token of its own: machines take a record with another token for another client's change (M1).
        value = encode(attrs.evolve(changed, token=ledgers.chance.token()))
        try:
            await store.persist(f"changing {key}", partial(store.metastore.put, key, value, version))
            return changed
        except (VersionConflictError, MetastoreUncertainError) as error:
            await store.pause(deadline, error)
