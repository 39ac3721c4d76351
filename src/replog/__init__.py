"""replog: an embeddable replicated log.

    async with replog.embed("./wal") as client, client.write_log("orders") as log:
        position = await log.append(b"survives from here on")

Ledgers (append-only, one writer, replicated on a quorum of bookies) and logs made of ledgers, by the BookKeeper protocol.
`replog.aio` has the same for asyncio, and `replog.blocking` for programs without either.
"""

from replog.api import BookieConfig, Client, connect, embed, serve_bookie, serve_repairs, served_bookie
from replog.client.audit_report import AuditReport
from replog.client.entries import Entry, EntryBatch
from replog.client.ledger_reader import LedgerReader
from replog.client.ledger_writer import LedgerWriter
from replog.config import BookieOptions, ClientOptions
from replog.errors import (
    AddTimeoutError,
    ClosedError,
    CommandFailedError,
    CommandRefusedError,
    CommandTimeoutError,
    CompressionUnavailableError,
    ConfigError,
    CursorLostError,
    CursorNotFoundError,
    CustomMismatchError,
    EndOfLogError,
    EntryNotFoundError,
    EntryUnreadableError,
    FencedError,
    ForkedError,
    JobAbandonedError,
    LedgerClosedError,
    LedgerDeletedError,
    LedgerFinishedError,
    LedgerNotFoundError,
    LedgerRefusedError,
    LedgerRolledBackError,
    LedgerTrimmedError,
    LogNotFoundError,
    MachineError,
    MetastoreError,
    NotEnoughBookiesError,
    PayloadTooLargeError,
    PlacementUnmetError,
    PositionError,
    RecoveryUndecidedError,
    ReplogError,
    SessionExpiredError,
    StateDivergedError,
    StorageDamagedError,
    StorageError,
    StorageIdentityError,
    StorageInUseError,
    TakeoverFailedError,
    TooManyLedgersError,
    TransactionTableFullError,
    TransientError,
    TrimBlockedError,
    TrimmedError,
    UnauthorizedError,
    UnknownCommandError,
    WouldBlockError,
    WrongEventLoopError,
)
from replog.log.appending import AppendedLedgers
from replog.log.compacting import CompactedLog
from replog.log.cursor import Cursor
from replog.log.log_reader import LogReader
from replog.log.log_summaries import CursorLag, LogSummary
from replog.log.log_writer import LogWriter
from replog.log.record_batches import Record, RecordBatch
from replog.log.retention import Retention
from replog.machine import (
    CommandId,
    MachineOptions,
    MachineStatus,
    ReplicatedCounter,
    ReplicatedDict,
    ReplicatedLock,
    ReplicatedQueue,
    RunningMachine,
    StateMachine,
    command,
)
from replog.protocol.cursors import CursorRecord
from replog.protocol.digest import DigestType
from replog.protocol.model import LedgerMetadata, LogMetadata, Position
from replog.protocol.quorum import Quorum
from replog.registry import Registry
from replog.runtime.memory import keep_freed_memory

__all__ = [
    "AddTimeoutError",
    "AppendedLedgers",
    "AuditReport",
    "BookieConfig",
    "BookieOptions",
    "Client",
    "ClientOptions",
    "ClosedError",
    "CommandFailedError",
    "CommandId",
    "CommandRefusedError",
    "CommandTimeoutError",
    "CompressionUnavailableError",
    "CompactedLog",
    "ConfigError",
    "Cursor",
    "CursorLag",
    "CursorLostError",
    "CursorNotFoundError",
    "CursorRecord",
    "CustomMismatchError",
    "DigestType",
    "EndOfLogError",
    "Entry",
    "EntryBatch",
    "EntryNotFoundError",
    "EntryUnreadableError",
    "FencedError",
    "ForkedError",
    "JobAbandonedError",
    "LedgerClosedError",
    "LedgerDeletedError",
    "LedgerFinishedError",
    "LedgerMetadata",
    "LedgerNotFoundError",
    "LedgerReader",
    "LedgerRefusedError",
    "LedgerRolledBackError",
    "LedgerTrimmedError",
    "LedgerWriter",
    "LogMetadata",
    "LogNotFoundError",
    "LogReader",
    "LogSummary",
    "LogWriter",
    "MachineError",
    "MachineOptions",
    "MachineStatus",
    "MetastoreError",
    "NotEnoughBookiesError",
    "PayloadTooLargeError",
    "PlacementUnmetError",
    "Position",
    "PositionError",
    "Quorum",
    "Record",
    "RecordBatch",
    "RecoveryUndecidedError",
    "Registry",
    "ReplicatedCounter",
    "ReplicatedDict",
    "ReplicatedLock",
    "ReplicatedQueue",
    "ReplogError",
    "Retention",
    "RunningMachine",
    "SessionExpiredError",
    "StateDivergedError",
    "StateMachine",
    "StorageDamagedError",
    "StorageError",
    "StorageIdentityError",
    "StorageInUseError",
    "TakeoverFailedError",
    "TooManyLedgersError",
    "TransactionTableFullError",
    "TransientError",
    "TrimBlockedError",
    "TrimmedError",
    "UnauthorizedError",
    "UnknownCommandError",
    "WouldBlockError",
    "WrongEventLoopError",
    "command",
    "connect",
    "embed",
    "keep_freed_memory",
    "serve_bookie",
    "serve_repairs",
    "served_bookie",
]
