"""The leader's archiving: `LogOptions(archive=...)`.

No clock can harm by it: what is archived too early reads the same. So it goes by this client's clock alone. Objects that no
record names, of archivings that were killed or trims that could not delete them, are collected once a day, under the rules of
`replog.repair.archive_objects`.
"""

from __future__ import annotations

import trio

from replog.api.archives import archiver_of, known
from replog.api.opened import OpenClient
from replog.errors import ArchiveError, ConfigError, LedgerNotFoundError, LogNotFoundError, ReplogError
from replog.log.log_options import Archiving
from replog.log.retention import first_kept
from replog.protocol.fragment_copies import fixed_fragments
from replog.protocol.model import LedgerState
from replog.repair.archive_objects import DailyCollection
from replog.repair.archiver import Archiver
from replog.runtime.loggers import logger

_log = logger("replog.log")


async def archive_always(name: str, policy: Archiving, password: bytes, opened: OpenClient) -> None:
    """Archives what a log's options say, every `retention_interval_s`, until cancelled or until the log is deleted."""
    archive_id, told = "", ""
    garbage: DailyCollection | None = None
    while True:
        try:
            if garbage is None:
                archive_id = (await known(opened).add(policy.url)).archive_id
                garbage = DailyCollection(opened.ledgers, known(opened), archive_id)
            await _archive_once(name, policy, archive_id, password, opened, archiver_of(opened))
            if (found := await garbage.collect()) is not None and found.objects:
                _log.info("log %r: collected %d objects of its archive that no ledger names", name, found.objects)
            told = ""
        except LogNotFoundError:
            return  # the client that deleted it has deposed this writer
        except (ArchiveError, ConfigError) as error:
            if told != str(error):
                told = str(error)
                _log.warning("log %r: its segments stay with bookies; tried again: %s", name, error)
        except ReplogError as error:
            _log.warning("log %r: its segments could not be archived; tried again: %s", name, error)
        await trio.sleep(opened.ledgers.options.retention_interval_s)


async def _archive_once(
    name: str, policy: Archiving, archive_id: str, password: bytes, opened: OpenClient, archiver: Archiver
) -> None:
    """Archives the segments outside of the policy's limits that follow the last one that is archived, oldest first."""
    segments = await opened.logs.segments(name)
    if not segments:
        return
    first = first_kept(segments, policy.kept, opened.ledgers.entropy.time_ms(), None)
    last = {each.ledger_id: each.number for each in segments}
    todo: list[int] = []
    for ledger_id in reversed([ledger_id for ledger_id, number in last.items() if number < first]):
        try:
            metadata, _ = await opened.ledgers.records.get_head(ledger_id)
        except LedgerNotFoundError:
            continue  # it was trimmed meanwhile
        # What is before it was archived before it.
        if metadata.state is LedgerState.CLOSED and not fixed_fragments(metadata) and metadata.last_entry_id != -1:
            break
        todo.append(ledger_id)
    for ledger_id in reversed(todo):
        try:
            await archiver.archive(ledger_id, archive_id, password)
        except LedgerNotFoundError:
            continue
