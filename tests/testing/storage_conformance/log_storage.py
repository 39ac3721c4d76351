"""An honest storage in files, as small as one can be, for the conformance suites' own tests: cheats inherit from it.

identity   the bookie's identity, with a checksum
lock       locked while it is open
log        one record for each commit: sizes, checksum, what was committed, then the batches' bytes
end        how long the log was when it was closed; without it a torn record at the end is one of a process that died
"""

import fcntl
import os
import pickle
import struct
import uuid
import zlib
from collections.abc import Sequence
from pathlib import Path

from replog.abc import Damage, Mutation, PutBatch, StoredRange
from replog.backends.holdings import Holdings
from replog.backends.memory import MemoryStorage
from replog.errors import (
    StorageDamagedError,
    StorageIdentityError,
    StorageInUseError,
    StorageUncertainError,
)
from replog.protocol.batch import Batch

HEAD = struct.Struct(">III")  # the sizes of what was committed and of the batches' bytes, a checksum
END = struct.Struct(">QI")


class LogStorage(MemoryStorage):
    """All is read into memory when it is opened; a damaged batch stands there without its bytes."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        path.mkdir(exist_ok=True)
        self._lock = os.open(path / "lock", os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise StorageInUseError(f"{path} is open") from error
        try:
            self._content.bookie_id = self._identity()
            self._log = os.open(path / "log", os.O_CREAT | os.O_RDWR | os.O_APPEND)
            self._replay((path / "log").read_bytes(), self._end())
        except BaseException:
            os.close(self._lock)
            raise

    # -- opening --------------------------------------------------------------------------------------------------

    def _identity(self) -> str:
        file = self.path / "identity"
        if not file.exists():
            self._replace("identity", self._sealed(f"bookie-{uuid.uuid4().hex}".encode()))
        found = file.read_bytes()
        if found != self._sealed(found[:-4]):
            return self.damaged_identity()
        return found[:-4].decode()

    def damaged_identity(self) -> str:
        raise StorageIdentityError(f"{self.path}/identity is damaged")

    def _end(self) -> int | None:
        """The length of the log when it was closed, or None if it was not."""
        file = self.path / "end"
        if not file.exists():
            return None
        found = file.read_bytes()
        if len(found) != END.size or found != self._sealed(found[:-4]):
            self.damaged("end", 0)
            return None
        return int(END.unpack(found)[0])

    def damaged(self, name: str, offset: int) -> None:
        raise StorageDamagedError(f"{self.path}/{name} is damaged at {offset}")

    def _replay(self, log: bytes, end: int | None) -> None:
        if end is not None and end != len(log):
            self.damaged("log", min(end, len(log)))
        position = 0
        while position < len(log):
            size = self._replay_one(log, position)
            if not size:
                if end is not None:
                    self.damaged("log", position)
                self.torn(position)
                break
            position += size
        (self.path / "end").unlink(missing_ok=True)

    def torn(self, position: int) -> None:
        os.ftruncate(self._log, position)

    def _replay_one(self, log: bytes, position: int) -> int:
        """The size of the record there, or 0 if it is torn."""
        start = position + HEAD.size
        if start > len(log):
            return 0
        head_size, body_size, checksum = HEAD.unpack_from(log, position)
        head = log[start : start + head_size]
        if checksum != zlib.crc32(head + HEAD.pack(head_size, body_size, 0)):
            if start + head_size + body_size <= len(log):
                self.damaged("log", position)
            return 0
        at = start + head_size
        if at + body_size > len(log):
            return 0
        mutations: list[Mutation] = []
        for mutation in pickle.loads(head):
            if isinstance(mutation, tuple):
                fields, size, code = mutation
                data: bytes | None = log[at : at + size]
                at += size
                if zlib.crc32(log[at - size : at]) != code:
                    data = self.damaged_batch(log[at - size : at])
                if data is not None:
                    mutations.append(PutBatch(Batch(data, *fields)))
            else:
                mutations.append(mutation)
        super().commit(mutations)
        return HEAD.size + head_size + body_size

    def damaged_batch(self, data: bytes) -> bytes | None:
        """What to keep of it."""
        del data
        return b""

    def _replace(self, name: str, content: bytes) -> None:
        (self.path / f"{name}.tmp").write_bytes(content)
        os.replace(self.path / f"{name}.tmp", self.path / name)

    def _sealed(self, content: bytes) -> bytes:
        return content + zlib.crc32(content).to_bytes(4, "big")

    # -- the seam -------------------------------------------------------------------------------------------------

    def commit(self, mutations: Sequence[Mutation]) -> None:
        with self._opened():
            self.write(self.record(mutations))
        super().commit(mutations)

    def record(self, mutations: Sequence[Mutation]) -> bytes:
        head = pickle.dumps([_described(each) if isinstance(each, PutBatch) else each for each in mutations])
        body = b"".join(each.batch.data for each in mutations if isinstance(each, PutBatch))
        checksum = zlib.crc32(head + HEAD.pack(len(head), len(body), 0))
        return HEAD.pack(len(head), len(body), checksum) + head + body

    def write(self, record: bytes) -> None:
        """Survives the process, which is all that is asked of it here."""
        view = memoryview(record)
        while view:
            view = view[os.write(self._log, view) :]

    def read(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        found = super().read(ledger_id, entry_id, stamp, bytes_max)
        if found and not found[0].data:
            self.uncertain(found[0])
        return found[: next((at for at, batch in enumerate(found) if not batch.data), len(found))]

    def ranges(self, ledger_id: int) -> list[StoredRange]:
        holdings = Holdings()
        with self._opened() as content:
            ledger = content.ledgers.get(ledger_id)
            for stamp, batches in ledger.stamps.items() if ledger else ():
                for batch in batches._batches:
                    if batch.data:
                        holdings.add(stamp, batch.first_entry_id, batch.last_entry_id, batch.stride)
        return holdings.ranges()

    def uncertain(self, batch: Batch) -> None:
        raise StorageUncertainError(f"{self.path}/log: {batch} is damaged")

    def damage(self) -> Sequence[Damage]:
        with self._opened() as content:
            stored = [
                batch
                for ledger in content.ledgers.values()
                for batches in ledger.stamps.values()
                for batch in batches._batches
            ]
        return [
            Damage(each.ledger_id, each.stamp, each.first_entry_id, each.last_entry_id, "damaged in log")
            for each in stored
            if not each.data
        ]

    def close(self) -> None:
        if not self.is_closed:
            super().close()
            self._replace("end", self._sealed(END.pack(os.fstat(self._log).st_size, 0)[:8]))
            os.close(self._log)
            os.close(self._lock)


def _described(put: PutBatch) -> tuple[object, int, int]:
    batch = put.batch
    fields = (
        batch.digest_type,
        batch.count,
        batch.stride,
        batch.ledger_id,
        batch.first_entry_id,
        batch.last_add_confirmed,
        batch.stamp,
        batch.timestamp_ns,
        batch.cumulative_length,
    )
    return fields, len(batch.data), zlib.crc32(batch.data)
