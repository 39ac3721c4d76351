"""The background work of a storage: checkpoints, flushes, compaction and scrubbing, in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from replog.backends.disk import named_error
from replog.backends.files.background import Jobs
from replog.backends.files.background_pace import Closing
from replog.backends.files.checkpoint import Checkpointer
from replog.backends.files.journal import Journal
from replog.backends.files.journal_files import FilePool
from replog.backends.files.open_parts import Contents
from replog.errors import StorageError, StorageFailedError, StorageFullError
from replog.runtime.own_threads import in_own_thread

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
        self._pool = pool
        self.jobs = Jobs(contents, journal, pool, checkpointer, next_entry_log, self._look_around)
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

    # -- for the storage ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Runs the thread."""
        self._thread = threading.Thread(
            target=in_own_thread, args=(self._run,), name="replog-storage-maintenance", daemon=True
        )
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
        if self._thread is None and self.failure is None and self.jobs.is_checkpoint_due_now():
            self._attempt(self._checkpoint)
        self._pool.look()

    def wait_for_flush(self) -> None:
        """With a journal elsewhere: waits while it is too far ahead of the entry logs.

        Raises `StorageFullError`, `StorageFailedError`."""
        contents = self._contents
        limit_bytes = _FLUSH_BACKLOG * contents.options.flush_bytes
        if self.jobs.backlog_bytes() <= limit_bytes or self._thread is None:
            return
        deadline_s = time.monotonic() + _FLUSH_TIMEOUT_S
        with contents.changed:
            while self.jobs.backlog_bytes() > limit_bytes and self.failure is None and not contents.closing.is_set():
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

    # -- forced runs ----------------------------------------------------------------------------------------------

    def compact(self, *, is_major: bool) -> None:
        """Runs a full compaction (`Storage.compact`)."""
        self._named(lambda: self.jobs.compact(is_major=is_major))

    def scrub(self) -> None:
        """Looks for damage in everything stored (`Storage.scrub`)."""
        self._named(self._scrub)

    def adopt(self) -> None:
        """Indexes or flushes all that replay found after a loss, and writes a catalog, so that no later start passes over the
        same damage. If the disk is full, a later checkpoint does it. Raises `StorageFailedError`."""
        with suppress(StorageFullError):
            self._named(self.jobs.adopt)

    def say_goodbye(self) -> None:
        """Writes a last catalog, which knows the last group: the next start then knows damage there from a torn tail."""
        # All that was committed is durable without it; an error here must not keep the files open.
        with suppress(OSError):
            self.jobs.write_catalog()

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
                    if contents.damages.unreadable_indexes:
                        return self.jobs.repair
                    if self._is_wanted and self.jobs.is_checkpoint_due():
                        return self._checkpoint
                    self._is_wanted = False
                    for job, due_s in self._due_s.items():
                        if now_s >= due_s:
                            return job
                next_s = min([*self._due_s.values(), now_s + 3600.0])  # waits of years overflow
                contents.changed.wait(max(0.0, max(next_s, self._full_until_s) - now_s))
        return None

    def _checkpoint(self) -> None:
        # Before it: what becomes due meanwhile must not be forgotten.
        self._is_wanted = False
        self.jobs.checkpoint()

    def _look_around(self) -> None:
        """While scrubbing, which takes long: does what has become due."""
        if threading.current_thread() is self._thread and time.monotonic() >= self._full_until_s:
            if self.jobs.is_checkpoint_due_now():
                self._checkpoint()
            for job, due_s in self._due_s.items():
                if job != self._scrub and time.monotonic() >= due_s:
                    job()

    def _compact_minor(self) -> None:
        self._due_s[self._compact_minor] = time.monotonic() + self._contents.options.minor_compaction_interval_s
        self.jobs.compact(is_major=False)

    def _compact_major(self) -> None:
        self._due_s[self._compact_major] = time.monotonic() + self._contents.options.major_compaction_interval_s
        self.jobs.compact(is_major=True)

    def _scrub(self) -> None:
        if self._scrub in self._due_s:
            self._due_s[self._scrub] = time.monotonic() + self._contents.options.scrub_interval_s
        self.jobs.scrub()

    def statistics(self) -> dict[str, float]:
        """Counters since the start."""
        return self.jobs.statistics()
