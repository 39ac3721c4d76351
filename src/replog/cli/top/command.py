"""`replog top`: the command."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import attrs
import trio
import typer
from rich.text import Text

from replog.cli.connecting import Connection, client_from, run, takes_connection
from replog.cli.log.looking import summary_as_json
from replog.cli.output import AsJSON, console, emit, print_json
from replog.cli.top.logs import LogRow, Logs, log_picture
from replog.cli.top.model import Cluster, Row
from replog.cli.top.polling import LogPoller, Poller
from replog.cli.top.rendering import picture
from replog.cli.top.screen import Screen, View, watch_keys, watch_terminal
from replog.config import BackendURL
from replog.runtime.nursery import open_service_nursery

_PLAIN_WIDTH = 200  # where there is no terminal
_PLAIN_HEIGHT = 10_000
_OWN_WORDS_S = 1.0


@attrs.define
class _Looking:
    """The settings of the view, changed by keys."""

    shows_logs: bool = False
    sorts: dict[bool, int] = attrs.field(factory=lambda: {False: 0, True: 0})  # the orders, of bookies and of logs
    is_paused: bool = False
    is_left: bool = False

    def press(self, key: str) -> None:
        """Do what this key means, if anything."""
        if key in "qQ":
            self.is_left = True
        elif key in "pP ":
            self.is_paused = not self.is_paused
        elif key in "sS":
            self.sorts[self.shows_logs] += 1 if key == "s" else -1
        elif key in "lL":
            self.shows_logs = not self.shows_logs


@takes_connection
def top(
    connection: Connection,
    interval_s: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.1, max=3600, help="How often bookies are asked.")
    ] = 1.0,
    timeout_s: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.1, max=60, help="How long a bookie may take.")
    ] = 3.0,
    logs: Annotated[bool, typer.Option("--logs", help="Begin with the logs; with --json, look at them too.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Print one picture, and end.")] = False,
    for_programs: AsJSON = False,
) -> None:
    """Watch a cluster live: the load of its bookies, their latencies and disks, and missing ones; or its logs.

    Keys: q ends, p pauses, s changes the order, l goes to the logs and back. Without a terminal, or with --once or --json, it
    polls twice, an interval apart, prints the result, and ends: with exit status 1 if the metastore cannot be reached."""
    is_live = sys.stdout is not None and sys.stdout.isatty() and not once and not for_programs
    if not run(_top, connection, interval_s, timeout_s, logs, is_live, for_programs):
        raise typer.Exit(1)


async def _top(
    connection: Connection, interval_s: float, timeout_s: float, shows_logs: bool, is_live: bool, for_programs: bool
) -> bool:
    """True unless the metastore failed, where it looks twice."""
    # A picture that lives shows soon that the metastore is away. A single one has the metastore's own words.
    patience_s = None if is_live else metastore_patience_s(connection)
    async with client_from(connection) as client:
        cluster, logs = Cluster(), Logs()
        poller = Poller(client, cluster, interval_s=interval_s, timeout_s=timeout_s, metastore_timeout_s=patience_s)
        log_poller = LogPoller(
            client,
            logs,
            connection.password(),
            interval_s=interval_s,
            timeout_s=timeout_s,
            metastore_timeout_s=patience_s,
        )
        if is_live:
            await _watch(cluster, poller, logs, log_poller, _Looking(shows_logs), _title(connection))
            return True
        is_reached = True
        if for_programs or not shows_logs:
            is_reached = await look_twice(poller)
        if shows_logs and is_reached:
            is_reached = await look_twice(log_poller)
        if for_programs:
            looked_at = {"logs": [_log_as_json(row) for row in logs.rows()]} if shows_logs else {}
            problem = cluster.problem or logs.problem or None
            print_json({**as_json(cluster, trio.current_time()), "problem": problem, **looked_at})
        else:
            print_picture(cluster, None if not shows_logs else logs, _title(connection))
        return is_reached


def metastore_patience_s(connection: Connection) -> float:
    """How long a command that looks once waits for the metastore: its own error, which names who does not answer, comes first."""
    return connection.client_options().metastore_timeout_s + _OWN_WORDS_S


async def look_twice(poller: Poller | LogPoller) -> bool:
    """Poll twice, because rates need two answers. False as soon as the metastore fails."""
    if not await poller.poll():
        return False
    await trio.sleep(poller.interval_s)
    return await poller.poll()


def _title(connection: Connection) -> str:
    """The title: the cluster, without secrets."""
    metastore = connection.metastore or os.environ.get("REPLOG_METASTORE", "")
    return ", ".join(connection.directories) or str(BackendURL.parse(metastore))


# -- once ---------------------------------------------------------------------------------------------------------


def print_picture(cluster: Cluster, logs: Logs | None, title: str) -> None:
    """Print the bookies once, or the logs, as wide as the terminal, or as wide as needed."""
    now_s = trio.current_time()
    out = console()
    width = out.width if out.is_terminal else _PLAIN_WIDTH
    view = View(width, _PLAIN_HEIGHT, title, is_unicode=not out.options.ascii_only, has_keys=False)
    if logs is None:
        lines = picture(cluster.rows(now_s), cluster.total(now_s), cluster.problem, view)
    else:
        lines = log_picture(logs.rows(), logs.are_more, logs.problem, view)
    for line in lines:
        emit(line.plain.rstrip() + "\n")


def as_json(cluster: Cluster, now_s: float) -> dict[str, Any]:
    """All that is known, for programs."""
    return {
        "problem": cluster.problem or None,
        "total": _row_as_json(cluster.total(now_s), is_total=True),
        "bookies": [_row_as_json(row) for row in cluster.rows(now_s)],
    }


def _row_as_json(row: Row, *, is_total: bool = False) -> dict[str, Any]:
    latencies = {
        f"{name}_{quantile}": value
        for name, each in (("commit", row.commit), ("answer", row.answer))
        for quantile, value in attrs.asdict(each).items()
    }
    figures = {**attrs.asdict(row.figures), **latencies}
    if is_total:
        return {name: value for name, value in figures.items() if name not in ("uptime_s", "ledgers", "active_ledgers")}
    return {
        "bookie_id": row.bookie_id,
        "endpoints": list(row.endpoints),
        "state": row.state.value,
        "labels": dict(row.labels),
        "unreachable_for_s": row.since_s,
        "problem": row.problem or None,
        "version": row.version or None,
        **figures,
    }


def _log_as_json(row: LogRow) -> dict[str, Any]:
    held = {"log": row.name} if row.summary is None else summary_as_json(row.summary)
    return {
        **held,
        "entries_rate": row.entries_rate,
        "absent_bookies": row.absent_bookies,
        "problem": row.problem or None,
    }


# -- live ---------------------------------------------------------------------------------------------------------


async def _watch(
    cluster: Cluster, poller: Poller, logs: Logs, log_poller: LogPoller, looking: _Looking, title: str
) -> None:
    out = console()
    screen = Screen(out)
    frozen: dict[bool, Callable[[View], list[Text]]] = {}  # what a pause shows, of bookies and of logs
    clock = ""
    left = trio.Event()

    def now() -> Callable[[View], list[Text]]:
        if looking.shows_logs:
            return partial(log_picture, logs.rows(), logs.are_more, logs.problem)
        now_s = trio.current_time()
        return partial(picture, cluster.rows(now_s), cluster.total(now_s), cluster.problem)

    def draw() -> None:
        nonlocal clock
        # A pause keeps the data, not the picture: the terminal may change its size meanwhile.
        if not looking.is_paused or looking.shows_logs not in frozen:
            frozen[looking.shows_logs] = now()
            clock = time.strftime("%H:%M:%S")
        width, height = screen.size
        view = View(
            width,
            height,
            title,
            clock,
            looking.sorts[looking.shows_logs],
            looking.is_paused,
            is_unicode=not out.options.ascii_only,
            has_keys=screen.has_keys,
        )
        screen.show(frozen[looking.shows_logs](view) or [Text()])

    def press(key: str) -> None:
        looking.press(key)
        if key in "lL":
            log_poller.poll_soon()
        if looking.is_left:
            left.set()
        draw()

    async with open_service_nursery() as nursery:
        with screen.open():
            await nursery.start(watch_terminal, screen, draw)
            nursery.start_soon(watch_keys, screen, press)
            nursery.start_soon(poller.run)
            nursery.start_soon(log_poller.run, lambda: looking.shows_logs)
            nursery.start_soon(_draw_again_and_again, draw, poller.interval_s)
            await left.wait()


async def _draw_again_and_again(draw: Callable[[], None], interval_s: float) -> None:
    while True:
        draw()
        await trio.sleep(min(interval_s, 1.0))
