"""Changes of an unbounded ledger from outside of its writer: trimming it, and raising its term after a restore (T2)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

import attrs
import trio

from replog.client.channel import Answer
from replog.client.job_records import LOG_KEY
from replog.client.ledger_effects import ClientContext
from replog.config import check_number
from replog.errors import (
    ConfigError,
    RecoveryUndecidedError,
)
from replog.protocol.messages import FenceRequest, ReadLastAddConfirmedRequest, Request, Response, Status
from replog.protocol.model import LedgerMetadata
from replog.protocol.mutations import DELETED_TERM


def check_unbounded(metadata: LedgerMetadata, what: str) -> None:
    """Raises `ConfigError` for a bounded ledger."""
    if not metadata.is_unbounded:
        raise ConfigError(
            f"ledger {metadata.ledger_id} is bounded, and can't be {what}: only a ledger that was created with unbounded=True can"
        )


def check_alone(metadata: LedgerMetadata, what: str) -> None:
    """Raises `ConfigError` for a ledger of a log: only the log's leader and `trim_log` know the leader and the
    positions that are still needed (L9)."""
    log_name = metadata.custom.get(LOG_KEY)
    if log_name is not None:
        raise ConfigError(
            f"ledger {metadata.ledger_id} belongs to log {log_name!r}, and can't be {what} alone: use the verbs of logs"
        )


async def trim(ledger_id: int, before: int, context: ClientContext) -> int:
    """Drops the fragments that lie wholly before this entry; returns the first entry that is left. As `Client.trim_ledger`."""
    check_number("before", before, 0)

    known: LedgerMetadata | None = None

    def trimmed(metadata: LedgerMetadata) -> LedgerMetadata:
        nonlocal known
        check_unbounded(metadata, "trimmed")
        check_alone(metadata, "trimmed")
        known = metadata
        return metadata.trimmed(before)

    left = await change_record(ledger_id, context, trimmed, before)
    assert known is not None, "a record was changed"
    await context.delete_archived(known, left)
    return left.trim_to


async def raise_term(known_record: LedgerMetadata, key: bytes, context: ClientContext, timeout_s: float) -> int:
    """Raises the term in the record to the highest that a bookie knows; returns it. As `Client.admin.raise_ledger_term`."""
    # Before anybody is asked: to ask may fence.
    check_unbounded(known_record, "given a higher term")
    ledger_id = known_record.ledger_id
    known = await _highest_fence(ledger_id, key, context, timeout_s)
    # Below that term no bookie takes anything any more: fencing by it deposes no writer. A bookie that knows a later
    # change names it.
    revision = 0
    if known:
        ask = partial(FenceRequest, ledger_id=ledger_id, key=key, term=known, revision=1)
        answers = await _asked(ledger_id, ask, (Status.OK, Status.FENCED, Status.RECORD_OUTDATED), context, timeout_s)
        outdated = [each.fence_term for each in answers if each.status is Status.RECORD_OUTDATED]
        revision = max(outdated, default=0)

    def raised(metadata: LedgerMetadata) -> LedgerMetadata:
        if known <= metadata.term and revision <= metadata.revision:
            return metadata
        # The term has no owner: its writer in the record is deposed as if another client had claimed it.
        term, newest = max(known, metadata.term), max(revision, metadata.revision)
        return attrs.evolve(metadata, term=term, owner="", revision=newest)

    return (await change_record(ledger_id, context, raised)).term


async def change_record(
    ledger_id: int, context: ClientContext, change: Callable[[LedgerMetadata], LedgerMetadata], at: int | None = None
) -> LedgerMetadata:
    """Changes a record by compare-and-set, again and again until it has what `change` wants. Returns the record."""
    records = context.records

    async def changed(metadata: LedgerMetadata) -> LedgerMetadata | None:
        wanted = change(metadata)
        if wanted == metadata:
            return None
        return attrs.evolve(wanted, token=context.entropy.token(), revision=wanted.revision + 1)

    read = partial(records.get_head, ledger_id, at=at)
    return await records.edit(f"changing ledger {ledger_id}", read, changed, records.put)


async def _highest_fence(ledger_id: int, key: bytes, context: ClientContext, timeout_s: float) -> int:
    """The highest fence that a bookie has. Raises `RecoveryUndecidedError` if one of them could not be asked."""
    ask = partial(ReadLastAddConfirmedRequest, ledger_id=ledger_id, key=key, after=-1, wait_ms=0)
    # A refusal says nothing of terms: its term is always 0.
    answers = await _asked(ledger_id, ask, (Status.OK,), context, timeout_s)
    return max((each.fence_term for each in answers if each.fence_term != DELETED_TERM), default=0)


async def _asked(
    ledger_id: int,
    make: Callable[[int], Request],
    statuses: Collection[Status],
    context: ClientContext,
    timeout_s: float,
) -> list[Response]:
    """The answers of all announced bookies. Raises `RecoveryUndecidedError` if one has not given one of these."""
    bookie_ids = sorted(await context.membership.announced())
    await context.connections.connect_most(bookie_ids, timeout_s)
    heard: dict[str, Response] = {}
    all_heard = trio.Event()

    def answered(answer: Answer, bookie_id: str) -> None:
        if isinstance(answer, Response) and answer.status in statuses:
            heard[bookie_id] = answer
        if len(heard) == len(bookie_ids):
            all_heard.set()

    for bookie_id in bookie_ids:
        channel = context.connections.channel(bookie_id)
        if channel is not None:
            channel.ask(make(next(channel.request_ids)), answered, bookie_id, timeout_s)
    with trio.move_on_after(timeout_s):
        await all_heard.wait()
    silent = [bookie_id for bookie_id in bookie_ids if bookie_id not in heard]
    if silent or not heard:
        problem = f"{', '.join(silent) or 'no bookie'} did not say which term it knows: nothing was changed"
        raise RecoveryUndecidedError(ledger_id, problem, silent)
    return list(heard.values())
