"""How the state machines are that this process runs, as Prometheus' families.

A member says only what it knows itself. How old a machine's last snapshot is, and how much of the log a new member replays, is in
the metrics of its two logs: `replog_log_last_entry_time_seconds{log="NAME.snapshots"}` and `replog_log_entries{log="NAME"}`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from prometheus_client.metrics_core import Metric

from replog.machine import MachineStatus
from replog.metrics.collecting import Families

_COUNTERS = {
    "commands": "Commands that were applied since the machine began.",
    "takeovers": "Takeovers of the machine that this member saw since it was started, in what it replayed, too.",
}
_GAUGES = {
    "leads": "1 if this member leads the machine.",
    "sessions": "Sessions of callers.",
    "applied_segment": "The segment of the last entry that this member applied.",
    "applied_entry": "The number of that entry in its segment.",
    "applied_time_seconds": "The machine's time: when the newest entry that this member applied was sent, by its leader's clock.",
    "restored_ratio": "The part of a snapshot that was read, while this member reads one.",
}


class KnownMachine(Protocol):
    """A machine that runs here: a `RunningMachine`, of any of the three faces."""

    @property
    def machine_name(self) -> str:
        """Its name."""

    @property
    def status(self) -> MachineStatus:
        """Where this member is."""


def collect_machines(machines: Iterable[KnownMachine]) -> Iterator[Metric]:
    """How the machines are that run here, as Prometheus' families with the labels `machine` and `member`."""
    families = Families("replog_machine_", ["machine", "member"], gauges=_GAUGES, counters=_COUNTERS)
    for each in machines:
        status = each.status
        families.add(
            [each.machine_name, status.member_id],
            {
                "commands": status.commands,
                "takeovers": status.takeovers,
                "leads": float(status.leads_from is not None),
                "sessions": status.sessions,
                "applied_segment": status.position.segment,
                "applied_entry": status.position.entry,
                "applied_time_seconds": status.time_ns / 1e9 if status.time_ns else None,
                "restored_ratio": status.restoring,
            },
        )
    yield from families
