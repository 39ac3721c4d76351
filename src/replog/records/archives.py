"""The records of archives in the metastore, below `archives/ID`, and the cookie that each has in its store (B4).

Both have the archive's id and a nonce. They stand apart from bookies' cookies and announcements: an archive is no bookie, and no
ensemble names one.
"""

from __future__ import annotations

import json

import attrs

from replog.records.encoding import read_fields, structure
from replog.records.paths import archive_key_path

_FORMAT = 1
COOKIE_NAME = "cookie"


@attrs.frozen
class ArchiveRecord:
    """An archive: `url` names its store, without credentials. While `is_unfinished`, its store may have no cookie yet: it is used
    for nothing."""

    archive_id: str
    url: str
    nonce: str
    is_unfinished: bool = False

    def encoded(self) -> bytes:
        """The value of its key."""
        fields = {"format": _FORMAT, **attrs.asdict(self)}
        if not self.is_unfinished:
            del fields["is_unfinished"]
        return json.dumps(fields, separators=(",", ":")).encode() + b"\n"

    def cookie(self) -> bytes:
        """The cookie in its store."""
        fields = {"format": _FORMAT, "archive_id": self.archive_id, "nonce": self.nonce}
        return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def decode_archive(archive_id: str, value: bytes) -> ArchiveRecord:
    """Decodes the record of this archive. Raises `MetastoreCorruptError`."""
    key = archive_key_path(archive_id)
    fields = read_fields(key, value, _FORMAT, {field.name for field in attrs.fields(ArchiveRecord)})
    return structure(key, fields, ArchiveRecord)
