"""The files of a back-up: one for each closed ledger, which never changes, and a manifest that names them.

`docs/reference/formats.md` has every byte. A ledger file begins with `MAGIC`, and goes on with frames: the length of the body and
its CRC32C, both 32 bits, then the body. The first byte of a body is its kind: the head, then blocks of entries in order, then the
end, which has the number of entries and the SHA-256 of all bytes before it. All numbers are little-endian. A file without its end
was not finished.

Reading raises `BackupDamagedError`, which names the file, for every byte that is not as it was written.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import attrs
from crc32c import crc32c

from replog.abc import ReadFile
from replog.errors import BackupDamagedError, PositionError
from replog.protocol.envelope import Enveloped
from replog.protocol.model import Position

MAGIC = b"replog-backup\n\x01\x00"  # the last two bytes are the version
MANIFEST_FORMAT = 1
MANIFEST_NAME = "manifest.json"
LEDGERS_NAME = "ledgers"

_FRAME = struct.Struct("<II")
_BLOCK = struct.Struct("<BQQI")  # kind, first entry id, timestamp in ns, number of entries
_END = struct.Struct("<BQ32s")  # kind, number of entries, SHA-256
_HEAD_KIND, _BLOCK_KIND, _END_KIND, _ENVELOPES_KIND = 1, 2, 3, 4
_BODY_BYTES_MAX = 1 << 30
_MANIFEST_BYTES_MAX = 1 << 30
_OTHER_NAME = re.compile(r"[0-9]{20}-[0-9a-f]{1,64}\.ledger")  # where the place has no locks


@attrs.frozen
class LedgerHead:
    """A ledger file's description of its ledger. `last_entry_id` is -1 if it is empty. `creation` tells it from another
    ledger of the same id (M5)."""

    ledger_id: int
    creation: str
    created_at_ms: int
    last_entry_id: int
    ensemble: int
    write: int
    ack: int
    digest_type: str
    has_password: bool
    custom: dict[str, str]


@attrs.frozen
class Block:
    """Consecutive entries that were sent at the same moment. All are `Enveloped`, or none is."""

    first_entry_id: int
    timestamp_ns: int
    payloads: Sequence[bytes]


class _Sink(Protocol):
    def write(self, data: bytes, /) -> object: ...


class LedgerFileWriter:
    """Writes one ledger file, from its beginning to its end."""

    def __init__(self, file: _Sink, head: LedgerHead) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._entries = 0
        self.size_bytes = 0
        self._write(MAGIC)
        self._write_frame(bytes([_HEAD_KIND]) + _as_json(attrs.asdict(head)))

    def add(self, block: Block) -> None:
        """Writes these entries."""
        lengths = struct.pack(f"<{len(block.payloads)}I", *map(len, block.payloads))
        kind = _ENVELOPES_KIND if block.payloads[0].__class__ is Enveloped else _BLOCK_KIND
        begin = _BLOCK.pack(kind, block.first_entry_id, block.timestamp_ns, len(block.payloads))
        self._write_frame(b"".join((begin, lengths, *block.payloads)))
        self._entries += len(block.payloads)

    def end(self) -> str:
        """Writes the end, and returns the SHA-256 of the whole file, in hexadecimal digits."""
        self._write_frame(_END.pack(_END_KIND, self._entries, self._hash.digest()))
        return self._hash.hexdigest()

    def _write_frame(self, body: bytes) -> None:
        self._write(_FRAME.pack(len(body), crc32c(body)))
        self._write(body)

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._hash.update(data)
        self.size_bytes += len(data)


class LedgerFile:
    """Reads one ledger file. `head` is checked when it is opened, the rest by `blocks`."""

    def __init__(self, path: object, file: ReadFile) -> None:
        self._path = path
        self._file = file
        self._hash = hashlib.sha256()
        self._offset = 0
        if self._read(len(MAGIC)) != MAGIC:
            raise self._damaged(0, "it does not begin as a ledger file of this version")
        body = self._frame()
        try:
            if body[0] != _HEAD_KIND:
                raise ValueError("its first frame is not a head")
            self.head = _head_of(json.loads(body[1:]))
        except (ValueError, TypeError) as error:
            raise self._damaged(len(MAGIC), f"its head can't be read: {error}") from error

    def blocks(self) -> Iterator[Block]:
        """The entries in order. Checks everything, up to the end of the file."""
        next_entry_id = 0
        while True:
            # Taken before the frame is read: the end's hash is of all bytes before it.
            offset, so_far = self._offset, self._hash.digest()
            body = self._frame()
            if body[0] == _END_KIND:
                break
            block = self._block(body, offset)
            if block.first_entry_id != next_entry_id:
                raise self._damaged(offset, f"entry {next_entry_id} is missing")
            next_entry_id += len(block.payloads)
            yield block
        if len(body) != _END.size or _END.unpack(body)[1:] != (next_entry_id, so_far):
            raise self._damaged(offset, "its end does not fit what stands before it")
        if next_entry_id != self.head.last_entry_id + 1:
            problem = (
                f"it has {next_entry_id} entries, and its head says that the last one is {self.head.last_entry_id}"
            )
            raise self._damaged(offset, problem)
        if self._file.read(1):
            raise self._damaged(self._offset, "there is something behind its end")

    @property
    def size_bytes(self) -> int:
        """The number of bytes read."""
        return self._offset

    def sha256(self) -> str:
        """The SHA-256 of the bytes read."""
        return self._hash.hexdigest()

    def _block(self, body: bytes, offset: int) -> Block:
        try:
            kind, first, timestamp_ns, count = _BLOCK.unpack_from(body)
            lengths = struct.unpack_from(f"<{count}I", body, _BLOCK.size)
        except struct.error as error:
            raise self._damaged(offset, f"a block of entries is cut: {error}") from error
        begin = _BLOCK.size + 4 * count
        if kind not in (_BLOCK_KIND, _ENVELOPES_KIND) or not count or begin + sum(lengths) != len(body):
            raise self._damaged(offset, "what should be entries is something else")
        payloads: list[bytes] = []
        for length in lengths:
            payload = body[begin : begin + length]
            payloads.append(Enveloped(payload) if kind == _ENVELOPES_KIND else payload)
            begin += length
        return Block(first, timestamp_ns, payloads)

    def _frame(self) -> bytes:
        offset = self._offset
        size, checksum = _FRAME.unpack(self._read(_FRAME.size))
        # Before the body is read: a damaged length must not allocate the machine's memory.
        if not 0 < size <= _BODY_BYTES_MAX:
            raise self._damaged(offset, f"a frame of {size} bytes")
        body = self._read(size)
        if crc32c(body) != checksum:
            raise self._damaged(offset, "a frame has a wrong checksum")
        return body

    def _read(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            raise self._damaged(self._offset, "it ends too early")
        self._hash.update(data)
        self._offset += size
        return data

    def _damaged(self, offset: int, problem: str) -> BackupDamagedError:
        return BackupDamagedError(self._path, f"at byte {offset}: {problem}")


# -- the manifest -------------------------------------------------------------------------------------------------


@attrs.frozen
class SavedSegment:
    """A segment of a log: its number, its ledger, and the ledger's file."""

    number: int
    ledger_id: int
    size_bytes: int
    sha256: str
    file_name: str = attrs.field(default=attrs.Factory(lambda self: ledger_file_name(self.ledger_id), takes_self=True))

    def encode(self) -> list[object]:
        """As it is in the manifest."""
        named = [] if self.file_name == ledger_file_name(self.ledger_id) else [self.file_name]
        return [self.number, self.ledger_id, self.size_bytes, self.sha256, *named]

    @classmethod
    def decode(cls, number: int, ledger_id: int, size_bytes: int, sha256: str, name: str = "") -> SavedSegment:
        """The one that was encoded so. Raises `ValueError`, `TypeError`."""
        if name and _OTHER_NAME.fullmatch(name) is None:
            raise ValueError(f"{name!r} is not the name of a ledger's file")
        ledger = int(ledger_id)
        return cls(int(number), ledger, int(size_bytes), str(sha256), name or ledger_file_name(ledger))


