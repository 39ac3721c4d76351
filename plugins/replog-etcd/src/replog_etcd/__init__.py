"""Metadata of replog in etcd, over the HTTP gateway that etcd (3.4 and newer) has itself: `etcd://host1,host2,host3/prefix`.

No client library is needed. This module is cheap to import: what speaks to etcd is imported when a metastore is opened.
"""

from __future__ import annotations

from collections.abc import Sequence

from replog.abc import Metastore
from replog.hookspecs import Backend, hookimpl
from replog_etcd.options import EtcdOptions, Target


def open_metastore(rest: str, options: EtcdOptions) -> Metastore:
    """The metastore that a URL names, behind the scheme. It connects at its first call. Raises `ConfigError`."""
    from replog_etcd.metastore import EtcdMetastore

    return EtcdMetastore(Target.parse(rest), options)


@hookimpl
def replog_metastores() -> Sequence[Backend[Metastore]]:
    """Offers "etcd"."""
    summary = "etcd 3.4 or newer, by HTTP: etcd://HOST1:2379,HOST2,HOST3/PREFIX"
    return [Backend("etcd", open_metastore, EtcdOptions, summary=summary)]
