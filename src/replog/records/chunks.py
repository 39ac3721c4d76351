"""Index chunks in the metastore: reading them into a ledger's record, and finding those that no record names (M4)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from replog.abc import Metastore, Versioned
from replog.errors import KeyNotFoundError, MetastoreCorruptError
from replog.protocol.chunks import Chunk, ChunkContents
from replog.protocol.model import LedgerMetadata
from replog.records.encoding import corrupt, decode
from replog.records.ledgers import decode_ledger
from replog.records.paths import CHUNKS_KEY, chunk_key_path, ledger_key_path
from replog.runtime.nursery import for_each

Get = Callable[[str], Awaitable[Versioned]]

_AT_ONCE = 16


def decode_chunk(key: str, value: bytes, chunk: Chunk) -> ChunkContents:
    """Decodes the contents of this chunk. Raises `MetastoreCorruptError`, naming the key and every fault."""
    contents = decode(key, value, ChunkContents)
    if faults := contents.faults(chunk):
        raise corrupt(key, faults)
    return contents


async def read_ledger(
    get: Get, ledger_id: int, wanted: Callable[[Chunk], bool], known: Versioned | None = None
) -> tuple[LedgerMetadata, Versioned]:
    """A ledger's record, with what is in the chunks that are wanted; and the record as it was read. `known` is one that was read
    before.

    Raises the errors of `get`; `KeyNotFoundError` if there is no such ledger, `MetastoreCorruptError` if a chunk is
    missing."""
    key = ledger_key_path(ledger_id)
    found = await get(key) if known is None else known
    while True:
        try:
            return await _load(get, decode_ledger(key, found.value), wanted), found
        except KeyNotFoundError as error:
            # A change of a record deletes the chunks named before: then there is a newer record.
            before, found = found, await get(key)
            if found.version == before.version:
                where = f"key {error.key!r} is missing, which the record of ledger {ledger_id} names (M4)"
                raise MetastoreCorruptError(f"{where}: restore that from a backup of the metastore") from error


async def _load(get: Get, metadata: LedgerMetadata, wanted: Callable[[Chunk], bool]) -> LedgerMetadata:
    ledger_id = metadata.ledger_id
    while missing := [chunk for chunk in metadata.chunks if wanted(chunk)]:
        found: dict[Chunk, ChunkContents] = {}

        async def read(chunk: Chunk, found: dict[Chunk, ChunkContents] = found) -> None:
            key = chunk_key_path(ledger_id, chunk.name)
            found[chunk] = decode_chunk(key, (await get(key)).value, chunk)

        await for_each(read, missing, _AT_ONCE)
        metadata = metadata.loaded(found)
    return metadata


async def read_whole_ledger(get: Get, ledger_id: int) -> tuple[LedgerMetadata, Versioned]:
    """Reads the ledger's record like `read_ledger`, with all its fragments."""
    return await read_ledger(get, ledger_id, lambda _chunk: True)


async def unnamed_chunks(metastore: Metastore, has: Callable[[int], bool]) -> list[str]:
    """The keys of the chunks that no record names, or ever will, of ledgers that `has` is true of. Raises `MetastoreError`."""
    found: list[str] = []
    for ledger_id in filter(has, map(int, await metastore.children(CHUNKS_KEY))):
        names = await metastore.children(chunk_key_path(ledger_id))
        # The record is read after the chunks were listed: what it does not name then is judged by the version it has then.
        try:
            metadata, read = await read_whole_ledger(metastore.get, ledger_id)
        except KeyNotFoundError:
            named, version = frozenset[str](), None
        else:
            named, version = frozenset(chunk.name for chunk in metadata.unnamed), read.version
        # A ledger's id is never used again, and its record is written before its chunks.
        found += [
            chunk_key_path(ledger_id, name)
            for name in names
            if name not in named and (version is None or made_upon(name) < version)
        ]
    return found


def made_upon(name: str) -> int:
    """The version of the record upon which the chunk of this name was made."""
    return int(name.split("-")[3])
