"""The one way to change a record that needs no state machine: read it, change it, write it if it is still as it was read (M1).

A change is a function of the record. It must be repeatable: of a record that has the change already it says so. Then a conflict
and a lost answer need the same care: the record is read again, and the function decides again. A request that arrives late finds
another version, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from replog.errors import (
    KeyExistsError,
    KeyNotFoundError,
    MetastoreError,
    MetastoreUncertainError,
    VersionConflictError,
)

AGAIN_S = 0.01  # after a lost answer

Record = TypeVar("Record")
Version = TypeVar("Version")


async def wait_a_moment(error: MetastoreError) -> None:
    """Without a deadline: each conflict means that another client's change was made, and a metastore that is away raises
    another error."""
    if isinstance(error, MetastoreUncertainError):
        await trio.sleep(AGAIN_S)


async def edit(
    read: Callable[[], Awaitable[tuple[Record, Version]]],
    change: Callable[[Record], Awaitable[Record | None]],
    write: Callable[[Record, Version], Awaitable[object]],
    wait: Callable[[MetastoreError], Awaitable[None]] = wait_a_moment,
) -> Record:
    """Change a record by compare-and-set; returns the record with the change.

    `change` returns None for a record that needs none. All that it reads, it reads after the record on which the CAS depends.
    `wait` is called before the record is read again, and raises when it takes too long. Raises what these functions raise: then,
    and if cancelled, the record may be changed."""
    while True:
        record, version = await read()
        changed = await change(record)
        if changed is None:
            return record
        try:
            await write(changed, version)
            return changed
        except (KeyExistsError, KeyNotFoundError, VersionConflictError, MetastoreUncertainError) as error:
            await wait(error)
