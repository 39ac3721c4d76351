"""A storage in files, under the scheme `files`: what bookies use by default."""

from __future__ import annotations

from replog.abc import Storage
from replog.backends.files.options import FilesOptions
from replog.backends.files.storage import FilesStorage, open_storage
from replog.hookspecs import Backend, hookimpl

__all__ = ["FilesOptions", "FilesStorage", "open_storage", "replog_storages"]


@hookimpl
def replog_storages() -> list[Backend[Storage]]:
    """The scheme `files`."""
    return [Backend("files", open_storage, FilesOptions, "ledgers in journal files of a directory, durable")]
