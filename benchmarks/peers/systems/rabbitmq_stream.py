"""RabbitMQ's streams, by AMQP: closer to a log than its queues, since they can be read again. They are never synced."""

from __future__ import annotations

from benchmarks.peers import system
from benchmarks.peers.system import Promise
from benchmarks.peers.systems.rabbitmq import System

SYSTEM: system.System = System(
    "rabbitmq-stream",
    "RabbitMQ stream",
    "stream",
    Promise(
        copies=3,
        confirmed_by=2,
        is_synced=False,
        words=(
            "stream of three replicas, publisher confirms, by AMQP: two of three nodes have written the entry to their files. "
            "Not synced: RabbitMQ leaves that to the kernel, and has no setting for it."
        ),
    ),
)
