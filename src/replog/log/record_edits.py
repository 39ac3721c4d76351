"""Changes a log's record beside its segments: cursors, and the segments that these let a trim drop.

A change is a function of the record, asked again whenever another client was faster. So it must be repeatable: asked about a
record that has the change already, it asks for nothing (`replog.records.editing`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs

from replog.client.ledgers import Ledgers
from replog.errors import LogNotFoundError
from replog.log.log_records import LogRecords
from replog.protocol.model import LogMetadata
from replog.records.encoding import encode
from replog.records.paths import log_key_path

Change = Callable[[LogMetadata], Awaitable[LogMetadata | None]]


async def edit(name: str, change: Change, ledgers: Ledgers, logs: LogRecords) -> LogMetadata:
    """Changes a log's record by CAS; returns the record with the change. `change` returns None if there is nothing to change.

    Everything that `change` reads, it reads after the record upon which the CAS depends. Raises the errors of `change`,
    `LogNotFoundError`, and `MetastoreError` within the metastore's timeout: then it may be changed or not."""
    store, key = ledgers.records, log_key_path(name)
    deletions: set[int] = set()

    async def changed(head: LogMetadata) -> LogMetadata | None:
        deletions.add(head.deletions)
        if len(deletions) > 1:
            raise LogNotFoundError(name, "it was deleted meanwhile, and created again")
        wanted = await change(head)
        # With a token of its own: machines take a record with another token for another client's change (M1).
        return None if wanted is None else attrs.evolve(wanted, token=ledgers.entropy.token())

    def write(head: LogMetadata, version: int) -> Awaitable[int]:
        return store.write(key, encode(head), version)

    return await store.edit(f"changing {key}", lambda: logs.get(name), changed, write)
