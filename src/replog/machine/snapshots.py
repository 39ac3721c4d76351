"""Snapshots of a machine, in a log of their own beside the machine's: `NAME.snapshots`.

A snapshot is a header (JSON: format, position, bytes, SHA-256), then chunks of bytes, each a record. The log does the rest: a
member that saves takes it over, so that nobody else writes; older segments are trimmed; what a crash leaves is deleted by the
next takeover (L7). Rules:

- A snapshot counts only if all of it can be read, and its hash fits. Of several, the one of the highest position counts.
- Nothing replaces a newer snapshot: a member that saves looks, after its takeover, at the positions in the metadata of the other
  segments. So a deposed leader never takes away the snapshot for which the machine's log was trimmed.
- The machine's log is trimmed only up to the position of a snapshot that is confirmed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

import attrs

from replog.errors import LedgerNotFoundError, LogNotFoundError, PositionError, TrimmedError
from replog.machine.surroundings import LogOptions, Logs
from replog.protocol.model import Position

FORMAT = 1
CHUNK_BYTES = 1 << 20
_POSITION = "position"  # in the custom metadata of a snapshot's ledgers
_HEADER, _CHUNK = b"H", b"C"


@attrs.frozen
class Header:
    """What is known of a snapshot before it is read."""

    position: Position
    size_bytes: int
    sha256: str

    def encode(self) -> bytes:
        """Its record."""
        fields = {"format": FORMAT, "position": str(self.position), "bytes": self.size_bytes, "sha256": self.sha256}
        return _HEADER + json.dumps(fields).encode()


def decode_header(data: bytes) -> Header | None:
    """The header that this record is; None if it is of a later format, or damaged: then that snapshot does not count."""
    try:
        fields = json.loads(data[1:])
        if fields["format"] != FORMAT:
            return None
        return Header(Position.parse(fields["position"]), int(fields["bytes"]), str(fields["sha256"]))
    except (ValueError, LookupError, TypeError):
        return None


def snapshots_name(name: str) -> str:
    """The name of the log that has a machine's snapshots."""
    return f"{name}.snapshots"


async def save(name: str, position: Position, data: bytes, logs: Logs, options: LogOptions) -> bool:
    """Saves a snapshot, and drops older ones; returns False if there is a newer one already. Raises as `write_log` and `append`
    do: then what was there stays."""
    log_name = snapshots_name(name)
    keywords = attrs.asdict(options, recurse=False)
    async with logs.write_log(log_name, **keywords, custom={_POSITION: str(position)}) as log:
        # Nobody else can save from here on without this writer's learning it.
        if await _has_newer(log_name, position, log.segment, logs):
            return False
        header = Header(position, len(data), hashlib.sha256(data).hexdigest())
        first = await log.append(header.encode())
        for start in range(0, len(data), CHUNK_BYTES):
            await log.push(_CHUNK + data[start : start + CHUNK_BYTES])
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
            if Position.parse(custom.get(_POSITION, "")) >= position:
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
    best: tuple[Position, bytes] | None = None
    header: Header | None = None
    chunks: list[bytes] = []
    size_bytes = 0
    async with logs.read_log(log_name, password=password) as reader:
        async for record in reader:
            if record.data[:1] == _HEADER:
                header, chunks, size_bytes = decode_header(record.data), [], 0
            elif header is not None and record.data[:1] == _CHUNK:
                chunks.append(record.data[1:])
                size_bytes += len(chunks[-1])
                progress(size_bytes, header.size_bytes)
            if header is None or size_bytes < header.size_bytes:
                continue
            data = b"".join(chunks)
            is_whole = hashlib.sha256(data).hexdigest() == header.sha256
            if is_whole and (best is None or header.position > best[0]):
                best = header.position, data
            header, chunks = None, []
    return None if best is None else best[1]
