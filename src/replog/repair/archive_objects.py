"""Audits of archives, and the collection of objects that no record names.

Rules, as for bookies (B6, B6a): objects are listed first, then records are read. Only objects of copies that a record, read
after the listing, does not name are deleted, or of ledgers that do not exist; never on an error, on the word of a metastore that
went back, or in an archive whose cookie is not right. An object that is younger than a day, by the store's clock, may be of an
archiving under way. Before older ones are deleted, the record is written as it is, so that no archiving under way names them.

A collection that nobody asked for (`DailyCollection`) also leaves a copy that has all entries of a fragment, unless the record
names another such copy, or the ledger does not exist: older metadata may have been put back, and then no bookie has them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import attrs

from replog.client.archive_reading import ArchivedObject
from replog.client.archives import Archives, OpenedArchive
from replog.client.ledgers import Ledgers
from replog.client.metastore_trust import check_metastore
from replog.errors import ArchiveError, LedgerNotFoundError
from replog.protocol.archived import LEDGERS_PREFIX, ObjectName, covering
from replog.protocol.fragment_copies import FixedFragment, all_fixed_fragments
from replog.protocol.model import LedgerMetadata
from replog.repair.archiver import NAMED_FOR_S, read_back

GRACE_S = 2 * NAMED_FOR_S
_COLLECTIONS_PREFIX = "collections/"  # of objects that say on which day somebody collected
_DAY_MS = 86_400_000


@attrs.frozen
class ArchiveProblem:
    """Archived entries that cannot be read, or not all of them; `problem` names the archive and the object."""

    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    problem: str


@attrs.frozen
class ArchiveReport:
    """An audit of archives: `fragments` of `ledgers`, in so many `objects` that have `size_bytes` together, and `problems`."""

    ledgers: int
    fragments: int
    objects: int
    size_bytes: int
    problems: tuple[ArchiveProblem, ...]


@attrs.frozen
class CollectedObjects:
    """The objects that a collection deleted, and the `young` ones that no record names either."""

    objects: int
    size_bytes: int
    young: int


async def audit_archives(ledgers: Ledgers, archives: Archives) -> ArchiveReport:
    """Reads all objects that records name, and compares them with their digests. Raises `MetastoreError`."""
    archived: list[tuple[LedgerMetadata, FixedFragment]] = []

    def look(metadata: LedgerMetadata) -> None:
        archived.extend((metadata, each) for each in all_fixed_fragments(metadata) if each.archive)

    await ledgers.records.each(look)
    archived.sort(key=lambda each: (each[0].ledger_id, each[1].first_entry_id))
    objects = size_bytes = 0
    problems: list[ArchiveProblem] = []
    for metadata, fragment in archived:
        sizes, found = await _audited(metadata.ledger_id, fragment, archives)
        objects += len(sizes)
        size_bytes += sum(sizes)
        if found and await _is_still_named(metadata.ledger_id, fragment, ledgers):
            problems += found
    named = {metadata.ledger_id for metadata, _ in archived}
    return ArchiveReport(len(named), len(archived), objects, size_bytes, tuple(problems))


async def _audited(
    ledger_id: int, fragment: FixedFragment, archives: Archives
) -> tuple[list[int], list[ArchiveProblem]]:
    """The sizes of the objects of a fragment, and what is wrong with them."""
    first, last = fragment.first_entry_id, fragment.last_entry_id
    archive_id, _, copy = fragment.archive.partition("/")
    try:
        archive = await archives.opened(archive_id)
        objects = await archive.copy(ledger_id, copy)
        if not objects:
            await archive.check()
    except ArchiveError as error:
        return [], [ArchiveProblem(ledger_id, first, last, str(error))]
    sizes: list[int] = []
    problems = []
    for name, each in objects:
        try:
            await read_back(ArchivedObject(archive, name, each.size_bytes))
            sizes.append(each.size_bytes)
        except ArchiveError as error:
            problems.append(ArchiveProblem(ledger_id, name.first_entry_id, name.last_entry_id, str(error)))
    for lacking in _lacking([name for name, _ in objects], first, last):
        problem = archive.problem(f"no object of copy {fragment.archive} has them: put it back")
        problems.append(ArchiveProblem(ledger_id, *lacking, str(problem)))
    return sizes, sorted(problems, key=lambda each: each.first_entry_id)


def _lacking(names: Sequence[ObjectName], first: int, last: int) -> list[tuple[int, int]]:
    """The ranges of these entries that no object has."""
    found = []
    while (lacking := covering(names, first, last)) <= last:
        behind = [each.first_entry_id for each in names if each.first_entry_id > lacking]
        end = min([last, *(each - 1 for each in behind)])
        found.append((lacking, end))
        first = end + 1
    return found


async def _is_still_named(ledger_id: int, fragment: FixedFragment, ledgers: Ledgers) -> bool:
    """Whether the record still names the copy: a recall or a deletion may have come between."""
    try:
        metadata, _ = await ledgers.records.get_head(ledger_id, at=fragment.first_entry_id)
    except LedgerNotFoundError:
        return False
    return any(each.archive == fragment.archive for each in metadata.fragments)


async def collect_objects(ledgers: Ledgers, archives: Archives, grace_s: float = GRACE_S) -> CollectedObjects:
    """Deletes the objects of all archives that no record names, and that are older than this. Raises `ArchiveError`,
    `MetastoreDoubtedError`, `MetastoreError`: what was deleted by then stays deleted."""
    total = CollectedObjects(0, 0, 0)
    for record in await archives.list():
        archive = await archives.opened(record.archive_id)
        found = await _Collection(archive, ledgers, leaves_last=False).collect(grace_s)
        total = CollectedObjects(
            total.objects + found.objects, total.size_bytes + found.size_bytes, total.young + found.young
        )
    return total


class DailyCollection:
    """Collects the garbage of an archive once a day, by one of the clients that ask for it: the one that creates the object of
    the day. If that client is killed, or fails, the next day's does it."""

    def __init__(self, ledgers: Ledgers, archives: Archives, archive_id: str) -> None:
        self._ledgers = ledgers
        self._archives = archives
        self._archive_id = archive_id
        self._day = -1

    async def collect(self) -> CollectedObjects | None:
        """Collects; None if that was done today, by this client's clock. Raises as `collect_objects`."""
        day = self._ledgers.entropy.time_ms() // _DAY_MS
        if day == self._day:
            return None
        archive = await self._archives.opened(self._archive_id)
        name = f"{_COLLECTIONS_PREFIX}{day}"
        is_ours = await archive.call(archive.store.put, name, [b"Garbage was collected on this day.\n"])
        self._day = day
        if not is_ours:
            return None
        earlier = [each.name async for page in archive.pages(_COLLECTIONS_PREFIX) for each in page if each.name != name]
        await archive.call(archive.store.delete, earlier)
        return await _Collection(archive, self._ledgers, leaves_last=True).collect(GRACE_S)


