"""How far an audit or repair is, as a bar on standard error, if that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from replog.cli.figures import as_count, as_duration
from replog.cli.output import as_size, console
from replog.client.repair_progress import RepairProgress, ReportProgress

_DOING = {"audit": "ledgers audited", "copy": "fragments filled", "move": "fragments moved"}


@contextmanager
def shown_progress(*, is_quiet: bool) -> Iterator[ReportProgress | None]:
    """What a client calls with its progress; None if nobody sees it."""
    if is_quiet or sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[facts]}"))
    with Progress(*columns, console=console(stderr=True), transient=True, refresh_per_second=4) as bar:
        task: list[TaskID] = []

        def show(progress: RepairProgress) -> None:
            if not task:
                task.append(bar.add_task("", facts=""))
            bar.update(
                task[0],
                description=_DOING[progress.stage],
                completed=progress.done,
                total=progress.total,
                facts=facts_of(progress),
            )

        yield show


def facts_of(progress: RepairProgress) -> str:
    """What stands behind the bar: what lacks copies, how much was copied and how fast, and the time left."""
    facts = []
    if progress.under_replicated:
        facts.append(f"{as_count(progress.under_replicated)} lack copies")
    if progress.copied_bytes:
        rate = as_size(round(progress.bytes_per_s))
        facts.append(f"{as_size(progress.copied_bytes)} copied, {rate}/s")
    if progress.left_s is not None:
        facts.append(f"{as_duration(progress.left_s)} left")
    return ", ".join(facts)
