"""ZooKeeper as a log's writer has to use it: all entries are asked for by one session, whose order it keeps."""

from __future__ import annotations

from benchmarks.peers import system
from benchmarks.peers.systems.zookeeper import System

SYSTEM: system.System = System(
    "zookeeper-session",
    "ZooKeeper, one session",
    1,
    "One session, whose requests are done in the order in which they are sent, as a log's appends are. Measured by appends "
    "alone: else it is the same as ZooKeeper.",
)
