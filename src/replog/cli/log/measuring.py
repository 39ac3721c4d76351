"""`replog log metrics`: what logs hold and how far cursors are behind, for Prometheus."""

from __future__ import annotations

import sys
from functools import partial
from typing import Annotated

import trio
import typer

from replog.cli.connecting import Connection, client_from, run, takes_connection
from replog.cli.output import emit
from replog.errors import LogNotFoundError, MetastoreUnavailableError
from replog.metrics.options import check_installed, parse_listen


@takes_connection
def metrics(
    connection: Connection,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="The logs; without any, the first 200.")
    ] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve them at /metrics until a signal comes.")
    ] = None,
) -> None:
    """Print metrics of logs and cursors in Prometheus' format: who leads, what is held, lag; or serve them with --listen.

    A log costs the metastore a few reads whenever somebody asks; no writer is disturbed. One such process is enough for a
    cluster."""
    check_installed()
    if listen is not None:
        parse_listen(listen)
    run(_metrics, connection, tuple(names or ()), listen)


async def _metrics(connection: Connection, names: tuple[str, ...], listen: str | None) -> None:
    # Here: the other commands need no package of that extra.
    from prometheus_client import CollectorRegistry, generate_latest

    from replog.metrics import LogMetrics, serve_metrics

    async with client_from(connection) as client:
        found = LogMetrics(client, names, password=connection.password())
        if listen is not None:
            async with trio.open_nursery() as nursery:
                where = await nursery.start(partial(serve_metrics, logs=found), listen)
                print(f"replog: metrics of logs at http://{where}/metrics", file=sys.stderr)
            return
        known = await client.logs()
        for name in names:
            if name not in known:
                raise LogNotFoundError(name, "there is no such log: replog log list says which there are")
        await found.look()
        if found.problem:
            raise MetastoreUnavailableError(found.problem)
        registry = CollectorRegistry()
        registry.register(found)
        emit(generate_latest(registry).decode())
