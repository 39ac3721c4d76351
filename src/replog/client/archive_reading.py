"""Reads archived entries: finds the object that has an entry, and reads ahead of scans.

A scan gets its bytes in blocks of 8 MiB, some of which are read before they are asked for. Blocks and indexes stay in a cache
whose size is bounded. A read of a few entries reads only their batches: the listing of the copy, the index and one range.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import attrs
import trio

from replog.client.archives import Archives, OpenedArchive
from replog.client.endings import copy_for_raise
from replog.errors import ArchiveError, MetastoreError, RemoteProtocolError
from replog.protocol.archived import FOOTER_BYTES, ObjectIndex, ObjectName, decode_index, index_bytes
from replog.protocol.batch import Batch

BLOCK_BYTES = 8 << 20
CACHE_BYTES_MAX = 64 << 20
SCAN_BYTES_MIN = 1 << 20  # who asks for so many bytes at a time reads on
_AHEAD_BLOCKS = 3
_TAIL_BYTES = 64 << 10  # read for an index at first: most are smaller
_COPIES_MAX = 256  # whose objects are remembered
_MISSING = "look whether a lifecycle rule or somebody deleted it, and put it back"
_ROW_BYTES = 150  # of an index in memory, about, for each batch

Context = TypeVar("Context")


@attrs.frozen
class ArchivedObject:
    """An object, its size, and the archive that has it."""

    archive: OpenedArchive
    name: ObjectName
    size_bytes: int

    async def read(self, start: int, size_bytes: int) -> bytes | memoryview:
        """So many bytes of it. Raises `ArchiveError` if they are not there."""
        found = await self.archive.call(self.archive.store.read, str(self.name), start, size_bytes)
        if found is None or len(found) != size_bytes:
            is_what = "it is missing" if found is None else f"it has no {size_bytes} bytes from byte {start} on"
            raise self.problem(f"{is_what}: {_MISSING}")
        return found

    async def index(self) -> ObjectIndex:
        """Reads its index. Raises `ArchiveError` if it is damaged."""
        tail = await self._tail(_TAIL_BYTES)
        try:
            size_bytes = index_bytes(tail[-FOOTER_BYTES:])
            if size_bytes > min(len(tail), self.size_bytes):
                tail = await self._tail(size_bytes)
            return decode_index(tail[-size_bytes:], self.size_bytes)
        except RemoteProtocolError as error:
            raise self.problem(f"{error}: put it back as it was") from error

    async def _tail(self, size_bytes: int) -> bytes:
        """So many of its last bytes, or all."""
        return bytes(await self.read(max(0, self.size_bytes - size_bytes), min(size_bytes, self.size_bytes)))

    def problem(self, what: str) -> ArchiveError:
        """An error about this object."""
        return self.archive.problem(f"object {self.name}: {what}")


class _Cached:
    """Something that is read, or was. Tasks that need it at the same time share one read."""

    __slots__ = ("done", "error", "size_bytes", "value")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.value: ObjectIndex | bytes | memoryview | None = None
        self.error: ArchiveError | None = None
        self.size_bytes = 0


class ArchiveReader:
    """Reads the archived entries of one client's ledgers. Reads run in `nursery`."""

    def __init__(self, archives: Archives, nursery: trio.Nursery) -> None:
        self.archives = archives
        self._nursery = nursery
        self._copies: OrderedDict[tuple[int, str], list[ArchivedObject]] = OrderedDict()
        self._cache: OrderedDict[tuple[ObjectName, int], _Cached] = OrderedDict()
        self._cached_bytes = 0

    def ask(
        self,
        ledger_id: int,
        archive: str,
        entry_id: int,
        bytes_max: int,
        answer: Callable[[list[Batch] | ArchiveError, Context], None],
        context: Context,
    ) -> None:
        """As `read`, but does not wait: `answer` is called later, with this context."""

        async def read() -> None:
            try:
                found: list[Batch] | ArchiveError = await self.read(ledger_id, archive, entry_id, bytes_max)
            except ArchiveError as error:
                found = error
            answer(found, context)

        self._nursery.start_soon(read)

    async def read(self, ledger_id: int, archive: str, entry_id: int, bytes_max: int) -> list[Batch]:
        """Reads the batch that holds this entry, and some that follow it, up to so many bytes. `archive` is as a fragment names
        it. Raises `ArchiveError`."""
        objects = await self.objects(ledger_id, archive)
        at = next((at for at, each in enumerate(objects) if entry_id <= each.name.last_entry_id), len(objects))
        if at == len(objects) or objects[at].name.first_entry_id > entry_id:
            self._copies.pop((ledger_id, archive), None)
            opened = await self._opened(archive)
            await opened.check()  # a directory that is mounted no more has no objects either
            raise opened.problem(f"no object of copy {archive} has entry {entry_id} of ledger {ledger_id}: {_MISSING}")
        return await self._read_batches(objects, at, entry_id, bytes_max)

    async def objects(self, ledger_id: int, archive: str) -> list[ArchivedObject]:
        """The objects of a copy, in the order of their entries. Raises `ArchiveError`."""
        key = ledger_id, archive
        found = self._copies.get(key)
        if found is None:
            opened = await self._opened(archive)
            listed = await opened.copy(ledger_id, archive.partition("/")[2])
            found = [ArchivedObject(opened, name, each.size_bytes) for name, each in listed]
            self._copies[key] = found
            while len(self._copies) > _COPIES_MAX:
                self._copies.popitem(last=False)
        self._copies.move_to_end(key)
        return found

    async def ranges(self, ledger_id: int, archive: str) -> list[tuple[int, int, int]]:
        """The entries that a copy has now: first, last and stride of each batch. Raises `ArchiveError`."""
        self._copies.pop((ledger_id, archive), None)
        found: list[tuple[int, int, int]] = []
        for each in await self.objects(ledger_id, archive):
            index = await self.index(each)
            found += zip(index.firsts, index.lasts, index.strides, strict=True)
        return found

    async def _opened(self, archive: str) -> OpenedArchive:
        archive_id = archive.partition("/")[0]
        try:
            return await self.archives.opened(archive_id)
        except MetastoreError as error:
            raise ArchiveError(archive_id, f"its record cannot be read: {error}") from error

    async def _read_batches(
        self, objects: Sequence[ArchivedObject], at: int, entry_id: int, bytes_max: int
    ) -> list[Batch]:
        read = objects[at]
        is_scan = bytes_max >= SCAN_BYTES_MIN
        index = await self.index(read)
        place = index.place_of(entry_id)
        if place is None:
            raise read.problem(f"its index lacks entry {entry_id}, which its name says it has")
        end = index.through(place, bytes_max)
        start, size_bytes = index.offsets[place], index.offsets[end] - index.offsets[place]
        for is_again in (False, True):
            data = await (self._scanned if is_scan else _read_alone)(objects, at, start, size_bytes)
            try:
                return index.batches(place, end, data)
            except RemoteProtocolError as error:
                # Bytes may be damaged on their way, too: they are read again, once.
                self._forget(read, start, size_bytes)
                if is_again:
                    raise read.problem(f"{error}: put the object back as it was") from error
        raise AssertionError("the second reading returns or raises")

    async def index(self, read: ArchivedObject) -> ObjectIndex:
        """The index of an object. Raises `ArchiveError`."""
        found = await self._get(read, -1)
        assert isinstance(found, ObjectIndex), "the place of an index"
        return found

    # -- scans --------------------------------------------------------------------------------------------------------

    async def _scanned(
        self, objects: Sequence[ArchivedObject], at: int, start: int, size_bytes: int
    ) -> bytes | memoryview:
        """These bytes of an object, from the blocks that have them. The next blocks are read beside."""
        first, last = start // BLOCK_BYTES, (start + size_bytes - 1) // BLOCK_BYTES
        for each, block in self._blocks_from(objects, at, first):
            self._begin(each, block)
        parts = []
        for block in range(first, last + 1):
            found = await self._get(objects[at], block)
            assert not isinstance(found, ObjectIndex), "the place of a block"
            begin = start - block * BLOCK_BYTES
            # A view: bytes are copied once, as batches.
            parts.append(memoryview(found)[max(0, begin) : begin + size_bytes])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _blocks_from(
        self, objects: Sequence[ArchivedObject], at: int, block: int
    ) -> Iterator[tuple[ArchivedObject, int]]:
        """This block of an object, and the next ones of it and of those behind it, with their indexes."""
        left = _AHEAD_BLOCKS + 1
        while at < len(objects) and left:
            if block == 0:
                yield objects[at], -1
            while block * BLOCK_BYTES < objects[at].size_bytes and left:
                yield objects[at], block
                block += 1
                left -= 1
            at, block = at + 1, 0

    # -- the cache ----------------------------------------------------------------------------------------------------

    async def _get(self, read: ArchivedObject, block: int) -> ObjectIndex | bytes | memoryview:
        cached = self._begin(read, block)
        await cached.done.wait()
        if cached.error is not None:
            raise copy_for_raise(cached.error)
        assert cached.value is not None, "what was read without an error is there"
        return cached.value

    def _begin(self, read: ArchivedObject, block: int) -> _Cached:
        key = read.name, block
        cached = self._cache.get(key)
        if cached is None:
            cached = self._cache[key] = _Cached()
            self._nursery.start_soon(self._fill, cached, key, read)
        self._cache.move_to_end(key)
        return cached

    async def _fill(self, cached: _Cached, key: tuple[ObjectName, int], read: ArchivedObject) -> None:
        _, block = key
        try:
            if block < 0:
                cached.value = await read.index()
                cached.size_bytes = len(cached.value.firsts) * _ROW_BYTES
            else:
                start = block * BLOCK_BYTES
                cached.value = await read.read(start, min(BLOCK_BYTES, read.size_bytes - start))
                cached.size_bytes = len(cached.value)
        except ArchiveError as error:
            cached.error = error
        if self._cache.get(key) is cached:
            if cached.error is not None:
                del self._cache[key]  # the next one who needs it tries again
            self._cached_bytes += cached.size_bytes
            self._make_room()
        cached.done.set()

    def _make_room(self) -> None:
        while self._cached_bytes > CACHE_BYTES_MAX:
            self._drop(next(key for key, each in self._cache.items() if each.size_bytes))

    def _forget(self, read: ArchivedObject, start: int, size_bytes: int) -> None:
        for block in range(start // BLOCK_BYTES, (start + size_bytes - 1) // BLOCK_BYTES + 1):
            self._drop((read.name, block))

    def _drop(self, key: tuple[ObjectName, int]) -> None:
        gone = self._cache.pop(key, None)
        if gone is not None:
            self._cached_bytes -= gone.size_bytes


async def _read_alone(objects: Sequence[ArchivedObject], at: int, start: int, size_bytes: int) -> bytes | memoryview:
    return await objects[at].read(start, size_bytes)
