"""A storage in files, under the scheme `files`: what bookies use by default."""

from __future__ import annotations

from replog.abc import Storage
from replog.backends.files.options import FilesOptions
from replog.hookspecs import Backend, hookimpl

__all__ = ["FilesOptions", "replog_storages"]


@hookimpl
def replog_storages() -> list[Backend[Storage]]:
    """The scheme `files`."""
    return [Backend("files", _open, FilesOptions, "ledgers in journal files of a directory, durable")]


def _open(rest: str, options: FilesOptions) -> Storage:
    # Imported here: clients load this plugin, and open no storage.
    from replog.backends.files.storage import open_storage

    return open_storage(rest, options)
