"""Moves the closed fragments of ledgers into an archive, and back to bookies.

Both ways the record changes last, by compare-and-set, once the copies are where it then says they are (F1, F5). Either may be
killed anywhere: doing it again goes on with what is left.
"""

from __future__ import annotations

import hashlib

import attrs
import trio

from replog.client.archive_reading import ArchivedObject
from replog.client.archives import Archives, OpenedArchive
from replog.client.ledgers import Ledgers, tell_deleted
from replog.client.scan import LedgerScan
from replog.errors import ReplogError
from replog.protocol.archived import covering, pack
from replog.protocol.archiving import LedgerArchiving, archivable
from replog.protocol.effects import Effect, Failed, PutObject, ReadEntries, ReadMetadata, WriteMetadata
from replog.protocol.filling import Filled, LedgerFilling
from replog.protocol.fragment_copies import all_fixed_fragments
from replog.repair.repairer import Repairer

_READ_BACK_BYTES = 32 << 20
# A copy that is older than this is not named any more: it is collected when it is twice as old.
NAMED_FOR_S = 12 * 3600.0
_TRIES_MAX = 4  # of one fragment whose record another client changes


@attrs.frozen
class MovedEntries:
    """The work of an archiving or a recall: `fragments`, of so many `ledgers`, with so many bytes of stored batches."""

    ledgers: int = 0
    fragments: int = 0
    size_bytes: int = 0

    def __add__(self, other: MovedEntries) -> MovedEntries:
        mine, theirs = attrs.astuple(self), attrs.astuple(other)
        return MovedEntries(*(a + b for a, b in zip(mine, theirs, strict=True)))


