"""`replog inspect` itself: its commands."""

from __future__ import annotations

from replog.cli.apps import App
from replog.cli.inspect.entry_log import entry_log
from replog.cli.inspect.index import index
from replog.cli.inspect.journal import journal
from replog.cli.inspect.ledger import ledger

app = App(
    no_args_is_help=True,
    help="Look into a bookie's directory, read-only, also while the bookie runs. Exit status 1: damage was found.",
)
app.command()(journal)
app.command("entry-log")(entry_log)
app.command()(index)
app.command()(ledger)
