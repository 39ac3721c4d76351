"""The records of BookKeeper's ledgers: read, changed by CAS, created, deleted and listed where Java's programs have them."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import attrs
import trio

from replog.abc import Versioned
from replog.client.ledger_records import LedgerRecords
from replog.errors import (
    ConfigError,
    KeyExistsError,
    KeyNotFoundError,
    LedgerNotFoundError,
    MetastoreUncertainError,
    VersionConflictError,
)
from replog.protocol.chunks import Chunk
from replog.protocol.model import NO_ENTRY, LedgerMetadata, LedgerState
from replog_bookkeeper import metadata as codec
from replog_bookkeeper.digests import LedgerDigest
from replog_bookkeeper.layouts import SHORT_IDS, Layout, Target, decode_layout, flat_id, is_word, ledger_key, shapes
from replog_bookkeeper.metadata import LedgerRecord
from replog_bookkeeper.nodes import LedgersRoot

_LAYOUT = "LAYOUT"
INSTANCE = "INSTANCEID"
_SHORT_ID_PREFIX, _LONG_IDS, _HIGH = "idgen/ID-", "idgen-long", "HOB-"
_FLAT_ID_PREFIX = "ID-"
_FIRST_HIGH = 1
_REMEMBERED_MAX = 1000  # records of format 1 whose token is known


class BookKeeperRecords(LedgerRecords):
    """The records of one cluster. Every call ends within `timeout_s` or raises `MetastoreError`.

    `length_of` reads how long the payloads are up to an entry, where a recovery did not come across it."""

    def __init__(self, root: LedgersRoot, target: Target, timeout_s: float) -> None:
        super().__init__(root, timeout_s)
        self.length_of: Callable[[LedgerMetadata, int], Awaitable[int]] | None = None
        self._root = root
        self._wanted = target.layout
        self._layout: Layout | None = None
        self._tokens: dict[bytes, str] = {}  # by the SHA-256 of a record that has no place for its token

    async def layout(self) -> Layout:
        """The cluster's layout, as it says itself. Raises `ConfigError` if it is another one than the URI names."""
        if self._layout is None:
            what = f"reading the layout of {self._root.place}"
            try:
                found = decode_layout((await self.read(what, lambda: self._root.get(_LAYOUT))).value)
            except KeyNotFoundError as error:
                problem = f"{self._root.place}: there is no BookKeeper cluster: it has no node {_LAYOUT}"
                raise ConfigError(f"{problem}. Look at the root in the URI, /ledgers unless it was changed") from error
            if self._wanted not in (None, found):
                assert self._wanted is not None
                problem = f"its layout is {found.value}, and the URI says {self._wanted.value}"
                raise ConfigError(f"{self._root.place}: {problem}: say zk+{found.value}://, or zk://")
            self._layout = found
        return self._layout

    async def instance_id(self) -> str:
        """The name that the cluster was given when it was begun; "" if it has none. Raises `MetastoreError`."""
        try:
            found = await self.read("reading the instance id", lambda: self._root.get(INSTANCE))
        except KeyNotFoundError:
            return ""
        return found.value.decode(errors="replace")

    async def node(self, key: str) -> bytes:
        """The data of any node; the key is as those of `LedgersRoot`. Raises `KeyNotFoundError`, `MetastoreError`."""
        return (await self.read(f"reading {key}", lambda: self._root.get(key))).value

    async def node_names(self, key: str) -> list[str]:
        """The names of the nodes right below this one, sorted; none if it does not exist. Raises `MetastoreError`."""
        return await self.read(f"listing {key}", lambda: self._root.children(key))

    # -- one record -------------------------------------------------------------------------------------------------

    async def record(self, ledger_id: int) -> tuple[LedgerRecord, int]:
        """A ledger's record and its version. Raises `LedgerNotFoundError`, `MetastoreCorruptError`, `MetastoreError`."""
        key = ledger_key(await self.layout(), ledger_id)
        try:
            found = await self.read(f"reading ledger {ledger_id}", lambda: self._root.get(key))
        except KeyNotFoundError as error:
            raise LedgerNotFoundError(ledger_id, "there is no such ledger: never created, or deleted") from error
        return codec.decode(ledger_id, found.value), found.version

    async def _get(
        self, ledger_id: int, wanted: Callable[[Chunk], bool], known: Versioned | None = None
    ) -> tuple[LedgerMetadata, int]:
        assert known is None, "BookKeeper's ledgers are read one by one"
        record, version = await self.record(ledger_id)
        if record.format > 1:
            return record.metadata, version
        token = self._tokens.get(_sum(codec.changed(record, record.metadata, record.message.length)), "")
        return attrs.evolve(record.metadata, token=token), version

    async def put(self, metadata: LedgerMetadata, expected: int) -> int:
        """Changes a ledger's record by CAS; returns its new version. Raises `VersionConflictError`, `LedgerNotFoundError`,
        `MetastoreUncertainError`, `MetastoreError`."""
        ledger_id = metadata.ledger_id
        record, version = await self.record(ledger_id)
        key = ledger_key(await self.layout(), ledger_id)
        if version != expected:
            raise VersionConflictError(key, expected, version)
        if metadata.chunks:
            # A record of BookKeeper's names all its fragments: those that replog keeps elsewhere are those of the version before.
            first = metadata.fragments[0].first_entry_id
            before = [each for each in record.metadata.fragments if each.first_entry_id < first]
            metadata = attrs.evolve(metadata, fragments=(*before, *metadata.fragments), chunks=())
        value = codec.changed(record, metadata, await self._length(metadata))
        if record.format == 1:
            if len(self._tokens) >= _REMEMBERED_MAX:
                del self._tokens[next(iter(self._tokens))]
            self._tokens[_sum(value)] = metadata.token
        try:
            return await self.persist(f"changing ledger {ledger_id}", lambda: self._root.put(key, value, expected))
        except KeyNotFoundError as error:
            raise LedgerNotFoundError(ledger_id, "it was deleted") from error

    async def _length(self, metadata: LedgerMetadata) -> int:
        """The length of the payloads of a closed ledger: Java's readers are told it."""
        last, contents = metadata.last_entry_id, metadata.contents
        if metadata.state is not LedgerState.CLOSED or last is None or last == NO_ENTRY:
            return 0
        if contents is not None and contents.size_bytes is not None:
            return contents.size_bytes
        assert self.length_of is not None, "set before the first ledger is recovered"
        return await self.length_of(metadata, last)

    async def create_ledger(
        self, metadata: LedgerMetadata, digest: LedgerDigest, password: bytes, custom: Mapping[str, bytes], creator: int
    ) -> tuple[int, bool]:
        """Writes the record of a new ledger; returns its version, and True if no other request to create it can still arrive.

        Raises `KeyExistsError` if another ledger has this id, `MetastoreError`."""
        value = codec.created(metadata, digest, password, custom, creator)
        key = ledger_key(await self.layout(), metadata.ledger_id)
        deadline = trio.current_time() + self.timeout_s
        is_only_request = True
        while True:
            try:
                version = await self.persist("creating a ledger", lambda: self._root.create(key, value))
                return version, is_only_request
            except (MetastoreUncertainError, KeyExistsError) as error:
                is_only_request = False
                try:
                    found, version = await self.record(metadata.ledger_id)
                except LedgerNotFoundError:
                    await self.pause(deadline, error)
                    continue  # it was not written; an earlier request that arrives late writes the same record
                if found.metadata.token == metadata.token:
                    return version, False
                raise

    async def delete(self, ledger_id: int, known: LedgerMetadata | None = None) -> None:
        """Deletes a ledger's record, if there is one. Raises `MetastoreError`."""
        await self.delete_key(ledger_key(await self.layout(), ledger_id))

    async def wait_changed(self, ledger_id: int, version: int) -> None:
        """Returns soon after the record has another version."""
        await self._root.wait_changed(ledger_key(await self.layout(), ledger_id), version)

    # -- ids --------------------------------------------------------------------------------------------------------

    async def new_id(self) -> int:
        """An id that ZooKeeper gives nobody else, by the nodes by which Java's programs take theirs. Raises `MetastoreError`."""
        if await self.layout() is Layout.FLAT:
            return await self._number(_FLAT_ID_PREFIX)
        highs = await self.read("listing ids", lambda: self._root.children(_LONG_IDS))
        if not any(name.startswith(_HIGH) for name in highs):
            number = await self._number(_SHORT_ID_PREFIX)
            if 0 <= number < SHORT_IDS:
                return number
            await self.create_key(f"{_LONG_IDS}/{_HIGH}{_FIRST_HIGH:010d}", b"")
        while True:
            highs = await self.read("listing ids", lambda: self._root.children(_LONG_IDS))
            high = max(int(name.removeprefix(_HIGH)) for name in highs if name.startswith(_HIGH))
            number = await self._number(f"{_LONG_IDS}/{_HIGH}{high:010d}/ID-")
            if 0 <= number < SHORT_IDS:
                return high << 32 | number
            await self.create_key(f"{_LONG_IDS}/{_HIGH}{high + 1:010d}", b"")

    async def _number(self, prefix: str) -> int:
        # A number that was taken by a request whose answer was lost is lost with it.
        deadline = trio.current_time() + self.timeout_s
        while True:
            try:
                return await self.persist("taking a ledger id", lambda: self._root.next_number(prefix))
            except MetastoreUncertainError as error:
                await self.pause(deadline, error)

    async def ledger_ids(self) -> AsyncIterator[int]:
        """The ids of all ledgers, in no order. Raises `MetastoreError`."""
        layout = await self.layout()
        if layout is Layout.FLAT:
            for name in await self.node_names(""):
                if (found := flat_id(name)) is not None:
                    yield found
        for shape in shapes(layout):
            pending = [""]
            while pending:
                key = pending.pop()
                depth = key.count("/") + 1 if key else 0
                is_last = depth == len(shape) - 1
                for name in await self.node_names(key):
                    if is_word(name, shape[depth], is_last=is_last):
                        below = f"{key}/{name}" if key else name
                        if is_last:
                            yield int(below.replace("/", "").replace("L", ""))
                        else:
                            pending.append(below)


def _sum(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()
