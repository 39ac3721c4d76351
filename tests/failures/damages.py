"""What happens to the storage of a bookie that is not running: a disk that forgets, lies, or was put back from a copy.

Each takes the storage's directory and chance, changes files as a bad disk would, and says what it did, for people.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

from replog.backends.files.record import (
    MAGIC,
    PAGE_BYTES,
    RECORD_HEADER_BYTES,
    checksum_seed,
    pack_record_header,
    payload_checksum,
    unpack_file_header,
    unpack_record_header,
)

MARK_FILE = "durable-mark"

LAST_PART = 1 / 3  # of what is written in a file: where its end is lost
PAGES_ZEROED_MAX = 4

# LMDB: a page begins with its number and flags; on a meta page a structure follows that ends with the transaction's id.
_LMDB_HEADER_BYTES = 16
_LMDB_TRANSACTION = struct.Struct("<Q")
_LMDB_TRANSACTION_AT = _LMDB_HEADER_BYTES + 24 + 2 * 48 + 8

Damage = Callable[[Path, random.Random], str]


class NothingToDamageError(Exception):
    """The storage has nothing of the kind that is to be damaged."""


# -- files ------------------------------------------------------------------------------------------------------------


def _journals(directory: Path) -> list[Path]:
    """The journal files that hold records, oldest first."""
    found = [path for path in sorted(directory.glob("journal/0*.journal")) if _end(path) > PAGE_BYTES]
    if not found:
        raise NothingToDamageError("no journal file has records")
    return found


def _end(path: Path) -> int:
    """Where the last byte that is not zero stands, and one."""
    return len(path.read_bytes().rstrip(b"\0"))


def _in_last_part(path: Path, chance: random.Random) -> int:
    end = _end(path)
    begin = PAGE_BYTES + int((end - PAGE_BYTES) * (1 - LAST_PART))
    place = chance.randrange(begin, end)
    return place // PAGE_BYTES * PAGE_BYTES if chance.random() < 0.5 else place


def truncate_journal(directory: Path, chance: random.Random) -> str:
    """The current journal file ends early."""
    path = _journals(directory)[-1]
    place = _in_last_part(path, chance)
    os.truncate(path, place)
    return f"{path.name} truncated at {place}"


def zero_tail(directory: Path, chance: random.Random) -> str:
    """The end of the current journal file is zeros: what a disk leaves that lied about a sync."""
    path = _journals(directory)[-1]
    place, size = _in_last_part(path, chance), path.stat().st_size
    os.truncate(path, place)
    os.truncate(path, size)
    return f"{path.name} zeroed from {place}"


def flip_last_record(directory: Path, chance: random.Random) -> str:
    """One bit of the last record."""
    path = _journals(directory)[-1]
    data = path.read_bytes()
    end = _end(path)
    begin = data.rindex(MAGIC, 0, end)
    return _flip(path, chance.randrange(begin, max(end, begin + RECORD_HEADER_BYTES)), chance)


def flip_any(directory: Path, chance: random.Random) -> str:
    """One bit of any record in any journal file."""
    path = chance.choice(_journals(directory))
    return _flip(path, chance.randrange(PAGE_BYTES, _end(path)), chance)


def _flip(path: Path, place: int, chance: random.Random) -> str:
    bit = chance.randrange(8)
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1 << bit]))
    return f"{path.name}: bit {bit} of byte {place} flipped"


def delete_journal(directory: Path, chance: random.Random) -> str:
    """The current journal file is gone."""
    path = _journals(directory)[-1]
    path.unlink()
    return f"{path.name} deleted"


def swap_journals(directory: Path, chance: random.Random) -> str:
    """Two journal files have each other's names."""
    found = _journals(directory)
    if len(found) < 2:
        raise NothingToDamageError("there is one journal file")
    first, second = chance.sample(found, 2)
    other = first.with_suffix(".swapping")
    first.rename(other)
    second.rename(first)
    other.rename(second)
    return f"{first.name} and {second.name} swapped"


# -- LMDB ---------------------------------------------------------------------------------------------------------------


