"""The durable mark and the doubt: how far a storage was durable, and what it cannot vouch for, in two small files (B8).

`durable-mark` holds the position of the last commit that was synced: a number that only grows, of the storage's choosing.
It is written after each sync, before the commit returns, and not synced itself. After a kill it is exact, since the page
cache survives. After a power loss it is a lower bound. So a storage that finds less than its mark has lost something that
it acknowledged; a storage that reaches its mark vouches. Two slots, at 0 and 4096, are written in turn; the intact one
with the higher generation counts. A slot has 64 bytes, little-endian (format 1):

    magic "rlgm", format, reserved, generation, position, identity of the bookie (16 bytes), doubted below, lost below,
    generation of the storage's catalog, or 0, CRC32C of all that

`doubt` says what the storage cannot vouch for (`replog.abc.Doubt`), and up to which position losses are accounted for: a
storage that finds the same gap at its next start has found nothing new. It is one line of JSON and a line with the CRC32C
of the first, and is replaced atomically.

Both files are made with the storage, and each has a copy of the first two bounds; the higher one counts. The third is in the
doubt alone: without its doubt a storage doubts every ledger, which covers it. A storage without its
mark, or without its doubt, cannot tell whether it lost anything: it doubts every ledger. Missing, damaged, and another
bookie's are the same.
"""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterable

import attrs
from crc32c import crc32c

from replog.abc import UNBOUNDED, Doubt
from replog.backends.disk import Disk, failed_error, named_errors, read_all, write_all, write_file_atomically
from replog.runtime.disk_errors import is_full
from replog.runtime.platform import UNREADABLE

MARK_FILE = "durable-mark"
DOUBT_FILE = "doubt"
OWN_NAMES = (MARK_FILE, DOUBT_FILE, f"{MARK_FILE}.tmp", f"{DOUBT_FILE}.tmp")
DOUBT_FORMAT_NAME = "replog doubt"
FORMAT = 1
SLOT_BYTES = 64
SLOT_OFFSETS = (0, 4096)
REASONS_MAX = 32
REASON_CHARACTERS_MAX = 400

_MAGIC = b"rlgm"
_SLOT = struct.Struct("<4sHHQQ16sqqI")
_CHECKSUM = struct.Struct("<I")

assert _SLOT.size + _CHECKSUM.size == SLOT_BYTES


@attrs.frozen
class Slot:
    """The contents of one slot of a mark."""

    generation: int
    position: int
    identity: bytes
    doubted_below: int
    lost_below: int
    catalog_generation: int = 0


@attrs.frozen
class DoubtRecord:
    """The contents of a doubt file. Gaps before `accounted` and the files in `accounted_names` are known to be lost."""

    identity: bytes
    doubt: Doubt
    accounted: int = 0
    accounted_names: tuple[str, ...] = ()


def pack_slot(slot: Slot) -> bytes:
    """The 64 bytes of a slot."""
    packed = _SLOT.pack(
        _MAGIC,
        FORMAT,
        0,
        slot.generation,
        slot.position,
        slot.identity,
        slot.doubted_below,
        slot.lost_below,
        slot.catalog_generation,
    )
    return packed + _CHECKSUM.pack(crc32c(packed))


def unpack_slot(data: bytes) -> Slot | None:
    """The slot, or None if these bytes are not an intact one of this format."""
    if len(data) != SLOT_BYTES or _CHECKSUM.unpack_from(data, _SLOT.size)[0] != crc32c(data[: _SLOT.size]):
        return None
    magic, version, _, *numbers = _SLOT.unpack_from(data)
    return Slot(*numbers) if (magic, version) == (_MAGIC, FORMAT) else None


def pack_mark(slot: Slot) -> bytes:
    """A whole mark file, in which both slots say the same; the second is one generation newer."""
    newer = attrs.evolve(slot, generation=slot.generation + 1)
    first, second = sorted((slot, newer), key=lambda each: each.generation & 1)
    return pack_slot(first).ljust(SLOT_OFFSETS[1], b"\0") + pack_slot(second).ljust(SLOT_OFFSETS[1], b"\0")


