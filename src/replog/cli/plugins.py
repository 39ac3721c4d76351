"""`replog plugins` and `replog version`: what is installed."""

from __future__ import annotations

import platform
from importlib.metadata import version as version_of

import attrs

from replog.cli.output import AsJSON, add_row, emit, new_table, print_json, print_table
from replog.registry import Registry


def plugins(as_json: AsJSON = False) -> None:
    """List the loaded plugins, where they come from, and what they offer."""
    loaded = Registry().plugins()
    if as_json:
        print_json([attrs.asdict(plugin) for plugin in loaded])
        return
    table = new_table("plugin", "from", "offers")
    for plugin in loaded:
        offers = [*plugin.offers, *(["observes"] if plugin.observes else [])]
        add_row(table, plugin.name, plugin.origin, ", ".join(offers))
    print_table(table)


def version(as_json: AsJSON = False) -> None:
    """Print the versions of replog, Python and trio."""
    found = {"replog": version_of("replog"), "python": platform.python_version(), "trio": version_of("trio")}
    if as_json:
        print_json(found)
    else:
        emit(f"replog {found['replog']} (Python {found['python']}, trio {found['trio']})\n")