def truncate_map(directory: Path, chance: random.Random) -> str:
    """`data.mdb` ends early."""
    path = directory / "data.mdb"
    size = path.stat().st_size
    place = chance.randrange(int(size * (1 - LAST_PART)), size)
    place = place // PAGE_BYTES * PAGE_BYTES if chance.random() < 0.5 else place
    os.truncate(path, place)
    return f"data.mdb truncated from {size} to {place}"


def _newest_meta(path: Path) -> int:
    with path.open("rb") as file:
        head = file.read(2 * PAGE_BYTES)
    ids = [_LMDB_TRANSACTION.unpack_from(head, page * PAGE_BYTES + _LMDB_TRANSACTION_AT)[0] for page in (0, 1)]
    assert abs(ids[0] - ids[1]) == 1, f"no ids of transactions in meta pages: {ids}"
    return ids.index(max(ids))


def damage_newest_meta(directory: Path, chance: random.Random) -> str:
    """LMDB's newest meta page is zeros, or what it was one commit before, or has a flipped bit."""
    path = directory / "data.mdb"
    page = _newest_meta(path)
    how = chance.choice(("zeroed", "older", "flipped"))
    if how == "flipped":
        return "newest meta page: " + _flip(
            path, page * PAGE_BYTES + chance.randrange(_LMDB_TRANSACTION_AT + 8), chance
        )
    with path.open("r+b") as file:
        file.seek((1 - page) * PAGE_BYTES)
        older = bytearray(file.read(PAGE_BYTES))
        older[:8] = page.to_bytes(8, "little")
        transaction = _LMDB_TRANSACTION.unpack_from(older, _LMDB_TRANSACTION_AT)[0]
        _LMDB_TRANSACTION.pack_into(older, _LMDB_TRANSACTION_AT, transaction - 1)
        file.seek(page * PAGE_BYTES)
        file.write(older if how == "older" else bytes(PAGE_BYTES))
    return f"newest meta page ({page}) {how}"


