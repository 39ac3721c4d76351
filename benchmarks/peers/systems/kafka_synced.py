"""Kafka that syncs: each broker calls fsync for each batch before it counts (`flush.messages=1`), as no default does."""

from __future__ import annotations

from benchmarks.peers import system
from benchmarks.peers.systems.kafka import SYNCED, WORDS, System

SYSTEM: system.System = System(
    "kafka-synced",
    "Kafka, synced",
    SYNCED,
    WORDS.format(how="each has synced the batch that holds it (`flush.messages=1`)"),
)