def unpack_mark(data: bytes) -> Slot | None:
    """The newest intact slot of a mark file, or None if neither is intact."""
    slots = [unpack_slot(data[offset : offset + SLOT_BYTES]) for offset in SLOT_OFFSETS]
    return max((slot for slot in slots if slot is not None), key=lambda slot: slot.generation, default=None)


def pack_doubt(record: DoubtRecord) -> bytes:
    """A whole doubt file."""
    doubt = record.doubt
    line = json.dumps(
        {
            "format": DOUBT_FORMAT_NAME,
            "version": FORMAT,
            "identity": record.identity.hex(),
            "doubted_below": doubt.doubted_below,
            "lost_below": doubt.lost_below,
            "fences_lost_below": doubt.fences_lost_below,
            "fenced_again": sorted(doubt.fenced_again),
            "accounted": record.accounted,
            "accounted_names": list(record.accounted_names),
            "reasons": list(doubt.reasons),
        }
    ).encode()
    return line + b"\ncrc32c %08x\n" % crc32c(line)


def unpack_doubt(data: bytes) -> DoubtRecord | None:
    """The contents of a doubt file, or None if it is damaged or of another format."""
    line, _, rest = data.partition(b"\n")
    if rest != b"crc32c %08x\n" % crc32c(line):
        return None
    try:
        content = json.loads(line)
        if (content["format"], content["version"]) != (DOUBT_FORMAT_NAME, FORMAT):
            return None
        return DoubtRecord(
            bytes.fromhex(content["identity"]),
            Doubt(
                int(content["doubted_below"]),
                int(content["lost_below"]),
                tuple(map(str, content["reasons"])),
                int(content["fences_lost_below"]),
                frozenset(map(int, content["fenced_again"])),
            ),
            int(content["accounted"]),
            tuple(map(str, content["accounted_names"])),
        )
    except (ValueError, KeyError, TypeError):
        return None


def make_mark(disk: Disk, directory: str, identity: bytes) -> None:
    """Makes both files for a new storage, durably. May raise OSError."""
    write_file_atomically(disk, directory, DOUBT_FILE, (pack_doubt(DoubtRecord(identity, Doubt())),))
    write_file_atomically(disk, directory, MARK_FILE, (pack_mark(Slot(1, 0, identity, 0, 0)),))


def read_mark(disk: Disk, directory: str, identity: bytes) -> tuple[Slot | None, str]:
    """The mark; or None, and the reason why the file says nothing. Raises `StorageFailedError` if that may pass."""
    data, why = _read_file(disk, directory, MARK_FILE, SLOT_OFFSETS[1] + SLOT_BYTES)
    slot = None if data is None else unpack_mark(data)
    if slot is not None and slot.identity != identity:
        return None, f"is another bookie's, bookie-{slot.identity.hex()}"
    return slot, why or "is damaged"


def read_doubt(disk: Disk, directory: str, identity: bytes) -> tuple[DoubtRecord | None, str]:
    """The doubt; or None, and the reason why the file says nothing. Raises `StorageFailedError` if that may pass."""
    data, why = _read_file(disk, directory, DOUBT_FILE, 0)
    record = None if data is None else unpack_doubt(data)
    if record is not None and record.identity != identity:
        return None, f"is another bookie's, bookie-{record.identity.hex()}"
    return record, why or "is damaged"


def _read_file(disk: Disk, directory: str, name: str, size: int) -> tuple[bytes | None, str]:
    """The first `size` bytes of a file (0: all of them), or None and why it can't be read."""
    with named_errors(f"read {directory}/{name}"):
        try:
            fd = disk.open(f"{directory}/{name}")
        except FileNotFoundError:
            return None, "is missing"
        try:
            return read_all(disk, fd, size or disk.size(fd), 0), ""
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
            return None, f"can't be read: {error}"
        finally:
            disk.close(fd)


