"""A storage in LMDB, under the scheme `lmdb`: many small ledgers, instant restarts."""

from __future__ import annotations

from replog.abc import Storage
from replog.backends.lmdb.options import LMDBStorageOptions
from replog.backends.lmdb.storage import LMDBStorage, open_storage
from replog.hookspecs import Backend, hookimpl

__all__ = ["LMDBStorage", "LMDBStorageOptions", "open_storage", "replog_storages"]


@hookimpl
def replog_storages() -> list[Backend[Storage]]:
    """The scheme `lmdb`."""
    return [Backend("lmdb", open_storage, LMDBStorageOptions, "ledgers in an LMDB environment of a directory, durable")]