def zero_pages(directory: Path, chance: random.Random) -> str:
    """Some pages of `data.mdb` are zeros."""
    path = directory / "data.mdb"
    pages = range(2, path.stat().st_size // PAGE_BYTES)
    zeroed = sorted(chance.sample(pages, chance.randint(1, min(PAGES_ZEROED_MAX, len(pages)))))
    with path.open("r+b") as file:
        for page in zeroed:
            file.seek(page * PAGE_BYTES)
            file.write(bytes(PAGE_BYTES))
    return f"pages {zeroed} of {pages.stop} zeroed"


# -- both ---------------------------------------------------------------------------------------------------------------


def nothing(directory: Path, chance: random.Random) -> str:
    """Nothing: whatever recovers with damage recovers without."""
    return "nothing"


def _mark(directory: Path) -> Path:
    path = directory / MARK_FILE
    if not path.exists():
        raise NothingToDamageError("there is no durable mark")
    return path


def delete_mark(directory: Path, chance: random.Random) -> str:
    """The file that says how far the storage was durable is gone."""
    _mark(directory).unlink()
    return "mark deleted"


def flip_mark(directory: Path, chance: random.Random) -> str:
    """One bit of that file: one of its two slots, at most, does not count any more."""
    path = _mark(directory)
    return _flip(path, chance.randrange(path.stat().st_size), chance)


def delete_mark_and_truncate(directory: Path, chance: random.Random) -> str:
    """That file is gone, and so is what it would have told of."""
    truncate = truncate_journal if (directory / "journal").exists() else truncate_map
    return f"{delete_mark(directory, chance)}, {truncate(directory, chance)}"


def lose_power(directory: Path, chance: random.Random) -> str:
    """What was not synced is gone or torn: the mark says what it said some time ago, and half of a commit stands at the end
    of the journal. Nothing that was acknowledged is missing."""
    mark = _mark(directory)
    older = older_copy_of(mark)
    if older.exists():
        mark.write_bytes(older.read_bytes())
    torn = _tear_tail(directory, chance) if (directory / "journal").exists() else ""
    return f"older mark put back{torn}"


def _tear_tail(directory: Path, chance: random.Random) -> str:
    path = _journals(directory)[-1]
    data = path.read_bytes()
    header = unpack_file_header(data[:PAGE_BYTES])
    assert header is not None, f"{path}: no header"
    seed = checksum_seed(header.number, header.identity)
    last = unpack_record_header(data, data.rindex(MAGIC, 0, _end(path)), seed)
    assert last is not None, f"{path}: no last record"
    payload = chance.randbytes(chance.randint(1, 3000))
    checksum = payload_checksum(payload)
    torn = pack_record_header(seed, last.record_type, payload, 0, False, last.epoch, last.sequence + 1, checksum)
    torn = (torn + payload)[: chance.randint(1, len(torn) + len(payload))]
    place = -(-_end(path) // PAGE_BYTES) * PAGE_BYTES
    with path.open("r+b") as file:
        file.seek(place)
        file.write(torn)
    return f", {len(torn)} bytes of a torn commit in {path.name} at {place}"


def older_copy_of(path: Path) -> Path:
    """Where the older copy is kept of what is put back, a directory or a file."""
    return path.with_name(f"{path.name}.copy")


def put_back_older_copy(directory: Path, chance: random.Random) -> str:
    """The whole directory as it was some time ago: no trace of what came after."""
    shutil.rmtree(directory)
    older_copy_of(directory).rename(directory)
    return "older copy of the directory put back"


def _put_back(directory: Path, *names: str) -> str:
    """These of the older copy, and what is newer there is gone."""
    for name in names:
        path, older = directory / name, older_copy_of(directory) / name
        if path.is_dir():
            shutil.rmtree(path)
            shutil.copytree(older, path)
        else:
            shutil.copyfile(older, path)
    return f"older {', '.join(names)} put back"


def put_back_older_journal(directory: Path, chance: random.Random) -> str:
    """All journal files as they were some time ago: writes were lost."""
    return _put_back(directory, "journal")


def put_back_older_catalog(directory: Path, chance: random.Random) -> str:
    """The catalog as it was some time ago."""
    return _put_back(directory, "catalog")


def delete_catalog(directory: Path, chance: random.Random) -> str:
    """The list of files is gone."""
    (directory / "catalog").unlink()
    return "catalog deleted"


def put_back_older_map(directory: Path, chance: random.Random) -> str:
    """`data.mdb` as it was some time ago: writes were lost."""
    return _put_back(directory, "data.mdb")


def lose_disk(directory: Path, chance: random.Random) -> str:
    """The whole directory is gone: another bookie begins in its place."""
    shutil.rmtree(directory)
    return "directory deleted"


FILES: dict[str, Damage] = {
    "truncated": truncate_journal,
    "tail zeroed": zero_tail,
    "last record flipped": flip_last_record,
    "any record flipped": flip_any,
    "journal deleted": delete_journal,
    "journals swapped": swap_journals,
    "journal older": put_back_older_journal,
    "catalog older": put_back_older_catalog,
    "catalog deleted": delete_catalog,
    "mark deleted": delete_mark,
    "mark flipped": flip_mark,
    "mark deleted, truncated": delete_mark_and_truncate,
    "power lost": lose_power,
    "older copy": put_back_older_copy,
    "disk lost": lose_disk,
    "none": nothing,
}
LMDB: dict[str, Damage] = {
    "map truncated": truncate_map,
    "meta page damaged": damage_newest_meta,
    "pages zeroed": zero_pages,
    "map older": put_back_older_map,
    "mark deleted": delete_mark,
    "mark flipped": flip_mark,
    "mark deleted, truncated": delete_mark_and_truncate,
    "power lost": lose_power,
    "older copy": put_back_older_copy,
    "disk lost": lose_disk,
    "none": nothing,
}
WITHOUT_TRACE = {"older copy"}  # what the bookie cannot notice: then all other members must be reachable
HARMLESS = {"none", "power lost", "mark flipped"}  # what leaves no doubt
OF_ALL = {"power lost"}  # what comes upon all bookies
OF_DISKS = {"disk lost"}  # what leaves another bookie
COPIED = {"older copy", "power lost", "journal older", "catalog older", "map older"}  # what needs a copy of before
KNOWN_LOSSES = (
    {*FILES, *LMDB} - HARMLESS - WITHOUT_TRACE - {"mark deleted"}
)  # where the bookie may know that it lost something
