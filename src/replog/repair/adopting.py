"""Has records name archived copies again that they named before the metastore was put back to an older state.

The bookies have dropped their copies by then, so the objects are all there is. Rules:

- Only a fragment whose range is fixed, and that is in no archive, gets a copy (F2): one that has all its entries.
- Each object is compared with its digest, and each batch with the ledger's code: a copy of another creation is left (M5).
- One compare-and-set names the copy. Whatever else changed meanwhile is looked at anew (F4).

It may be killed anywhere: doing it again goes on with what is left.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from replog.client.archive_reading import ArchivedObject
from replog.client.archives import Archives, OpenedArchive
from replog.client.ledgers import Ledgers, tell_deleted
from replog.errors import (
    ArchiveError,
    LedgerNotFoundError,
    RemoteProtocolError,
    UnauthorizedError,
    VersionConflictError,
)
from replog.protocol.archived import LEDGERS_PREFIX, ObjectIndex, ObjectName, covering
from replog.protocol.archiving import archivable
from replog.protocol.digest import Digest
from replog.repair.archiver import read_back

_TRIES_MAX = 4  # of one copy whose ledger's record another client changes


@attrs.frozen
class AdoptedCopies:
    """The work of an adoption: `fragments` that name an archive again, with so many bytes of objects, and what it left, in
    `problems`."""

    fragments: int
    size_bytes: int
    problems: tuple[str, ...]


async def adopt_copies(ledgers: Ledgers, archives: Archives, password: bytes) -> AdoptedCopies:
    """Looks at all copies in all archives. Raises `ArchiveError` if one cannot be listed, `MetastoreError`."""
    fragments = size_bytes = 0
    problems: list[str] = []
    for record in await archives.list():
        archive = await archives.opened(record.archive_id)
        copies: dict[tuple[int, str], list[ArchivedObject]] = {}
        async for page in archive.pages(LEDGERS_PREFIX):
            for each in page:
                if (name := ObjectName.parse(each.name)) is not None:
                    objects = copies.setdefault((name.ledger_id, name.copy), [])
                    objects.append(ArchivedObject(archive, name, each.size_bytes))
        for (ledger_id, copy), objects in sorted(copies.items(), key=lambda each: each[0]):
            try:
                if await _adopt(archive, ledger_id, copy, objects, ledgers, password):
                    fragments, size_bytes = fragments + 1, size_bytes + sum(each.size_bytes for each in objects)
            except (ArchiveError, UnauthorizedError) as error:
                problems.append(str(error))
    return AdoptedCopies(fragments, size_bytes, tuple(problems))


async def _adopt(
    archive: OpenedArchive,
    ledger_id: int,
    copy: str,
    objects: Sequence[ArchivedObject],
    ledgers: Ledgers,
    password: bytes,
) -> bool:
    """Whether the record names the copy now, and did not before."""
    first, names = min(each.name.first_entry_id for each in objects), [each.name for each in objects]
    for _ in range(_TRIES_MAX):
        try:
            metadata, version = await ledgers.records.get_head(ledger_id, at=first)
        except LedgerNotFoundError:
            return False
        fragment = next((each for each in archivable(metadata) if each.first_entry_id == first), None)
        if fragment is None or covering(names, first, fragment.last_entry_id) <= fragment.last_entry_id:
            return False
        ledgers.authorize(metadata, password)
        for each in objects:
            await _check(each, fragment.term, metadata.digest(password))
        fragments = list(metadata.fragments)
        fragments[fragment.place] = attrs.evolve(
            fragments[fragment.place], archive=f"{archive.record.archive_id}/{copy}"
        )
        proposed = attrs.evolve(metadata, fragments=tuple(fragments), revision=metadata.revision + 1)
        try:
            await ledgers.records.put(proposed, version)
        except VersionConflictError:
            continue
        except LedgerNotFoundError:
            return False
        await tell_deleted(metadata, ledgers.context.connections, ledgers.options)
        return True
    return False


async def _check(read: ArchivedObject, term: int, digest: Digest) -> None:
    """Raises `ArchiveError` if an object is not what this ledger's writer of this term wrote."""
    await read_back(read)
    index = await read.index()
    data = await read.read(0, index.offsets[-1])
    if not await read.archive.call(_is_of_ledger, read.name, index, data, term, digest):
        raise read.problem("it has other entries than this ledger's writer wrote, or lacks some: it was left as it is")


def _is_of_ledger(name: ObjectName, index: ObjectIndex, data: bytes, term: int, digest: Digest) -> bool:
    try:
        batches = index.batches(0, len(index.firsts), data)
    except RemoteProtocolError:
        return False
    entries = range(name.first_entry_id, name.last_entry_id + 1)
    return all(
        each.ledger_id == name.ledger_id and each.stamp == term and each.verify(digest) for each in batches
    ) and all(index.place_of(each) is not None for each in entries)
