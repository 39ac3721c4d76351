"""`replog ledger`: commands for single ledgers."""

from __future__ import annotations

from replog.cli.apps import App
from replog.cli.ledger import commands, terms

app = App(no_args_is_help=True, help="Look after single ledgers, those of logs included.")
app.command("list")(commands.list_ledgers)
app.command()(commands.show)
app.command()(commands.read)
app.command()(commands.recover)
app.command()(commands.delete)
app.command()(terms.create)
app.command("take-over")(terms.take_over)
app.command()(terms.trim)
app.command("raise-term")(terms.raise_term)
app.command("raise-ids")(terms.raise_ids)
