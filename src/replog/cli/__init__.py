"""`replog`: the command.

Exit status: 0 success; 1 failure (for `demo` also: a confirmed entry was missing, doubled, changed or out of order, or an act
did not happen as planned; for `inspect` and `bookie info` also: something is damaged or unreadable); 2 the request is invalid:
wrong usage or configuration, a path with nothing to inspect, a directory that `bookie format` refuses; 128 + n stopped by signal
n, even if the reason is that nobody reads the output any more (141, SIGPIPE).
Errors are one line on standard error; standard output has results only.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup
from typer.main import get_command

from replog.cli import bookie, bookies, inspect, ledger, log, plugins
from replog.cli.bench import command as bench_command
from replog.cli.cluster.command import cluster
from replog.cli.ending import status_of
from replog.cli.top import command as top_command
from replog.runtime.memory import keep_freed_memory

__all__ = ["app", "main"]

# Commands of packages that are built upon this one, and that it must not import: name -> module, whose `app` it is.
_ELSEWHERE = {"demo": "replog.demo.command"}


class _Commands(TyperGroup):
    """The commands below, and those elsewhere, which are imported when somebody asks for them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*_ELSEWHERE, *super().list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in _ELSEWHERE:
            return get_command(import_module(_ELSEWHERE[cmd_name]).app)
        return super().get_command(ctx, cmd_name)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="An embeddable replicated log. Exit status: 0 well, 1 failed, 2 wrong usage, 128 + n stopped by signal n.",
)
app.command()(cluster)
app.command()(top_command.top)
app.command()(bench_command.bench)
app.command()(plugins.plugins)
app.command()(plugins.version)
app.add_typer(inspect.app, name="inspect")
app.add_typer(bookie.app, name="bookie")
app.add_typer(bookies.app, name="bookies")
app.add_typer(log.app, name="log")
app.add_typer(ledger.app, name="ledger")


def main() -> NoReturn:
    """The console script."""
    keep_freed_memory()  # this process is our own, a bookie's above all: nobody else's memory is concerned
    sys.exit(status_of(app))
