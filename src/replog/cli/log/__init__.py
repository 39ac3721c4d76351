"""`replog log`: commands that write, read and manage logs."""

from __future__ import annotations

from replog.cli.apps import App
from replog.cli.log import appending, archiving, looking, maintaining, printing

app = App(no_args_is_help=True, help="Write, read and look after logs.")
app.command("list")(looking.list_logs)
app.command()(looking.show)
app.command()(looking.metrics)
app.command()(appending.append)
app.command()(printing.read)
app.command()(printing.tail)
app.command()(looking.trim)
app.command()(maintaining.retain)
app.command()(maintaining.compact)
app.command()(archiving.archive)
app.command()(archiving.recall)
app.command()(looking.sweep)
app.command()(maintaining.transactions)
app.command()(maintaining.producers)
app.command()(looking.delete)
