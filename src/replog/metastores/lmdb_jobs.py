"""Changes on their way to the writer thread of an LMDB environment, and the queue in which they wait.

Rules:
- A change that has not started can be abandoned: then it never runs. One that has started ends with an answer.
- The queue is bounded in bytes. Once it is closed, it takes no change.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from replog.errors import MetastoreError, MetastoreUnavailableError
from replog.metastores.lmdb_records import Writing

_JOBS_MAX = 1024  # in one transaction
_JOB_BYTES_MAX = 8 << 20
_QUEUE_BYTES_MAX = 64 << 20


class Job:
    """A change on its way to the writer thread. `notify` is called from that thread, once, when `answer` will not wait."""

    def __init__(self, change: Callable[[Writing], int], size_bytes: int, notify: Callable[[], None]) -> None:
        self.size_bytes = size_bytes
        self._change = change
        self._notify = notify
        self._lock = threading.Lock()
        self._state = "waiting"  # -> "abandoned", or "started" -> "finished"
        self._answer: int | Exception = 0

    def start(self) -> bool:
        """Starts the job, unless it was abandoned: returns whether it runs. A started job cannot be abandoned."""
        with self._lock:
            if self._state == "waiting":
                self._state = "started"
            return self._state == "started"

    def run(self, writing: Writing) -> None:
        """Makes the change; keeps its result or error for `answer`."""
        try:
            self._answer = self._change(writing)
        except MetastoreError as error:
            self._answer = error

    def finish(self, error: MetastoreError | None = None) -> None:
        """The transaction has ended: the answer is final, unless an error replaces it. Abandoned jobs are ignored."""
        with self._lock:
            # A writer thread that fails answers all jobs that it had taken, and some of them have their answer already.
            if self._state in ("abandoned", "finished"):
                return
            self._state = "finished"
            if error is not None:
                self._answer = error
        self._notify()

    def abandon(self) -> bool:
        """Abandons the job. True if it will never run; False if it has started: then its outcome is unknown."""
        with self._lock:
            if self._state == "waiting":
                self._state = "abandoned"
            return self._state == "abandoned"

    @property
    def is_finished(self) -> bool:
        """Whether `answer` may be called."""
        return self._state == "finished"

    def answer(self) -> int:
        """Returns the result of the change, or raises its error."""
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


class JobQueue:
    """The changes of all threads, in their order, for one writer thread. `path` is that of the metastore, for errors."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._jobs: deque[Job] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._is_stopping = False
        self._failure: str | None = None

    @property
    def has_failed(self) -> bool:
        """True once jobs are not taken any more."""
        return self._failure is not None

    def put(self, job: Job) -> None:
        """Queue a change. Raise `MetastoreError` if it will not happen."""
        with self._changed:
            if self._failure is not None:
                raise MetastoreUnavailableError(f"{self._failure}; nothing was written. Open it again")
            if self._is_stopping:
                raise MetastoreUnavailableError(f"metastore {self.path} is being closed; nothing was written")
            if self._bytes + job.size_bytes > _QUEUE_BYTES_MAX:
                raise MetastoreUnavailableError(
                    f"metastore {self.path}: {self._bytes} bytes wait for the disk; nothing was written, try later"
                )
            self._jobs.append(job)
            self._bytes += job.size_bytes
            self._changed.notify_all()

    def take(self, timeout_s: float | None) -> list[Job] | None:
        """Wait for jobs, and return those of one transaction.

        Returns [] after `timeout_s`, if it is not None; None once the queue is stopped and empty."""
        with self._changed:
            while not self._jobs:
                if self._is_stopping:
                    return None
                if not self._changed.wait(timeout_s):
                    return []
            jobs = [self._jobs.popleft()]
            size_bytes = jobs[0].size_bytes
            # Bounded, so that a lone change behind a flood waits for one transaction, and not for all of the flood.
            while self._jobs and len(jobs) < _JOBS_MAX and size_bytes + self._jobs[0].size_bytes <= _JOB_BYTES_MAX:
                size_bytes += self._jobs[0].size_bytes
                jobs.append(self._jobs.popleft())
            self._bytes -= size_bytes
            assert self._bytes >= 0
            return jobs

    def stop(self) -> None:
        """Take no more jobs. `take` still returns waiting jobs."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()

    def fail(self, failure: str) -> list[Job]:
        """Nobody will take jobs any more, for this reason. Returns the jobs that still wait."""
        with self._changed:
            self._failure = failure
            left = list(self._jobs)
            self._jobs.clear()
            self._bytes = 0
            return left
