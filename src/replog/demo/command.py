"""`replog demo`: the command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import trio
import typer

from replog.cli.apps import App
from replog.cli.output import AsJSON, console, print_json
from replog.demo.processes import QUORUM
from replog.demo.running import ENTRIES_MAX, Settings, run

app = App()


@app.command()
def demo(
    source: Annotated[
        str | None,
        typer.Option("--input", metavar="FILE", help="Append this file's lines, - for standard input. [Python's own]"),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=0.1, max=3600, help="Append for so long before something happens. [1]")
    ] = None,
    entries: Annotated[
        int | None, typer.Option(min=1, max=ENTRIES_MAX, help="Append so many entries before something happens.")
    ] = None,
    bookies: Annotated[int, typer.Option(min=QUORUM.ensemble, max=32, help="How many bookies there are.")] = 3,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep the files, in this new or empty directory.")
    ] = None,
    as_json: AsJSON = False,
) -> None:
    """Watch a replicated log survive a killed leader, a killed bookie, and a leader that is stopped and wakes up deposed.

    Exit status 1 if one confirmed entry is missing, doubled, changed or out of order, or if an act did not happen as planned.
    """
    if seconds is None and entries is None:
        seconds = 1.0
    settings = Settings(entries or ENTRIES_MAX, seconds, bookies, source, keep)
    result = trio.run(run, settings, console(stderr=as_json))
    if as_json:
        print_json(result.to_json())
    if result.faults:
        raise typer.Exit(1)
