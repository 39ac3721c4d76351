"""The ledgers of jobs, by log and job: small directories, so that what a job left is found without listing all ledgers.

A ledger whose custom metadata names a log and a job is registered before it is created. A sweep of the log forgets it once the
log names it, or once it is deleted. So a directory has only the ledgers of jobs that run, that were killed, or that end now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from replog.client.ledger_records import LedgerRecords
from replog.errors import KeyNotFoundError
from replog.records.encoding import encode
from replog.records.jobs import JobLedger, JobPart
from replog.records.logs import decode_job_ledger, decode_job_part
from replog.records.paths import (
    BEGUN_WORD,
    BEGUN_WRITER,
    PART_PREFIX,
    job_begun_key_path,
    job_key_path,
    job_part_key_path,
    log_jobs_key_path,
)

LOG_KEY = "log"
JOB_KEY = "job"
_ENDED_WORD = "ended"  # a job that a sweep gave up, or that has committed and left something


@attrs.frozen
class RegisteredJob:
    """The registered state of one job: its ledgers by id, ascending, and whether it has ended."""

    key: str
    ledger_ids: tuple[int, ...]
    is_ended: bool
    part_words: tuple[str, ...] = ()


class JobRecords:
    """The ledgers of jobs in one metastore."""

    def __init__(self, records: LedgerRecords, time_ms: Callable[[], int]) -> None:
        self._records = records
        self._time_ms = time_ms

    async def register(self, ledger_id: int, custom: Mapping[str, str]) -> None:
        """Registers a ledger that is about to be created, if a job writes it for a log. Raises `MetastoreError`."""
        log, job = custom.get(LOG_KEY), custom.get(JOB_KEY)
        if log and job:
            value = encode(JobLedger(log, job, ledger_id, self._time_ms()))
            await self._records.create_key(f"{job_key_path(log, job)}/{ledger_id}", value)

    async def keys(self, log: str) -> list[str]:
        """The keys of all jobs that have something registered for a log. Raises `MetastoreError`."""
        parent = log_jobs_key_path(log)
        words = await self._records.read(f"listing {parent}", lambda: self._records.metastore.children(parent))
        return [f"{parent}/{word}" for word in words]

    async def job(self, key: str) -> RegisteredJob:
        """The registered ledgers and the end of a job, below its key. Raises `MetastoreError`."""
        words = await self._records.read(f"listing {key}", lambda: self._records.metastore.children(key))
        ledger_ids = tuple(sorted(int(word) for word in words if word.isdigit()))
        parts = tuple(word for word in words if word.startswith(PART_PREFIX))
        return RegisteredJob(key, ledger_ids, _ENDED_WORD in words, parts)

    async def begin(self, log: str, job: str) -> None:
        """Registers a job that is going to commit by its parts. Raises `MetastoreError`."""
        begun = JobPart(log, job, BEGUN_WRITER, 0, None, 0, "", self._time_ms())
        await self._records.create_key(job_begun_key_path(log, job), encode(begun))

    async def has_begun(self, log: str, job: str) -> bool:
        """False once a sweep has given the job up: then some of its parts may be forgotten. Raises `MetastoreError`."""
        return await self.part(job_begun_key_path(log, job)) is not None

    async def claim(self, part: JobPart) -> JobPart:
        """Writes down what a task wrote, unless another attempt at it was first; returns what holds. Raises `MetastoreError`."""
        key = job_part_key_path(part.log_name, part.job, part.writer, part.partition)
        claimed = attrs.evolve(part, created_at_ms=self._time_ms())
        if await self._records.create_key(key, encode(claimed)):
            return claimed
        # Another attempt has it, or this one, whose answer was lost: the ledger tells them apart.
        return await self.part(key) or claimed

    async def part(self, key: str) -> JobPart | None:
        """The part of a job with this key; None if no attempt has ended. Raises `MetastoreError`."""
        try:
            found = await self._records.read(f"reading {key}", lambda: self._records.metastore.get(key))
        except KeyNotFoundError:
            return None
        return decode_job_part(key, found.value)

    async def parts(self, log: str, job: str) -> list[JobPart]:
        """The parts of a job, by writer and partition. Raises `MetastoreError`."""
        key = job_key_path(log, job)
        found = await self._records.read(f"listing {key}", lambda: self._records.metastore.values(key))
        parts = [
            decode_job_part(f"{key}/{word}", each.value)
            for word, each in found.items()
            if word.startswith(PART_PREFIX) and word != BEGUN_WORD
        ]
        return sorted(parts, key=lambda each: (each.writer, each.partition))

    async def registered_at_ms(self, key: str, ledger_id: int) -> int | None:
        """When a ledger of a job was registered, by its creator's clock; None if it is not any more."""
        try:
            found = await self._records.read(
                f"reading {key}/{ledger_id}", lambda: self._records.metastore.get(f"{key}/{ledger_id}")
            )
        except KeyNotFoundError:
            return None
        return decode_job_ledger(f"{key}/{ledger_id}", found.value).created_at_ms

    async def end(self, key: str) -> None:
        """Writes down that a job has ended, so that a sweep that is cut short is ended by the next. Raises `MetastoreError`."""
        await self._records.create_key(f"{key}/{_ENDED_WORD}", b"{}\n")

    async def forget(self, key: str, what_of_it: int | str | None) -> None:
        """Forgets a ledger or a part of a job; None: that the job has ended. Raises `MetastoreError`."""
        await self._records.delete_key(f"{key}/{_ENDED_WORD if what_of_it is None else what_of_it}")
