"""A storage in LMDB, under the scheme `lmdb`: many small ledgers, instant restarts."""

from __future__ import annotations

from replog.abc import Storage
from replog.backends.lmdb.options import LMDBStorageOptions
from replog.hookspecs import Backend, hookimpl

__all__ = ["LMDBStorageOptions", "replog_storages"]


@hookimpl
def replog_storages() -> list[Backend[Storage]]:
    """The scheme `lmdb`."""
    return [Backend("lmdb", _open, LMDBStorageOptions, "ledgers in an LMDB environment of a directory, durable")]


def _open(rest: str, options: LMDBStorageOptions) -> Storage:
    # Imported here: clients load this plugin, and open no storage.
    from replog.backends.lmdb.storage import open_storage

    return open_storage(rest, options)
