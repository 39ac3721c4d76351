"""The directory of an LMDB metastore: how it is made, and what a crash left of one that was being made.

    metastore.json  says that the directory was finished. Written last: if it is there, data.mdb must be whole
    data.mdb        all keys and values; made as data.mdb.new, synced, and renamed
    lock.mdb        LMDB's table of readers
    presence        which processes are alive (`presence.py`)

A torn data.mdb without metastore.json beside it holds nothing, and is made again. With it, it is damaged, and never replaced.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from replog.errors import MetastoreCorruptError
from replog.metastores.lmdb_records import FORMAT, FORMAT_KEY
from replog.runtime.disk_errors import exists
from replog.runtime.lmdb_file import (
    DATA_FILE,
    DataFileDamagedError,
    alone_in_directory,
    check_data_file,
    is_half_made,
    make_data_file,
)
from replog.runtime.platform import sync_all, sync_directory

MARK_FILE = "metastore.json"
FORMAT_NAME = "replog lmdb metastore"
VERSION = 1


def prepare_directory(path: str) -> None:
    """Makes the files of a directory that has none, or only what a crash left of them. Blocks.

    Raises `MetastoreCorruptError`, `lmdb.Error`, OSError."""
    data = f"{path}/{DATA_FILE}"
    if _is_marked(path):
        check_whole(path)
        return
    # Another process may be making it: so it is looked at again under the lock.
    with alone_in_directory(path):
        if _is_marked(path):
            return
        if not exists(data) or is_half_made(data):
            make_data_file(path, [(FORMAT_KEY, FORMAT)])
        check_whole(path)


def finish_directory(path: str) -> None:
    """Leaves the mark, when what the directory holds is known to be a metastore's. Raises OSError."""
    if _is_marked(path):
        return
    with alone_in_directory(path):
        new = f"{path}/{MARK_FILE}.new"
        with open(new, "w") as file:
            file.write(json.dumps({"format": FORMAT_NAME, "version": VERSION}) + "\n")
            file.flush()
            # The mark must not reach the disk before the data that it vouches for, nor its name before its content.
            sync_all(file.fileno())
        os.rename(new, f"{path}/{MARK_FILE}")
        sync_directory(path)


def check_whole(path: str) -> None:
    """Raises `MetastoreCorruptError` if LMDB must not map the file; OSError."""
    data = f"{path}/{DATA_FILE}"
    try:
        check_data_file(data)
    except FileNotFoundError as error:
        raise MetastoreCorruptError(f"metastore {path}: its {DATA_FILE} is missing. {_RESTORE}") from error
    except DataFileDamagedError as error:
        raise damaged(path, error) from error


def damaged(path: str, error: DataFileDamagedError) -> MetastoreCorruptError:
    """The error for a file that LMDB must not map."""
    return MetastoreCorruptError(
        f"metastore {path}: its {DATA_FILE} is damaged {error}, or no LMDB file of a known version. {_RESTORE}"
    )


_RESTORE = "Nothing was changed; restore it from a backup, or use another directory"


def make_directory(path: Path) -> None:
    """Makes the directory and those above it, each durably in the one above; also what was made by a process that was
    killed right then. Raises OSError."""
    missing = [each for each in (path, *path.parents) if not exists(each)]
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync_directory(str(each.parent))
    if not missing and not _is_marked(str(path)):
        # One that we may not even read was not made by us.
        with suppress(PermissionError):
            sync_directory(str(path.parent))


def _is_marked(path: str) -> bool:
    return exists(f"{path}/{MARK_FILE}")
