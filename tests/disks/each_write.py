"""Fails one write of a directory's life after the other, each in a process of its own, and looks what is left.

    python -m tests.disks.each_write metastore|files|lmdb|member DIRECTORY ENOSPC|EIO|LOSES_ALL|KEEPS_OTHERS FIRST LAST STEP

Started by `test_each_write.py`, with `failing_calls.c` in LD_PRELOAD. It prints a line for each number at which something
is wrong. What must hold: errors are of replog, what was confirmed is there afterwards, the directory opens again, and after
a lack of space the same process goes on. With `LOSES_ALL` and `KEEPS_OTHERS` the power fails before that write or sync.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import lmdb as lmdb_library
import trio

from replog.abc import DropLedger, Mutation, PutBatch, SetMarks, Storage
from replog.backends.files import storage as files
from replog.backends.lmdb import storage as lmdb
from replog.errors import MetastoreError, ReplogError, StorageFailedError
from replog.metastores.lmdb import LMDBMetastore
from replog.metastores.quorum.directory import MemberDirectory
from replog.protocol.consensus.groups import Membership
from replog.protocol.consensus.log import Base, Kind, LogEntry
from replog.protocol.consensus.outbox import Write
from replog.testing.storage_conformance import make_batch
from tests.disks import failing
from tests.disks.children import in_child
from tests.disks.failing import CHANGES, NO_POWER, SIZES, WRITES, end_failing, fail_calls, failed_calls

_ROUNDS = 60
_BASE = Base(1, 1, Membership((("first",),), {"first": "m1:3181"}))


class Confirmed:
    """What was confirmed, told to another process at once."""

    def __init__(self, writing: int) -> None:
        self._writing = writing

    def append(self, what: int | str) -> None:
        os.write(self._writing, f"{what}\n".encode())


def main(kind: str, directory: str, error: str, first: int, last: int, step: int) -> None:
    """Fails each of these writes in turn."""
    for number in range(first, last + 1, step):
        path = Path(directory) / f"{number}"
        reading, writing = os.pipe()
        code = getattr(failing, error) if hasattr(failing, error) else getattr(errno, error)
        status = in_child(lambda: _live(kind, path, code, number, writing))  # noqa: B023  # called at once
        os.close(writing)
        with os.fdopen(reading) as said:
            *confirmed, failed = said.read().split()
        if status not in ((0, NO_POWER) if code < 0 else (0,)):
            print(f"{number}: the process that wrote failed", flush=True)
        elif failed == "failed:0":
            return  # there are no more writes
        elif in_child(lambda: _look(kind, path, [each for each in confirmed if each.isdecimal()])):  # noqa: B023
            print(f"{number}: something is missing", flush=True)


def _live(kind: str, path: Path, code: int, number: int, writing: int) -> None:
    """Confirms what it can while one write fails, and says what it confirmed, and how many calls failed."""
    path.mkdir()
    rounds = Confirmed(writing)
    rounds.append("begun")
    # A sync that fails stops a storage, whatever the error; other calls that find no space don't.
    fail_calls(path, WRITES | SIZES if code == errno.ENOSPC else CHANGES, code, first=number, count=1)
    if kind == "metastore":
        _live_as_metastore(path, rounds)
    elif kind == "member":
        _live_as_member(path, code, rounds)
    else:
        _live_as_storage(path, kind, code, rounds)
    failed = failed_calls()
    end_failing()
    rounds.append(f"failed:{failed}")


def _live_as_metastore(path: Path, rounds: Confirmed) -> None:
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


def _live_as_member(path: Path, code: int, rounds: Confirmed) -> None:
    """Votes, entries, rows and new bases, each of which is told once it is written. A member whose disk fails stops."""
    try:
        opened = MemberDirectory(path / "m", "first")
    except MetastoreError:
        return
    try:
        opened.belong("c1", _BASE)
        for each in range(_ROUNDS):
            opened.store.write(_member_write(each), {b"k%d" % each: b"%d" % each * 200}, each + 1)
            rounds.append(each)
    except (lmdb_library.Error, OSError):
        assert code != errno.ENOSPC, "a lack of space stopped it, though it held some back"
    finally:
        opened.close()


def _member_write(each: int) -> Write:
    """Adds the entry of this number in a term of its own; every tenth drops all before the one before it."""
    base = Base(each + 1, each, _BASE.members) if each % 10 == 9 else None
    return Write(each + 1, each + 1, f"c{each}", base, each + 2, (LogEntry(each + 1, Kind.COMMANDS, b"%d" % each),))


def _open(kind: str, path: Path) -> Storage:
    return files.open_storage(str(path)) if kind == "files" else lmdb.open_storage(str(path))


@contextlib.contextmanager
def _closing(storage: Storage) -> Iterator[Storage]:
    try:
        yield storage
    finally:
        with contextlib.suppress(ReplogError):
            storage.close()


def _live_as_storage(path: Path, kind: str, code: int, rounds: Confirmed) -> None:
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
    if kind == "member":
        _look_at_member(path, max(map(int, confirmed), default=-1))
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


def _look_at_member(path: Path, last: int) -> None:
    """A member that has told anything is the same one, and has all that it told: vote, log, and state (Q1, Q2, Q11)."""
    opened = MemberDirectory(path / "m", "second")
    if last >= 0:
        assert opened.name == "first", "it is a new member"
        stored = opened.store.load()
        assert (stored.term, stored.voted_for) >= (last + 1, f"c{last}"), stored
        assert stored.log.last >= last + 2, stored.log.last
        assert stored.log.last_term == stored.log.last - 1
        assert stored.applied >= last + 1, stored.applied
        rows = {row for row, _ in opened.store.rows_from(b"")}
        wanted = {b"k%d" % each for each in range(stored.applied)}
        assert not rows - wanted, f"{rows - wanted} will be applied once more behind entry {stored.applied}"
        assert not wanted - rows, f"{wanted - rows} will never be applied: entry {stored.applied} counts as applied"
        for each in range(last + 1):
            assert opened.store.get(b"k%d" % each) == b"%d" % each * 200, each
    opened.belong("c2", _BASE)
    opened.close()


if __name__ == "__main__":
    kind, directory, error, *numbers = sys.argv[1:]
    main(kind, directory, error, *map(int, numbers))