@attrs.frozen
class LogInBackup:
    """The saved part of one log: segments in order, the first of which is `first_segment_number`; it is the next one to
    be saved if there are none. `trimmed_to` is behind the last entry before it, if that is known. The others are as in
    the log's record; each of `cursors` begins at an entry that is saved, or behind the last one."""

    segments: tuple[SavedSegment, ...]
    first_segment_number: int = 1
    begun_with_number: int = 1
    trimmed_to: Position | None = None
    custom: Mapping[str, str] = attrs.field(factory=dict)
    cursors: Mapping[str, Position] = attrs.field(factory=dict)

    @property
    def last_segment_number(self) -> int:
        """The number of the last segment; one below the first if there is none."""
        return self.first_segment_number + len(self.segments) - 1

    @property
    def has_beginning(self) -> bool:
        """True if nothing was trimmed before the first segment."""
        return self.first_segment_number == self.begun_with_number

    def encode(self) -> dict[str, object]:
        """As it is in the manifest."""
        return {
            "first_segment_number": self.first_segment_number,
            "begun_with_number": self.begun_with_number,
            "trimmed_to": None if self.trimmed_to is None else str(self.trimmed_to),
            "custom": dict(self.custom),
            "cursors": {name: str(place) for name, place in sorted(self.cursors.items())},
            "segments": [each.encode() for each in self.segments],
        }

    @classmethod
    def decode(cls, fields: dict[str, Any]) -> LogInBackup:
        """The one that was encoded so. Raises `ValueError`, `TypeError`, `LookupError`, `AttributeError`, `PositionError`."""
        given = fields["trimmed_to"]
        found = cls(
            tuple(SavedSegment.decode(*each) for each in fields["segments"]),
            int(fields["first_segment_number"]),
            int(fields["begun_with_number"]),
            None if given is None else Position.parse(given),
            {str(name): str(value) for name, value in fields["custom"].items()},
            {str(name): Position.parse(place) for name, place in fields["cursors"].items()},
        )
        first = found.first_segment_number
        if not 1 <= found.begun_with_number <= first or [each.number for each in found.segments] != list(
            range(first, first + len(found.segments))
        ):
            raise ValueError(
                f"its segments are not those from {first} on, of a log that began with {found.begun_with_number}"
            )
        if found.trimmed_to is not None and not (1, 0) <= found.trimmed_to <= (first, 0):
            raise ValueError(f"it was not trimmed to {found.trimmed_to}")
        return found


