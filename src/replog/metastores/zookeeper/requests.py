"""The requests that the metastore makes, with about how many bytes each has."""

from __future__ import annotations

from collections.abc import Sequence

from replog.metastores.zookeeper.driver import Client, Result, Watcher
from replog.metastores.zookeeper.session import Request

_HEADER_BYTES = 128  # with an ACL
REQUEST_BYTES_MAX = 1_040_000  # by default, ZooKeeper drops a connection that sends 1 048 576


def barrier(path: str) -> Request:
    """Later reads see every acknowledged change. It asks in a transaction whether this node exists, which goes through
    a quorum regardless of the answer."""

    def submit(client: Client) -> Result:
        transaction = client.transaction()
        transaction.check(path, -1)
        return transaction.commit_async()

    return Request(submit, len(path))


def get(path: str, watcher: Watcher | None = None) -> Request:
    """Answered with (data, Stat)."""
    return Request(lambda client: client.get_async(path, watcher), len(path))


def exists(path: str, watcher: Watcher | None = None) -> Request:
    """Answered with a Stat, or None."""
    return Request(lambda client: client.exists_async(path, watcher), len(path))


def children(path: str, watcher: Watcher | None = None) -> Request:
    """Answered with a list of names."""
    return Request(lambda client: client.get_children_async(path, watcher), len(path))


def create(path: str, data: bytes, *, ephemeral: bool = False, sequence: bool = False) -> Request:
    """Answered with the path."""
    return Request(
        lambda client: client.create_async(path, data, ephemeral=ephemeral, sequence=sequence),
        len(path) + len(data) + _HEADER_BYTES,
    )


def put(path: str, data: bytes, version: int) -> Request:
    """Answered with a Stat."""
    return Request(lambda client: client.set_async(path, data, version), len(path) + len(data))


def delete(path: str, version: int) -> Request:
    """Answered with True."""
    return Request(lambda client: client.delete_async(path, version), len(path))


def create_all(nodes: Sequence[tuple[str, bytes]], *, ephemeral: bool = False) -> Request:
    """Creates all of these or none; the last one may be ephemeral. Answered with a list, of errors if there is one."""

    def submit(client: Client) -> Result:
        transaction = client.transaction()
        for path, data in nodes[:-1]:
            transaction.create(path, data)
        path, data = nodes[-1]
        transaction.create(path, data, ephemeral=ephemeral)
        return transaction.commit_async()

    return Request(submit, sum(len(path) + len(data) + _HEADER_BYTES for path, data in nodes))
