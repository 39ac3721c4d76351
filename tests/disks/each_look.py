"""Fails one look at the files of a directory after the other while it is opened, each in a process of its own.

    python -m tests.disks.each_look metastore|unfinished|files|lmdb|embedded|backup DIRECTORY ERRNO STEP

Started by `test_each_look.py`, with `failing_calls.c` in LD_PRELOAD. A look is an opening of a file, a question for its status,
or a listing; every `STEP`-th one fails once; then all questions and listings fail from there on; then every `STEP`-th file fails
always. What must hold: opening works, or raises an error of replog with the cause; and then all is still there, and nothing is
doubted. Prints a line for each look of which that is not so, and how many looks failed.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
from contextlib import closing, suppress
from pathlib import Path

import attrs
import trio

import replog
from replog.backends.files import storage as files
from replog.backends.lmdb import storage as lmdb
from replog.backup.content import open_backup
from replog.errors import ReplogError
from replog.metastores.lmdb import LMDBMetastore
from replog.protocol.mutations import PutBatch
from replog.registry import Registry
from replog.testing.storage_conformance import make_batch
from tests.backup.places import check
from tests.disks.children import in_child
from tests.disks.failing import LOOKING, OPENING, end_failing, fail_calls, failed_calls

_LEDGERS = 5
_BOOKIES = 3
_ALL = 1 << 20


def main(kind: str, directory: Path, name: str, step: int) -> None:
    made, tried = directory / "made", directory / "tried"
    assert in_child(lambda: make(kind, made)) == 0
    at, code = place(kind, tried), getattr(errno, name)
    looks = 0
    for kinds, count in ((OPENING | LOOKING, 1), (LOOKING, _ALL)):
        number = 1
        while one_try(kind, made, tried, Failing(at, kinds, code, number, count)):
            number += step
        looks += number - 1
    print(f"{looks} looks", flush=True)
    files = [each.relative_to(made) for each in sorted(place(kind, made).rglob("*"))]
    for each in files[::step]:
        one_try(kind, made, tried, Failing(tried / each, OPENING | LOOKING, code, 1, _ALL))


@attrs.frozen
class Failing:
    """Which looks fail, and how."""

    below: Path
    kinds: int
    error: int
    first: int
    count: int


def one_try(kind: str, made: Path, path: Path, failing: Failing) -> bool:
    """Whether a look failed."""
    shutil.copytree(made, path)
    reading, writing = os.pipe()
    status = in_child(lambda: open_failing(kind, path, failing, writing))
    os.close(writing)
    with os.fdopen(reading) as said:
        what = said.read()
    if status or in_child(lambda: look(kind, path)):
        print(f"something is wrong after: {failing}: {what}", flush=True)
    shutil.rmtree(path)
    return not what.startswith("0 ")


def open_failing(kind: str, path: Path, failing: Failing, writing: int) -> None:
    said = "it worked"
    fail_calls(failing.below, failing.kinds, failing.error, first=failing.first, count=failing.count)
    try:
        look(kind, path)
    except ReplogError as error:
        said = repr(error)
        assert os.strerror(failing.error) in said, said
    finally:
        failed = failed_calls()
        end_failing()
        os.write(writing, f"{failed} failed: {said}".encode())


def place(kind: str, path: Path) -> Path:
    """The directory whose looks fail."""
    return path / "backup" if kind == "backup" else path


# -- what there is ----------------------------------------------------------------------------------------------------------


def make(kind: str, path: Path) -> None:
    if kind in ("metastore", "unfinished"):
        trio.run(_make_metastore, path)
        if kind == "unfinished":
            (
                path / "metastore.json"
            ).unlink()  # as a crash leaves one that was just made, before it says that it is whole
    elif kind == "embedded":
        trio.run(_append, path, _LEDGERS)
    elif kind == "backup":
        trio.run(_back_up, path)
    else:
        with closing((files if kind == "files" else lmdb).open_storage(str(path))) as storage:
            for each in range(1, _LEDGERS):
                storage.commit([PutBatch(make_batch(each, 0, 4))])


def look(kind: str, path: Path) -> None:
    """Opens it, and looks whether all is there."""
    if kind in ("metastore", "unfinished"):
        trio.run(_look_at_metastore, path)
    elif kind == "embedded":
        trio.run(_look_at_embedded, path)
    elif kind == "backup":
        trio.run(_back_up, path)
        report = check(path / "backup")
        assert not report.problems, report
        assert report.logs[0].last_segment >= 1, report
        assert open_backup(path / "backup", Registry(load_installed=False)).manifest() is not None
    else:
        with closing((files if kind == "files" else lmdb).open_storage(str(path))) as storage:
            for each in range(1, _LEDGERS):
                assert storage.read(each, 0, 1, 1 << 20), each
            assert not storage.doubt().reasons, storage.doubt()


async def _make_metastore(path: Path) -> None:
    metastore = LMDBMetastore(path)
    for each in range(_LEDGERS):
        await metastore.create(f"key/{each}", b"1")
    await metastore.aclose()


async def _look_at_metastore(path: Path) -> None:
    metastore = LMDBMetastore(path)
    try:
        assert await metastore.children("key") == [f"{each}" for each in range(_LEDGERS)]
    finally:
        with suppress(ReplogError):
            await metastore.aclose()


async def _append(path: Path, entries: int) -> None:
    async with replog.embed(path, bookies=_BOOKIES) as client, client.write_log("log") as log:
        for each in range(entries):
            await log.append(b"%d" % each)


async def _look_at_embedded(path: Path) -> None:
    async with replog.embed(path) as client:
        assert len(client.bookies) + len(client.left_out) == _BOOKIES
        async with client.read_log("log") as reader:
            assert [record.data async for record in reader] == [b"%d" % each for each in range(_LEDGERS)]


async def _back_up(path: Path) -> None:
    async with replog.embed(path / "log") as client:
        async with client.write_log("log") as log:
            await log.append(b"1")
        await client.admin.backup(path / "backup")


if __name__ == "__main__":
    main(sys.argv[1], Path(os.path.realpath(sys.argv[2])), sys.argv[3], int(sys.argv[4]))
