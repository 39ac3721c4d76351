"""`replog`: the command.

Exit status: 0 all is well; 1 it went wrong (for `demo` also: a confirmed entry was missing, doubled, changed or out of order,
or an act did not happen as planned); 2 what was asked for cannot be: usage or configuration; 128 + n stopped by signal n.
Errors are one line on standard error, and standard output has results only.
"""

from __future__ import annotations

import json
import platform
import signal
import sys
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Annotated, NoReturn

import attrs
import trio
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from replog.demo.appending import Quota
from replog.demo.running import InterruptedBySignal, Settings
from replog.demo.running import run as run_demo
from replog.errors import ConfigError, ReplogError
from replog.registry import Registry

_DEFAULT_SECONDS = 1.5

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="An embeddable replicated log. Exit status: 0 well, 1 failed, 2 wrong usage, 128 + n stopped by signal n.",
)

AsJSON = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def _console(stderr: bool = False) -> Console:
    """A console that takes texts as they are: paths and inputs are no markup."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


@app.command()
def demo(
    source: Annotated[
        str | None,
        typer.Option(
            "--input", metavar="FILE", help="Append this file's lines, - for standard input. [Python's own sources]"
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(min=0.1, max=3600, help=f"How long each of the four leaders appends. [{_DEFAULT_SECONDS:g}]"),
    ] = None,
    entries: Annotated[int | None, typer.Option(min=1, help="How many entries each leader appends.")] = None,
    bookies: Annotated[int, typer.Option(min=1, max=32, help="How many bookies are embedded.")] = 3,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep the files, in this new or empty directory.")
    ] = None,
    as_json: AsJSON = False,
) -> None:
    """Watch a replicated log survive a killed leader, and a deposed one.

    Exit status 1 if one confirmed entry is missing, doubled, changed or out of order, or if an act did not happen as planned.
    """
    if seconds is None and entries is None:
        seconds = _DEFAULT_SECONDS
    settings = Settings(Quota(entries, seconds), source, bookies, keep)
    results = trio.run(run_demo, settings, _console(stderr=as_json))
    passed = not any(result.faults for result in results)
    if as_json:
        _print_json({"passed": passed, "acts": [result.to_json() for result in results]})
    if not passed:
        raise typer.Exit(1)


@app.command()
def plugins(as_json: AsJSON = False) -> None:
    """List the loaded plugins, where they come from, and what they offer."""
    loaded = Registry().plugins()
    if as_json:
        _print_json([attrs.asdict(plugin) for plugin in loaded])
        return
    table = Table(box=box.ROUNDED, header_style="bold")
    for heading in ("plugin", "from", "offers"):
        table.add_column(heading)
    for plugin in loaded:
        offers = [*plugin.offers, *(["observes"] if plugin.observes else [])]
        table.add_row(Text(plugin.name), Text(plugin.origin), Text(", ".join(offers)))
    _console().print(table)


@app.command()
def version() -> None:
    """Print the versions of replog, Python and trio."""
    typer.echo(f"replog {version_of('replog')} (Python {platform.python_version()}, trio {version_of('trio')})")


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2))


def main() -> NoReturn:
    """The console script."""
    try:
        app()
    except ConfigError as error:
        _fail(str(error), 2)
    except ReplogError as error:
        _fail(str(error), 1)
    except InterruptedBySignal as error:
        _fail(f"stopped by {error}", 128 + error.number)
    except KeyboardInterrupt:
        _fail("stopped by SIGINT", 128 + signal.SIGINT)
    sys.exit(0)


def _fail(problem: str, status: int) -> NoReturn:
    print(f"replog: {problem}", file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    main()
