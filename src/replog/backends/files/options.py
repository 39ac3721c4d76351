"""What can be set about the files storage."""

from __future__ import annotations

import attrs

from replog.backends.files.record import PAGE_BYTES
from replog.errors import ConfigError

JOURNAL_FILE_BYTES_MIN = 64 << 10


@attrs.frozen
class FilesOptions:
    """Options of the scheme `files`, as in `files:/var/lib/wal?journal_file_bytes=16777216`.

    `journal_file_bytes`: a journal file is rolled when the next commit does not fit; at least 64 KiB. A commit that is
    larger gets a larger file. Files of other sizes, from other options, stay readable.
    `spare_files`: this many journal files that nobody needs any more are kept for reuse, the others are removed.
    `fill_ahead_bytes`: how far the first file is filled with zeros ahead of the writes; the next ones are filled whole.
    `open_files_max`: this many full journal files are kept open for reading.
    `expected_bookie_id`: refuse a directory of another identity, and an empty one (B4); "" takes what is there.
    """

    journal_file_bytes: int = 64 << 20
    spare_files: int = 6  # trimming one ledger of a log frees four at once, with the options' defaults
    fill_ahead_bytes: int = 4 << 20
    open_files_max: int = 256
    expected_bookie_id: str = ""

    def __attrs_post_init__(self) -> None:
        if self.journal_file_bytes < JOURNAL_FILE_BYTES_MIN or self.journal_file_bytes >= 1 << 40:
            raise ConfigError(
                f"journal_file_bytes={self.journal_file_bytes}: at least {JOURNAL_FILE_BYTES_MIN}, under 1 TiB"
            )
        for name, least in (("spare_files", 0), ("fill_ahead_bytes", 0), ("open_files_max", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name}={getattr(self, name)}: at least {least}")

    @property
    def capacity_bytes(self) -> int:
        """The size of a journal file, in whole pages."""
        return -(-self.journal_file_bytes // PAGE_BYTES) * PAGE_BYTES

    @property
    def reserve_bytes(self) -> int:
        """What batches leave free in a journal file, so that fences and deletions still fit when the disk is full."""
        return min(256 << 10, self.capacity_bytes // 8)
