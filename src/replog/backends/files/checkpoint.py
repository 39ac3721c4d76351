"""Advances the mark: entries indexed or flushed durably need not be replayed, and unneeded files can go (B3, seed 002)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from replog.backends.disk import write_file_atomically
from replog.backends.dropped import DroppedRange
from replog.backends.files.background_pace import Pace
from replog.backends.files.catalog import NAME as CATALOG
from replog.backends.files.catalog import Catalog, CatalogFile, pack_catalog
from replog.backends.files.directory import RESERVE_FILE
from replog.backends.files.index import LedgerIndex
from replog.backends.files.indexing import write_index
from replog.backends.files.journal import Journal
from replog.backends.files.log_file import JournalFile, LogFile
from replog.backends.files.open_parts import Contents
from replog.runtime.disk_errors import is_full

_RESERVE_BYTES_MIN = 64 << 10
_AT_ONCE = 100  # ledgers or sections: for so many the lock is held, a few tenths of a millisecond
_CATALOG_SHARE = 4  # a catalog is written when so many times its size can be indexed or removed


class Checkpointer:
    """Writes indexes and catalogs. Callers hold `contents.working`, and not the lock.

    `first_journal` and `sequence` are the mark: replay begins with that file, after that group."""

    def __init__(self, contents: Contents, journal: Journal, catalog: Catalog, unread: Sequence[CatalogFile]) -> None:
        self._contents = contents
        # Files that were missing or damaged at the start. They stay in the catalog: a disk that is mounted late, or an
        # operator, may bring them back.
        self._unread = list(unread)
        self._journal = journal
        self._pace = Pace(0, contents.closing, lambda: journal.sequence)
        self.first_journal = catalog.first_journal
        self.sequence = catalog.sequence
        self._generation = catalog.generation
        self._catalog_bytes = 0
        self.catalogs = 0
        self.removed_files = 0

    def is_worthwhile(self) -> bool:
        """True if enough can be indexed or removed. Called with the lock."""
        gain_bytes = self.gain_bytes()
        return gain_bytes > 0 and gain_bytes >= _CATALOG_SHARE * self._catalog_bytes

    def gain_bytes(self) -> int:
        """How much can be indexed or removed. Called with the lock."""
        return sum(file.position for file in self._journal.sealed) + sum(file.position for file in self._dead())

    def _dead(self) -> list[LogFile]:
        """The full files before the mark of which no batch is needed."""
        contents = self._contents
        journals = [file for file in contents.journals.values() if file.number < self.first_journal]
        return [file for file in [*journals, *contents.entry_logs.values()] if not file.sections]

    def run(self, next_entry_log: int) -> list[LogFile]:
        """Indexes full journal files unless they will be flushed, advances the mark over files that are indexed or empty,
        and writes a catalog. Returns the files that the catalog has no more: the caller retires them.

        May raise OSError; then the disk has the old catalog or the new one, and both are right."""
        contents, journal = self._contents, self._journal
        with contents.changed:
            sealed = list(journal.sealed)
        refusal = self._index_all(sealed)
        mark_before = self.first_journal, self.sequence
        with contents.changed:
            done = 0
            while done < len(sealed) and (sealed[done].is_indexed or not sealed[done].sections):
                if sealed[done].number >= self.first_journal:
                    self.first_journal = sealed[done].number + 1
                    self.sequence = sealed[done].last_sequence or self.sequence
                done += 1
            if done == len(journal.sealed):
                # After a loss, groups and files before the current one may be missing: the mark passes over them.
                # `journal.sequence` is read first, because a commit under way sets `first_sequence` first.
                before = journal.sequence
                self.first_journal = journal.current.number
                self.sequence = (journal.current.first_sequence or before + 1) - 1
            # What lies before the mark may be recycled already: replay can't go back there.
            assert (self.first_journal, self.sequence) >= mark_before, "the mark only advances"
            dead = self._dead()
            assert journal.current not in dead, "the file that is written is always needed"
            # A catalog would say nothing new, and take space that the disk does not have.
            if refusal is not None and not done and not dead:
                raise refusal
            gone = set(dead)
            files = self._unread + [
                CatalogFile(file.is_journal, file.number, file.age, file.position)
                for file in contents.files()
                if file not in gone and not (file.is_journal and file.number >= self.first_journal)
            ]
            deleted = contents.index.deleted.copy()
            # Two lists, not one of pairs: 100,000 new objects at once would make the garbage collector look at all there are.
            ledger_ids, ledgers = list(contents.index.ledgers), list(contents.index.ledgers.values())
        packed_marks, dropped = self._pack_marks(ledger_ids, ledgers)
        catalog = Catalog(
            contents.identity,
            self._generation + 1,
            self.first_journal,
            self.sequence,
            journal.sequence,
            next_entry_log,
            sorted(files, key=lambda file: (file.age, file.number)),
            list(deleted),
            (),
            dropped,
        )
        # A start reads these again, in `opening`: replay must be able to get as far as the catalog says.
        assert catalog.sequence <= catalog.durable_sequence, "the mark is ahead of what is durable"
        assert catalog.first_journal <= journal.current.number, "the mark has passed the file that is written"
        self._write(pack_catalog(catalog, packed_marks))
        # Only now that the catalog is durable may the files go that it does not have (B6).
        self._generation += 1
        journal.mark.catalog_generation = self._generation
        with contents.changed:
            del journal.sealed[:done]
            for each in dead:
                # Since they were chosen the catalog was written, without the lock.
                assert not each.sections, "a file that the catalog left out got batches"
                contents.remove(each)
            contents.changed.notify_all()
        self.removed_files += len(dead)
        return dead

    def _pack_marks(
        self, ledger_ids: list[int], ledgers: list[LedgerIndex]
    ) -> tuple[list[bytes], list[tuple[int, DroppedRange]]]:
        """The marks of all ledgers, of which only those that changed are packed again; and the ranges dropped of them.

        Marks that were set after the catalog's position do no harm: marks only rise, and all in the index is durable.
        Entries that were dropped, or stored again, after that position are replayed in their order."""
        packed: list[bytes] = []
        dropped: list[tuple[int, DroppedRange]] = []
        for start in range(0, len(ledgers), _AT_ONCE):
            self._pace.rest()
            with self._contents.changed:
                some = slice(start, start + _AT_ONCE)
                for ledger_id, ledger in zip(ledger_ids[some], ledgers[some], strict=True):
                    packed.append(ledger.pack(ledger_id))
                    if ledger.dropped is not None:
                        dropped += [(ledger_id, entries) for entries in ledger.dropped]
        return packed, dropped

    def _index_all(self, sealed: list[JournalFile]) -> OSError | None:
        """Indexes these files as far as there is space; returns why not all of them. May raise another OSError."""
        for file in sealed:
            # A damaged file can't be flushed to an entry log: it is indexed, and stays in the journal's directory.
            if not self._contents.options.journal_dir or file.is_damaged:
                try:
                    self._index(file)
                except OSError as error:
                    if not is_full(error):
                        raise
                    return error
        return None

    def _index(self, file: JournalFile) -> None:
        assert file is not self._journal.current, "an index is written once, when nothing more can follow in its file"
        contents = self._contents
        with contents.changed:
            sections = [] if file.is_indexed else list(file.sections)
        if not sections:
            return
        self._with_reserve(lambda: write_index(contents.disk, file, contents.identity, sections, self._pace.rest))
        with contents.changed:
            file.is_indexed = True
        for start in range(0, len(sections), _AT_ONCE):
            self._pace.rest()
            with contents.changed:
                for section in sections[start : start + _AT_ONCE]:
                    page = section.page
                    if page is not None and section in file.sections:
                        contents.cache.admit(section, page)

    def _write(self, packed: bytes) -> None:
        contents = self._contents
        self._with_reserve(lambda: write_file_atomically(contents.disk, contents.path, CATALOG, (packed,)))
        self._catalog_bytes = len(packed)
        self.catalogs += 1

    def _with_reserve(self, write: Callable[[], None]) -> None:
        """Writes; on a full disk, with the space that was kept for this: indexes and catalogs are what frees space."""
        try:
            write()
        except OSError as error:
            if not is_full(error):
                raise
            with suppress(FileNotFoundError):
                self._contents.disk.unlink(f"{self._contents.path}/{RESERVE_FILE}")
            write()

    def keep_reserve(self) -> None:
        """Keeps space for the next catalog, if there is any. May raise OSError, but not for lack of space."""
        contents = self._contents
        disk, path = contents.disk, f"{contents.path}/{RESERVE_FILE}"
        wanted = max(_RESERVE_BYTES_MIN, 2 * self._catalog_bytes)
        try:
            try:
                fd = disk.open(path)
            except FileNotFoundError:
                fd = disk.open(path, create=True)
            try:
                size = disk.size(fd)
                if size < wanted:
                    disk.allocate(fd, size, wanted - size)
            finally:
                disk.close(fd)
        except OSError as error:
            if not is_full(error):
                raise
