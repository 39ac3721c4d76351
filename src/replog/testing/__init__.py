"""Tools for tests: a simulator for code built on replog, conformance suites for plugins, faults, and a history checker.

`docs/how-to/testing.md` says what to use when. Names are imported when they are first used: importing this package is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from replog.testing.archive_conformance import check_archive
    from replog.testing.authenticator_conformance import check_authenticator
    from replog.testing.backup_conformance import check_backup_place
    from replog.testing.disk import MemoryDisk, PowerLoss
    from replog.testing.faults import Call, Fault, FaultyMetastore
    from replog.testing.history import Finding, History, check_history, read_histories
    from replog.testing.metastore_conformance import check_metastore, check_metastore_leases, check_metastore_outage
    from replog.testing.placement_conformance import check_placement
    from replog.testing.proxy import NetworkConditions, TcpProxy, serve_proxy
    from replog.testing.simulating.cluster import SimulatedBookie, SimulatedCluster
    from replog.testing.simulating.faults import Faults
    from replog.testing.simulating.running import SimulationTimeoutError, simulate
    from replog.testing.storage_conformance import check_storage, check_storage_damage
    from replog.testing.transport_conformance import check_transport

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
    "NetworkConditions",
    "check_archive",
    "check_authenticator",
    "check_backup_place",
    "check_metastore",
    "check_metastore_leases",
    "check_metastore_outage",
    "check_placement",
    "check_storage",
    "check_storage_damage",
    "check_transport",
    "check_history",
    "read_histories",
    "serve_proxy",
    "simulate",
]

_PLACES = {
    "check_storage": "storage_conformance",
    "check_storage_damage": "storage_conformance",
    "check_metastore": "metastore_conformance",
    "check_metastore_leases": "metastore_conformance",
    "check_metastore_outage": "metastore_conformance",
    "check_transport": "transport_conformance",
    "check_authenticator": "authenticator_conformance",
    "check_placement": "placement_conformance",
    "check_archive": "archive_conformance",
    "check_backup_place": "backup_conformance",
    "MemoryDisk": "disk",
    "PowerLoss": "disk",
    "FaultyMetastore": "faults",
    "Fault": "faults",
    "Call": "faults",
    "serve_proxy": "proxy",
    "TcpProxy": "proxy",
    "NetworkConditions": "proxy",
    "History": "history",
    "read_histories": "history",
    "check_history": "history",
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
