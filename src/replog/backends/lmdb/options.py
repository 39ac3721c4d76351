"""The options of the LMDB storage."""

from __future__ import annotations

import attrs

from replog.errors import ConfigError

MAP_BYTES_MIN = 1 << 20
MAP_BYTES_LIMIT = 1 << 46  # what a process can map at all


@attrs.frozen
class LMDBStorageOptions:
    """Options of the storage `lmdb`, as in `lmdb:/var/lib/wal?map_bytes_max=100GiB`.

    `map_bytes`: size of the map at first, at least 1 MiB. It doubles when it is full; only what is used takes space.
    `map_bytes_max`: it grows no further: then the storage is full (B5). A little more is kept for fences and deletions.
    `read_ahead`: let the kernel read ahead where entries are read. Good for reading ledgers from end to end; bad for
    single reads all over a storage that is larger than the memory.
    `scrub_interval_s`, `scrub_bytes_per_s`: everything stored is read and checked so long after the opening and after the
    last time, at most so much a second. An interval of 0 turns it off; a rate of 0 means no limit.
    `expected_bookie_id`: refuse a directory of another identity, and an empty one (B4); "" accepts any identity.
    """

    map_bytes: int = 256 << 20
    map_bytes_max: int = 1 << 40
    read_ahead: bool = True
    scrub_interval_s: float = 7 * 86400.0
    scrub_bytes_per_s: int = 16 << 20
    expected_bookie_id: str = ""

    def __attrs_post_init__(self) -> None:
        for name in ("map_bytes", "map_bytes_max"):
            if not MAP_BYTES_MIN <= getattr(self, name) <= MAP_BYTES_LIMIT:
                raise ConfigError(f"{name}={getattr(self, name)}: at least {MAP_BYTES_MIN}, at most {MAP_BYTES_LIMIT}")
        for name in ("scrub_interval_s", "scrub_bytes_per_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"{name}={getattr(self, name)}: at least 0")
        if self.map_bytes > self.map_bytes_max:
            raise ConfigError(f"map_bytes={self.map_bytes} is above map_bytes_max={self.map_bytes_max}")
