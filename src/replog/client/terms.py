"""What is done with an unbounded ledger from outside of its writer: trimming it, and raising its term after a restore (T2)."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import trio

from replog.client.channel import Answer
from replog.client.driving import ClientContext
from replog.client.job_records import LOG_KEY
from replog.config import check_number
from replog.errors import (
    ConfigError,
    MetastoreUnavailableError,
    MetastoreUncertainError,
    RecoveryUndecidedError,
    VersionConflictError,
)
from replog.protocol.messages import ReadLastAddConfirmedRequest, Response, Status
from replog.protocol.model import LedgerMetadata
from replog.protocol.mutations import DELETED_TERM


def check_unbounded(metadata: LedgerMetadata, what: str) -> None:
    """Raises `ConfigError` for a bounded ledger."""
    if not metadata.is_unbounded:
        raise ConfigError(
            f"ledger {metadata.ledger_id} is bounded, and can't be {what}: only a ledger that was created with unbounded=True can"
        )


def check_alone(metadata: LedgerMetadata, what: str) -> None:
    """Raises `ConfigError` for a ledger of a log: only the log's leader and `trim_log` know which positions are still needed, and
    who leads (L9)."""
    log_name = metadata.custom.get(LOG_KEY)
    if log_name is not None:
        raise ConfigError(
            f"ledger {metadata.ledger_id} belongs to log {log_name!r}, and can't be {what} alone: use the verbs of logs"
        )


async def trim(ledger_id: int, before: int, context: ClientContext) -> int:
    """Drops the fragments that lie wholly before this entry; returns the first entry that is left. As `Client.trim_ledger`."""
    check_number("before", before, 0)

    def trimmed(metadata: LedgerMetadata) -> LedgerMetadata:
        check_unbounded(metadata, "trimmed")
        check_alone(metadata, "trimmed")
        return metadata.trimmed(before)

    return (await _change(ledger_id, context, trimmed, before)).trim_to


async def raise_term(ledger_id: int, key: bytes, context: ClientContext, timeout_s: float) -> int:
    """Raises the term in the record to the highest that a bookie knows; returns it. As `Client.raise_ledger_term`."""
    known = await _highest_fence(ledger_id, key, context, timeout_s)

    def raised(metadata: LedgerMetadata) -> LedgerMetadata:
        check_unbounded(metadata, "given a higher term")
        # Nobody owns the term: who does in the record is deposed as if somebody had claimed it.
        return attrs.evolve(metadata, term=known, owner="") if known > metadata.term else metadata

    return (await _change(ledger_id, context, raised)).term


async def _change(
    ledger_id: int, context: ClientContext, change: Callable[[LedgerMetadata], LedgerMetadata], at: int | None = None
) -> LedgerMetadata:
    """Changes a record by compare-and-set, again and again until it has what `change` wants. Returns the record."""
    records = context.records
    deadline_s = trio.current_time() + records.timeout_s
    while True:
        metadata, version = await records.get_head(ledger_id, at=at)
        wanted = change(metadata)
        if wanted == metadata:
            return metadata
        try:
            changed = attrs.evolve(wanted, token=context.chance.token(), revision=metadata.revision + 1)
            await records.put(changed, version)
        except VersionConflictError as error:  # somebody else was faster
            if trio.current_time() >= deadline_s:
                raise MetastoreUnavailableError(
                    f"changing ledger {ledger_id}: others were faster for {records.timeout_s} s"
                ) from error
        except MetastoreUncertainError as error:
            # The next look at the record shows whether it was written.
            await records.pause(deadline_s, error)
        else:
            return changed


async def _highest_fence(ledger_id: int, key: bytes, context: ClientContext, timeout_s: float) -> int:
    """The highest fence that a bookie has. Raises `RecoveryUndecidedError` if one of them could not be asked."""
    bookie_ids = sorted(await context.membership.announced())
    await context.connections.connect_most(bookie_ids, timeout_s)
    heard: dict[str, int] = {}
    all_heard = trio.Event()

    def answered(answer: Answer, bookie_id: str) -> None:
        # A refusal says nothing of terms: its term is 0, whatever the bookie knows.
        if isinstance(answer, Response) and answer.status is Status.OK:
            heard[bookie_id] = answer.fence_term
        if len(heard) == len(bookie_ids):
            all_heard.set()

    for bookie_id in bookie_ids:
        channel = context.connections.channel(bookie_id)
        if channel is not None:
            request = ReadLastAddConfirmedRequest(next(channel.request_ids), ledger_id, key, -1, 0)
            channel.ask(request, answered, bookie_id, timeout_s)
    with trio.move_on_after(timeout_s):
        await all_heard.wait()
    silent = [bookie_id for bookie_id in bookie_ids if bookie_id not in heard]
    if silent or not heard:
        problem = f"{', '.join(silent) or 'no bookie'} did not say which term it knows: nothing was changed"
        raise RecoveryUndecidedError(ledger_id, problem, silent)
    return max((term for term in heard.values() if term != DELETED_TERM), default=0)
