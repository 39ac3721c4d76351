"""Starts a storage on a full disk whose files were damaged, makes room, and starts it again.

    python -m tests.disks.start_damaged files|lmdb DIRECTORY FREE_BYTES...

Started by `test_full_disk.py`, on a file system of its own. Prints a line for each damage and number of bytes: how the first
start ended. What must hold: it says why within seconds, or serves; and with space all is there that was not damaged itself.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from replog.abc import Storage
from replog.backends.files import storage as files
from replog.backends.files.options import FilesOptions
from replog.backends.lmdb import storage as lmdb
from replog.errors import StorageFullError
from replog.protocol.mutations import PutBatch
from replog.testing.storage_conformance import make_batch
from tests.disks.small_disk import fill

_LEDGERS = 12
_BATCH_BYTES = 8000
_PAGE_BYTES = 4096


def open_storage(kind: str, path: Path) -> Storage:
    """With small journal files."""
    if kind == "lmdb":
        return lmdb.open_storage(str(path))
    return files.open_storage(str(path), FilesOptions(journal_file_bytes=1 << 18))


def main(kind: str, directory: Path, *sizes: str) -> None:
    for damage, lost in DAMAGES[kind]:
        for size in sizes:
            path = directory / kind
            live_and_die(kind, path)
            damage(path)
            filler = fill(directory, int(size))
            began_s = time.monotonic()
            said = first_start(kind, path)
            if time.monotonic() - began_s > 5:
                said = f"only after {time.monotonic() - began_s} s: {said}"
            filler.unlink()
            with closing(open_storage(kind, path)) as storage:
                for each in range(1, _LEDGERS - lost):
                    assert storage.read(each, 0, 1, 1 << 20), (damage.__name__, size, each)
                storage.commit([PutBatch(make_batch(100, 0, 4, size_bytes=_BATCH_BYTES))])
            with closing(open_storage(kind, path)) as storage:
                assert storage.read(100, 0, 1, 1 << 20), (damage.__name__, size)
            shutil.rmtree(path)
            print(f"{damage.__name__} {size}: {said}", flush=True)


def live_and_die(kind: str, path: Path) -> None:
    """A process that acknowledges some ledgers, and is killed."""
    pid = os.fork()
    if not pid:
        storage = open_storage(kind, path)
        for each in range(1, _LEDGERS):
            storage.commit([PutBatch(make_batch(each, 0, 4, size_bytes=_BATCH_BYTES))])
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


def first_start(kind: str, path: Path) -> str:
    try:
        with closing(open_storage(kind, path)) as storage:
            storage.read(1, 0, 1, 1 << 20)
            storage.commit([PutBatch(make_batch(99, 0, 4, size_bytes=_BATCH_BYTES))])
    except StorageFullError as error:
        words = str(error)
        assert str(path) in words, words
        assert "disk full: no space left" in words, words
        assert "room on the disk" in words, words
        return "told"
    return "worked"


# -- damages ----------------------------------------------------------------------------------------------------------------


def _written(path: Path) -> tuple[Path, int]:
    """The file with the last commit, and where what was written to it ends."""
    journals = [each for each in (path / "journal").glob("0*.journal") if each.read_bytes()[_PAGE_BYTES:].rstrip(b"\0")]
    file = max(journals, default=path / "data.mdb")
    return file, len(file.read_bytes().rstrip(b"\0"))


def _write(file: Path, at: int, data: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(at)
        opened.write(data)


def torn_tail(path: Path) -> None:
    """A record of which the disk has a part, behind the last commit."""
    file, end = _written(path)
    _write(file, -(-end // _PAGE_BYTES) * _PAGE_BYTES, bytes(range(256)) * 8)


def cut_tail(path: Path) -> None:
    """The last commit is not there to its end, nor is what was allocated."""
    file, end = _written(path)
    os.truncate(file, end - _BATCH_BYTES // 2)


def flipped_tail(path: Path) -> None:
    file, end = _written(path)
    _write(file, end - _BATCH_BYTES // 2, b"\x55" * 64)


def missing_mark(path: Path) -> None:
    (path / "durable-mark").unlink()


def missing_doubt(path: Path) -> None:
    (path / "doubt").unlink()


def damaged_header(path: Path) -> None:
    """The first page of the journal file in which the last commit is."""
    _write(_written(path)[0], 0, b"\x55" * 64)


Damage = tuple[Callable[[Path], None], int]  # and how many of the last commits it takes
_ANY: list[Damage] = [(missing_mark, 0), (missing_doubt, 0)]
DAMAGES: dict[str, list[Damage]] = {
    "files": [(torn_tail, 0), (cut_tail, 1), (flipped_tail, 1), (damaged_header, 0), *_ANY],
    "lmdb": [(flipped_tail, 1), *_ANY],
}

if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
