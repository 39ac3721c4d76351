"""Finds and deletes the ledgers that jobs wrote for a log and that the log does not name. Drives `replog.protocol.sweeping`.

A job writes ledgers with its name in their metadata, and adds some of them to the log. The ledgers of attempts that were repeated
or lost a race are left over, and all ledgers of a job that was killed. A sweep deletes the ledgers that the log does not name, if
their job

- has other ledgers that the log names: then it has added all that it wanted;
- is given up now, because the caller says so, or because its youngest ledger is older than the grace;
- has a ledger that was condemned already, by a sweep that did not finish.

Ledgers without a job's name belong to leaders. A sweep finishes what other clients left unfinished of them, as trims and
takeovers do (L7), and never touches others.

Listing all ledgers is slow, so a key of the metastore has a mark: all ledgers with ids below it were judged. The mark is only
advice, because ids are not taken in the order of time; so once a day all ledgers are listed again. If an attempt begins after its
job was judged, its ledgers are above the mark and the job's others below. So a sweep also looks up the jobs of the youngest
ledgers that the log names.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from contextlib import aclosing

import attrs

from replog.client.ledgers import Ledgers
from replog.errors import (
    ConfigError,
    KeyExistsError,
    KeyNotFoundError,
    LedgerNotFoundError,
    MetastoreCorruptError,
    MetastoreUncertainError,
    VersionConflictError,
)
from replog.log.catalog import finish
from replog.log.checking import AT_ONCE, CONDEMNED_KEY, JOB_KEY, LOG_KEY
from replog.log.log_driver import LogDriver, no_ledger
from replog.protocol.sweeping import LogSweeping
from replog.records.ledgers import ledger_id_pages
from replog.records.paths import log_key_path
from replog.runtime.nursery import for_each

_SWEEPS_KEY = "sweeps"
_FORMAT = 1
_LIST_ALL_EVERY_S = 86_400.0
_NAMED_MAX = 256  # of the ledgers that the log names, for jobs in doubt: enough, because a sweep follows each commit


@attrs.frozen
class _Candidate:
    """A ledger that a job wrote for the log."""

    ledger_id: int
    job: str
    created_at_ms: int
    is_condemned: bool


@attrs.frozen
class _Mark:
    """How far the listing has come: below `first_ledger_id` all are judged. When all were listed, by somebody's clock."""

    first_ledger_id: int = 0
    listed_all_at_ms: int = 0


async def sweep(name: str, grace_s: float, job: str | None, ledgers: Ledgers, driver: LogDriver) -> list[int]:
    """Deletes ledgers that jobs left over; returns their ids, ascending. Raises as `Client.sweep_log`."""
    _check_arguments(name, grace_s, job)
    await finish(name, ledgers, driver)
    now_ms = ledgers.chance.time_ms()
    mark, version = await _read_mark(name, ledgers)
    lists_all = not 0 <= now_ms - mark.listed_all_at_ms < 1000 * _LIST_ALL_EVERY_S
    begin = 0 if lists_all else mark.first_ledger_id
    end, candidates = await _list(name, begin, ledgers)
    # After the listing, never before it: a ledger that is committed in between is then among the named ones.
    named = await driver.records.named(name) if candidates else frozenset()
    unnamed = [each for each in candidates if each.ledger_id not in named]
    ended = {each.job for each in candidates if each.ledger_id in named or each.is_condemned}
    ended |= _too_old(unnamed, now_ms - 1000 * grace_s) if job is None else {job}
    if job is None and begin > 0 and any(each.job not in ended for each in unnamed):
        ended |= await _jobs_of(sorted((each for each in named if each < begin), reverse=True)[:_NAMED_MAX], ledgers)
    victims = tuple(each.ledger_id for each in unnamed if each.job in ended and job in (None, each.job))
    deleted: tuple[int, ...] = ()
    if victims:
        machine = LogSweeping(name, victims, ledgers.chance.token(), now_ms)
        machine.start()
        await driver.drive(machine, no_ledger, b"")
        deleted = machine.deleted
    left = {each.ledger_id for each in unnamed} - set(deleted)
    # The mark stays below what is left, so that the next sweep judges it again.
    reached = _Mark(min(left, default=end), now_ms if lists_all else mark.listed_all_at_ms)
    if reached != mark:
        await _write_mark(name, reached, version, ledgers)
    return sorted(deleted)


