"""Journal files before and after their use: prepared ahead, filled with zeros or allocated, recycled, dropped from memory.

A write into a growing file needs metadata from the file system. Measured against that, a write into a file that is filled
or was used before has 1/1.75 of the latency and twice the bandwidth. So the pool makes the next file ready while the current
one is written, and renames files that are not needed any more instead of removing them. A writer of many large commits gets
no zeros: writing all of it twice would cost more than the metadata does, so the next file is only allocated. The pool owns
and joins the thread that does this; the same thread drops full files from the page cache.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from replog.backends.disk import ZEROS, Disk, named_error, write_all
from replog.backends.files.caches import PageCache
from replog.backends.files.log_file import JournalFile, LogFile
from replog.backends.files.options import FilesTuning
from replog.backends.files.spares import Spares
from replog.errors import StorageError, StorageFailedError
from replog.runtime.disk_errors import is_full
from replog.runtime.own_threads import in_own_thread

_PREPARE_TIMEOUT_S = 60.0
_JOIN_TIMEOUT_S = 60.0


class FilePool:
    """Prepares the next journal file and reuses old ones. `changed` is the storage's lock."""

    def __init__(
        self, disk: Disk, directory: str, identity: bytes, options: FilesTuning, changed: threading.Condition
    ) -> None:
        self._disk = disk
        self._options = options
        self.changed = changed
        self.spares = Spares(disk, directory, identity, options)
        self._wanted: tuple[int, bool] | None = None  # the file to prepare: its number, and whether to fill a new one
        self.ready: JournalFile | None = None  # the next file: made in the thread, taken by the commit that needs it
        self._refusal: OSError | None = None  # why the wanted file could not be made: no space
        self._to_fill: JournalFile | None = None
        self._retired: deque[LogFile] = deque()
        self._postponed: list[LogFile] = []  # could not be removed, for want of space
        self._page_cache: PageCache | None = None
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self.failure: StorageError | None = None
        self.recycled_files = 0

    # -- for the storage ------------------------------------------------------------------------------------------

    def start(self, spares: list[str], ready: JournalFile | None, page_cache: PageCache, *, background: bool) -> None:
        """Begins, with the spare files of before. Without `background` all work is done in the caller's thread."""
        self._page_cache = page_cache
        self.spares.start(spares)
        self.ready = ready
        if background:
            self._thread = threading.Thread(
                target=in_own_thread, args=(self._run,), name="replog-journal-files", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Ends the thread, and closes what it held. The next start finds files that are retired but not recycled yet."""
        with self.changed:
            self._is_closing = True
            self.changed.notify_all()
        if self._thread is not None:
            self._thread.join(_JOIN_TIMEOUT_S)
        for file in (self.ready, *self._retired, *self._postponed):
            if file is not None and file.fd >= 0:
                self._disk.close(file.fd)
                file.fd = -1

    def want(self, number: int, *, fill: bool) -> None:
        """Asks for the next file to be prepared, and to be filled or else allocated if it is a new one. Returns at once."""
        with self.changed:
            if self.ready is not None or (self._wanted is not None and self._wanted[0] == number):
                return
            self._wanted = number, fill
            self._refusal = None
            self.changed.notify_all()
        self._work_inline()

    def take(self, number: int) -> JournalFile:
        """The prepared file, waiting for it if need be. Raises `StorageFullError`, `StorageFailedError`."""
        self.want(number, fill=False)
        deadline = time.monotonic() + _PREPARE_TIMEOUT_S
        with self.changed:
            while self.ready is None:
                if self.failure is not None:
                    raise self.failure
                if self._refusal is not None:
                    refusal, self._refusal = self._refusal, None
                    raise named_error(f"make journal file {number} in {self.spares.directory}", refusal) from refusal
                if not self.changed.wait(deadline - time.monotonic()):
                    raise StorageFailedError(
                        f"journal file {number} in {self.spares.directory} was not made within {_PREPARE_TIMEOUT_S:.0f} s",
                        "Look at the disk, then restart the bookie",
                    )
            ready, self.ready = self.ready, None
        ready.began_s = self._disk.clock_s()
        return ready

    def fill(self, file: JournalFile) -> None:
        """Asks for more zeros ahead of the writes. Returns at once."""
        with self.changed:
            if self._to_fill is file:
                return
            self._to_fill = file
            self.changed.notify_all()
        self._work_inline()

    def retire(self, file: LogFile) -> None:
        """Recycles or removes a file that is not needed any more and that no durable catalog has."""
        with self.changed:
            self._retired.extend((*self._postponed, file))
            self._postponed.clear()
            self.changed.notify_all()
        self._work_inline()

    def look(self) -> None:
        """There may be something to do. Returns at once, if there is a thread: it looks by itself."""
        self._work_inline()

    @property
    def spare_files(self) -> int:
        """How many files wait for reuse."""
        return len(self.spares)

    # -- the work -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self.changed:
                job = self._next_job()
                while job is None:
                    if self._is_closing:
                        return
                    self.changed.wait()
                    job = self._next_job()
                if self._is_closing:
                    return
            self._do(job)

    def _work_inline(self) -> None:
        while self._thread is None:
            with self.changed:
                job = self._next_job()
            if job is None:
                return
            self._do(job)

    def _do(self, job: Callable[[], None]) -> None:
        try:
            job()
        except OSError as error:
            with self.changed:
                self.failure = named_error(f"look after the journal files in {self.spares.directory}", error)
                self.changed.notify_all()

    def _next_job(self) -> Callable[[], None] | None:
        if self.failure is not None:
            return None
        # Recycling comes first: the file that is wanted next may be made of it.
        if self._retired and not self._retired[0].pins:
            return self._recycle
        if self._wanted is not None:
            return self._prepare
        if self._page_cache is not None and self._page_cache.is_too_full:
            return self._page_cache.drop_oldest
        if self._to_fill is not None:
            return self._fill_current
        if self.ready is not None and self._is_fillable(self.ready) and self._thread is not None:
            return self._fill_ready
        return None

    def _is_fillable(self, file: JournalFile) -> bool:
        return not file.is_outrun and file.allocated < self._options.capacity_bytes

    def _recycle(self) -> None:
        """Keeps the oldest retired journal file as a spare if it is wanted; removes others. Some file systems need space
        for that: then it is tried again with the next one."""
        file = self._retired[0]
        try:
            name = self.spares.keep_or_remove(file)
        except OSError as error:
            if not is_full(error):
                raise
            with self.changed:
                self._postponed.append(self._retired.popleft())
            return
        self._disk.sync_directory(file.path.rpartition("/")[0])
        with self.changed:
            self._retired.popleft()
            if file.fd >= 0:
                self._disk.close(file.fd)
                file.fd = -1
            if name:
                self.spares.add(name)
            if file.is_journal:
                self.recycled_files += 1

    def _prepare(self) -> None:
        assert self._wanted is not None, "the job is chosen when a file is wanted"
        number, is_filled = self._wanted
        try:
            ready = self.spares.make(number, fill=is_filled)
        except OSError as error:
            if not is_full(error):
                raise
            with self.changed:
                self._wanted = None
                self._refusal = error
                self.changed.notify_all()
            return
        ready.is_outrun = not is_filled
        with self.changed:
            self._wanted = None
            self.ready = ready
            self.changed.notify_all()

    def _fill_current(self) -> None:
        file = self._to_fill
        assert file is not None
        goal = min(file.position + self._options.fill_ahead_bytes, self._options.capacity_bytes)
        if file.is_outrun or file.allocated >= goal or not self._fill_step(file):
            with self.changed:
                self._to_fill = None

    def _fill_ready(self) -> None:
        file = self.ready
        if file is not None and not self._fill_step(file):
            # No space for zeros: the writer allocates what it needs.
            file.is_outrun = True

    def _fill_step(self, file: JournalFile) -> bool:
        """Writes zeros behind the allocated space. Returns False if there is not enough space."""
        with file.filling:
            size = min(len(ZEROS), self._options.capacity_bytes - file.allocated)
            if size <= 0 or file.fd < 0:
                return False
            try:
                write_all(self._disk, file.fd, (memoryview(ZEROS)[:size],), file.allocated)
                self._disk.fdatasync(file.fd)
            except OSError as error:
                if not is_full(error):
                    raise
                return False
            file.allocated += size
        return True
