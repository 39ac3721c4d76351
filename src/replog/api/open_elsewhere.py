"""The hint for an application whose directory another process has open: how to reach the bookie there (B4)."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import trio

from replog.abc import Metastore
from replog.config import BackendURL
from replog.errors import ConfigError, MetastoreError, StorageInUseError
from replog.records.bookies import BOOKIES_KEY, READ_ONLY_BOOKIES_KEY, BookieAddress, decode_address
from replog.registry import Registry

_PATIENCE_S = 3.0  # with the metastore: the refusal waits for this
_HERE = "memory"  # the way to a bookie within its own process
_OTHERWISE = "Or close it there first, or use another directory"


async def told_where(
    error: StorageInUseError, directory: Path, metastore: str | Metastore | None, beside: Path, plugins: Registry
) -> StorageInUseError:
    """The same refusal; its hint names the listeners of the process that has the directory open, or says how to give it one.

    `beside` is where the metadata is if `metastore` is None. The lock identifies the process that has the directory
    open, and its announcement names the lock: without an announcement, or if the metastore does not know it, the hint
    stays as it was."""
    address: BookieAddress | None = None
    with trio.move_on_after(_PATIENCE_S), suppress(MetastoreError, ConfigError, OSError):  # the refusal matters
        address = await _announced(error.lock, metastore, beside, plugins)
    if address is None:
        return error
    url = repr(str(BackendURL("lmdb", str(beside)))) if metastore is None else "with the same metastore"
    connecting = f"replog.connect({url})" if metastore is None else f"replog.connect {url}"
    listeners = [str(each) for each in address.endpoints if each.scheme != _HERE]
    listeners.sort(key=lambda each: not each.startswith("unix:"))
    if listeners:
        hint = f"That process serves it at {', '.join(listeners)}: use {connecting} instead of replog.embed"
    else:
        listen = f"bookie_options=replog.BookieOptions(listen=('unix:{directory.parent}/bookie.sock',))"
        hint = f"That process serves it to no other: embed it there with {listen}, and use {connecting} here"
    told = StorageInUseError(str(error).removesuffix(f". {error.hint}"), f"{hint}. {_OTHERWISE}")
    told.lock = error.lock
    return told


async def _announced(
    lock: str | None, metastore: str | Metastore | None, beside: Path, plugins: Registry
) -> BookieAddress | None:
    """The announcement of the bookie that holds this lock; None if there is none."""
    if lock is None:
        return None
    if isinstance(metastore, Metastore):
        return await _holding(lock, metastore)
    url = _existing(beside) if metastore is None else metastore
    if url is None:
        return None
    opened = plugins.open_metastore(url)
    try:
        return await _holding(lock, opened)
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _PATIENCE_S):
            await opened.aclose()


def _existing(beside: Path) -> BackendURL | None:
    """The metastore in this directory, if there is one: opening it would make it."""
    return BackendURL("lmdb", str(beside)) if beside.exists() else None


async def _holding(lock: str, metastore: Metastore) -> BookieAddress | None:
    for key in (BOOKIES_KEY, READ_ONLY_BOOKIES_KEY):
        for bookie_id, value in (await metastore.announced(key)).items():
            address = decode_address(f"{key}/{bookie_id}", value)
            if address.lock == lock:
                return address
    return None
