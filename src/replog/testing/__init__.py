"""Tools for tests: a simulator for code built on replog, conformance suites for plugins, faults, and a history checker.

`docs/how-to/testing.md` says what to use when. Names are imported when they are first used: importing this package is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from replog.testing.authenticator_exam import check_authenticator
    from replog.testing.bookie_exam import check_bookie_loop
    from replog.testing.disk import MemoryDisk, PowerLoss
    from replog.testing.faults import Call, Fault, FaultyMetastore
    from replog.testing.history import Finding, History, judge, read_histories
    from replog.testing.metastore_exam import check_metastore, check_metastore_leases, check_metastore_outage
    from replog.testing.placement_exam import check_placement
    from replog.testing.proxy import TcpProxy, Weather, serve_proxy
    from replog.testing.sender_exam import check_sender
    from replog.testing.simulating.cluster import SimulatedBookie, SimulatedCluster
    from replog.testing.simulating.faults import Faults
    from replog.testing.simulating.running import SimulationTimeoutError, simulate
    from replog.testing.storage_exam import check_storage, check_storage_damage
    from replog.testing.transport_exam import check_transport

__all__ = [
    "Call",
    "Fault",
    "Faults",
    "FaultyMetastore",
    "Finding",
    "History",
    "MemoryDisk",
    "PowerLoss",
    "SimulatedBookie",
    "SimulatedCluster",
    "SimulationTimeoutError",
    "TcpProxy",
    "Weather",
    "check_authenticator",
    "check_bookie_loop",
    "check_metastore",
    "check_metastore_leases",
    "check_metastore_outage",
    "check_placement",
    "check_sender",
    "check_storage",
    "check_storage_damage",
    "check_transport",
    "judge",
    "read_histories",
    "serve_proxy",
    "simulate",
]

_PLACES = {
    "check_storage": "storage_exam",
    "check_storage_damage": "storage_exam",
    "check_metastore": "metastore_exam",
    "check_metastore_leases": "metastore_exam",
    "check_metastore_outage": "metastore_exam",
    "check_transport": "transport_exam",
    "check_authenticator": "authenticator_exam",
    "check_placement": "placement_exam",
    "check_bookie_loop": "bookie_exam",
    "check_sender": "sender_exam",
    "MemoryDisk": "disk",
    "PowerLoss": "disk",
    "FaultyMetastore": "faults",
    "Fault": "faults",
    "Call": "faults",
    "serve_proxy": "proxy",
    "TcpProxy": "proxy",
    "Weather": "proxy",
    "History": "history",
    "read_histories": "history",
    "judge": "history",
    "Finding": "history",
    "simulate": "simulating.running",
    "Faults": "simulating.faults",
    "SimulatedCluster": "simulating.cluster",
    "SimulatedBookie": "simulating.cluster",
    "SimulationTimeoutError": "simulating.running",
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
