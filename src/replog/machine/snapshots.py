"""Snapshots of a machine, in a log of their own beside the machine's: `NAME.snapshots`.

`replog.log.snapshot_format` has its records. The log does the rest: a member that saves takes it over, so that no other
member writes; older segments are trimmed; leftovers of a crash are deleted by the next takeover (L7). Rules:

- Nothing replaces a newer snapshot: a member that saves looks, after its takeover, at the positions in the metadata of the other
  segments. So a deposed leader never takes away the snapshot for which the machine's log was trimmed.
- The machine's log is trimmed only up to the position of a snapshot that is confirmed.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from replog.errors import LedgerNotFoundError, LogNotFoundError, PositionError, TrimmedError
from replog.log.log_options import LogOptions
from replog.log.snapshot_format import POSITION_KEY, Header, SnapshotReader, chunks, snapshots_name
from replog.machine.context import Logs
from replog.protocol.model import Position


async def save(name: str, position: Position, data: bytes, logs: Logs, options: LogOptions) -> bool:
    """Saves a snapshot, and drops older ones; returns False if there is a newer one already. Raises the errors of
    `write_log` and `append`: then the earlier snapshot stays."""
    log_name = snapshots_name(name)
    at = attrs.evolve(options, custom={POSITION_KEY: str(position)})
    async with logs.write_log(log_name, options=at) as log:
        # Nobody else can save from here on without this writer's learning it.
        if await _has_newer(log_name, position, log.segment, logs):
            return False
        first = await log.append(Header.of(position, data).encode())
        for chunk in chunks(data):
            await log.push(chunk)
        await log.flush()
    # Only now that its ledger is closed: until then a reader may find less than all of it. If this process died before that,
    # with the older ones gone, no member could be restored.
    await logs.trim_log(log_name, before=first)
    return True


async def _has_newer(log_name: str, position: Position, own: int, logs: Logs) -> bool:
    for segment in await logs.log_segments(log_name):
        if segment.number == own:
            continue
        try:
            custom = (await logs.ledger_metadata(segment.ledger_id)).custom
        except LedgerNotFoundError:
            continue  # trimmed meanwhile
        try:
            if Position.parse(custom.get(POSITION_KEY, "")) >= position:
                return True
        except PositionError:
            continue  # not one of ours: it has no snapshot that counts
    return False


async def load(name: str, logs: Logs, password: bytes, progress: Callable[[int, int], None]) -> bytes | None:
    """The newest snapshot; None if there is none. `progress` is called with the bytes read so far, and those of the snapshot.

    Raises as `read_log` and iterating do."""
    while True:
        try:
            return await _load(snapshots_name(name), logs, password, progress)
        except LogNotFoundError:
            return None
        except TrimmedError:
            pass  # a newer one was saved meanwhile


async def _load(log_name: str, logs: Logs, password: bytes, progress: Callable[[int, int], None]) -> bytes | None:
    found = SnapshotReader()
    async with logs.read_log(log_name, password=password) as reader:
        async for record in reader:
            read = found.add(record.data)
            if read is not None:
                progress(*read)
    return None if found.position is None else found.data
