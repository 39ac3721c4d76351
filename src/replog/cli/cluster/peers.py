"""The bookies of a local cluster that keep its metastore, and where they listen.

With three bookies or more, three of them do, as on three machines. One bookie or two have a majority that survives nothing: they
keep their metadata in a file, and so does a cluster that has begun so and has grown.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from replog.errors import ReplogError

METADATA = "metadata"  # the directory of an LMDB file
_URL = "metastore.url"  # a file
_SCHEME = "quorum:"
_PEERS = 3
_HOST = "127.0.0.1"


class ClusterFailedError(ReplogError):
    """A bookie of a local cluster cannot serve, or did not leave in order. Retry: after the cause that it names is removed."""


def peers_of(directory: Path, bookies: int) -> tuple[str, ...]:
    """The addresses of the first bookies, which keep the metastore; () if a file does. A cluster keeps its addresses, unless
    another program has one of them: the members find each other all the same. Raises `ClusterFailedError`."""
    file = directory / _URL
    if bookies < _PEERS or (directory / METADATA).exists():
        return ()
    try:
        kept = file.read_text(encoding="ascii").strip().removeprefix(_SCHEME).split(",") if file.exists() else []
        ports = [int(address.rpartition(":")[2]) for address in kept] or [0] * _PEERS
        addresses = _free(ports)
        file.write_text(f"{url_of(addresses)}\n", encoding="ascii")
    except (OSError, ValueError) as error:
        raise ClusterFailedError(f"{file}: the bookies' addresses can't be kept there: {error}") from error
    return addresses


def url_of(addresses: Sequence[str]) -> str:
    """The URL of the metastore that bookies at these addresses keep."""
    return _SCHEME + ",".join(addresses)


def _free(ports: list[int]) -> tuple[str, ...]:
    """Addresses with these ports, or with others where these are taken. All are held at once, so that no two are the same."""
    held: list[socket.socket] = []
    try:
        for port in ports:
            held += [_bound(port)]
        return tuple(f"{_HOST}:{each.getsockname()[1]}" for each in held)
    finally:
        for each in held:
            each.close()


def _bound(port: int) -> socket.socket:
    try:
        return socket.create_server((_HOST, port), backlog=0)
    except OSError:
        if not port:
            raise
        return _bound(0)
