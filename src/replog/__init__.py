"""replog: an embeddable replicated log.

    async with replog.embed("./wal") as client, client.write_log("orders") as log:
        position = await log.append(b"survives from here on")

Ledgers (append-only, one writer, replicated on a quorum of bookies) and logs made of ledgers, by the BookKeeper protocol.
`replog.aio` has the same for asyncio, and `replog.blocking` for programs without either. `replog.errors` has all errors, and
`replog.results` the types of what verbs return.
"""

from typing import TYPE_CHECKING

from replog.runtime.on_demand import on_demand

if TYPE_CHECKING:
    from replog import errors as errors
    from replog import results as results
    from replog.api import BookieConfig, Client, connect, embed, serve_bookie, serve_repairs
    from replog.client.entries import Entry, EntryBatch
    from replog.client.ledger_reader import LedgerReader
    from replog.client.ledger_writer import LedgerWriter
    from replog.config import BookieOptions, ClientOptions
    from replog.errors import ClosedError, ConfigError, FencedError, ReplogError, TransientError
    from replog.log.cursor import Cursor
    from replog.log.log_options import Archiving, LogOptions, Retention
    from replog.log.log_reader import LogReader
    from replog.log.log_writer import LogWriter
    from replog.log.record_batches import Record, RecordBatch
    from replog.machine import (
        CommandId,
        MachineOptions,
        ReplicatedCounter,
        ReplicatedDict,
        ReplicatedLock,
        ReplicatedQueue,
        RunningMachine,
        StateMachine,
        command,
    )
    from replog.protocol.digest import DigestType
    from replog.protocol.model import LedgerMetadata, LogMetadata, Position
    from replog.protocol.quorum import Quorum
    from replog.registry import Registry
else:
    __getattr__, __dir__ = on_demand(
        __name__,
        {
            "replog.api": ["BookieConfig", "Client", "connect", "embed", "serve_bookie", "serve_repairs"],
            "replog.client.entries": ["Entry", "EntryBatch"],
            "replog.client.ledger_reader": ["LedgerReader"],
            "replog.client.ledger_writer": ["LedgerWriter"],
            "replog.config": ["BookieOptions", "ClientOptions"],
            "replog.errors": ["ClosedError", "ConfigError", "FencedError", "ReplogError", "TransientError"],
            "replog.log.cursor": ["Cursor"],
            "replog.log.log_options": ["Archiving", "LogOptions", "Retention"],
            "replog.log.log_reader": ["LogReader"],
            "replog.log.log_writer": ["LogWriter"],
            "replog.log.record_batches": ["Record", "RecordBatch"],
            "replog.machine": [
                *("CommandId", "MachineOptions", "RunningMachine", "StateMachine", "command"),
                *("ReplicatedCounter", "ReplicatedDict", "ReplicatedLock", "ReplicatedQueue"),
            ],
            "replog.protocol.digest": ["DigestType"],
            "replog.protocol.model": ["LedgerMetadata", "LogMetadata", "Position"],
            "replog.protocol.quorum": ["Quorum"],
            "replog.registry": ["Registry"],
        },
        modules=("errors", "results"),
    )

__all__ = [
    "Archiving",
    "BookieConfig",
    "BookieOptions",
    "Client",
    "ClientOptions",
    "ClosedError",
    "CommandId",
    "ConfigError",
    "Cursor",
    "DigestType",
    "Entry",
    "EntryBatch",
    "FencedError",
    "LedgerMetadata",
    "LedgerReader",
    "LedgerWriter",
    "LogMetadata",
    "LogOptions",
    "LogReader",
    "LogWriter",
    "MachineOptions",
    "Position",
    "Quorum",
    "Record",
    "RecordBatch",
    "Registry",
    "ReplicatedCounter",
    "ReplicatedDict",
    "ReplicatedLock",
    "ReplicatedQueue",
    "ReplogError",
    "Retention",
    "RunningMachine",
    "StateMachine",
    "TransientError",
    "command",
    "connect",
    "embed",
    "serve_bookie",
    "serve_repairs",
]
