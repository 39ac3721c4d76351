"""The metastores that are measured, each with a server of its own where it has one; changes reach the disk, as for users."""

from __future__ import annotations

import importlib.util
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import cache
from pathlib import Path

import attrs

from tests.servers import zookeeper
from tests.servers.processes import HOST, Server, free_port

_HEAP_MB = 512  # of ZooKeeper's
_MEMBERS = 3


@attrs.frozen
class Kind:
    """A metastore. `serve` gives its URL while its server runs, in a directory that is empty."""

    name: str
    serve: Callable[[Path], Iterator[str]]
    missing: Callable[[], str | None] = lambda: None


def _serve_lmdb(directory: Path) -> Iterator[str]:
    yield f"lmdb:{directory / 'metadata'}"


def _serve_zookeeper(directory: Path) -> Iterator[str]:
    settings = zookeeper.Settings(is_synced=True, heap_mb=_HEAP_MB, tick_ms=2000)
    with zookeeper.zookeeper_blocking(directory, settings) as server:
        yield server.url("/replog")


def _etcd() -> str | None:
    beside = Path(sys.executable).parent / "etcd"
    return str(beside) if beside.exists() else shutil.which("etcd")


def _etcd_is_missing() -> str | None:
    if importlib.util.find_spec("replog_etcd") is None:
        return "the plugin is missing: pip install ./plugins/replog-etcd"
    return None if _etcd() else "etcd is missing: apt-get install etcd-server (3.4 or newer)"


def _serve_etcd(directory: Path) -> Iterator[str]:
    program, port, peer = _etcd(), free_port(), f"http://{HOST}:{free_port()}"
    assert program is not None
    client = f"http://{HOST}:{port}"
    options = {
        "data-dir": directory / "data",
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"default={peer}",
        "log-level": "error",
        "logger": "zap",
        "log-outputs": "stderr",
    }
    command = [program, *(f"--{name}={value}" for name, value in options.items())]
    with closing(_Killed(Server("etcd", command, directory, {}))) as killed:
        killed.server.launch()
        killed.server.wait_until(lambda: _is_listening(port), "it serves")
        yield f"etcd://{HOST}:{port}/replog"


@attrs.frozen
class _Killed:
    server: Server

    def close(self) -> None:
        self.server.kill()


def _is_listening(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex((HOST, port)) == 0


def _serve_quorum(directory: Path) -> Iterator[str]:
    """Three processes, each with a member and a bookie that nobody uses, on one disk."""
    addresses = [f"{HOST}:{free_port()}" for _ in range(_MEMBERS)]
    command = [sys.executable, "-m", "replog.cli", "bookie", "--log-format", "json", "--peers", ",".join(addresses)]
    with ExitStack() as stack:
        servers = []
        for number, address in enumerate(addresses):
            place = directory / f"m{number}"
            place.mkdir()
            own = [*command, "--listen", address, "--data", str(place / "data")]
            servers.append(stack.enter_context(closing(_Killed(Server(f"m{number}", own, place, {})))).server)
            servers[-1].launch()
        for server in servers:
            server.wait_until(lambda server=server: '"serving"' in server.log(), "it serves")  # type: ignore[misc]
        yield f"quorum:{','.join(addresses)}/replog"


LMDB = Kind("LMDB", _serve_lmdb)
ZOOKEEPER = Kind("ZooKeeper", _serve_zookeeper, zookeeper.missing)
ETCD = Kind("etcd", _serve_etcd, _etcd_is_missing)
QUORUM = Kind("quorum", _serve_quorum)
KINDS = (LMDB, ZOOKEEPER, ETCD, QUORUM)


@cache
def missing() -> Mapping[str, str]:
    """The metastores that can't run on this machine, and why."""
    return {kind.name: reason for kind in KINDS if (reason := kind.missing()) is not None}


@contextmanager
def served(kind: Kind, directory: Path) -> Iterator[str]:
    """The URL of an empty metastore; its directory is removed at the end."""
    path = directory / f"metastore-{kind.name.lower()}"
    path.mkdir()
    try:
        yield from kind.serve(path)
    finally:
        shutil.rmtree(path)
