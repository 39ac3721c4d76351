"""`replog demo`: a log that survives."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import trio
import typer

from replog.cli.output import AsJSON, console, print_json
from replog.demo.appending import Quota
from replog.demo.options import BOOKIES_MIN
from replog.demo.running import Settings
from replog.demo.running import run as run_demo

_DEFAULT_SECONDS = 1.0


def demo(
    source: Annotated[
        str | None,
        typer.Option(
            "--input", metavar="FILE", help="Append this file's lines, - for standard input. [Python's own sources]"
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(min=0.1, max=3600, help=f"How long is appended before something happens. [{_DEFAULT_SECONDS:g}]"),
    ] = None,
    entries: Annotated[
        int | None, typer.Option(min=1, help="How many entries are appended before something happens.")
    ] = None,
    bookies: Annotated[int, typer.Option(min=BOOKIES_MIN, max=32, help="How many bookies there are.")] = BOOKIES_MIN,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep the files, in this new or empty directory.")
    ] = None,
    as_json: AsJSON = False,
) -> None:
    """Watch a replicated log survive a killed leader, a killed bookie, and a leader that is stopped and wakes up deposed.

    Exit status 1 if one confirmed entry is missing, doubled, changed or out of order, or if an act did not happen as planned.
    """
    if seconds is None and entries is None:
        seconds = _DEFAULT_SECONDS
    settings = Settings(Quota(entries, seconds), source, bookies, keep)
    result = trio.run(run_demo, settings, console(stderr=as_json))
    if as_json:
        print_json(result.to_json())
    if result.faults:
        raise typer.Exit(1)
