"""A member's view of its client: logs, the metastore, connections to other members; and how leaders are found in the
metastore.

A leader announces itself under `machines/NAME/leaders/SEGMENT`, where SEGMENT is the one that its takeover began. So
the keys of two leaders never meet, and the highest one is the last that was elected. The value is an announcement like
a bookie's, with the member's id as the label `member`. An announcement is advice (M3): the log decides who leads.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Protocol

import attrs

from replog.abc import Authenticator, Metastore, RequestHandler, Transport
from replog.client.ledgers import Ledgers
from replog.config import BackendURL
from replog.errors import ConfigError, MetastoreCorruptError
from replog.log.log_options import LogOptions
from replog.log.log_reader import LogReader
from replog.log.log_writer import LogWriter
from replog.protocol.model import LedgerMetadata, LogMetadata, Position, Segment
from replog.records.bookies import BookieAddress, Endpoint, decode_address, encode_address
from replog.records.paths import log_key_path
from replog.registry import Registry

_MACHINES_KEY = "machines"
_SEGMENT_DIGITS = 19
_MEMORY = "memory"


class Logs(Protocol):
    """The verbs of a client that a member uses."""

    def lead_log(
        self, name: str, *, options: LogOptions | None = ...
    ) -> AbstractAsyncContextManager[LogWriter, bool | None]:
        """Competes to lead the log (`Client.lead_log`)."""

    def write_log(
        self, name: str, *, options: LogOptions | None = ...
    ) -> AbstractAsyncContextManager[LogWriter, bool | None]:
        """Writes to the log (`Client.write_log`)."""

    def read_log(
        self, name: str, *, after: Position | str | None = None, follow: bool = False, password: bytes = b""
    ) -> AbstractAsyncContextManager[LogReader, bool | None]:
        """Reads the log (`Client.read_log`)."""

    async def trim_log(self, name: str, *, before: Position | str) -> Position:
        """Trims the log (`Client.trim_log`)."""

    async def log_segments(self, name: str) -> list[Segment]:
        """Lists the log's segments (`Client.log_segments`)."""

    async def log_metadata(self, name: str) -> LogMetadata:
        """Reads the log's metadata (`Client.log_metadata`)."""

    async def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        """Reads the ledger's metadata (`Client.ledger_metadata`)."""


@attrs.frozen
class MachineContext:
    """The parts of a client that its machines use. `open_transport` opens one that listens, `transport` is the one to
    connect by."""

    metastore: Metastore
    open_transport: Callable[[BackendURL], Transport]
    transport: Callable[[str], Transport]
    authenticator: Authenticator | None


def context_of(ledgers: Ledgers, plugins: Registry) -> MachineContext:
    """The parts of this client for its machines."""
    connections = ledgers.context.connections
    metastore = ledgers.records.metastore
    return MachineContext(metastore, plugins.open_transport, connections.transport, connections.authenticator)


@attrs.frozen
class LeaderAddress:
    """A leader that was announced: its term is the segment that its takeover began."""

    term: int
    member_id: str
    endpoints: tuple[Endpoint, ...]


def leaders_key(name: str) -> str:
    """The key above the announcements of a machine's leaders. Raises `ConfigError` for what can't be a log's name."""
    return f"{_MACHINES_KEY}/{log_key_path(name).partition('/')[2]}/leaders"


def leader_key(name: str, term: int) -> str:
    """The key of one leader."""
    return f"{leaders_key(name)}/{term:0{_SEGMENT_DIGITS}}"


def encode_leader(member_id: str, endpoints: Sequence[Endpoint]) -> bytes:
    """The announcement of a leader that can be reached there."""
    return encode_address(BookieAddress(tuple(endpoints), labels={"member": member_id}))


async def announced_leaders(metastore: Metastore, name: str) -> list[LeaderAddress]:
    """The leaders that are announced, the last elected one first. Raises `MetastoreError`."""
    found = []
    key = leaders_key(name)
    for word, value in (await metastore.announced(key)).items():
        address = decode_address(f"{key}/{word}", value)
        if not word.isdecimal() or "member" not in address.labels:
            raise MetastoreCorruptError(
                f"key {key}/{word!r} is among a machine's leaders, but is not one: move it away"
            )
        found.append(LeaderAddress(int(word), address.labels["member"], address.endpoints))
    return sorted(found, key=lambda each: each.term, reverse=True)


def usual_listen() -> tuple[str, ...]:
    """Where a member listens without a word of the user's: at a socket that only this user's processes on this machine reach.

    Raises `ConfigError` if the directory for it belongs to somebody else."""
    directory = Path(tempfile.gettempdir()) / f"replog-{os.getuid()}"
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        found = directory.lstat()
    except OSError as error:
        raise ConfigError(
            f"{directory}: {error.strerror or error}: say where this member listens, by listen="
        ) from error
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or directory.is_symlink():
        raise ConfigError(f"{directory} is open to others: say where this member listens, by listen=")
    return (f"unix:{directory}/",)


@asynccontextmanager
async def listening(
    member_id: str, listen: Sequence[str], handler: RequestHandler, context: MachineContext
) -> AsyncIterator[list[Endpoint]]:
    """Serves a member's handler within this trio run, and at these URLs. Yields the ways to it, the shortest first.

    Raises `ConfigError`."""
    urls = [BackendURL(_MEMORY, member_id), *map(BackendURL.parse, listen)]
    async with AsyncExitStack() as stack:
        endpoints = []
        for url in urls:
            transport = context.open_transport(attrs.evolve(url, rest=""))
            served = transport.listen(url.rest, handler, bookie_id=member_id, authenticator=context.authenticator)
            endpoints.append(Endpoint(url.scheme, await stack.enter_async_context(served)))
        yield endpoints
