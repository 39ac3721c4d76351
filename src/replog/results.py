"""The types of what verbs return, for annotations and for `isinstance`. The verb that returns one says what is in it."""

from __future__ import annotations

from replog.backup.saving import BackupReport
from replog.bookie.serving import ServedBookie
from replog.client.administration import RemoteBookie
from replog.log.appending import AppendedLedgers
from replog.log.compacting import CompactedLog
from replog.log.log_summaries import CursorLag, LogSummary
from replog.machine.running import MachineStatus
from replog.protocol.cursors import CursorRecord
from replog.protocol.producers import KnownProducer
from replog.repair.audit_report import AuditReport
from replog.repair.drains import DrainStatus
from replog.repair.losses import EntriesAtRisk
from replog.repair.rebalancer import RebalanceReport

__all__ = [
    "AppendedLedgers",
    "AuditReport",
    "BackupReport",
    "CompactedLog",
    "CursorLag",
    "CursorRecord",
    "DrainStatus",
    "EntriesAtRisk",
    "KnownProducer",
    "LogSummary",
    "MachineStatus",
    "RebalanceReport",
    "RemoteBookie",
    "ServedBookie",
]
