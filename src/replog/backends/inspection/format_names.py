"""Which storage a directory holds, before anything else of it is read."""

from __future__ import annotations

import json

from replog.backends.disk import named_errors, read_all
from replog.backends.inspection.read_only import READ_ONLY
from replog.errors import StorageDamagedError

FORMAT_FILE = "storage.json"
_BYTES_MAX = 64 << 10


def format_name(path: str) -> str | None:
    """What the directory's format file says that it is, or None if there is none. Raises `StorageDamagedError`."""
    where = f"{path}/{FORMAT_FILE}"
    with named_errors(f"read {where}"):
        try:
            fd = READ_ONLY.open(where)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            text = read_all(READ_ONLY, fd, _BYTES_MAX, 0)
        finally:
            READ_ONLY.close(fd)
    try:
        return str(json.loads(text)["format"])
    except (ValueError, KeyError, TypeError) as error:
        raise StorageDamagedError(
            f"{where} can't be read: {error!r}",
            "Restore it from a backup, or recover this bookie's copies from the others",
        ) from error
