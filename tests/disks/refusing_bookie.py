"""Has the disk of an embedded log refuse what is written, and looks what the writer is told, and what is left.

    python -m tests.disks.refusing_bookie files|lmdb DIRECTORY ERRNO...

Started by `test_refusing_bookie.py`, with `failing_calls.c` in LD_PRELOAD. Each error comes from the bookie's directory only, and
from that of the metastore, too; from each kind of call. Nothing here times out by itself within a test: what is told only at a
deadline is told too late.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest
import trio

import replog
from replog.config.client import ClientTuning
from replog.errors import (
    MetastoreError,
    MetastoreUnavailableError,
    MetastoreUncertainError,
    NotEnoughBookiesError,
    StorageFailedError,
    StorageFullError,
)
from tests.disks.failing import CHANGES, SYNCS, WRITES, end_failing, fail_calls

_FOREVER_S = 900.0
_ENOUGH_S = 60.0
_FULL = (errno.ENOSPC, errno.EDQUOT)
_OPTIONS = ClientTuning(
    add_timeout_s=_FOREVER_S,
    add_quorum_timeout_s=_FOREVER_S,
    bookie_retry_after_s=_FOREVER_S,
    bookie_retry_after_max_s=_FOREVER_S,
)


def main(kind: str, directory: Path, *names: str) -> None:
    for name in names:
        for place, calls in (("bookie-0", CHANGES), ("", CHANGES), ("", WRITES), ("", SYNCS)):
            path = directory / f"{name}-{place}-{calls}"
            trio.run(live, kind, path, getattr(errno, name), path / place, calls)
            trio.run(look, kind, path)
            print(path.name, flush=True)


async def live(kind: str, path: Path, code: int, below: Path, calls: int) -> None:
    async with replog.embed(path, storage=kind, options=_OPTIONS) as client:
        with trio.fail_after(_ENOUGH_S):
            # A sync that fails stops a storage of files, whatever the error; LMDB had not begun to use what was written.
            is_full = code in _FULL and (kind == "lmdb" or calls != SYNCS)
            await refused_append(client, code, below, calls, is_full=is_full)
            await refused_takeover(client)
        end_failing()


async def refused_append(client: replog.Client, code: int, below: Path, calls: int, *, is_full: bool) -> None:
    with pytest.raises(NotEnoughBookiesError) as raised:
        async with client.write_log("log") as log:
            await log.append(b"kept")
            fail_calls(below, calls, code)
            # Enough for a file to grow, so that calls that set sizes are among those that fail.
            for _ in range(100):
                await log.append(bytes(1 << 20))
    cause = raised.value.__cause__
    while isinstance(cause, NotEnoughBookiesError):
        cause = cause.__cause__
    assert isinstance(cause, StorageFullError if is_full else StorageFailedError), repr(cause)
    words = str(raised.value)
    assert str(below) in words, words
    assert ("disk full: no space left" if is_full else errno.errorcode[code]) in words, words
    assert ("room on the disk" if is_full else "then restart the bookie") in words, words


async def refused_takeover(client: replog.Client) -> None:
    with pytest.raises((NotEnoughBookiesError, MetastoreError)) as raised:
        async with client.write_log("other") as log:
            await log.append(b"lost")
    # Nothing that seems to pass by waiting, nor an outcome that is unknown for no reason.
    assert not isinstance(raised.value, MetastoreUncertainError | MetastoreUnavailableError), repr(raised.value)
    assert any(each in str(raised.value) for each in ("disk full", "disk is full", "then restart", "try again")), raised


async def look(kind: str, path: Path) -> None:
    async with replog.embed(path, storage=kind, options=_OPTIONS) as client:
        async with client.write_log("log") as log:
            await log.append(b"later")
        async with client.read_log("log") as reader:
            found = [record.data for record in [each async for each in reader] if len(record.data) < 10]
        assert found == [b"kept", b"later"], found
        async with client.write_log("other") as log:
            await log.append(b"works")


if __name__ == "__main__":
    main(sys.argv[1], Path(os.path.realpath(sys.argv[2])), *sys.argv[3:])
