"""Opens a metastore or a storage where few bytes are free, makes room, and opens it again.

    python -m tests.disks.open_full metastore|files|lmdb DIRECTORY first|table FREE_BYTES...

Started by `test_full_disk.py`, on a file system of its own. `first` is the first opening of a directory; before `table`, a
directory that holds something has lost its `lock.mdb`. Prints a line for each number of bytes: how the first opening ended.
"""

from __future__ import annotations

import sys
import time
from contextlib import closing
from pathlib import Path

import trio

from replog.backends.files import storage as files
from replog.backends.lmdb import storage as lmdb
from replog.errors import MetastoreFullError, StorageFullError
from replog.metastores.lmdb import LMDBMetastore
from replog.protocol.mutations import PutBatch
from replog.testing.storage_conformance import make_batch
from tests.disks.small_disk import fill


def use(kind: str, path: Path, number: int) -> None:
    """Opens it, writes something, and looks for what was written before."""
    if kind == "metastore":
        trio.run(_use_metastore, path, number)
        return
    storage = files.open_storage(str(path)) if kind == "files" else lmdb.open_storage(str(path))
    with closing(storage):
        for each in range(number):
            assert storage.read(each, 0, 1, 1 << 20), each
        assert not storage.doubt().reasons, storage.doubt()
        storage.commit([PutBatch(make_batch(number, 0, 4))])


async def _use_metastore(path: Path, number: int) -> None:
    metastore = LMDBMetastore(path)
    try:
        for each in range(number):
            assert (await metastore.get(f"key/{each}")).value == b"1", each
        await metastore.create(f"key/{number}", b"1")
    finally:
        await metastore.aclose()


def main(kind: str, directory: Path, how: str, *sizes: str) -> None:
    for size in sizes:
        path = directory / f"{kind}-{size}"
        number = 0
        if how == "table":
            use(kind, path, number)
            (path / "lock.mdb").unlink()
            number = 1
        filler = fill(directory, int(size))
        began_s = time.monotonic()
        try:
            use(kind, path, number)
        except (MetastoreFullError, StorageFullError) as error:
            words = str(error)
            assert str(path) in words, words
            assert "bytes are free" in words, words
            assert "room on" in words, words
            print(f"{size}: told", flush=True)
        else:
            print(f"{size}: worked", flush=True)
            number += 1
        took_s = time.monotonic() - began_s
        if took_s > 5:
            print(f"{size}: only after {took_s} s", flush=True)
        filler.unlink()
        use(kind, path, number)
        use(kind, path, number + 1)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
