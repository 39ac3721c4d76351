"""The options of the files storage."""

from __future__ import annotations

import attrs

from replog.backends.files.record import PAGE_BYTES
from replog.backends.options import StorageOptions
from replog.errors import ConfigError

JOURNAL_FILE_BYTES_MIN = 64 << 10


@attrs.frozen
class FilesOptions(StorageOptions):
    """Options of the scheme `files`, as in `files:/var/lib/wal?journal_file_bytes=16777216`, and those of `StorageOptions`.
    Scrubbing rests while clients commit.

    The journal. `journal_file_bytes`: a journal file is rolled when the next commit does not fit; at least 64 KiB. A commit
    that is larger gets a larger file. Files of other sizes, from other options, stay readable.
    `journal_dir`: keep the journal in this directory, on a device of its own; batches are then written a second time, to
    entry logs in the storage's directory. "" keeps it in the storage's directory, and writes once: full journal files
    are the log. This is decided permanently when the storage is made.
    `spare_files`: keep this many unneeded journal files for reuse, and remove the others.

    Reading. `page_cache_bytes`: of the full files that are the log, so much of the newest is left in the kernel's page cache,
    whole files at a time; older ones are dropped from it, and read from the disk on demand. 0 means no limit: the kernel
    decides alone.
    """

    journal_file_bytes: int = 64 << 20
    journal_dir: str = ""
    spare_files: int = 6  # trimming one ledger of a log frees four at once, with the options' defaults
    page_cache_bytes: int = 512 << 20

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.journal_file_bytes < JOURNAL_FILE_BYTES_MIN or self.journal_file_bytes >= 1 << 40:
            raise ConfigError(
                f"journal_file_bytes={self.journal_file_bytes}: at least {JOURNAL_FILE_BYTES_MIN}, under 1 TiB"
            )
        for name in attrs.fields_dict(type(self)).keys() & _LEAST.keys():
            # `not >=` and not `<`, so that NaN is refused, too.
            if not getattr(self, name) >= _LEAST[name]:
                raise ConfigError(f"{name}={getattr(self, name)}: at least {_LEAST[name]}")

    @property
    def capacity_bytes(self) -> int:
        """The size of a journal file, in whole pages."""
        return -(-self.journal_file_bytes // PAGE_BYTES) * PAGE_BYTES

    @property
    def reserve_bytes(self) -> int:
        """The bytes that batches leave free in a journal file, so that fences and deletions still fit when the disk is
        full."""
        return min(256 << 10, self.capacity_bytes // 8)


@attrs.frozen
class FilesTuning(FilesOptions):
    """The options, and beside them the constants of the storage. No configuration sets these; tests do, to see much soon."""

    # Zeros ahead of the writes: a sync of filled blocks writes no metadata, 1.75 times as fast. More delays the first file.
    fill_ahead_bytes: int = 4 << 20
    # With `journal_dir`: full journal files are flushed to entry logs at this size; at four times that, commits wait.
    # Larger flushes write longer runs of each ledger, and keep more of the journal's device.
    flush_bytes: int = 256 << 20
    # Full files that are kept open: a quarter of the descriptors that most systems allow.
    open_files_max: int = 256
    # For pages of the index of full files: enough for reads of some thousand ledgers at a time.
    ledger_cache_bytes: int = 64 << 20
    # A full file is rewritten when less of it than a threshold is needed; looked at in these intervals; 0 for either: never.
    # At a fifth, a pass copies one byte to free four; the major one frees the rest once a day, when there is time.
    minor_compaction_threshold: float = 0.2
    minor_compaction_interval_s: float = 3600.0
    major_compaction_threshold: float = 0.8
    major_compaction_interval_s: float = 86400.0
    # What compaction (B6) copies in a second at most; 0: no limit. A fifth of what a SATA SSD writes; while clients commit
    # it also rests, in its first ten minutes eight times as long as it works.
    compaction_bytes_per_s: int = 100 << 20
    # How long a new entry log becomes: files enough to compact one by one, few enough to list.
    entry_log_bytes: int = 1 << 30

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        for name in ("minor_compaction_threshold", "major_compaction_threshold"):
            if not getattr(self, name) <= 1.0:
                raise ConfigError(f"{name}={getattr(self, name)}: a share of a file, at most 1")


def tuned(options: FilesOptions) -> FilesTuning:
    """The options with the constants."""
    return options if isinstance(options, FilesTuning) else FilesTuning(**attrs.asdict(options))


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
}
