"""Orders that matter, broken one by one: what proves that the crashes of `exploring` would show it (B3, B6).

As in the simulator's table, a mutant is other text in a method, and one whose old text is not there is an error."""

from __future__ import annotations

from types import ModuleType
from typing import cast

from replog.backends.files import checkpoint, indexing, opening, storage
from replog.backends.files.background import Jobs
from replog.backends.files.checkpoint import Checkpointer
from replog.backends.files.compaction import Rewriter
from replog.backends.files.entry_log import EntryLogWriter
from replog.backends.files.journal import Journal
from replog.backends.files.journal_files import FilePool
from replog.backends.files.spares import Spares
from tests.simulator.mutation import Mutant, Patch


def _of(module: ModuleType, function: str, old: str, new: str) -> Patch:
    """A change of a function as this module sees it."""
    return Patch(cast(type, module), function, old, new)


_ATOMICALLY = "write_file_atomically"
_SYNC_CONTENT = "disk.fdatasync(fd)"
_SYNC_NAME = "    disk.sync_directory(directory)"

MUTANTS = (
    Mutant(
        "acknowledged-before-synced",
        "B1",
        "a commit returns before its sync",
        (Patch(Journal, "write", "self._disk.fdatasync(group[0].fd)", "pass"),),
        1,
    ),
    Mutant(
        "marked-before-synced",
        "B8",
        "the durable mark gets ahead of the journal: a power loss looks like a loss of what was acknowledged",
        (
            Patch(
                Journal,
                "write",
                "self._disk.fdatasync(group[0].fd)",
                "self.mark.advance(group[1]); self.mark.sync(); self._disk.fdatasync(group[0].fd)",
            ),
        ),
        2,
    ),
    Mutant(
        "retired-before-catalog",
        "B6",
        "files that nobody needs are removed before a catalog without them is durable",
        (
            Patch(
                Jobs,
                "write_catalog",
                "for file in self._checkpointer.run(self._rewriter.next_number):",
                "for file in self._checkpointer._dead():\n        self._pool.retire(file)\n"
                "    self._checkpointer.run(self._rewriter.next_number)\n    for file in ():",
            ),
        ),
        2,
    ),
    Mutant(
        "catalog-not-synced",
        "B3",
        "the catalog gets its name before its content is durable",
        (_of(checkpoint, _ATOMICALLY, _SYNC_CONTENT, "pass"),),
        2,
    ),
    Mutant(
        "catalog-name-not-synced",
        "B3",
        "files go while the catalog that left them out may still be forgotten",
        (_of(checkpoint, _ATOMICALLY, _SYNC_NAME, "    pass"),),
        2,
    ),
    Mutant(
        "index-not-synced",
        "B3",
        "a catalog has a file whose index is not durable",
        (_of(indexing, _ATOMICALLY, _SYNC_CONTENT, "pass"),),
        3,
    ),
    Mutant(
        "entry-log-not-synced",
        "B6",
        "reads are sent to a copy that is not durable, and the files it was made of go",
        (Patch(EntryLogWriter, "finish", "    self._sync()\n", ""),),
        2,
        scenario="elsewhere",
    ),
    Mutant(
        "entry-log-name-not-synced",
        "B6",
        "a catalog has an entry log whose name may still be forgotten",
        (Patch(EntryLogWriter, "finish", "    self._disk.sync_directory(self._directory)\n", ""),),
        2,
        scenario="elsewhere",
    ),
    Mutant(
        "mark-too-far",
        "B3",
        "the mark passes the file that is being written",
        (
            Patch(
                Checkpointer,
                "run",
                "self.first_journal = journal.current.number",
                "self.first_journal = journal.current.number + 1",
            ),
        ),
        2,
    ),
    Mutant(
        "mark-over-unflushed",
        "B3",
        "the mark passes files that were not flushed, and the catalog doesn't have them",
        (
            Patch(
                Checkpointer, "run", "(sealed[done].is_indexed or not sealed[done].sections)", "sealed[done].is_journal"
            ),
            Patch(
                Checkpointer, "run", "if file not in gone and not", "if file not in gone and file.is_indexed and not"
            ),
        ),
        2,
        scenario="elsewhere",
    ),
    Mutant(
        "sequence-too-high",
        "B3",
        "the catalog knows a group that was never durable",
        (Patch(Checkpointer, "run", "        journal.sequence,\n", "        journal.sequence + 1,\n"),),
        1,
    ),
    Mutant(
        "deletions-forgotten",
        "L5",
        "the catalog lacks the deleted ledgers",
        (Patch(Checkpointer, "run", "list(deleted)", "[]"),),
        2,
    ),
    Mutant(
        "marks-forgotten",
        "R3",
        "the catalog lacks the ledgers' marks",
        (Patch(Checkpointer, "run", "pack_catalog(catalog, packed_marks)", "pack_catalog(catalog)"),),
        2,
    ),
    Mutant(
        "entry-log-numbers-repeat",
        "B6",
        "a new entry log takes the name of one that is in use",
        (Patch(Rewriter, "_begin", "self.next_number += 1", "pass"),),
        2,
        scenario="elsewhere",
    ),
    Mutant(
        "not-settled",
        "B1",
        "what a killed process left in the page cache is served without being made durable",
        (_of(opening, "_settle", "disk.fdatasync(tail.fd)", "pass"),),
        2,
    ),
    Mutant(
        "journal-names-not-settled",
        "B1",
        "a start goes on in a file whose name a killed process left in the page cache",
        (_of(opening, "_settle_all", "disk.sync_directory(journal)", "pass"),),
        4,
        scenario="elsewhere",
    ),
    Mutant(
        "catalog-not-settled",
        "B3",
        "a start removes what a catalog that may still be forgotten doesn't have",
        (_of(storage, "open_directory", "disk.sync_directory(path)", "pass"),),
        4,
        scenario="elsewhere",
    ),
    Mutant(
        "journal-name-not-synced",
        "B1",
        "commits go to a file whose name may still be forgotten",
        (Patch(Spares, "make", "        disk.sync_directory(self.directory)\n", ""),),
        2,
    ),
    Mutant(
        "declared-before-made",
        "B4",
        "the directory is declared a storage before all of it is there",
        (
            _of(
                opening,
                "make_storage",
                "        if options.journal_dir:\n            write_making",
                "        write_format(disk, path, bookie_id, is_journal_elsewhere=bool(options.journal_dir))\n"
                "        if options.journal_dir:\n            write_making",
            ),
        ),
        2,
    ),
)

# What changes nothing that anybody could see, and why.
EQUIVALENT = (
    Mutant(
        "journal-header-not-synced",
        "B3",
        "The sync of the first group takes the header along; a file without a header and without a group is passed over.",
        (Patch(Spares, "make", "        disk.fdatasync(fd)\n", ""),),
        1,
    ),
    Mutant(
        "index-name-not-synced",
        "B3",
        "The index of a catalog's file may lose its name: it is made anew from the file.",
        (_of(indexing, _ATOMICALLY, _SYNC_NAME, "    pass"),),
        1,
    ),
    Mutant(
        "recycled-name-not-synced",
        "B3",
        "A file that no catalog has may get its old name back: replay begins behind it. Its next life begins with a sync of"
        " the same directory.",
        (Patch(FilePool, "_recycle", 'self._disk.sync_directory(file.path.rpartition("/")[0])', "pass"),),
        1,
    ),
)
