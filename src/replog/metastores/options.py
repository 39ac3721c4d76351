"""The options that metastores have in common."""

from __future__ import annotations

import attrs

from replog.errors import ConfigError

_LONGEST_S = 86_400.0


@attrs.frozen
class MetastoreOptions:
    """Options of every metastore that has servers or processes to wait for.

    `timeout_s`: for one call, with all it takes. A change that takes longer fails, and whether it happened is in the error.
    `lease_s`: a process that was not heard of for so long counts as gone, and its announcements and candidacies with it.
    """

    timeout_s: float = 10.0
    lease_s: float = 10.0

    def __attrs_post_init__(self) -> None:
        for name in ("timeout_s", "lease_s"):
            if not 0.001 <= getattr(self, name) <= _LONGEST_S:  # false for NaN, too
                raise ConfigError(f"{name}={getattr(self, name)}: it must be from 0.001 to {_LONGEST_S:g} s")
