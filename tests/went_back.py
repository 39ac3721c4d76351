"""A metastore in memory that is emptied, or goes back to what it was: as after a restore from an older back-up (B6a, M5)."""

from __future__ import annotations

import copy

import attrs

from replog.metastores.memory import MemoryMetastore, _Store
from replog.testing import FaultyMetastore


@attrs.frozen
class Snapshot:
    """What a metastore holds at one moment, but for announcements: those who live announce themselves again."""

    values: dict[str, bytes]


def snapshot_of(metastore: FaultyMetastore) -> Snapshot:
    """What is there now."""
    store = _store_of(metastore)
    return Snapshot({key: each.value for key, each in store._values.items() if key not in store._announced})


def put_back(metastore: FaultyMetastore, snapshot: Snapshot | None = None) -> None:
    """Makes the metastore what it was, or empty. What is announced stays; versions never go back."""
    store = _store_of(metastore)
    for key in [each for each in store._values if each not in store._announced]:
        store.delete(key, None)
    for key, value in ({} if snapshot is None else copy.copy(snapshot.values)).items():
        store.create(key, value)


def _store_of(metastore: FaultyMetastore) -> _Store:
    assert isinstance(metastore.inner, MemoryMetastore)
    return metastore.inner._store
