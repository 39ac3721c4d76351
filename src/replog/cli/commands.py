"""The commands of `replog`, in the groups that its help shows."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.main import get_command

from replog.cli import backup, bookie, bookies, cursor, inspect, ledger, log, plugins, repair
from replog.cli.apps import App, Group
from replog.cli.bench import command as bench_command
from replog.cli.cluster.command import cluster
from replog.cli.ending import status_of
from replog.cli.top import command as top_command
from replog.runtime.memory import keep_freed_memory

__all__ = ["app", "run"]

# Commands of packages that are built upon this one, and that it must not import: name -> module, whose `app` it is.
_ELSEWHERE = {"demo": "replog.demo.command"}


_ORDER = [
    "demo",
    "cluster",
    "bench",
    "log",
    "cursor",
    "ledger",
    "backup",
    "restore",
    "verify",
    "bookie",
    "bookies",
    "audit",
    "repair",
    "top",
    "inspect",
    "plugins",
    "version",
]


class _Commands(Group):
    """The commands below, and those elsewhere, which are imported when somebody asks for them."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Panels are shown in the order of their first command, and typer lists groups last."""
        return sorted([*_ELSEWHERE, *super().list_commands(ctx)], key=_ORDER.index)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in _ELSEWHERE:
            # Only now: nothing below the demonstration may import it, and the other commands start faster without it.
            return get_command(import_module(_ELSEWHERE[cmd_name]).app)
        return super().get_command(ctx, cmd_name)


app = App(cls=_Commands, no_args_is_help=True)

_TRY = "Try it"  # replog.demo.command is here, too
_LOGS = "Logs and ledgers"
_BOOKIES = "Bookies"
_INSTALLATION = "What is installed"

app.command(rich_help_panel=_TRY)(cluster)
app.command(rich_help_panel=_TRY)(bench_command.bench)
app.add_typer(log.app, name="log", rich_help_panel=_LOGS)
app.add_typer(cursor.app, name="cursor", rich_help_panel=_LOGS)
app.add_typer(ledger.app, name="ledger", rich_help_panel=_LOGS)
app.command(rich_help_panel=_LOGS)(backup.backup)
app.command(rich_help_panel=_LOGS)(backup.restore)
app.command(rich_help_panel=_LOGS)(backup.verify)
app.add_typer(bookie.app, name="bookie", rich_help_panel=_BOOKIES)
app.add_typer(bookies.app, name="bookies", rich_help_panel=_BOOKIES)
app.command(rich_help_panel=_BOOKIES)(repair.audit)
app.command(rich_help_panel=_BOOKIES)(repair.repair)
app.command(rich_help_panel=_BOOKIES)(top_command.top)
app.add_typer(inspect.app, name="inspect", rich_help_panel=_BOOKIES)
app.command(rich_help_panel=_INSTALLATION)(plugins.plugins)
app.command(rich_help_panel=_INSTALLATION)(plugins.version)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        plugins.version()
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end."),
    ] = False,
) -> None:
    """An embeddable replicated log.

    Exit status: 0 well, 1 failed, 2 wrong usage, 128 + n stopped by signal n.
    """


def run() -> NoReturn:
    """Run the command that `sys.argv` names; exit with its status."""
    # This process is our own, a bookie's above all: nobody else's memory is concerned.
    keep_freed_memory()
    sys.exit(status_of(app))
