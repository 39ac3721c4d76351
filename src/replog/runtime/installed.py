"""Facts about the installed packages: the version of replog, and the plugins of other packages. Read once, since each
look opens the metadata of every package."""

from __future__ import annotations

import functools
import os
import sys
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version

# Of the environment: the names of plugins, and of packages' commands, to leave out; separated by commas.
DISABLED_VARIABLE = "REPLOG_PLUGINS_DISABLED"

_PROJECT = "replog"


@functools.cache
def replog_version() -> str:
    """The version of replog; "unknown" where its metadata are missing, as in a program that was frozen into one file."""
    try:
        return version(_PROJECT)
    except PackageNotFoundError:
        return "unknown"


def installed_plugins() -> tuple[EntryPoint, ...]:
    """The entry points of the group `replog`: read again only after a package was installed, or `sys.path` has changed."""
    return _read(tuple((path, _changed_ns(path)) for path in sys.path))


@functools.lru_cache(maxsize=1)
def _read(_places: tuple[tuple[str, int], ...]) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=_PROJECT))


def _changed_ns(path: str) -> int:
    try:
        return os.stat(path or ".").st_mtime_ns
    except OSError:
        return 0  # such as a zip file that is not there: Python looks over it, too
