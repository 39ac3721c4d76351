"""The records of logs in the metastore, and listing the logs that exist.

A log has a head and pages, pending ledgers, ledgers and parts of jobs, cursors, and a record of its producers. `encode`
of `replog.records.encoding` writes each of them. Here each is decoded, and refused if it does not belong under its key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replog.errors import MetastoreCorruptError
from replog.protocol.model import LogMetadata, LogPage, PendingLedger
from replog.records.encoding import corrupt, decode
from replog.records.jobs import JobLedger, JobPart
from replog.records.paths import (
    LEDGER_ID_MAX,
    LOGS_KEY,
    job_key_path,
    job_part_key_path,
    log_pages_key_path,
    log_pending_key_path,
    log_word,
    parse_log_key,
    parse_log_page_key,
)

if TYPE_CHECKING:
    from replog.abc import Metastore
from replog.protocol.cursors import CursorRecord
from replog.protocol.envelope import SEQUENCE_MAX
from replog.protocol.producers import ProducersRecord

_PAGE_LOGS = 10_000  # a metastore without pages of its own lists all for each


def decode_log(key: str, value: bytes) -> LogMetadata:
    """The record in the value of this log's key. Raises `MetastoreCorruptError`, naming the key and every fault."""
    metadata = decode(key, value, LogMetadata)
    faults = [f"name is {metadata.name!r}"] if metadata.name != parse_log_key(key) else []
    faults += metadata.faults()
    if faults:
        raise corrupt(key, faults)
    return metadata


def decode_log_page(key: str, value: bytes) -> LogPage:
    """The page in the value of this key. Raises `MetastoreCorruptError`, naming the key and every fault."""
    page = decode(key, value, LogPage)
    numbers = [segment.number for segment in page.segments]
    faults = [f"it is page {page.number} of {page.log_name!r}"]
    faults = faults if (page.log_name, page.number) != parse_log_page_key(key) else []
    if not numbers or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        faults.append(f"segments: the numbers {numbers} do not rise by one (L3)")
    if faults:
        raise corrupt(key, faults)
    return page


def decode_pending(key: str, value: bytes) -> PendingLedger:
    """The pending ledger in the value of this key. Raises `MetastoreCorruptError`, naming the key and every fault."""
    pending = decode(key, value, PendingLedger)
    if not 0 <= pending.ledger_id <= LEDGER_ID_MAX or log_pending_key_path(pending.log_name, pending.ledger_id) != key:
        raise corrupt(key, [f"it is ledger {pending.ledger_id} of log {pending.log_name!r}"])
    return pending


def decode_job_ledger(key: str, value: bytes) -> JobLedger:
    """The job's ledger in the value of this key. Raises `MetastoreCorruptError`, naming the key and every fault."""
    ledger = decode(key, value, JobLedger)
    if f"{job_key_path(ledger.log_name, ledger.job)}/{ledger.ledger_id}" != key:
        raise corrupt(key, [f"it is ledger {ledger.ledger_id} of a job for log {ledger.log_name!r}"])
    return ledger


def decode_job_part(key: str, value: bytes) -> JobPart:
    """The job's part in the value of this key. Raises `MetastoreCorruptError`, naming the key and every fault."""
    part = decode(key, value, JobPart)
    if job_part_key_path(part.log_name, part.job, part.writer, part.partition) != key:
        raise corrupt(key, [f"it is part {part.writer}-{part.partition} of a job for log {part.log_name!r}"])
    return part


def decode_cursor(key: str, value: bytes, log_name: str, name: str) -> CursorRecord:
    """The record of this cursor in the value of its key. Raises `MetastoreCorruptError`, naming the key and every fault."""
    record = decode(key, value, CursorRecord)
    faults = []
    if (record.log_name, record.name) != (log_name, name):
        faults.append(f"it is cursor {record.name!r} of log {record.log_name!r}")
    if record.term < 1 or record.begins_at.segment < 1 or record.begins_at.entry < 0:
        faults.append(f"its term is {record.term}, and it begins at {record.begins_at}")
    if faults:
        raise corrupt(key, faults)
    return record


def decode_producers(key: str, value: bytes, log_name: str) -> ProducersRecord:
    """The producers of this log in the value of its key. Raises `MetastoreCorruptError`, naming the key and every fault."""
    record = decode(key, value, ProducersRecord)
    faults = [] if record.log_name == log_name else [f"it is of log {record.log_name!r}"]
    if record.through < 0 or record.deletions < 0:
        faults.append(f"through is {record.through}, and deletions {record.deletions}")
    if not all(1 <= each.through <= record.through for each in record.retired):
        faults.append(f"through is {record.through}, and its retired producers are {record.retired[:3]}")
    names = [each.name for each in record.producers]
    if len(set(names)) < len(names):
        faults.append("two producers have one name")
    for each in record.producers:
        sequences = [sequence for sequence, _, _ in each.ids]
        are_possible = all(0 <= sequence <= SEQUENCE_MAX for sequence in sequences)
        are_places = all(1 <= segment <= record.through and entry >= 0 for _, segment, entry in each.ids)
        if not sequences or not are_possible or not are_places or len(set(sequences)) < len(sequences):
            faults.append(f"producer {each.name!r} has the ids {each.ids[:3]}")
    if faults:
        raise corrupt(key, faults)
    return record


# -- listing ------------------------------------------------------------------------------------------------------


async def list_log_names(
    metastore: Metastore, prefix: str = "", after: str = "", limit: int | None = None
) -> list[str]:
    """The names of logs that were not deleted, in the order of their keys: with this prefix, behind `after`, so many at most. A
    log whose record is damaged is listed."""
    names: list[str] = []
    # What begins with a dot is encoded only if there are only dots.
    start, behind = log_word(prefix) if prefix.strip(".") else "", log_word(after)
    first: str | None = max(start, behind)
    while first is not None and len(names) != limit:
        # One more than are missing: the first may be `after` itself.
        count_max = _PAGE_LOGS if limit is None else min(_PAGE_LOGS, limit - len(names) + 1)
        page = await metastore.values_page(LOGS_KEY, first, count_max)
        for word, head in page.values.items():
            if not word.startswith(start) or len(names) == limit:
                return names
            key = f"{LOGS_KEY}/{word}"
            name = parse_log_key(key)
            # The head stays after a deletion, because it has the next segment number: those are never reused (L3).
            if name.startswith(prefix) and word != behind and not _is_deleted(key, head.value):
                names.append(name)
        first = page.next_first
    return names


def _is_deleted(key: str, value: bytes) -> bool:
    try:
        return decode_log(key, value).is_deleted
    except MetastoreCorruptError:
        return False  # reading that log raises the error


async def list_log_pages(metastore: Metastore, name: str) -> list[int]:
    """The numbers of a log's pages, ascending, including pages that nothing refers to any more."""
    key = log_pages_key_path(name)
    return sorted(parse_log_page_key(f"{key}/{word}")[1] for word in await metastore.children(key))
