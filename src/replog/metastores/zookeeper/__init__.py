"""The metastore for several machines: ZooKeeper, through kazoo. `zookeeper://h1:2181,h2,h3/chroot?option=value`.

kazoo is imported when the first URL is opened: programs without ZooKeeper do not need kazoo.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Sequence

from replog.abc import Metastore
from replog.hookspecs import Backend, hookimpl
from replog.metastores.zookeeper.options import ZooKeeperOptions, parse_place


@hookimpl
def replog_metastores() -> Sequence[Backend[Metastore]]:
    """Offers "zookeeper"."""
    summary = "a ZooKeeper ensemble: zookeeper://HOST:PORT,HOST:PORT/CHROOT; for clusters of several machines"
    return [Backend("zookeeper", _open, ZooKeeperOptions, summary=summary, extra="zookeeper")]


def _open(rest: str, options: ZooKeeperOptions) -> Metastore:
    place = parse_place(rest)
    if options.user and options.mechanism == "sasl":
        # Kazoo would find out in a thread of its own that it is missing.
        importlib.import_module("puresasl")

    from replog.metastores.zookeeper.metastore import ZooKeeperMetastore

    if options.layout == "flat":
        problem = "layout=flat is deprecated: one directory has all ledgers, and listing them takes ever longer"
        warnings.warn(f"zookeeper:{rest}: {problem}; use the hierarchical layout", DeprecationWarning, stacklevel=2)
    return ZooKeeperMetastore(place, options)
