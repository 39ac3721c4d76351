"""The directory of a member: who it is, and its store.

    member.json     the name, once more: a directory that lacks one of its two copies is a new member (Q11)
    lock            held by the process that has the directory open
    state/          the store, in LMDB, and its durable mark

Votes and acknowledgements are a name's. So a disk that is empty, lost something that was durable or is mixed from two gets a new
name before anything is sent. What is left there is set aside, in `left-...`, for whoever must look at it: nothing reads it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import lmdb

from replog.errors import MetastoreCorruptError, MetastoreError, MetastoreUnavailableError, RemoteProtocolError
from replog.metastores.lmdb_directory import make_directory
from replog.metastores.quorum.store import MemberStore
from replog.protocol.consensus.log import Base
from replog.runtime.disk_errors import described
from replog.runtime.entropy import current_entropy
from replog.runtime.lmdb_file import DataFileDamagedError
from replog.runtime.loggers import logger
from replog.runtime.platform import sync_all, sync_directory

_log = logger("replog.metastores.quorum")

_NAME_FILE, _LOCK_FILE, _STATE = "member.json", "lock", "state"
_FORMAT = 1
_ID_BYTES = 8


def new_id() -> str:
    """A name of a member, or the id of a cluster, that nobody has had."""
    return current_entropy().token(_ID_BYTES)


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Turns what a member's disk raises into `MetastoreUnavailableError`, or `MetastoreCorruptError` if it is damaged."""
    try:
        yield
    except (OSError, lmdb.Error) as error:
        raise MetastoreUnavailableError(f"the disk of the member in {path} fails: {described(error)}") from error
    except (DataFileDamagedError, RemoteProtocolError) as error:
        raise MetastoreCorruptError(
            f"the member in {path} is damaged: {error}. If other members are a majority, move {path} away and start again: "
            "it becomes a new member, with their state"
        ) from error


class MemberDirectory:
    """An open directory. Everything here may wait for the disk: call it in a worker thread."""

    def __init__(self, path: Path, new_name: str) -> None:
        """Opens the directory, and gives it this name if it is a new member's. Raises `MetastoreError`."""
        self.path = path
        with named_errors(path):
            make_directory(path)
            self._lock = _locked(path)
            try:
                self.store, self.name = self._open(new_name)
            except BaseException:
                os.close(self._lock)
                raise

    def _open(self, new_name: str) -> tuple[MemberStore, str]:
        state = self.path / _STATE
        named = self._read_name()
        if named and state.exists():
            store = MemberStore(str(state))
            if store.name == named and not store.has_lost:
                return store, named
            store.close()
        if named or state.exists():
            self._set_aside(new_name)
        state.mkdir()
        store = MemberStore(str(state))
        store.put_name(new_name)
        self._write_name(new_name)
        return store, new_name

    def _read_name(self) -> str:
        """The name in the file; "" if there is none that can be read: then the member is a new one."""
        with suppress(OSError, ValueError, TypeError, KeyError):
            facts = json.loads((self.path / _NAME_FILE).read_text())
            if facts["format"] != _FORMAT:
                raise MetastoreCorruptError(
                    f"{self.path / _NAME_FILE} has format {facts['format']}, which this version does not read: update replog"
                )
            return str(facts["name"])
        return ""

    def _set_aside(self, new_name: str) -> None:
        left = self.path / f"left-{new_name}"
        left.mkdir()
        for each in (_NAME_FILE, _STATE):
            if (self.path / each).exists():
                (self.path / each).rename(left / each)
        _log.error(
            "the member in %s lost a part of its disk, or got another one's: it becomes a new member; what was there is in %s",
            self.path,
            left,
        )

    def _write_name(self, name: str) -> None:
        text = json.dumps({"format": _FORMAT, "name": name})
        new = self.path / f"{_NAME_FILE}.new"
        with new.open("w") as file:
            file.write(text)
            file.flush()
            sync_all(file.fileno())
        new.rename(self.path / _NAME_FILE)
        sync_directory(str(self.path))

    def belong(self, cluster: str, base: Base | None, new_name: str = "") -> None:
        """From now on this belongs to a cluster, durably (`MemberStore.put_cluster`); under a new name, if one is given."""
        if new_name:
            # First the copy in the file: with one of two, it would be a new member anyway.
            self._write_name(new_name)
            self.name = new_name
        self.store.put_cluster(cluster, base, new_name)

    def close(self) -> None:
        """Gives the files back. Nothing may be under way."""
        self.store.close()
        os.close(self._lock)


def _locked(path: Path) -> int:
    descriptor = os.open(path / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise MetastoreError(
            f"the member in {path} is open in another process: close it there first, or use another directory"
        ) from None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
