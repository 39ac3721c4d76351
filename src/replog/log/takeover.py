"""Becoming the writer of a log (L1)."""

from __future__ import annotations

from collections.abc import Mapping

import trio

from replog.client.ledgers import Ledgers
from replog.client.writer import LedgerWriter
from replog.errors import TakeoverFailedError
from replog.hookspecs import LogTakenOver
from replog.log.records import LogRecords
from replog.log.writer import LogWriter
from replog.protocol.chaining import RECOVERED_AT_TAKEOVER, LogTakeover
from replog.protocol.digest import DigestType
from replog.protocol.quorum import Quorum


async def take_over(
    name: str,
    ledgers: Ledgers,
    records: LogRecords,
    nursery: trio.Nursery,
    quorum: Quorum,
    password: bytes,
    digest_type: DigestType,
    custom: Mapping[str, str] | None = None,
) -> LogWriter:
    """Recovers what the last writer left, and becomes the writer: whoever was it before is fenced.

    Raises `RecoveryUndecidedError` or `NotEnoughBookiesError` (retry: when bookies are back), `TakeoverFailedError` if
    others kept winning until `takeover_timeout_s` had passed, `MetastoreError`. Then nothing was served, and a ledger may
    be left that no log names. If cancelled, the log may have been taken over by nobody: take over again."""
    started = trio.current_time()

    async def create_writer() -> LedgerWriter:
        return await ledgers.create(quorum, password, digest_type, {**(custom or {}), "log": name})

    created: list[LedgerWriter] = []

    async def create_ledger() -> int:
        created.append(await create_writer())
        return created[-1].ledger_id

    machine = LogTakeover(name, ledgers.chance.token(), ledgers.chance.time_ms(), records.page_segments)
    machine.start()
    writer: LedgerWriter | None = None
    try:
        with trio.move_on_after(ledgers.options.takeover_timeout_s):
            changed = await records.drive(machine, create_ledger, password)
            writer = created[-1]
        if writer is None:
            waited = f"not taken over within {ledgers.options.takeover_timeout_s} s"
            problem = f"{waited}: others keep winning, or bookies or the metastore hang"
            raise TakeoverFailedError(name, f"{problem}; retry if you are still elected")
    finally:
        for lost in created:
            if lost is not writer:
                lost.leave()
    segments = changed.metadata.segments
    recovered = tuple(segment.ledger_id for segment in segments[:-1][-RECOVERED_AT_TAKEOVER:])
    duration_s = trio.current_time() - started
    ledgers.observe(LogTakenOver(name, segments[-1].number, writer.ledger_id, recovered, duration_s))
    log_writer = LogWriter(name, ledgers, records, changed, writer, create_writer, password)
    nursery.start_soon(log_writer.run)
    return log_writer