class Archiver:
    """Archives and recalls the ledgers of one client's cluster."""

    def __init__(self, ledgers: Ledgers, repairer: Repairer, archives: Archives) -> None:
        self._ledgers = ledgers
        self._repairer = repairer
        self._archives = archives

    # -- to the archive -----------------------------------------------------------------------------------------------

    async def archive(self, ledger_id: int, archive_id: str, password: bytes) -> MovedEntries:
        """Archives the closed fragments of a ledger, as far as they are not in an archive. Raises `ArchiveError`,
        `EntryUnreadableError`, `UnauthorizedError`, `LedgerNotFoundError`, `MetastoreError`: fragments before that are
        archived."""
        archive = await self._archives.opened(archive_id)
        await archive.check()
        metadata, _ = await self._ledgers.records.get(ledger_id)
        self._ledgers.authorize(metadata, password)
        moved = MovedEntries()
        for fragment in archivable(metadata):
            moved += await self._archive(ledger_id, fragment.first_entry_id, archive, password)
        if moved.fragments:
            await tell_deleted(metadata, self._ledgers.context.connections, self._ledgers.options)
        return attrs.evolve(moved, ledgers=min(1, moved.fragments))

    async def _archive(
        self, ledger_id: int, first_entry_id: int, archive: OpenedArchive, password: bytes
    ) -> MovedEntries:
        for _ in range(_TRIES_MAX):
            metadata, version = await self._ledgers.records.get_head(ledger_id, at=first_entry_id)
            found = [each for each in archivable(metadata) if each.first_entry_id == first_entry_id]
            if not found:
                return MovedEntries()  # another client archived or trimmed it
            entropy = self._ledgers.entropy
            copy, archive_id = entropy.token(), archive.record.archive_id
            machine = LedgerArchiving(metadata, version, entropy.token(), found[0], archive_id, copy)
            scan = self._ledgers.scan(metadata, first_entry_id, password)
            scan.want_only(first_entry_id, found[0].last_entry_id)
            await self._run(machine, scan, archive, copy)
            if not machine.is_overtaken:
                return MovedEntries(0, 1, machine.archived_bytes)
        return MovedEntries()

    async def _run(self, machine: LedgerArchiving, scan: LedgerScan, archive: OpenedArchive, copy: str) -> None:
        """Performs the machine's effects. Raises what it failed with."""
        failure: ReplogError | None = None
        machine.start()
        async with trio.open_nursery() as nursery:

            def perform_next() -> None:
                nonlocal failure
                for effect in machine.take_effects():
                    if isinstance(effect, Failed):
                        failure = effect.error
                    else:
                        nursery.start_soon(perform, effect)

            async def perform(effect: Effect) -> None:
                try:
                    await self._perform(effect, machine, scan, archive, copy)
                except ReplogError as error:
                    machine.abandon(error)
                if machine.is_done:
                    nursery.cancel_scope.cancel()
                perform_next()

            perform_next()
        if failure is not None:
            raise failure

    async def _perform(
        self, effect: Effect, machine: LedgerArchiving, scan: LedgerScan, archive: OpenedArchive, copy: str
    ) -> None:
        if isinstance(effect, ReadEntries):
            batch = await scan.take()
            assert batch is not None, "all of it is confirmed"
            if batch.last_entry_id > effect.last_entry_id:
                batch = batch.through(effect.last_entry_id)
            machine.entries_read(batch.first_entry_id, batch.last_entry_id, batch.stored_batches)
        elif isinstance(effect, PutObject):
            entries = effect.first_entry_id, effect.last_entry_id
            name, pieces = await archive.call(pack, machine.metadata.ledger_id, copy, *entries, effect.batches)
            await archive.call(archive.store.put, str(name), pieces)
            stored = ArchivedObject(archive, name, sum(map(len, pieces)))
            await read_back(stored)
            machine.object_stored()
        elif isinstance(effect, WriteMetadata | ReadMetadata):
            if isinstance(effect, WriteMetadata):
                await self._check_copy(archive, machine, copy)
            await self._ledgers.records.perform(effect, machine)

    async def _check_copy(self, archive: OpenedArchive, machine: LedgerArchiving, copy: str) -> None:
        """Raises `ArchiveError` if the store is another by now (B4): a directory may be mounted no more. And if an object of the
        copy that is to be named may be collected before, or was (F6)."""
        await archive.check()
        now_s = await archive.store_time_s(self._ledgers.entropy.token())
        ledger_id, fragment = machine.metadata.ledger_id, machine.fragment
        objects = await archive.copy(ledger_id, copy)
        first, last = fragment.first_entry_id, fragment.last_entry_id
        # This machine may have slept for days: others collect what is a day old.
        is_gone = covering([name for name, _ in objects], first, last) <= last
        if is_gone or now_s - min(each.modified_at_s for _, each in objects) > NAMED_FOR_S:
            slow = f"it took longer than {NAMED_FOR_S / 3600:g} hours: a faster way to the store is needed"
            why = "an object that it had stored is gone: find out who deletes there" if is_gone else slow
            entries = f"entries {first} to {last} of ledger {ledger_id}"
            raise archive.problem(f"{entries} were not archived, bookies keep them; {why}. Then archive them again")

    # -- back to bookies ----------------------------------------------------------------------------------------------

    async def recall(self, ledger_id: int, password: bytes) -> MovedEntries:
        """Stores the archived entries of a ledger on bookies, and has the record name these. Raises `ArchiveError` if one of its
        fragments cannot be filled: that stays archived; `UnauthorizedError`, `LedgerNotFoundError`, `MetastoreError`."""
        metadata, _ = await self._ledgers.records.get(ledger_id)
        self._ledgers.authorize(metadata, password)
        moved = MovedEntries()
        for fragment in all_fixed_fragments(metadata):
            if fragment.archive:
                moved += await self._recall(ledger_id, fragment.first_entry_id, password)
        return attrs.evolve(moved, ledgers=min(1, moved.fragments))

    async def _recall(self, ledger_id: int, first_entry_id: int, password: bytes) -> MovedEntries:
        copied_bytes, filled, archived = 0, Filled(), None
        for _ in range(_TRIES_MAX):
            metadata, version = await self._ledgers.records.get_head(ledger_id, at=first_entry_id)
            fixed = all_fixed_fragments(metadata)
            archived = next((each for each in fixed if each.first_entry_id == first_entry_id), None)
            # It was trimmed, or another client was faster.
            if archived is None or not archived.archive:
                return MovedEntries(0, min(1, copied_bytes), copied_bytes)
            bookies = await self._repairer.bookies()
            chosen = await self._repairer.relocation.without(metadata, archived, bookies, archived.ensemble)
            machine = LedgerFilling(
                metadata,
                version,
                self._ledgers.entropy.token(),
                archived.place,
                replacements=chosen,
                lost=bookies.lost,
                digest=metadata.digest(password),
            )
            filled = await self._repairer.filler.run(machine)
            copied_bytes += filled.copied_bytes
            if not (filled.is_overtaken or filled.lacking):
                return MovedEntries(0, 1, copied_bytes)
        assert archived is not None, "it was found archived each time"
        words = [*filled.refusals.values(), *filled.unread.values()]
        lacking = ", ".join(sorted({each.bookie_id for each in filled.lacking}))
        where = f"entries {archived.first_entry_id} to {archived.last_entry_id} of ledger {ledger_id}"
        problem = f"{where} stay archived, since not all copies are on bookies: {lacking or 'others change its record'}"
        archive = await self._archives.opened(archived.archive.partition("/")[0])
        raise archive.problem("; ".join([problem, *dict.fromkeys(words)]) + ". Recall them again")


async def read_back(read: ArchivedObject) -> None:
    """Reads all of an object, and compares it with the digest in its name. Raises `ArchiveError`."""
    digest = hashlib.sha256()
    for start in range(0, read.size_bytes, _READ_BACK_BYTES):
        piece = await read.read(start, min(_READ_BACK_BYTES, read.size_bytes - start))
        await read.archive.call(digest.update, piece)
    if digest.hexdigest() != read.name.digest:
        raise read.problem("it has other bytes than were written: put it back as it was")
