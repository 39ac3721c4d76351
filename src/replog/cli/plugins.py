"""`replog plugins` and `replog version`: the installed plugins, and their faults."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import version as version_of

import attrs
import typer

from replog.cli.output import AsJSON, add_row, emit, new_table, print_json, print_table
from replog.registry import DISABLED_VARIABLE, Registry
from replog.runtime.installed import replog_version


@attrs.frozen
class _Row:
    """A plugin that is "loaded", "wrong", "not installed" or "disabled"; `problem` is its fault, if it has one."""

    name: str
    state: str
    origin: str | None = None
    offers: tuple[str, ...] = ()
    observes: bool = False
    needs: tuple[str, ...] = ()
    problem: str | None = None


def plugins(as_json: AsJSON = False) -> None:
    """List the plugins: their origins, their offers, and the faults of those that are not loaded.

    Exit status 1 if any is wrong: every other command that needs plugins refuses to begin then.
    """
    # Not strict: this is the command that explains why all others refuse to begin.
    registry = Registry(is_strict=False)
    rows = list(_rows(registry))
    if as_json:
        print_json([attrs.asdict(row) for row in rows])
    else:
        _print_for_people(registry, rows)
    if registry.faults():
        raise typer.Exit(1)


def _rows(registry: Registry) -> Iterator[_Row]:
    for plugin in registry.plugins():
        yield _Row(plugin.name, "loaded", plugin.origin, plugin.offers, plugin.observes, plugin.needs)
    for name, needed in registry.missing().items():
        yield _Row(name, "not installed", "built in", needs=(needed,))
    for name, is_there in registry.disabled().items():
        problem = None if is_there else f"{DISABLED_VARIABLE} names it, and there is no plugin {name!r}"
        yield _Row(name, "disabled", problem=problem)
    for fault in registry.faults():
        yield _Row(fault.name, "wrong", fault.origin, problem=fault.problem)


def _print_for_people(registry: Registry, rows: list[_Row]) -> None:
    table = new_table("plugin", "from", "offers", "which is")
    for row in rows:
        remarks = [] if row.state == "loaded" else [row.state]
        remarks += [f"needs: pip install '{needed}'" for needed in row.needs]
        offers = [(offer, registry.backend(*offer.split()).summary) for offer in row.offers]
        offers += [("observes", "")] if row.observes else []
        for number, (offer, summary) in enumerate(offers or [("", "")]):
            shown = "; ".join(filter(None, [summary, *remarks]))
            add_row(table, *((row.name, row.origin) if not number else ("", "")), offer, shown)
    print_table(table)
    for row in rows:
        if row.problem:
            emit(f"{row.problem}\n")


def version(as_json: AsJSON = False) -> None:
    """Print the versions of replog, Python and trio."""
    found = {"replog": replog_version(), "python": platform.python_version(), "trio": version_of("trio")}
    if as_json:
        print_json(found)
    else:
        emit(f"replog {found['replog']} (Python {found['python']}, trio {found['trio']})\n")
