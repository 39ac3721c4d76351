"""The files in the directory of a storage in LMDB, beside those that storages of any kind have (`replog.backends.directory`).

    lock            says also since which boot of the machine the storage is open, or that it was closed
    durable-mark    the number of the last transaction that was committed (`durable_mark.py`)
    doubt           what the storage cannot vouch for
    metastore-seen  what the bookie last saw of its metastore (`sightings.py`)
    data.mdb        all that is stored; made as data.mdb.new, and renamed when it is whole and synced
    lock.mdb        LMDB's table of readers

They are made in the order durable-mark, data.mdb, storage.json.
"""

from __future__ import annotations

import enum

from replog.backends.directory import (
    FORMAT_FILE,
    LOCK_FILE,
    OWNER_BYTES,
    DirectoryLock,
    check_expected,
    read_identity,
    write_identity,
)
from replog.backends.disk import Disk, write_all
from replog.backends.durable_mark import OWN_NAMES as MARK_NAMES
from replog.backends.lmdb.records import VERSION
from replog.backends.sightings import OWN_NAMES as SIGHTING_NAMES
from replog.runtime.lmdb_file import DATA_FILE, NEW_FILE, READERS_FILE
from replog.runtime.platform import boot_id

FORMAT_NAME = "replog lmdb storage"
OWN_NAMES = {FORMAT_FILE, f"{FORMAT_FILE}.tmp", LOCK_FILE, DATA_FILE, NEW_FILE, READERS_FILE}
OWN_NAMES |= {*MARK_NAMES, *SIGHTING_NAMES}
_BOOT_BYTES = 64  # of the lock file, behind the pid


class Former(enum.Enum):
    """How the process ended that had the directory open before."""

    CLOSED = b"closed"  # it closed the storage: the durable mark is exact, and synced
    KILLED = b"killed"  # while the machine ran on: the mark is exact
    TORN = b"torn"  # LMDB met a damaged page
    UNKNOWN = b""  # with the machine, or there was none


class BootLock(DirectoryLock):
    """A lock that also says since which boot of the machine the storage is open, or how it was left: `former` is how the process
    before this one left it."""

    former: Former

    def _behind_owner(self) -> bytes:
        boot = boot_id()
        self.former = _former(self._disk.pread(self._fd, _BOOT_BYTES, OWNER_BYTES).strip(), boot)
        # Until it is closed in peace, the boot says that it was open: after a crash of the machine another boot is found.
        return boot.ljust(_BOOT_BYTES - 1) + b"\n"

    def say(self, end: Former) -> None:
        """Writes, durably, how this process leaves the directory. May raise OSError."""
        write_all(self._disk, self._fd, (end.value.ljust(_BOOT_BYTES - 1) + b"\n",), OWNER_BYTES)
        self._disk.fdatasync(self._fd)


def _former(said: bytes, boot: bytes) -> Former:
    if said in (Former.CLOSED.value, Former.TORN.value):
        return Former(said)
    return Former.KILLED if said and said == boot else Former.UNKNOWN


def read_bookie_id(disk: Disk, path: str, expected: str) -> str | None:
    """The identity in the format file, or None if there is no such file. Raises `StorageIdentityError`."""
    content = read_identity(disk, path, FORMAT_FILE, FORMAT_NAME, VERSION)
    if content is None:
        return None
    check_expected(path, content["bookie_id"], expected)
    return str(content["bookie_id"])


def write_format(disk: Disk, path: str, bookie_id: str) -> None:
    """Declares the directory a storage. Done last. May raise OSError."""
    write_identity(disk, path, FORMAT_FILE, format=FORMAT_NAME, version=VERSION, bookie_id=bookie_id)
