"""Metadata, back-ups and archives of replog in a bucket of object storage, over obstore: `objects:s3://BUCKET/PREFIX`,
`s3://BUCKET/PREFIX`.

This module is cheap to import: obstore is imported when something is opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from replog.abc import Archive, BackupPlace, Metastore
from replog.hookspecs import Backend, hookimpl
from replog_objects.options import ArchiveOptions, BackupOptions, ObjectsOptions, Target

_KINDS = {
    "s3": "a bucket of S3",
    "gs": "a bucket of Google",
    "az": "a container of Azure",
    "memory": "a bucket in this process",
}


def open_metastore(rest: str, options: ObjectsOptions) -> Metastore:
    """The metastore in the bucket that a URL names, behind `objects:`. It connects at its first call. Raises `ConfigError`."""
    from replog_objects.metastore import ObjectsMetastore

    return ObjectsMetastore(Target.parse(rest), options)


def open_backup_place(scheme: str, rest: str, options: BackupOptions) -> BackupPlace:
    """The place for a back-up that a URL names. Raises `ConfigError`."""
    from replog_objects.backups import BucketPlace

    return BucketPlace(Target.parse(f"{scheme}://{rest}"), options)


def open_archive(scheme: str, rest: str, options: ArchiveOptions) -> Archive:
    """The archive that a URL names. Raises `ConfigError`."""
    from replog_objects.archives import BucketArchive

    return BucketArchive(Target.parse(f"{scheme}://{rest}"), options)


@hookimpl
def replog_backup_places() -> Sequence[Backend[BackupPlace]]:
    """Offers "s3", "gs" and "az", and "memory" for tests."""
    return [
        Backend(scheme, partial(open_backup_place, scheme), BackupOptions, summary=f"{kind}: {scheme}://BUCKET/PREFIX")
        for scheme, kind in _KINDS.items()
    ]


@hookimpl
def replog_archives() -> Sequence[Backend[Archive]]:
    """Offers "s3", "gs" and "az", and "memory" for tests."""
    return [
        Backend(scheme, partial(open_archive, scheme), ArchiveOptions, summary=f"{kind}: {scheme}://BUCKET/PREFIX")
        for scheme, kind in _KINDS.items()
    ]


@hookimpl
def replog_metastores() -> Sequence[Backend[Metastore]]:
    """Offers "objects"."""
    summary = "a bucket with conditional puts: objects:s3://BUCKET/PREFIX"
    return [Backend("objects", open_metastore, ObjectsOptions, summary=summary)]