@attrs.define
class _Copy:
    """The objects of a copy in a listing."""

    names: list[ObjectName] = attrs.field(factory=list)
    size_bytes: int = 0
    youngest_s: float = 0.0

    def has(self, fragment: FixedFragment) -> bool:
        return covering(self.names, fragment.first_entry_id, fragment.last_entry_id) > fragment.last_entry_id


class _Collection:
    """One collection of an archive. With `leaves_last` it leaves the last copy that has all of a fragment."""

    def __init__(self, archive: OpenedArchive, ledgers: Ledgers, *, leaves_last: bool) -> None:
        self._archive = archive
        self._ledgers = ledgers
        self._leaves_last = leaves_last
        self._copies: defaultdict[tuple[int, str], _Copy] = defaultdict(_Copy)

    async def collect(self, grace_s: float) -> CollectedObjects:
        archive, ledgers = self._archive, self._ledgers
        before_s = await archive.store_time_s(ledgers.entropy.token()) - grace_s
        async for page in archive.pages(LEDGERS_PREFIX):
            for each in page:
                name = ObjectName.parse(each.name)
                if name is not None:
                    found = self._copies[name.ledger_id, name.copy]
                    found.names.append(name)
                    found.size_bytes += each.size_bytes
                    found.youngest_s = max(found.youngest_s, each.modified_at_s)
        collected = CollectedObjects(0, 0, 0)
        for (ledger_id, copy), found in sorted(self._copies.items()):
            if await self._stays(ledger_id, copy):
                continue
            if found.youngest_s > before_s:
                collected = attrs.evolve(collected, young=collected.young + len(found.names))
                continue
            await check_metastore(ledgers.records, ledgers.context.membership)
            # Read once more: a metastore that was found right says it now.
            if await self._is_let_go(ledger_id, copy):
                await archive.call(archive.store.delete, [str(each) for each in found.names])
                objects, size_bytes = collected.objects + len(found.names), collected.size_bytes + found.size_bytes
                collected = attrs.evolve(collected, objects=objects, size_bytes=size_bytes)
        return collected

    async def _is_let_go(self, ledger_id: int, copy: str) -> bool:
        """Whether the record does not name this copy, and never will: it is written as it is. So an archiver that has read it
        before finds another version when it names the copy, however long its machine slept meanwhile (M1)."""
        records = self._ledgers.records

        async def as_it_is(metadata: LedgerMetadata) -> LedgerMetadata | None:
            return None if self._stays_in(metadata, copy) else metadata

        try:
            what = f"writing ledger {ledger_id} as it is"
            metadata = await records.edit(what, lambda: records.get(ledger_id), as_it_is, records.put)
        except LedgerNotFoundError:
            return True
        return not self._stays_in(metadata, copy)

    async def _stays(self, ledger_id: int, copy: str) -> bool:
        """Whether the record names this copy, or may have named it before it was put back."""
        try:
            metadata, _ = await self._ledgers.records.get(ledger_id)
        except LedgerNotFoundError:
            return False
        return self._stays_in(metadata, copy)

    def _stays_in(self, metadata: LedgerMetadata, copy: str) -> bool:
        if any(each.archive == self._name(copy) for each in metadata.fragments):
            return True
        return self._leaves_last and self._is_last(metadata, copy)

    def _is_last(self, metadata: LedgerMetadata, copy: str) -> bool:
        """Whether the copy has all of a fragment of which no other copy is named and here; True in doubt."""
        found = self._copies[metadata.ledger_id, copy]
        first = min(each.first_entry_id for each in found.names)
        fragment = next((each for each in all_fixed_fragments(metadata) if each.first_entry_id == first), None)
        if fragment is None:
            return True
        archive_id, _, other = fragment.archive.partition("/")
        is_here = archive_id == self._archive.record.archive_id
        named = self._copies.get((metadata.ledger_id, other)) if is_here else None
        return found.has(fragment) and (named is None or not named.has(fragment))

    def _name(self, copy: str) -> str:
        return f"{self._archive.record.archive_id}/{copy}"