class DurableMark:
    """The two files of an open storage. Reading them changes nothing.

    The storage compares `position` with what it finds. If it finds less, or if `cannot_vouch` is not empty, it must call
    `raise_doubt` before it changes anything in its directory. Then it serves, and calls `advance` after each sync. Any
    thread may call anything at any time."""

    def __init__(self, disk: Disk, directory: str, identity: bytes) -> None:
        self._disk = disk
        self._directory = directory
        self._identity = identity
        self._lock = threading.Lock()
        self._fd = -1
        self._generation = 0
        # Of a catalog that was durable; the storage sets it, and each write of the mark takes it along. So a storage knows
        # an earlier catalog, put back from a copy, which would have it remove what it doesn't know.
        self.catalog_generation = 0
        self.position = 0  # of the last commit known to be durable, 0 if the mark is unreadable
        self.cannot_vouch: tuple[str, ...] = ()  # why this storage can't tell whether it lost anything
        self._doubt = Doubt()
        self.accounted = 0  # gaps before this position are known to be lost
        self.accounted_names: tuple[str, ...] = ()  # files that are known to be lost
        self._read()

    @property
    def path(self) -> str:
        """The mark's path."""
        return f"{self._directory}/{MARK_FILE}"

    @property
    def doubt(self) -> Doubt:
        """The ledgers that the storage cannot vouch for, by these files; every ledger if one of the files is unreadable."""
        return self._doubt

    def _read(self) -> None:
        reasons: list[str] = []
        slot, why = read_mark(self._disk, self._directory, self._identity)
        record, why_not = read_doubt(self._disk, self._directory, self._identity)
        if slot is None:
            reasons.append(f"{self.path} {why}: it is unknown how far this storage was durable")
        else:
            self._generation, self.position = slot.generation, slot.position
            self.catalog_generation = slot.catalog_generation
        if record is None:
            reasons.append(f"{self._directory}/{DOUBT_FILE} {why_not}: it is unknown what this storage had lost before")
        else:
            self.accounted, self.accounted_names = record.accounted, record.accounted_names
        doubt = record.doubt if record is not None else Doubt()
        doubted = max(doubt.doubted_below, slot.doubted_below if slot else 0, UNBOUNDED if reasons else 0)
        lost = max(doubt.lost_below, slot.lost_below if slot else 0)
        self.cannot_vouch = tuple(reasons)
        self._doubt = attrs.evolve(doubt, doubted_below=doubted, lost_below=lost)
        if slot is not None:
            with named_errors(f"open {self.path}"):
                self._fd = self._disk.open(self.path)

    # -- the mark -------------------------------------------------------------------------------------------------

    def advance(self, position: int) -> None:
        """Writes that all commits up to this position were synced. One write, no sync.

        On a full disk of the kind that never overwrites in place, the mark stays behind: a lower bound, as after a
        power loss. Raises `StorageFailedError` if the write fails otherwise: a later loss might go unnoticed, so the
        storage must stop; committed entries stay durable."""
        assert position >= 0, "a position counts commits"
        with self._lock:
            self._generation = generation = self._generation + 1
            doubt = self._doubt
            packed = _SLOT.pack(
                _MAGIC,
                FORMAT,
                0,
                generation,
                position,
                self._identity,
                doubt.doubted_below,
                doubt.lost_below,
                self.catalog_generation,
            )
            packed += _CHECKSUM.pack(crc32c(packed))
            # The other slot has the position before: a torn write of this one makes the mark lower, never unreadable.
            offset = SLOT_OFFSETS[generation & 1]
            try:
                if self._disk.pwritev(self._fd, (packed,), offset) != SLOT_BYTES:
                    write_all(self._disk, self._fd, (packed,), offset)
            except OSError as error:
                if is_full(error):
                    return
                raise failed_error(f"write {self.path}", error) from error
            self.position = position

    def sync(self) -> None:
        """Makes the mark durable, as at a clean close: then a power loss changes nothing. May raise OSError."""
        self._disk.fdatasync(self._fd)

    def close(self) -> None:
        """Gives up the descriptor. Idempotent. Syncs nothing."""
        with self._lock:
            if self._fd >= 0:
                self._disk.close(self._fd)
                self._fd = -1

    # -- the doubt ------------------------------------------------------------------------------------------------

    def raise_doubt(
        self, reasons: Iterable[str], *, is_lost: bool, position: int, accounted: int = 0, names: Iterable[str] = ()
    ) -> None:
        """Doubts every ledger, durably, then sets the mark to `position`, where the storage goes on.

        `is_lost`: something that was durable is gone; else the storage can't tell. A crash before this returns leaves the
        old mark, so that the next start finds the same loss again. `accounted` and `names`: what the next start needn't
        report again. Raises `StorageFullError`, `StorageFailedError`: then nothing else may be changed."""
        with self._lock:
            # The doubt is durable before the mark moves: a crash between them leaves the old mark, which finds the loss again.
            doubt = self._doubt.raised(_bounded((*self._doubt.reasons, *reasons)), is_lost=is_lost)
            accounted = max(self.accounted, accounted)
            names = tuple(dict.fromkeys((*self.accounted_names, *names)))
            self._write_doubt(DoubtRecord(self._identity, doubt, accounted, names))
            self._rewrite_mark(position, doubt)
            self._doubt, self.position = doubt, position
            self.accounted, self.accounted_names, self.cannot_vouch = accounted, names, ()

    def bound(self, below_ledger_id: int) -> None:
        """Lowers each bound that is `UNBOUNDED` to this id, durably (`Storage.bound_doubt`). Raises `StorageFullError`: then
        the doubt stays as it was; `StorageFailedError`."""
        with self._lock:
            self._change_doubt(self._doubt.bounded(below_ledger_id))

    def settle(self, found: Doubt, left: Doubt) -> None:
        """Replaces the doubt `found` by `left` (`Storage.settle_doubt`). Losses that were accounted for stay so."""
        with self._lock:
            if self._doubt == found:
                self._change_doubt(left)

    def _change_doubt(self, doubt: Doubt) -> None:
        if doubt == self._doubt:
            return
        self._write_doubt(DoubtRecord(self._identity, doubt, self.accounted, self.accounted_names))
        self._rewrite_mark(self.position, doubt)
        self._doubt = doubt

    def _write_doubt(self, record: DoubtRecord) -> None:
        with named_errors(f"write {self._directory}/{DOUBT_FILE}", self._directory):
            write_file_atomically(self._disk, self._directory, DOUBT_FILE, (pack_doubt(record),))

    def _rewrite_mark(self, position: int, doubt: Doubt) -> None:
        """Writes both slots, durably: one after the other, so that one is intact at any time."""
        bounds = doubt.doubted_below, doubt.lost_below
        slot = Slot(self._generation + 1, position, self._identity, *bounds, self.catalog_generation)
        with named_errors(f"write {self.path}", self._directory):
            if self._fd < 0:
                write_file_atomically(self._disk, self._directory, MARK_FILE, (pack_mark(slot),))
                self._fd = self._disk.open(self.path)
                self._generation += 2
                return
            # Each slot is synced before the next is written: a torn write leaves the other one intact.
            for _ in SLOT_OFFSETS:
                self._generation += 1
                packed = pack_slot(attrs.evolve(slot, generation=self._generation))
                write_all(self._disk, self._fd, (packed,), SLOT_OFFSETS[self._generation & 1])
                self._disk.fdatasync(self._fd)


def _bounded(reasons: tuple[str, ...]) -> tuple[str, ...]:
    """Each reason once, cut to a sensible length; of too many the first and the last."""
    each = tuple(dict.fromkeys(reason[:REASON_CHARACTERS_MAX] for reason in reasons))
    half = REASONS_MAX // 2
    return each if len(each) <= REASONS_MAX else each[:half] + each[-half:]
