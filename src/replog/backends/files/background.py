"""The jobs of maintenance: checkpoints, flushes, compaction, scrubbing and the repair of indexes, one at a time (B3, B6)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from replog.backends.files.background_pace import Closing, Pace
from replog.backends.files.checkpoint import Checkpointer
from replog.backends.files.compaction import Rewriter, worth_compacting
from replog.backends.files.fetching import DamagedBatch
from replog.backends.files.index_repair import repair_index
from replog.backends.files.journal import Journal
from replog.backends.files.journal_files import FilePool
from replog.backends.files.log_file import LogFile
from replog.backends.files.open_parts import Contents
from replog.backends.files.scrubbing import Scrubber
from replog.errors import StorageDamagedError, StorageFailedError, StorageUncertainError
from replog.runtime.disk_errors import is_full

# Of compaction and scrubbing. They can wait, and appends can't: with as much rest as work, those of half the maximal rate were
# late by a second.
_RESTS = 8.0


class Jobs:
    """Each job may raise OSError and `Closing`; then what it leaves is what a crash might leave. Any thread may do one.

    `between` is called from time to time while scrubbing, which takes long."""

    def __init__(
        self,
        contents: Contents,
        journal: Journal,
        pool: FilePool,
        checkpointer: Checkpointer,
        next_entry_log: int,
        between: Callable[[], None],
    ) -> None:
        self._contents = contents
        self._journal = journal
        self._pool = pool
        self._checkpointer = checkpointer
        self._rewriter = Rewriter(contents, next_entry_log, self._checkpoint_between)
        self._scrubber = Scrubber(contents, between)
        self._is_between = self._is_flushing = False
        self._minor_compactions = self._major_compactions = 0
        self._last_compaction_s = 0.0

    def backlog_bytes(self) -> int:
        """The bytes of full journal files that are neither indexed nor flushed."""
        return sum(file.position for file in self._journal.sealed if not file.is_indexed)

    def is_checkpoint_due_now(self) -> bool:
        """The same as `is_checkpoint_due`, for a caller that holds the lock."""
        with self._contents.changed:
            return self.is_checkpoint_due()

    def is_checkpoint_due(self) -> bool:
        """True if enough can be flushed, indexed or removed. Called with the lock."""
        if self._contents.options.journal_dir and self.backlog_bytes() >= self._contents.options.flush_bytes:
            return True
        return self._checkpointer.is_worthwhile()

    @contextmanager
    def _working(self) -> Iterator[None]:
        """One at a time. Raises `Closing` if the storage was closed while this waited: its files may belong to another
        process now."""
        with self._contents.working:
            if self._contents.closing.is_set():
                raise Closing
            yield

    def checkpoint(self) -> None:
        """Flushes and indexes the files that are due, and writes a catalog."""
        with self._working():
            self._flush_and_write_catalog(is_forced=False)

    def adopt(self) -> None:
        """Indexes or flushes all that replay found, and writes a catalog."""
        with self._working():
            self._flush_and_write_catalog(is_forced=True)

    def write_catalog(self) -> None:
        """Writes a catalog, and retires the files that it does not have."""
        for file in self._checkpointer.run(self._rewriter.next_number):
            self._pool.retire(file)
        self._checkpointer.keep_reserve()

    def _flush_and_write_catalog(self, *, is_forced: bool) -> None:
        try:
            self._flush(is_forced=is_forced)
        except OSError as error:
            if not is_full(error):
                raise
            # A catalog lets unneeded files go, which may free the space that the flush needs.
            self.write_catalog()
            self._flush(is_forced=is_forced)
        self.write_catalog()

    def _flush(self, *, is_forced: bool) -> None:
        """Moves what full journal files have to entry logs, if the journal is elsewhere and enough is there."""
        options = self._contents.options
        if not options.journal_dir or self._is_flushing:
            return
        if self.backlog_bytes() < options.flush_bytes and not is_forced:
            return
        with self._contents.changed:
            files = [file for file in self._journal.sealed if not file.is_indexed and not file.is_damaged]
        self._is_flushing = True
        try:
            self._rewrite(list(files), self._pace())
        finally:
            self._is_flushing = False

    def _pace(self, bytes_per_s: int = 0, rests: float = 0.0) -> Pace:
        return Pace(bytes_per_s, self._contents.closing, lambda: self._journal.sequence, rests)

    def _rewrite(self, files: list[LogFile], pace: Pace) -> None:
        """Rewrites these files but for damaged ones: they stay as they are."""
        contents = self._contents
        repaired: set[LogFile] = set()
        while files:
            try:
                self._rewriter.rewrite(files, pace)
                return
            except DamagedBatch:
                pass
            except StorageUncertainError:
                # An index or a file can't be read. Indexes are written again, and the others are copied without it.
                with contents.changed:
                    unreadable = set(contents.damages.unreadable_indexes)
                for file in unreadable & repaired:  # written again, and unreadable again
                    file.is_damaged = True
                if not unreadable and not any(file.is_damaged for file in files):
                    # Too many files are open: the next run tries again.
                    return
                repaired |= unreadable
                self._repair_now()
            files = [file for file in files if not file.is_damaged]

    def _checkpoint_between(self) -> None:
        """While files are rewritten, in the thread that does it and holds `working`."""
        # `_flush_and_write_catalog` may rewrite files, which calls this again.
        if self._is_between or not self.is_checkpoint_due_now():
            return
        self._is_between = True
        try:
            self._flush_and_write_catalog(is_forced=False)
        finally:
            self._is_between = False

    def compact(self, *, is_major: bool) -> None:
        """Rewrites the files of which little is needed; the major one also those in which ledgers alternate."""
        contents = self._contents
        began_s = time.monotonic()
        with self._working():
            with contents.changed:
                is_catalog_due = self._checkpointer.gain_bytes() > 0
            if is_catalog_due:
                self._flush_and_write_catalog(is_forced=True)
            groups = worth_compacting(contents, is_major=is_major)
            pace = self._pace(contents.options.compaction_bytes_per_s, _RESTS)
            for group in groups:
                self._rewrite(group, pace)
                self.write_catalog()
        self._last_compaction_s = time.monotonic() - began_s
        if is_major:
            self._major_compactions += 1
        else:
            self._minor_compactions += 1

    def scrub(self) -> None:
        """Reads and checks everything, and repairs the indexes that are unreadable."""
        self._scrubber.run(self._pace(self._contents.options.scrub_bytes_per_s, _RESTS))
        self.repair()

    def repair(self) -> None:
        """Writes unreadable indexes again."""
        with self._working():
            self._repair_now()

    def _repair_now(self) -> None:
        contents = self._contents
        pace = self._pace()
        while contents.damages.unreadable_indexes:
            with contents.changed:
                file = contents.damages.unreadable_indexes.pop()
            try:
                repair_index(contents, file, pace.rest)
            except (StorageDamagedError, StorageFailedError) as error:
                file.is_damaged = True  # the batches of its unreadable pages stay unknown
                contents.damages.note_unreadable(file, error)

    def statistics(self) -> dict[str, float]:
        """Counters since the start."""
        return {
            "catalogs_written": self._checkpointer.catalogs,
            "removed_files": self._checkpointer.removed_files,
            "minor_compactions": self._minor_compactions,
            "major_compactions": self._major_compactions,
            "last_compaction_s": self._last_compaction_s,
            "page_cache_dropped_bytes": self._contents.page_cache.dropped_bytes,
            "copied_bytes": self._rewriter.copied_bytes,
            "copied_batches": self._rewriter.copied_batches,
            "scrubs": self._scrubber.scrubs,
            "scrubbed_bytes": self._scrubber.scrubbed_bytes,
        }
