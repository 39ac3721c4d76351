"""A bookie's last sighting of its metastore, in the small file `metastore-seen` of its storage's directory (B6a).

It is one line of JSON and a line with the CRC32C of the first, and is replaced atomically. A file that is missing, damaged or
another bookie's says nothing: then the bookie learns from the metastore again, and may not notice that this went back.
"""

from __future__ import annotations

import json

from crc32c import crc32c

from replog.abc import Sighting
from replog.backends.directory import read_small_file
from replog.backends.disk import Disk, named_errors, write_file_atomically

SIGHTING_FILE = "metastore-seen"
OWN_NAMES = (SIGHTING_FILE, f"{SIGHTING_FILE}.tmp")
FORMAT_NAME = "replog metastore seen"
FORMAT = 1


def pack_sighting(bookie_id: str, sighting: Sighting) -> bytes:
    """A whole file."""
    line = json.dumps(
        {
            "format": FORMAT_NAME,
            "version": FORMAT,
            "bookie_id": bookie_id,
            "token": sighting.token,
            "times_raised": sighting.times_raised,
            "next_ledger_id": sighting.next_ledger_id,
            "revisions_from_ledger_id": sighting.revisions_from_ledger_id,
        }
    ).encode()
    return line + b"\ncrc32c %08x\n" % crc32c(line)


def unpack_sighting(bookie_id: str, data: bytes) -> Sighting | None:
    """The sighting in a file; None if the file is damaged, of another format, or of another bookie."""
    line, _, rest = data.partition(b"\n")
    if rest != b"crc32c %08x\n" % crc32c(line):
        return None
    try:
        content = json.loads(line)
        if (content["format"], content["version"], content["bookie_id"]) != (FORMAT_NAME, FORMAT, bookie_id):
            return None
        numbers = (int(content[name]) for name in ("times_raised", "next_ledger_id", "revisions_from_ledger_id"))
        return Sighting(str(content["token"]), *numbers)
    except (ValueError, KeyError, TypeError):
        return None


def read_sighting(disk: Disk, directory: str, bookie_id: str) -> Sighting:
    """The sighting in the file, or an empty one. Raises `StorageFailedError`."""
    data = read_small_file(disk, directory, SIGHTING_FILE)
    found = None if data is None else unpack_sighting(bookie_id, data)
    return found or Sighting()


def write_sighting(disk: Disk, directory: str, bookie_id: str, sighting: Sighting) -> None:
    """Replaces the file, durably. Raises `StorageFullError`, `StorageFailedError`."""
    with named_errors(f"write {directory}/{SIGHTING_FILE}", directory):
        write_file_atomically(disk, directory, SIGHTING_FILE, (pack_sighting(bookie_id, sighting),))
