"""Archiving and recalling the segments of logs, for `client.admin`."""

from __future__ import annotations

from collections.abc import Sequence

from replog.api.opened import OpenClient
from replog.client.archives import Archives
from replog.errors import ConfigError, LedgerNotFoundError
from replog.protocol.model import Position
from replog.repair.archiver import Archiver, MovedEntries


def known(opened: OpenClient) -> Archives:
    """The archives of a client's cluster."""
    reader = opened.ledgers.context.archive_reader
    assert reader is not None, "a client has a reader of archives"
    return reader.archives


async def archive_log(
    opened: OpenClient, name: str, before: Position | str | None, archive: str | None, password: bytes
) -> MovedEntries:
    """As `Admin.archive_log`."""
    end = None if before is None else Position.parse(before)
    ledger_ids, archiver = await _wholly_before(opened, name, end), archiver_of(opened)
    archive_id = await _one(known(opened), archive)
    moved = MovedEntries()
    for ledger_id in ledger_ids:
        try:
            moved += await archiver.archive(ledger_id, archive_id, password)
        except LedgerNotFoundError:
            continue  # it was trimmed meanwhile
    return moved


async def recall_log(opened: OpenClient, name: str, password: bytes) -> MovedEntries:
    """As `Admin.recall_log`."""
    archiver, moved = archiver_of(opened), MovedEntries()
    # The newest first: what is archived is the beginning of the log, which summaries rely upon.
    for ledger_id in reversed(await _wholly_before(opened, name, None)):
        try:
            moved += await archiver.recall(ledger_id, password)
        except LedgerNotFoundError:
            continue  # it was trimmed meanwhile
    return moved


def archiver_of(opened: OpenClient) -> Archiver:
    """The archiver of a client's cluster."""
    return Archiver(opened.ledgers, opened.repairer, known(opened))


async def _wholly_before(opened: OpenClient, name: str, before: Position | None) -> Sequence[int]:
    """The ids of a log's ledgers, all of whose segments end before this position. Raises `LogNotFoundError`."""
    await opened.logs.get(name)
    last = {each.ledger_id: each.number for each in await opened.logs.segments(name)}
    return [ledger_id for ledger_id, number in last.items() if before is None or number < before.segment]


async def _one(archives: Archives, url: str | None) -> str:
    """The id of the archive with this URL, or of the only one."""
    there = await archives.list()
    found = [each for each in there if url in (None, each.url)]
    if len(found) == 1:
        return found[0].archive_id
    urls = ", ".join(each.url for each in there) or "none: add one"
    raise ConfigError(
        f"archive={url!r} names {len(found) or 'none'} of the archives; nothing was archived. There are {urls}"
    )
