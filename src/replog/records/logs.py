"""The records of logs in the metastore: heads, pages, pending ledgers and those of jobs; and listing the logs that exist."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replog.errors import MetastoreCorruptError
from replog.protocol.model import LogMetadata, LogPage, PendingLedger
from replog.records.encoding import corrupt, decode, encode
from replog.records.jobs import JobLedger, JobPart
from replog.records.paths import (
    LEDGER_ID_MAX,
    LOGS_KEY,
    job_key_path,
    job_part_key_path,
    log_pages_key_path,
    log_pending_key_path,
    parse_log_key,
    parse_log_page_key,
)

if TYPE_CHECKING:
    from replog.abc import Metastore


def encode_log(metadata: LogMetadata) -> bytes:
    """The value of a log's record, its head."""
    return encode(metadata)


def decode_log(key: str, value: bytes) -> LogMetadata:
    """The record in the value of this log's key. Raises `MetastoreCorruptError`, naming the key and every fault."""
    metadata = decode(key, value, LogMetadata)
    faults = [f"name is {metadata.name!r}"] if metadata.name != parse_log_key(key) else []
    faults += metadata.faults()
    if faults:
        raise corrupt(key, faults)
    return metadata


def encode_log_page(page: LogPage) -> bytes:
    """The value of a page's record."""
    return encode(page)


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


def encode_pending(pending: PendingLedger) -> bytes:
    """The value of a pending ledger's record."""
    return encode(pending)


def decode_pending(key: str, value: bytes) -> PendingLedger:
    """The pending ledger in the value of this key. Raises `MetastoreCorruptError`, naming the key and every fault."""
    pending = decode(key, value, PendingLedger)
    if not 0 <= pending.ledger_id <= LEDGER_ID_MAX or log_pending_key_path(pending.log_name, pending.ledger_id) != key:
        raise corrupt(key, [f"it is ledger {pending.ledger_id} of log {pending.log_name!r}"])
    return pending


def encode_job_ledger(ledger: JobLedger) -> bytes:
    """The value of the record of a job's ledger."""
    return encode(ledger)


def decode_job_ledger(key: str, value: bytes) -> JobLedger:
    """The job's ledger in the value of this key. Raises `MetastoreCorruptError`, naming the key and every fault."""
    ledger = decode(key, value, JobLedger)
    if f"{job_key_path(ledger.log_name, ledger.job)}/{ledger.ledger_id}" != key:
        raise corrupt(key, [f"it is ledger {ledger.ledger_id} of a job for log {ledger.log_name!r}"])
    return ledger


def encode_job_part(part: JobPart) -> bytes:
    """The value of the record of a job's part."""
    return encode(part)


def decode_job_part(key: str, value: bytes) -> JobPart:
    """The job's part in the value of this key. Raises `MetastoreCorruptError`, naming the key and every fault."""
    part = decode(key, value, JobPart)
    if job_part_key_path(part.log_name, part.job, part.writer, part.partition) != key:
        raise corrupt(key, [f"it is part {part.writer}-{part.partition} of a job for log {part.log_name!r}"])
    return part


# -- listing ------------------------------------------------------------------------------------------------------


async def list_log_names(metastore: Metastore) -> list[str]:
    """The names of all logs that were not deleted, sorted. A log whose record is damaged is listed."""
    names = []
    for word, found in (await metastore.values(LOGS_KEY)).items():
        key = f"{LOGS_KEY}/{word}"
        # The head stays after a deletion, because it has the next segment number: those are never reused (L3).
        if not _is_deleted(key, found.value):
            names.append(parse_log_key(key))
    return sorted(names)


def _is_deleted(key: str, value: bytes) -> bool:
    try:
        return decode_log(key, value).is_deleted
    except MetastoreCorruptError:
        return False  # reading that log raises the error


async def list_log_pages(metastore: Metastore, name: str) -> list[int]:
    """The numbers of a log's pages, ascending, including pages that nothing refers to any more."""
    key = log_pages_key_path(name)
    return sorted(parse_log_page_key(f"{key}/{word}")[1] for word in await metastore.children(key))