def _check_arguments(name: str, grace_s: float, job: str | None) -> None:
    log_key_path(name)
    if isinstance(grace_s, bool) or not isinstance(grace_s, int | float) or not 0 <= grace_s < float("inf"):
        raise ConfigError(f"grace_s={grace_s!r} must be a finite number of seconds, 0 or more")
    if job is not None and (not isinstance(job, str) or not job):
        raise ConfigError(
            f"job={job!r} is not the name of a job: it must be a text, as in the ledgers' custom metadata"
        )


def _too_old(candidates: Iterable[_Candidate], before_ms: float) -> set[str]:
    """The jobs whose youngest ledger was created before this time."""
    youngest_ms: dict[str, int] = defaultdict(int)
    for each in candidates:
        youngest_ms[each.job] = max(youngest_ms[each.job], each.created_at_ms)
    return {job for job, created_at_ms in youngest_ms.items() if created_at_ms < before_ms}


async def _jobs_of(ledger_ids: Iterable[int], ledgers: Ledgers) -> set[str]:
    """The jobs that wrote these ledgers, except for ledgers that were trimmed meanwhile."""
    jobs: set[str] = set()

    async def look(ledger_id: int) -> None:
        try:
            metadata, _ = await ledgers.records.get(ledger_id)
        except LedgerNotFoundError:
            return
        jobs.add(metadata.custom.get(JOB_KEY, ""))

    await for_each(look, ledger_ids, AT_ONCE)
    return jobs


async def _list(name: str, begin: int, ledgers: Ledgers) -> tuple[int, list[_Candidate]]:
    """The ledgers from this id on that jobs wrote for the log, by id; and an id above all that were looked at."""
    found: dict[int, _Candidate] = {}

    async def look(ledger_id: int) -> None:
        try:
            metadata, _ = await ledgers.records.get(ledger_id)
        except LedgerNotFoundError:
            return
        custom = metadata.custom
        if custom.get(LOG_KEY) == name and custom.get(JOB_KEY):
            is_condemned = CONDEMNED_KEY in custom
            found[ledger_id] = _Candidate(ledger_id, custom[JOB_KEY], metadata.created_at_ms, is_condemned)

    end = begin
    async with aclosing(ledger_id_pages(ledgers.records.metastore, begin - 1)) as pages:
        async for ledger_ids in pages:
            await for_each(look, ledger_ids, AT_ONCE)
            end = ledger_ids[-1] + 1
    return end, [found[ledger_id] for ledger_id in sorted(found)]


# -- the mark -----------------------------------------------------------------------------------------------------


def _mark_key_path(name: str) -> str:
    return f"{_SWEEPS_KEY}/{log_key_path(name).partition('/')[2]}"


async def _read_mark(name: str, ledgers: Ledgers) -> tuple[_Mark, int | None]:
    key, records = _mark_key_path(name), ledgers.records
    try:
        found = await records.persist(f"reading {key}", lambda: records.metastore.get(key))
    except KeyNotFoundError:
        return _Mark(), None
    try:
        fields = json.loads(found.value)
        numbers = fields["format"], fields["first_ledger_id"], fields["listed_all_at_ms"]
    except (ValueError, KeyError, TypeError) as error:
        raise _corrupt(key, repr(error)) from error
    if any(type(number) is not int or number < 0 for number in numbers) or numbers[0] != _FORMAT:
        raise _corrupt(key, f"it says {numbers}")
    return _Mark(*numbers[1:]), found.version


def _corrupt(key: str, problem: str) -> MetastoreCorruptError:
    return MetastoreCorruptError(
        f"key {key!r}: it should be the mark of sweeps ({problem}). It is only advice: delete the key, and the next "
        "sweep lists all ledgers. Nothing was changed"
    )


async def _write_mark(name: str, mark: _Mark, version: int | None, ledgers: Ledgers) -> None:
    """Writes the mark, or leaves that of another sweep: then some ledgers are looked at again, which is harmless."""
    key, records = _mark_key_path(name), ledgers.records
    value = json.dumps({"format": _FORMAT, **attrs.asdict(mark)}, separators=(",", ":")).encode() + b"\n"
    try:
        if version is None:
            await records.persist(f"creating {key}", lambda: records.metastore.create(key, value))
        else:
            await records.persist(f"changing {key}", lambda: records.metastore.put(key, value, version))
    except (KeyExistsError, KeyNotFoundError, VersionConflictError, MetastoreUncertainError):
        return
