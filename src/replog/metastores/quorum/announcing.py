"""A key that exists while its holder is heard of: the holder's side (Q15).

The holder beats a few times in each lease, which writes nothing. A holder that was not heard of for its lease finds at its next
beat that the key is gone, and announces it again, unless another one has: nobody is told of that. So an announcement is advice,
never safety (M3). Whatever a lost answer leaves behind is gone after the lease, since nobody beats for it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Protocol

import attrs
import trio

from replog.errors import MetastoreError
from replog.runtime.nursery import open_service_nursery

_BEATS_PER_LEASE = 4
_FAREWELL_S = 2.0


class Announcer(Protocol):
    """The part of the metastore that announcements need."""

    async def put_announcement(self, key: str, value: bytes) -> int: ...
    async def beat(self, key: str, version: int) -> bool: ...
    async def delete(self, key: str, expected: int | None = None) -> None: ...


@attrs.define
class _Held:
    """An announced key, and its version: None while it is not known to exist."""

    key: str
    value: bytes
    version: int | None = None


@asynccontextmanager
async def announcement(store: Announcer, key: str, value: bytes, lease_s: float) -> AsyncIterator[None]:
    """Keeps the key while the context is open. Raises `KeyExistsError`, `MetastoreError`. A cancellation waits for the answer to
    what was sent, and withdraws the announcement."""
    await trio.lowlevel.checkpoint_if_cancelled()
    held = _Held(key, value)
    with trio.CancelScope(shield=True):  # the call has a deadline
        held.version = await store.put_announcement(key, value)
    try:
        async with open_service_nursery() as nursery:
            nursery.start_soon(_beat, store, held, lease_s)
            yield
    finally:
        with trio.move_on_after(_FAREWELL_S, shield=True), suppress(MetastoreError):  # else it is gone after the lease
            if held.version is not None:
                await store.delete(key, held.version)


async def _beat(store: Announcer, held: _Held, lease_s: float) -> None:
    while True:
        await trio.sleep(lease_s / _BEATS_PER_LEASE)
        with trio.move_on_after(lease_s / 2), suppress(MetastoreError):  # it beats again soon
            if held.version is not None and await store.beat(held.key, held.version):
                continue
            held.version = None
            # If it were cut short here, nobody would know which version to withdraw.
            with trio.move_on_after(lease_s / 2, shield=True):
                held.version = await store.put_announcement(held.key, held.value)
