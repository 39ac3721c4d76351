"""NATS JetStream that syncs before it acknowledges (`sync_interval: always`), as it does not by default."""

from __future__ import annotations

from benchmarks.peers import system
from benchmarks.peers.system import Promise
from benchmarks.peers.systems.nats import System

SYSTEM: system.System = System(
    "nats-synced",
    "NATS JetStream, synced",
    Promise(
        copies=3,
        confirmed_by=2,
        is_synced=True,
        words="R3 stream in files: two of three have the entry in their files, synced (`sync_interval: always`).",
    ),
)
