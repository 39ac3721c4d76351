"""The options of the files storage."""

from __future__ import annotations

import attrs

from replog.backends.files.record import PAGE_BYTES
from replog.errors import ConfigError

JOURNAL_FILE_BYTES_MIN = 64 << 10


@attrs.frozen
class FilesOptions:
    """Options of the scheme `files`, as in `files:/var/lib/wal?journal_file_bytes=16777216`.

    The journal. `journal_file_bytes`: a journal file is rolled when the next commit does not fit; at least 64 KiB. A commit
    that is larger gets a larger file. Files of other sizes, from other options, stay readable.
    `journal_dir`: keep the journal in this directory, on a device of its own; batches are then written a second time, to
    entry logs in the storage's directory. "" keeps it in the storage's directory, and writes once: full journal files
    are the log. This is decided permanently when the storage is made.
    `spare_files`: keep this many unneeded journal files for reuse, and remove the others.
    `fill_ahead_bytes`: how far the first file is filled with zeros ahead of the writes; the next ones are filled whole, or
    only allocated while commits are so large and fast that writing all of it twice costs more than the metadata.
    `flush_bytes`: with `journal_dir`, full journal files are flushed to entry logs when they have so many bytes in all; four
    times as many, and commits wait for the flush.

    Reading. `open_files_max`: this many full files are kept open. `ledger_cache_bytes`: this much memory is for pages of
    the index of full files. `page_cache_bytes`: of the full files that are the log, so much of what was written last is left
    in the kernel's page cache, whole files at a time; older ones are dropped from it, and read from the disk if anybody
    wants them. 0 means no limit: the kernel decides alone.

    Compaction (B6). A full file is rewritten when less of it than a threshold is still needed: `minor_compaction_threshold`,
    looked at every `minor_compaction_interval_s`, and `major_compaction_threshold`, every `major_compaction_interval_s`; the
    major one also puts journal files in which many ledgers alternate in the order of their ledgers. 0 for either turns
    that kind off. `compaction_bytes_per_s` is copied at most; 0 means no limit. While somebody commits it also rests, in its
    first ten minutes eight times as long as it works. `entry_log_bytes`: how long a new entry log becomes.

    Scrubbing. Everything stored is read and checked every `scrub_interval_s`, at most `scrub_bytes_per_s`; 0 for the interval
    turns it off, 0 for the rate means no limit. It rests as compaction does.

    `expected_bookie_id`: refuse a directory of another identity, and an empty one (B4); "" accepts any identity.
    """

    journal_file_bytes: int = 64 << 20
    journal_dir: str = ""
    spare_files: int = 6  # trimming one ledger of a log frees four at once, with the options' defaults
    fill_ahead_bytes: int = 4 << 20
    flush_bytes: int = 256 << 20
    open_files_max: int = 256
    ledger_cache_bytes: int = 64 << 20
    page_cache_bytes: int = 512 << 20
    minor_compaction_threshold: float = 0.2
    minor_compaction_interval_s: float = 3600.0
    major_compaction_threshold: float = 0.8
    major_compaction_interval_s: float = 86400.0
    compaction_bytes_per_s: int = 100 << 20
    entry_log_bytes: int = 1 << 30
    scrub_interval_s: float = 7 * 86400.0
    scrub_bytes_per_s: int = 16 << 20
    expected_bookie_id: str = ""

    def __attrs_post_init__(self) -> None:
        if self.journal_file_bytes < JOURNAL_FILE_BYTES_MIN or self.journal_file_bytes >= 1 << 40:
            raise ConfigError(
                f"journal_file_bytes={self.journal_file_bytes}: at least {JOURNAL_FILE_BYTES_MIN}, under 1 TiB"
            )
        for name, least in _LEAST.items():
            # `not >=` and not `<`, so that NaN is refused, too.
            if not getattr(self, name) >= least:
                raise ConfigError(f"{name}={getattr(self, name)}: at least {least}")
        for name in ("minor_compaction_threshold", "major_compaction_threshold"):
            if not getattr(self, name) <= 1.0:
                raise ConfigError(f"{name}={getattr(self, name)}: a share of a file, at most 1")

    @property
    def capacity_bytes(self) -> int:
        """The size of a journal file, in whole pages."""
        return -(-self.journal_file_bytes // PAGE_BYTES) * PAGE_BYTES

    @property
    def reserve_bytes(self) -> int:
        """What batches leave free in a journal file, so that fences and deletions still fit when the disk is full."""
        return min(256 << 10, self.capacity_bytes // 8)


_LEAST: dict[str, float] = {
    "spare_files": 0,
    "fill_ahead_bytes": 0,
    "flush_bytes": 1,
    "open_files_max": 1,
    "ledger_cache_bytes": 1 << 20,
    "page_cache_bytes": 0,
    "minor_compaction_threshold": 0,
    "minor_compaction_interval_s": 0,
    "major_compaction_threshold": 0,
    "major_compaction_interval_s": 0,
    "compaction_bytes_per_s": 0,
    "entry_log_bytes": 1 << 16,
    "scrub_interval_s": 0,
    "scrub_bytes_per_s": 0,
}
