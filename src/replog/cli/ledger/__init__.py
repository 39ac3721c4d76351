"""`replog ledger`: commands for single ledgers."""

from __future__ import annotations

from replog.cli.apps import App
from replog.cli.ledger import commands

app = App(no_args_is_help=True, help="Look after single ledgers, those of logs included.")
app.command("list")(commands.list_ledgers)
app.command()(commands.show)
app.command()(commands.read)
app.command()(commands.recover)
app.command()(commands.delete)
app.command()(commands.create)
app.command("take-over")(commands.take_over)
app.command()(commands.trim)
app.command("raise-term")(commands.raise_term)
app.command("raise-ids")(commands.raise_ids)
