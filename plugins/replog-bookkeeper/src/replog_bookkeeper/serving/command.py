"""`replog bookkeeper bookie`: serve a bookie to clients of BookKeeper."""

from __future__ import annotations

import os
import time
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Annotated

import attrs
import trio
import typer

from replog.cli.ending import status_for
from replog.cli.output import AsJSON
from replog.cli.serving.log_lines import Logs, Observer
from replog.cli.serving.process import Leaving, notify
from replog.cli.serving.settings import LoggingOptions
from replog.config import BackendURL, BookieOptions, load
from replog.errors import ConfigError, ReplogError
from replog.registry import Registry
from replog.runtime.collector import no_collections
from replog.runtime.nursery import open_service_nursery
from replog_bookkeeper.serving.bookie import LISTEN, BookKeeperBookie, serve_bookie


def serve(
    metastore: Annotated[
        str,
        typer.Option(
            "--metastore",
            metavar="URI",
            envvar="REPLOG_BOOKKEEPER_METASTORE",
            help="Where the cluster's metadata is: zk+hierarchical://HOST;HOST/ledgers.",
        ),
    ],
    data: Annotated[str, typer.Option(metavar="DIR", help="The directory of the bookie's data.")],
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0: any.")] = LISTEN,
    advertise: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where clients must connect, if that is another address.")
    ] = "",
    storage: Annotated[
        str | None, typer.Option(metavar="KIND", help="files, lmdb, or a plugin's, maybe with options. Default: files.")
    ] = None,
    after_restore: Annotated[
        bool,
        typer.Option(
            "--after-restore",
            help="The metadata is right as it is, although the bookie has seen a later state. For one start, after a restore.",
        ),
    ] = False,
    log_format: Annotated[str, typer.Option(metavar="FORMAT", help="json, text or auto: text on a terminal.")] = "auto",
    log_level: Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = "info",
    for_programs: AsJSON = False,
) -> None:
    """Serve a bookie of a BookKeeper cluster until SIGTERM: to Java's clients, and to this package's.

    The cluster must have been begun by Java's `bookkeeper shell initnewcluster`. The first signal makes the bookie leave in
    order: exit status 0. A second one ends it at once. Other options come from REPLOG_BOOKIE_..., as for `replog bookie`."""
    options = load(BookieOptions, environment=os.environ, prefix="REPLOG_BOOKIE_")
    if storage is not None:
        options = attrs.evolve(options, storage=storage)
    if BackendURL.parse(options.storage).rest:
        raise ConfigError(f"--storage {options.storage}: it names a directory, which is --data")
    written = LoggingOptions(format="json" if for_programs and log_format == "auto" else log_format, level=log_level)
    with Logs(written) as logs:
        observer = Observer(logs.log)
        registry = Registry({"log of the process": observer})
        serving = serve_bookie(
            metastore,
            os.path.abspath(data),
            listen=listen,
            advertise=advertise,
            options=options,
            registry=registry,
            after_restore=after_restore,
        )
        facts = {"data": data, "storage": BackendURL.parse(options.storage).scheme, "metastore": metastore}
        try:
            trio.run(_serve, logs, observer, serving, facts)
        except ReplogError as error:
            # For people, the error is one line on standard error as with all commands; for programs, a line of the log.
            if logs.is_text:
                raise
            logs.log.error("failed", error=type(error).__name__, problem=str(error))
            raise typer.Exit(status_for(error)) from error


async def _serve(
    logs: Logs, observer: Observer, serving: AbstractAsyncContextManager[BookKeeperBookie], facts: dict[str, str]
) -> None:
    leaving, started_s = Leaving(logs.log), time.monotonic()
    async with open_service_nursery() as nursery:
        await nursery.start(leaving.watch)
        with leaving.beginning:
            async with AsyncExitStack() as stack:
                with no_collections(is_kept=True):
                    bookie = await stack.enter_async_context(serving)
                logs.bookie_id = bookie.bookie_id
                start_s = round(time.monotonic() - started_s, 3)
                logs.log.info("serving", listen=[bookie.address], **facts, pid=os.getpid(), start_s=start_s)
                notify("READY=1")
                await leaving.asked()
        if leaving.was_served and observer.failure is not None:
            raise observer.failure.error
        logs.log.info("stopped", **leaving.took())
