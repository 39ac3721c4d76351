"""The background work of a storage: checkpoints, flushes, compaction and scrubbing, in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from replog.backends.disk import is_full, named_error
from replog.backends.files.checkpoint import Checkpointer
from replog.backends.files.compaction import Rewriter, worth_compacting
from replog.backends.files.contents import Contents
from replog.backends.files.fetching import DamagedBatch
from replog.backends.files.journal import Journal
from replog.backends.files.log_file import LogFile
from replog.backends.files.pacing import Closing
from replog.backends.files.pool import FilePool
from replog.backends.files.repair import repair_index
from replog.backends.files.scrubbing import Scrubber
from replog.errors import StorageDamagedError, StorageError, StorageFailedError, StorageFullError, StorageUncertainError

_JOIN_TIMEOUT_S = 60.0
_TRY_AGAIN_S = 5.0  # after the disk was full
_FLUSH_BACKLOG = 4
_FLUSH_TIMEOUT_S = 120.0


class Maintenance:
    """Owns the thread, which `close` joins. Without a thread, `commit_done` does the work that is due, in the caller."""

    def __init__(
        self, contents: Contents, journal: Journal, pool: FilePool, checkpointer: Checkpointer, next_entry_log: int
    ) -> None:
        self._contents = contents
        self._journal = journal
        self._pool = pool
        self._checkpointer = checkpointer
        self._rewriter = Rewriter(contents, next_entry_log, self._checkpoint_between)
        self._scrubber = Scrubber(contents, self._look_around)
        self._is_between = self._is_flushing = False
        self._thread: threading.Thread | None = None
        self._is_wanted = False  # a checkpoint
        self._full_until_s = 0.0  # the disk had no space: not before then again
        now = time.monotonic()
        options = contents.options
        self._due_s: dict[Callable[[], None], float] = {}
        if options.minor_compaction_threshold and options.minor_compaction_interval_s:
            self._due_s[self._compact_minor] = now + options.minor_compaction_interval_s
        if options.major_compaction_threshold and options.major_compaction_interval_s:
            self._due_s[self._compact_major] = now + options.major_compaction_interval_s
        if options.scrub_interval_s:
            self._due_s[self._scrub] = now + options.scrub_interval_s
        self.failure: StorageError | None = None
        self.minor_compactions = self.major_compactions = 0
        self.last_compaction_s = 0.0

    # -- for the storage ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Runs the thread."""
        self._thread = threading.Thread(target=self._run, name="replog-storage-maintenance", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread and its current work. The next opening does the work that is left."""
        self._contents.closing.set()
        with self._contents.changed:
            self._contents.changed.notify_all()
        if self._thread is not None:
            self._thread.join(_JOIN_TIMEOUT_S)

    def commit_done(self) -> None:
        """Looks for work after a commit that filled a journal file or deleted a ledger: indexing, flushing, removing."""
        with self._contents.changed:
            self._is_wanted = True
            self._contents.changed.notify_all()
        if self._thread is None and self.failure is None and self._is_checkpoint_due_now():
            self._attempt(self._checkpoint)
        self._pool.look()

    def wait_for_flush(self) -> None:
        """With a journal elsewhere: waits while it is too far ahead of the entry logs.

        Raises `StorageFullError`, `StorageFailedError`."""
        contents = self._contents
        limit_bytes = _FLUSH_BACKLOG * contents.options.flush_bytes
        if self._backlog_bytes() <= limit_bytes or self._thread is None:
            return
        deadline_s = time.monotonic() + _FLUSH_TIMEOUT_S
        with contents.changed:
            while self._backlog_bytes() > limit_bytes and self.failure is None and not contents.closing.is_set():
                if self._full_until_s > time.monotonic():
                    raise StorageFullError(
                        f"no space left in {contents.path} to flush the journal",
                        "Delete ledgers, or make room on the disk",
                    )
                if not contents.changed.wait(deadline_s - time.monotonic()):
                    raise StorageFailedError(
                        f"the journal in {contents.options.journal_dir} was not flushed to {contents.path} within "
                        f"{_FLUSH_TIMEOUT_S:.0f} s",
                        "Look at the disk, then restart the bookie",
                    )

    def _backlog_bytes(self) -> int:
        return sum(file.position for file in self._journal.sealed if not file.is_indexed)

    # -- forced runs ----------------------------------------------------------------------------------------------

    def compact(self, *, is_major: bool) -> None:
        """As `Storage.compact`."""
        self._named(lambda: self._compact(is_major=is_major))

    def scrub(self) -> None:
        """As `Storage.scrub`."""
        self._named(self._scrub)

    def adopt(self) -> None:
        """Indexes or flushes all that replay found after a loss, and writes a catalog, so that no later start passes over the
        same damage. If the disk is full, a later checkpoint does it. Raises `StorageFailedError`."""
        with suppress(StorageFullError):
            self._named(self._adopt)

    def _adopt(self) -> None:
        with self._working():
            self._flush_and_write_catalog(is_forced=True)

    def say_goodbye(self) -> None:
        """Writes a last catalog, which knows the last group: the next start then knows damage there from a torn tail."""
        with suppress(OSError):  # all that was committed is durable without it
            self._write_catalog()

    def _named(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Closing:
            return
        except OSError as error:
            raise self._fail(error) from error

    def _fail(self, error: OSError) -> StorageError:
        named = named_error(f"look after the files in {self._contents.path}", error)
        if isinstance(named, StorageFailedError):
            with self._contents.changed:
                self.failure = named
                self._contents.changed.notify_all()
        return named

    # -- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self.failure is None and (job := self._wait_for_job()) is not None:
            self._attempt(job)

    def _attempt(self, job: Callable[[], None]) -> None:
        """Does a job. An error stops the storage (B1), unless the disk was full: then the job is tried again later."""
        try:
            job()
        except Closing:
            return
        except OSError as error:
            if isinstance(self._fail(error), StorageFullError):
                with self._contents.changed:
                    self._is_wanted = True
                    self._full_until_s = time.monotonic() + _TRY_AGAIN_S
                    self._contents.changed.notify_all()
        except Exception as error:
            # A thread that dies without a word would let the journal grow until the disk is full.
            with self._contents.changed:
                self.failure = StorageFailedError(
                    f"could not look after the files in {self._contents.path}: {error!r}",
                    "Restart the bookie, and report this",
                )
                self.failure.__cause__ = error
                self._contents.changed.notify_all()

    def _wait_for_job(self) -> Callable[[], None] | None:
        contents = self._contents
        with contents.changed:
            while not contents.closing.is_set():
                now_s = time.monotonic()
                if now_s >= self._full_until_s:
                    if contents.unreadable_indexes:
                        return self._repair
                    if self._is_wanted and self._is_checkpoint_due():
                        return self._checkpoint
                    self._is_wanted = False
                    for job, due_s in self._due_s.items():
                        if now_s >= due_s:
                            return job
                next_s = min([*self._due_s.values(), now_s + 3600.0])  # waits of years overflow
                contents.changed.wait(max(0.0, max(next_s, self._full_until_s) - now_s))
        return None

    # -- the work -------------------------------------------------------------------------------------------------

    def _is_checkpoint_due_now(self) -> bool:
        with self._contents.changed:
            return self._is_checkpoint_due()

    def _is_checkpoint_due(self) -> bool:
        """Called with the lock."""
        if self._contents.options.journal_dir and self._backlog_bytes() >= self._contents.options.flush_bytes:
            return True
        return self._checkpointer.is_worthwhile()

    @contextmanager
    def _working(self) -> Iterator[None]:
        """One at a time. Raises `Closing` if the storage was closed while this waited: its files may be somebody else's now."""
        with self._contents.working:
            if self._contents.closing.is_set():
                raise Closing
            yield

    def _checkpoint(self) -> None:
        self._is_wanted = False
        with self._working():
            self._flush_and_write_catalog(is_forced=False)

    def _write_catalog(self) -> None:
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
            self._write_catalog()
            self._flush(is_forced=is_forced)
        self._write_catalog()

    def _flush(self, *, is_forced: bool) -> None:
        """Moves what full journal files have to entry logs, if the journal is elsewhere and enough is there."""
        options = self._contents.options
        if not options.journal_dir or self._is_flushing:
            return
        if self._backlog_bytes() < options.flush_bytes and not is_forced:
            return
        with self._contents.changed:
            files = [file for file in self._journal.sealed if not file.is_indexed and not file.is_damaged]
        self._is_flushing = True
        try:
            self._rewrite(list(files), bytes_per_s=0)
        finally:
            self._is_flushing = False

    def _rewrite(self, files: list[LogFile], bytes_per_s: int) -> None:
        """Rewrites these files but for damaged ones: they stay as they are."""
        contents = self._contents
        repaired: set[LogFile] = set()
        while files:
            try:
                self._rewriter.rewrite(files, bytes_per_s)
                return
            except DamagedBatch:
                pass
            except StorageUncertainError:  # an index, or a file, can't be read
                with contents.changed:
                    unreadable = set(contents.unreadable_indexes)
                for file in unreadable & repaired:  # written again, and unreadable again
                    file.is_damaged = True
                if not unreadable and not any(file.is_damaged for file in files):
                    return  # too many files are open: another time
                repaired |= unreadable
                self._repair_now()
            files = [file for file in files if not file.is_damaged]

    def _checkpoint_between(self) -> None:
        """While files are rewritten, in the thread that does it and holds `working`."""
        if self._is_between or not self._is_checkpoint_due_now():
            return
        self._is_between = True
        try:
            self._flush_and_write_catalog(is_forced=False)
        finally:
            self._is_between = False

    def _look_around(self) -> None:
        """While scrubbing, which takes long: does what has become due."""
        if threading.current_thread() is self._thread and time.monotonic() >= self._full_until_s:
            if self._is_checkpoint_due_now():
                self._checkpoint()
            for job, due_s in self._due_s.items():
                if job != self._scrub and time.monotonic() >= due_s:
                    job()

    def _compact_minor(self) -> None:
        self._due_s[self._compact_minor] = time.monotonic() + self._contents.options.minor_compaction_interval_s
        self._compact(is_major=False)

    def _compact_major(self) -> None:
        self._due_s[self._compact_major] = time.monotonic() + self._contents.options.major_compaction_interval_s
        self._compact(is_major=True)

    def _compact(self, *, is_major: bool) -> None:
        contents = self._contents
        began_s = time.monotonic()
        with self._working():
            self._flush_and_write_catalog(is_forced=True)
            with contents.changed:
                groups = worth_compacting(contents, is_major=is_major)
            for group in groups:
                self._rewrite(group, contents.options.compaction_bytes_per_s)
                self._write_catalog()
        self.last_compaction_s = time.monotonic() - began_s
        if is_major:
            self.major_compactions += 1
        else:
            self.minor_compactions += 1

    def _scrub(self) -> None:
        if self._scrub in self._due_s:
            self._due_s[self._scrub] = time.monotonic() + self._contents.options.scrub_interval_s
        self._scrubber.run()
        self._repair()

    def _repair(self) -> None:
        with self._working():
            self._repair_now()

    def _repair_now(self) -> None:
        contents = self._contents
        while contents.unreadable_indexes:
            with contents.changed:
                file = contents.unreadable_indexes.pop()
            try:
                repair_index(contents, file)
            except StorageDamagedError as error:
                file.is_damaged = True  # the batches of its unreadable pages stay unknown
                contents.note_unreadable(file, error)

    def statistics(self) -> dict[str, float]:
        """Counters since the start."""
        return {
            "catalogs_written": self._checkpointer.catalogs,
            "removed_files": self._checkpointer.removed_files,
            "minor_compactions": self.minor_compactions,
            "major_compactions": self.major_compactions,
            "last_compaction_s": self.last_compaction_s,
            "page_cache_dropped_bytes": self._contents.page_cache.dropped_bytes,
            "copied_bytes": self._rewriter.copied_bytes,
            "copied_batches": self._rewriter.copied_batches,
            "scrubs": self._scrubber.scrubs,
            "scrubbed_bytes": self._scrubber.scrubbed_bytes,
        }
