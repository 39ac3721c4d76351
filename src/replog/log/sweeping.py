"""Finds and deletes the ledgers that jobs wrote for a log and that the log does not name. Drives `replog.protocol.sweeping`.

A job writes ledgers with its name in their metadata, and adds some of them to the log. The ledgers of attempts that were repeated
or lost a race are left over, and all ledgers of a job that was killed. A sweep deletes the ledgers that the log does not name, if
their job

- has other ledgers in the log's record, or wrote one of the last that the log names: then it has added all that it wanted;
- is given up now, because the caller says so, or because its youngest ledger is older than the grace, and bookies confirm this
  client's clock (L3a);
- was ended already, by a sweep that did not finish.

Ledgers without a job's name belong to leaders. A sweep finishes what other clients left unfinished of them, as trims and
takeovers do (L7), and never touches others.

A sweep looks at the ledgers and jobs registered for this log (`replog.client.job_records`), however many ledgers the
cluster has: two calls for each job that runs or was killed, one for each of the last ledgers of the log if there is
such a job, and one for each ledger of a job that ends. It forgets a ledger that the log names at once, and one that it
deleted when no late request can create it again.
"""

from __future__ import annotations

from collections.abc import Iterable

from replog.client.job_records import RegisteredJob
from replog.client.ledgers import Ledgers
from replog.client.metastore_trust import check_metastore
from replog.config import check_seconds
from replog.errors import ClockMismatchError, ConfigError, LedgerNotFoundError
from replog.log.checking import AT_ONCE, JOB_KEY
from replog.log.log_driver import NO_WRITERS, PENDING_KEPT_S, LogDriver
from replog.log.right_time import clock_refusal
from replog.log.trimming import finish
from replog.protocol.model import LogMetadata
from replog.protocol.sweeping import LogSweeping
from replog.records.paths import BEGUN_WORD, job_key_path, log_key_path
from replog.runtime.nursery import for_each

# Of the last ledgers that the log names: an attempt that begins after the commit of its job is found by them.
_NAMED_MAX = 16


async def sweep(name: str, grace_s: float, job: str | None, ledgers: Ledgers, driver: LogDriver) -> list[int]:
    """Deletes ledgers that jobs left over; returns their ids, ascending. Raises as `Client.jobs.sweep`."""
    _check_arguments(name, grace_s, job)
    await finish(name, ledgers, driver)
    keys = await ledgers.jobs.keys(name) if job is None else [job_key_path(name, job)]
    return sorted(await _Sweep(name, ledgers, driver).sweep(keys, None if job is not None else grace_s))


def _check_arguments(name: str, grace_s: float, job: str | None) -> None:
    log_key_path(name)
    check_seconds("grace_s", grace_s)
    if job is not None and (not isinstance(job, str) or not job):
        raise ConfigError(
            f"job={job!r} is not the name of a job: it must be a text, as in the ledgers' custom metadata"
        )


