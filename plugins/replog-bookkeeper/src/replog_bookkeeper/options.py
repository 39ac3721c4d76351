"""Options that commands on a BookKeeper cluster share, and the client that they make."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import typer

from replog.config import ClientOptions, load
from replog.errors import ConfigError
from replog_bookkeeper.client import Client, connect

_VARIABLE = "REPLOG_BOOKKEEPER_METASTORE"

Metastore = Annotated[
    str | None,
    typer.Option(
        "--metastore",
        metavar="URI",
        help=f"Where the cluster's metadata is: zk+hierarchical://HOST;HOST/ledgers. Environment: {_VARIABLE}.",
    ),
]
PasswordFile = Annotated[
    Path | None, typer.Option("--password-file", metavar="FILE", help="Has the ledger's password; or REPLOG_PASSWORD.")
]


@asynccontextmanager
async def client_of(metastore: str | None) -> AsyncIterator[Client]:
    """A client of the cluster that the option or the environment names. Raises `ConfigError` if neither does."""
    uri = metastore or os.environ.get(_VARIABLE)
    if not uri:
        raise ConfigError(
            f"which cluster? Name its metadata: --metastore zk+hierarchical://HOST;HOST/ledgers, or {_VARIABLE}"
        )
    options = load(ClientOptions, environment=os.environ, prefix="REPLOG_CLIENT_")
    async with connect(uri, options=options) as client:
        yield client
