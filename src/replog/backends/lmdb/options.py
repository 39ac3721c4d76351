"""The options of the LMDB storage."""

from __future__ import annotations

import attrs

from replog.backends.options import StorageOptions
from replog.errors import ConfigError

MAP_BYTES_MIN = 1 << 20
MAP_BYTES_LIMIT = 1 << 46  # what a process can map at all
_MAP_BYTES = 256 << 20


@attrs.frozen
class LMDBStorageOptions(StorageOptions):
    """Options of the storage `lmdb`, as in `lmdb:/var/lib/wal?map_bytes_max=100GiB`, and those of `StorageOptions`.

    `map_bytes_max`: the map doubles when it is full, and grows no further than this: then the storage is full (B5). A
    little more is kept for fences and deletions. Only what is used takes space on disk.
    """

    map_bytes_max: int = 1 << 40

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        _check_size("map_bytes_max", self.map_bytes_max)


@attrs.frozen
class LMDBStorageTuning(LMDBStorageOptions):
    """The options, and beside them the constants of the storage. No configuration sets these; tests do, to see much soon."""

    # The size of the map at first. Address space only, so that a small storage never stops to double it.
    map_bytes: int = _MAP_BYTES
    # The kernel reads ahead: replays, recoveries and scrubs read ledgers from end to end. Only single
    # reads all over a storage that is larger than the memory cost more for it.
    read_ahead: bool = True

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        _check_size("map_bytes", self.map_bytes)
        if self.map_bytes > self.map_bytes_max:
            raise ConfigError(f"map_bytes={self.map_bytes} is above map_bytes_max={self.map_bytes_max}")


def tuned(options: LMDBStorageOptions) -> LMDBStorageTuning:
    """The options with the constants, which give way to them: the map begins no larger than it may become."""
    if isinstance(options, LMDBStorageTuning):
        return options
    map_bytes = min(_MAP_BYTES, options.map_bytes_max)
    return LMDBStorageTuning(**attrs.asdict(options), map_bytes=map_bytes)


def _check_size(name: str, value: int) -> None:
    if not MAP_BYTES_MIN <= value <= MAP_BYTES_LIMIT:
        raise ConfigError(f"{name}={value}: at least {MAP_BYTES_MIN}, at most {MAP_BYTES_LIMIT}")
