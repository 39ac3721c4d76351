"""The types of what verbs return, for annotations and for `isinstance`. The verb that returns one says what is in it."""

from typing import TYPE_CHECKING

from replog.runtime.on_demand import on_demand

if TYPE_CHECKING:
    from replog.backup.saving import BackupReport
    from replog.bookie.serving import ServedBookie
    from replog.client.administration import RemoteBookie
    from replog.log.appending import AppendedLedgers
    from replog.log.key_compaction import CompactedLog
    from replog.log.log_summaries import CursorLag, LogSummary
    from replog.machine.running import MachineStatus
    from replog.protocol.cursors import CursorRecord
    from replog.protocol.producers import KnownProducer
    from replog.records.archives import ArchiveRecord
    from replog.repair.adopting import AdoptedCopies
    from replog.repair.archive_objects import ArchiveReport, CollectedObjects
    from replog.repair.archiver import MovedEntries
    from replog.repair.audit_report import AuditReport
    from replog.repair.drains import DrainStatus
    from replog.repair.losses import EntriesAtRisk
    from replog.repair.rebalancer import RebalanceReport
else:
    __getattr__, __dir__ = on_demand(
        __name__,
        {
            "replog.backup.saving": ["BackupReport"],
            "replog.bookie.serving": ["ServedBookie"],
            "replog.client.administration": ["RemoteBookie"],
            "replog.log.appending": ["AppendedLedgers"],
            "replog.log.key_compaction": ["CompactedLog"],
            "replog.log.log_summaries": ["CursorLag", "LogSummary"],
            "replog.machine.running": ["MachineStatus"],
            "replog.protocol.cursors": ["CursorRecord"],
            "replog.protocol.producers": ["KnownProducer"],
            "replog.records.archives": ["ArchiveRecord"],
            "replog.repair.adopting": ["AdoptedCopies"],
            "replog.repair.archive_objects": ["ArchiveReport", "CollectedObjects"],
            "replog.repair.archiver": ["MovedEntries"],
            "replog.repair.audit_report": ["AuditReport"],
            "replog.repair.drains": ["DrainStatus"],
            "replog.repair.losses": ["EntriesAtRisk"],
            "replog.repair.rebalancer": ["RebalanceReport"],
        },
    )

__all__ = [
    "AdoptedCopies",
    "AppendedLedgers",
    "ArchiveRecord",
    "ArchiveReport",
    "AuditReport",
    "BackupReport",
    "CollectedObjects",
    "CompactedLog",
    "CursorLag",
    "CursorRecord",
    "DrainStatus",
    "EntriesAtRisk",
    "KnownProducer",
    "LogSummary",
    "MachineStatus",
    "MovedEntries",
    "RebalanceReport",
    "RemoteBookie",
    "ServedBookie",
]