class _Sweep:
    """One sweep of a log."""

    def __init__(self, name: str, ledgers: Ledgers, driver: LogDriver) -> None:
        self._name = name
        self._ledgers = ledgers
        self._driver = driver
        self._jobs = ledgers.jobs
        self._reading = ledgers.clocks.read()
        self._now_ms = self._reading.time_ms
        self._refusal: ClockMismatchError | None = None  # why no job was given up by its age

    async def sweep(self, keys: list[str], grace_s: float | None) -> tuple[int, ...]:
        """Sweeps the jobs with these keys that have ended; without a grace, all of them are given up. Returns what it deleted."""
        found: list[RegisteredJob] = []

        async def list_ledgers(key: str) -> None:
            if grace_s is None:
                # Before the listing: a driver that writes a ledger behind it, to commit it, finds that the job was given up.
                await self._jobs.forget(key, BEGUN_WORD)
            found.append(await self._jobs.job(key))

        await for_each(list_ledgers, keys, AT_ONCE)
        # After the listing, never before it: a ledger that is committed in between is then among the named ones.
        head, _ = await self._driver.records.head(self._name)
        listed = frozenset(segment.ledger_id for segment in head.segments) if head is not None else frozenset()
        ended: list[RegisteredJob] = []
        old: list[RegisteredJob] = []

        async def judge(job: RegisteredJob) -> None:
            if grace_s is None or job.is_ended or not listed.isdisjoint(job.ledger_ids):
                ended.append(job)
            elif await self._is_old(job, grace_s):
                old.append(job)

        await for_each(judge, found, AT_ONCE)
        ended += old if not grace_s or await self._is_clock_right(old, head) else ()
        # An earlier sweep forgot the ledgers that a job added: then only these themselves say whose they are.
        undecided = [job for job in found if job not in ended and job.ledger_ids]
        if undecided and head is not None:
            committed = await self._jobs_of(segment.ledger_id for segment in head.segments[-_NAMED_MAX:])
            ended += [job for job in undecided if job.key in committed]
        ledger_ids = {each for job in ended for each in job.ledger_ids}
        # Pages are read only for ledgers that the head does not name.
        named = listed if ledger_ids <= listed else await self._driver.records.named(self._name)
        existing = await self._existing(sorted(ledger_ids - named))
        victims = set(existing)
        if victims:
            # A log that went back names less than it did (B6a).
            context, holders = self._ledgers.context, frozenset[str]().union(*existing.values())
            await check_metastore(context.records, context.membership, holders)
        for job in ended:
            if not victims.isdisjoint(job.ledger_ids):
                await self._jobs.end(job.key)
        deleted = await self._delete(tuple(sorted(victims)))
        await for_each(lambda job: self._forget(job, named), ended, AT_ONCE)
        if self._refusal is not None:
            raise self._refusal
        return deleted

    async def _is_clock_right(self, old: list[RegisteredJob], head: LogMetadata | None) -> bool:
        """False if these jobs may be old only by this client's clock (L3a)."""
        named = head.segments[-1:] if head is not None else ()
        known = [segment.ledger_id for segment in named] or [job.ledger_ids[-1] for job in old if job.ledger_ids]
        if not old or not known:
            return True  # a job without ledgers loses none
        outcome = "No job was given up by its age"
        self._refusal = await clock_refusal(self._name, known[-1], self._reading, self._ledgers, outcome)
        return self._refusal is None

    async def _is_old(self, job: RegisteredJob, grace_s: float) -> bool:
        """True if the youngest ledger of a job is older than the grace."""
        before_ms = self._now_ms - 1000 * grace_s
        if not job.ledger_ids and job.part_words:
            # All its tasks that have ended had no rows.
            part = await self._jobs.part(f"{job.key}/{job.part_words[-1]}")
            return part is None or part.created_at_ms < before_ms
        # Ids are nearly in the order of time: most jobs that run are known by their last ledger.
        for ledger_id in reversed(job.ledger_ids):
            registered_at_ms = await self._jobs.registered_at_ms(job.key, ledger_id)
            if registered_at_ms is not None and registered_at_ms >= before_ms:
                return False
        return True

    async def _jobs_of(self, ledger_ids: Iterable[int]) -> set[str]:
        """The keys of the jobs that wrote these ledgers, except for ledgers that were trimmed meanwhile."""
        keys: set[str] = set()

        async def look(ledger_id: int) -> None:
            try:
                metadata, _ = await self._ledgers.records.get(ledger_id)
            except LedgerNotFoundError:
                return
            if metadata.custom.get(JOB_KEY):
                keys.add(job_key_path(self._name, metadata.custom[JOB_KEY]))

        await for_each(look, ledger_ids, AT_ONCE)
        return keys

    async def _existing(self, ledger_ids: list[int]) -> dict[int, tuple[str, ...]]:
        """The existing ones among these ledgers, with the bookies that hold their last entries."""
        found: dict[int, tuple[str, ...]] = {}

        async def look(ledger_id: int) -> None:
            try:
                metadata, _ = await self._ledgers.records.get_head(ledger_id)
            except LedgerNotFoundError:
                return
            found[ledger_id] = metadata.last_fragment.ensemble

        await for_each(look, ledger_ids, AT_ONCE)
        return found

    async def _delete(self, victims: tuple[int, ...]) -> tuple[int, ...]:
        if not victims:
            return ()
        machine = LogSweeping(self._name, victims, self._ledgers.entropy.token(), self._now_ms)
        machine.start()
        await self._driver.drive(machine, NO_WRITERS, b"")
        return machine.deleted

    async def _forget(self, job: RegisteredJob, named: frozenset[int]) -> None:
        """Forgets the ledgers of an ended job that are the log's, or that can't be created any more."""
        left = 0

        async def forget(ledger_id: int) -> None:
            nonlocal left
            if ledger_id not in named:
                registered_at_ms = await self._jobs.registered_at_ms(job.key, ledger_id)
                if registered_at_ms is not None and self._now_ms - registered_at_ms < 1000 * PENDING_KEPT_S:
                    # A request to create it may still be under way: then the next sweep finds the ledger.
                    left += 1
                    return
            await self._jobs.forget(job.key, ledger_id)

        await for_each(forget, job.ledger_ids, AT_ONCE)
        if left:
            return
        if BEGUN_WORD in job.part_words:
            # Before all other parts: a driver that is alive after all finds it gone, and does not commit what is left of them.
            await self._jobs.forget(job.key, BEGUN_WORD)
        await for_each(lambda word: self._jobs.forget(job.key, word), job.part_words, AT_ONCE)
        if job.is_ended:
            await self._jobs.forget(job.key, None)