@attrs.frozen
class Manifest:
    """The contents of a back-up: logs, by their names. `created_at_ms` is when it was finished."""

    created_at_ms: int
    logs: Mapping[str, LogInBackup]


def ledger_file_name(ledger_id: int) -> str:
    """The name of a ledger's file."""
    return f"{ledger_id:020}.ledger"


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of a manifest: a JSON object, and behind it a line with the SHA-256 of that."""
    logs = {name: log.encode() for name, log in sorted(manifest.logs.items())}
    body = _as_json({"format": MANIFEST_FORMAT, "created_at_ms": manifest.created_at_ms, "logs": logs}) + b"\n"
    return body + hashlib.sha256(body).hexdigest().encode() + b"\n"


def decode_manifest(path: object, data: bytes) -> Manifest:
    """Reads a manifest. Raises `BackupDamagedError`."""
    body, _, checksum = data[:_MANIFEST_BYTES_MAX].rstrip(b"\n").rpartition(b"\n")
    body += b"\n"
    if hashlib.sha256(body).hexdigest().encode() != checksum:
        raise BackupDamagedError(path, "it does not fit the checksum in its last line")
    try:
        fields = json.loads(body)
        if fields["format"] != MANIFEST_FORMAT:
            raise ValueError(f"its format is {fields['format']!r}: a newer replog wrote it")
        logs = {str(name): LogInBackup.decode(log) for name, log in fields["logs"].items()}
        return Manifest(int(fields["created_at_ms"]), logs)
    except (ValueError, TypeError, LookupError, AttributeError, PositionError) as error:
        raise BackupDamagedError(path, f"it is not a manifest: {error}") from error


def _head_of(fields: object) -> LedgerHead:
    if not isinstance(fields, dict):
        raise TypeError(f"{fields!r} is not an object")
    types = {field.name: field.type for field in attrs.fields(attrs.resolve_types(LedgerHead))}
    if fields.keys() != types.keys():
        raise ValueError(f"its fields are {sorted(fields)}")
    for name, kind in types.items():
        wanted = dict if name == "custom" else kind
        if type(fields[name]) is not wanted:
            raise TypeError(f"{name} is {fields[name]!r}")
    return LedgerHead(**fields)


def _as_json(fields: dict[str, object]) -> bytes:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass")
