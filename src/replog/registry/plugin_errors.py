"""The fault of a plugin, as an error and as a value."""

from __future__ import annotations

import attrs

from replog.errors import PluginConflictError
from replog.runtime.installed import DISABLED_VARIABLE as DISABLED_VARIABLE


@attrs.frozen
class PluginFault:
    """A plugin that was left out: its name, where it comes from, and a sentence with the fault and the remedy."""

    name: str
    origin: str
    problem: str


def refused(plugin: str, origin: str, fault: str) -> PluginConflictError:
    """The error for a plugin with this fault."""
    return PluginConflictError(
        f"plugin {plugin!r} of {origin}: {fault}. Repair or uninstall it, or set {DISABLED_VARIABLE}={plugin}"
    )


def raise_all(wrong: list[tuple[PluginFault, PluginConflictError]]) -> None:
    """Raises the only error, or one that lists all of them."""
    if len(wrong) == 1:
        raise wrong[0][1]
    problems = [fault.problem for fault, _ in wrong]
    text = "\n  - ".join([f"{len(problems)} plugins are wrong", *problems])
    raise PluginConflictError(text) from wrong[0][1]
