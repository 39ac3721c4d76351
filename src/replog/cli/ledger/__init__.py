"""`replog ledger`: commands for single ledgers."""

from __future__ import annotations

import typer

from replog.cli.ledger import commands, printing

app = typer.Typer(no_args_is_help=True, help="Look after single ledgers, those of logs included.")
app.command("list")(commands.list_ledgers)
app.command()(commands.show)
app.command()(printing.read)
app.command()(commands.recover)
app.command()(commands.delete)
