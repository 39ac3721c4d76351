"""A metastore's keys, read as of one moment, and written to another one: for moving a cluster from one to the other.

What only says who is alive is left out: the processes announce themselves again, wherever they are started. The versions of
keys are those that the new metastore gives them; nobody keeps the old ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from replog.abc import Metastore, Versioned
from replog.errors import ConfigError, KeyNotFoundError
from replog.records.bookies import BOOKIES_KEY, COOKIES_KEY, READ_ONLY_BOOKIES_KEY
from replog.records.paths import (
    ARCHIVES_KEY,
    CHUNKS_KEY,
    LEDGER_KEY_SHAPES,
    LEDGERS_KEY,
    LOGS_KEY,
    LONG_LEDGERS_KEY,
    NEXT_LEDGER_ID_KEY,
    PAUSED_KEY,
)
from replog.runtime.nursery import for_each

# What is copied; `ledgers` comes last, since without it nobody takes a metastore for a cluster's (B6a).
KEPT_KEYS = (
    COOKIES_KEY,
    ARCHIVES_KEY,
    NEXT_LEDGER_ID_KEY,
    PAUSED_KEY,
    LOGS_KEY,
    CHUNKS_KEY,
    LONG_LEDGERS_KEY,
    LEDGERS_KEY,
)

_TRIES = 5
_AT_ONCE = 64


async def read_metadata(source: Metastore) -> dict[str, bytes]:
    """All keys that are kept, as of one moment, in the order to write them. They are in memory at once.

    It reads everything twice: when no version and no key differs, all was so between the two. Raises `ConfigError` if it
    changes all the time, or has nothing of any cluster; `MetastoreError`."""
    known: dict[str, int] = {}
    for _ in range(_TRIES):
        found = await _all_below(source)
        versions = {key: each.version for key, each in found.items()}
        if versions == known:
            if LEDGERS_KEY not in found:
                raise ConfigError("nothing was copied: no cluster has begun in this metastore, it has no key 'ledgers'")
            last = {LEDGERS_KEY: found.pop(LEDGERS_KEY)}
            return {key: each.value for key, each in (found | last).items()}
        known = versions
    raise ConfigError(
        f"nothing was copied: the metastore changed while it was read, {_TRIES} times: end all writers first"
    )


async def check_nobody_lives(source: Metastore) -> None:
    """Raises `ConfigError` if bookies announce themselves: they, and whoever writes, would go on with the old metastore."""
    living = {*await source.announced(BOOKIES_KEY), *await source.announced(READ_ONLY_BOOKIES_KEY)}
    if living:
        raise ConfigError(
            f"nothing was copied: bookies run with this metastore: {', '.join(sorted(living))}. End all processes first; one "
            "that was killed counts as alive for the length of a lease"
        )


async def write_metadata(target: Metastore, keys: Mapping[str, bytes]) -> None:
    """Creates these keys in a metastore that has none of them, the last one when all others are there. Raises `ConfigError` if
    it has any, `MetastoreError`: then it may have some of them, and nobody takes it for a cluster's. Delete what is there
    before the next try."""
    present = await _all_below(target)
    if present:
        raise ConfigError(f"nothing was copied: {len(present)} keys are there already, such as {min(present)!r}")
    *others, last = keys.items()

    async def create(item: tuple[str, bytes]) -> None:
        await target.create(*item)

    await for_each(create, others, _AT_ONCE)
    await create(last)


async def _all_below(metastore: Metastore) -> dict[str, Versioned]:
    found: dict[str, Versioned] = {}
    keys = list(KEPT_KEYS)
    for key in keys:
        with suppress(KeyNotFoundError):  # it may have keys below it all the same
            found[key] = await metastore.get(key)
    while keys:
        below: list[str] = []

        async def look(key: str, below: list[str] = below) -> None:
            found.update((f"{key}/{word}", each) for word, each in (await metastore.values(key)).items())
            below += (f"{key}/{word}" for word in await metastore.children(key))

        await for_each(look, keys, _AT_ONCE)
        keys = [each for each in below if not _is_of_ledger(each)]
    return found


def _is_of_ledger(key: str) -> bool:
    """True for a ledger's own key: there are most of these, and nothing is below them."""
    root, *words = key.split("/")
    return len(words) == len(LEDGER_KEY_SHAPES.get(root, ()))
