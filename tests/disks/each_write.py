"""Fails one write of a metastore's or a storage's life after the other, each in a process of its own, and looks what is left.

    python -m tests.disks.each_write metastore|files|lmdb DIRECTORY ENOSPC|EIO FIRST LAST STEP

Started by `test_each_write.py`, with `failing_calls.c` in LD_PRELOAD. It prints a line for each number at which something
is wrong. What must hold: errors are of replog, what was confirmed is there afterwards, the directory opens again, and after
a lack of space the same process goes on.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import trio

from replog.abc import DropLedger, Mutation, PutBatch, SetMarks, Storage
from replog.backends.files import storage as files
from replog.backends.lmdb import storage as lmdb
from replog.errors import MetastoreError, ReplogError, StorageFailedError
from replog.metastores.lmdb import LMDBMetastore
from replog.testing.storage_conformance import make_batch
from tests.disks.children import in_child
from tests.disks.failing import CHANGES, SIZES, WRITES, end_failing, fail_calls, failed_calls

_ROUNDS = 60


def main(kind: str, directory: str, error: str, first: int, last: int, step: int) -> None:
    """Fails each of these writes in turn."""
    for number in range(first, last + 1, step):
        path = Path(directory) / f"{number}"
        reading, writing = os.pipe()
        code = getattr(errno, error)
        status = in_child(lambda: _live(kind, path, code, number, writing))  # noqa: B023  # called at once
        os.close(writing)
        with os.fdopen(reading) as said:
            *confirmed, failed = said.read().split("\n")
        if status:
            print(f"{number}: the process that wrote failed", flush=True)
        elif failed == "0":
            return  # there are no more writes
        elif in_child(lambda: _look(kind, path, confirmed)):  # noqa: B023
            print(f"{number}: something is missing", flush=True)


def _live(kind: str, path: Path, code: int, number: int, writing: int) -> None:
    """Confirms what it can while one write fails, and says what it confirmed, and how many calls failed."""
    path.mkdir()
    # A sync that fails stops a storage, whatever the error; other calls that find no space don't.
    fail_calls(path, WRITES | SIZES if code == errno.ENOSPC else CHANGES, code, first=number, count=1)
    rounds = _live_as_metastore(path) if kind == "metastore" else _live_as_storage(path, kind, code)
    failed = failed_calls()
    end_failing()
    os.write(writing, "\n".join([*map(str, rounds), str(failed)]).encode())


def _live_as_metastore(path: Path) -> list[int]:
    rounds: list[int] = []

    async def live() -> None:
        metastore = LMDBMetastore(path)
        for each in range(_ROUNDS):
            with contextlib.suppress(MetastoreError):
                version = await metastore.create(f"key/{each}", b"%d" % each * 200)
                if each % 3 == 2:
                    version = await metastore.put(f"key/{each}", b"%d" % each * 200, version)
                rounds.append(each)
        with contextlib.suppress(MetastoreError):
            await metastore.aclose()

    trio.run(live)
    return rounds


def _open(kind: str, path: Path) -> Storage:
    return files.open_storage(str(path)) if kind == "files" else lmdb.open_storage(str(path))


@contextlib.contextmanager
def _closing(storage: Storage) -> Iterator[Storage]:
    try:
        yield storage
    finally:
        with contextlib.suppress(ReplogError):
            storage.close()


def _live_as_storage(path: Path, kind: str, code: int) -> list[int]:
    rounds: list[int] = []
    each = 0
    while each < _ROUNDS:
        try:
            with _closing(_open(kind, path)) as storage:
                while each < _ROUNDS:
                    each += 1
                    try:
                        storage.commit(_mutations(each - 1))
                        rounds.append(each - 1)
                    except StorageFailedError:
                        assert code != errno.ENOSPC, "a lack of space stopped it"
                        break  # it is opened again
                    except ReplogError:
                        pass
        except ReplogError:
            each += 1
    return rounds


def _mutations(each: int) -> list[Mutation]:
    mutations: list[Mutation] = [PutBatch(make_batch(each + 1, 0, 4, size_bytes=1500))]
    if each % 3 == 2:
        mutations.append(SetMarks(each + 1, b"key", 2, 1))
    if each % 8 == 7:
        mutations.append(DropLedger(each + 1))
    return mutations


def _look(kind: str, path: Path, confirmed: list[str]) -> None:
    if kind == "metastore":
        trio.run(_look_at_metastore, path, confirmed)
        return
    with contextlib.closing(_open(kind, path)) as storage:
        assert not storage.doubt().reasons, storage.doubt()
        for each in map(int, confirmed):
            if each % 8 != 7:
                assert storage.read(each + 1, 0, 1, 1 << 20), each
            if each % 3 == 2:
                marks = storage.marks(each + 1)
                assert marks is not None, each
                assert marks.fence_term >= 2, each
        storage.commit(_mutations(100))


async def _look_at_metastore(path: Path, confirmed: list[str]) -> None:
    metastore = LMDBMetastore(path)
    missing = set(confirmed) - set(await metastore.children("key"))
    assert not missing, missing
    await metastore.create("key/new", b"")
    await metastore.aclose()


if __name__ == "__main__":
    kind, directory, error, *numbers = sys.argv[1:]
    main(kind, directory, error, *map(int, numbers))
