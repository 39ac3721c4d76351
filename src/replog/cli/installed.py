"""Commands of installed packages: entry points in the group `replog.commands`, by the names of commands.

An entry point is a function, or a `replog.cli.apps.App` of commands. A command of replog's own is never replaced. Packages are
looked for only when a command is not one of replog's, or when all commands are listed, and imported only to run theirs.
"""

from __future__ import annotations

import os
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from replog.errors import PluginConflictError
from replog.runtime.installed import DISABLED_VARIABLE

GROUP = "replog.commands"


def installed_commands() -> dict[str, EntryPoint]:
    """The commands of installed packages, by name, sorted, without those that the environment disables."""
    disabled = {name.strip() for name in os.environ.get(DISABLED_VARIABLE, "").split(",")}
    found = sorted(entry_points(group=GROUP), key=lambda each: (each.name, each.value))
    return {each.name: each for each in found if each.name not in disabled}


def origin_of(command: EntryPoint) -> str:
    """The package that a command comes from."""
    return command.dist.name if command.dist else "an unknown package"


def load(command: EntryPoint) -> Any:
    """Imports a command. Raises `PluginConflictError` if that fails."""
    try:
        return command.load()
    except Exception as error:
        problem = f"the command {command.name!r} of {origin_of(command)} cannot be loaded: {error!r}"
        raise PluginConflictError(f"{problem}. Repair or uninstall it") from error
