"""The commands of `replog`, in the groups that its help shows."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.main import get_command

from replog.cli.apps import App, Command, Group
from replog.cli.ending import status_of
from replog.cli.installed import installed_commands, load, origin_of
from replog.runtime.platform import keep_freed_memory

__all__ = ["app", "run"]

_TRY = "Try it"
_LOGS = "Logs and ledgers"
_BOOKIES = "Bookies"
_INSTALLATION = "What is installed"
_INSTALLED = "Commands of installed packages"

# Each command, in the order and under the heading of the help: where its function or its group of commands is.
_COMMANDS = {
    "demo": (_TRY, "replog.demo.command", "app"),  # built upon this package, which must not import it
    "cluster": (_TRY, "replog.cli.cluster.command", "cluster"),
    "bench": (_TRY, "replog.cli.bench", "bench"),
    "log": (_LOGS, "replog.cli.log", "app"),
    "cursor": (_LOGS, "replog.cli.cursor", "app"),
    "ledger": (_LOGS, "replog.cli.ledger", "app"),
    "backup": (_LOGS, "replog.cli.backup", "backup"),
    "restore": (_LOGS, "replog.cli.backup", "restore"),
    "verify": (_LOGS, "replog.cli.backup", "verify"),
    "archive": (_LOGS, "replog.cli.archive", "app"),
    "bookie": (_BOOKIES, "replog.cli.bookie", "app"),
    "bookies": (_BOOKIES, "replog.cli.bookies", "app"),
    "metastore": (_BOOKIES, "replog.cli.metastore", "app"),
    "audit": (_BOOKIES, "replog.cli.repair", "audit"),
    "repair": (_BOOKIES, "replog.cli.repair", "repair"),
    "top": (_BOOKIES, "replog.cli.top.command", "top"),
    "inspect": (_BOOKIES, "replog.cli.inspect.command", "app"),
    "plugins": (_INSTALLATION, "replog.cli.plugins", "plugins"),
    "version": (_INSTALLATION, "replog.cli.plugins", "version"),
}

# How the help of each command begins: the list of all commands is shown without importing them.
_HELPS = {
    "demo": "Watch a replicated log survive a killed leader, a killed bookie, and a leader that is stopped and wakes up deposed.",
    "cluster": "Run a cluster of N bookie processes on this machine, for development, until Ctrl-C.",
    "bench": "Append to a new ledger, and print the throughput and the latency as measured from here.",
    "log": "Write, read and look after logs.",
    "cursor": "Look after cursors: durable, named places of readers in a log.",
    "ledger": "Look after single ledgers, those of logs included.",
    "backup": "Save the closed segments of logs; writers go on.",
    "restore": "Write the logs of a back-up into a cluster that does not have them.",
    "verify": "Read a back-up and check all of it.",
    "archive": "Look after archives: buckets or directories that keep closed segments of logs.",
    "bookie": "Serve a bookie until SIGTERM; or make its storage, or say what that is.",
    "bookies": "List the announced bookies and their states; or have them collect garbage, compact or scrub.",
    "metastore": "Look after the members of a metastore that a cluster keeps itself.",
    "audit": "Ask all bookies what they hold, and list what lacks copies. Changes nothing.",
    "repair": "Copy missing entries from bookies that have them, and replace bookies that were declared lost.",
    "top": "Watch a cluster live: the load of its bookies, their latencies and disks, and missing ones; or its logs.",
    "inspect": "Look into a bookie's directory, read-only, also while the bookie runs.",
    "plugins": "List the plugins: their origins, their offers, and the faults of those that are not loaded.",
    "version": "Print the versions of replog, Python and trio.",
}


class _Commands(Group):
    """Imports a command on demand: each starts faster without the others."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.commands: Any = dict.fromkeys(_COMMANDS)  # only their names, for "Did you mean"

    def list_commands(self, ctx: Any) -> list[str]:
        """In the order of the help, those of installed packages last."""
        return list(dict.fromkeys((*_COMMANDS, *installed_commands())))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        panel, module, name = _COMMANDS.get(cmd_name, (_INSTALLED, "", ""))
        if module:
            found = getattr(import_module(module), name)
        elif (installed := installed_commands().get(cmd_name)) is not None:
            found = load(installed)
        else:
            return None
        if not isinstance(found, App):
            function, found = found, App()
            found.command()(function)
        command = get_command(found)
        command.name, command.rich_help_panel = cmd_name, panel  # type: ignore[attr-defined]
        return command

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Lists the commands with the beginnings of their helps, and imports none."""
        listed: Any = {
            name: Command(name, help=_HELPS[name], rich_help_panel=panel) for name, (panel, _, _) in _COMMANDS.items()
        }
        for name, command in installed_commands().items():
            described = Command(name, help=f"Of the package {origin_of(command)}.", rich_help_panel=_INSTALLED)
            listed.setdefault(name, described)
        Group(name=self.name, help=self.help, params=self.params, commands=listed).format_help(ctx, formatter)


app = App(cls=_Commands, no_args_is_help=True, add_completion=True)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        import_module("replog.cli.plugins").version()
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end."),
    ] = False,
) -> None:
    """An embeddable replicated log.

    Exit status: 0 success, 1 failed, 2 wrong usage, 128 + n stopped by signal n.
    """


def run() -> NoReturn:
    """Run the command that `sys.argv` names; exit with its status."""
    # This process is our own, a bookie's above all: no other program's memory is concerned.
    keep_freed_memory()
    sys.exit(status_of(app))
