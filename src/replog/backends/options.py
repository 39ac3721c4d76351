"""The options that the durable storages have in common."""

from __future__ import annotations

import attrs

from replog.errors import ConfigError


@attrs.frozen
class StorageOptions:
    """Options of every storage in a directory.

    Scrubbing. Everything stored is read and checked every `scrub_interval_s`, at most `scrub_bytes_per_s`; 0 for the interval
    turns it off, 0 for the rate means no limit.

    `expected_bookie_id`: refuse a directory of another identity, and an empty one (B4); "" accepts any identity.
    """

    scrub_interval_s: float = 7 * 86400.0
    scrub_bytes_per_s: int = 16 << 20
    expected_bookie_id: str = ""

    def __attrs_post_init__(self) -> None:
        for name in ("scrub_interval_s", "scrub_bytes_per_s"):
            # `not >=` and not `<`, so that NaN is refused, too.
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name}={getattr(self, name)}: at least 0")
