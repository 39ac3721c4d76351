"""Real ZooKeeper servers, from the jars that PySpark ships: one alone, or an ensemble of three."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import attrs
import trio

from tests.servers.processes import HOST, STARTING_S, Server, ServerFailedError, free_port

TICK_MS = 500  # sessions last from 2 to 20 ticks
_ATTEMPTS = 5  # to find ports that nobody takes meanwhile
_ASKING_S = 2.0
_JARS = ("zookeeper-[0-9]*", "zookeeper-jute-*", "slf4j-api-*", "metrics-core-*", "snappy-java-*")
_LOGGING = """
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d %p %c{{1}} %m %throwable{{short.message}}%n
rootLogger.level={level}
rootLogger.appenderRef.out.ref=out
"""
_LOGGING_JARS = ("log4j-api-*", "log4j-core-*", "log4j-slf4j2-impl-*")
# TLS and SASL need Netty also where connections are not served by it.
_NETTY_JARS = tuple(
    f"netty-{part}-[0-9]*"
    for part in (
        "common",
        "buffer",
        "handler",
        "transport",
        "codec-base",
        "codec",
        "resolver",
        "transport-classes-epoll",
        "transport-native-unix-common",
    )
)


@attrs.frozen(kw_only=True)
class ServerTls:
    """Files in PEM: `identity` holds the private key (PKCS #8) and its certificates, `trusted` the authorities of clients."""

    identity: Path
    trusted: Path
    clients_need_certificate: bool = True


@attrs.frozen(kw_only=True)
class Settings:
    """`users`: names and passwords of SASL DIGEST-MD5; `only_users`: nobody else may do anything. `is_synced`: whether changes
    reach the disk before they are answered: tests kill processes, not the machine. `heap_mb`: 100 000 nodes need 256.
    `java_options`: those here are for servers that live for seconds. `more`: of zoo.cfg."""

    tick_ms: int = TICK_MS
    tls: ServerTls | None = None
    users: Mapping[str, str] = attrs.Factory(dict)
    only_users: bool = False
    is_synced: bool = False
    heap_mb: int = 128
    log_level: str = "WARN"
    java_options: tuple[str, ...] = (
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-XX:+UnlockDiagnosticVMOptions",
        "-XX:-BytecodeVerificationRemote",
    )
    more: Mapping[str, str] = attrs.Factory(dict)


def missing() -> str | None:
    """What is missing to run ZooKeeper, and how to get it; None if all is there."""
    if _java() is None:
        return "ZooKeeper needs java (11 or newer): apt-get install default-jre-headless"
    if _jars_directory() is None:
        return "ZooKeeper comes with pyspark: pip install 'replog[test]'"
    return None


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")


def _jars_directory() -> Path | None:
    spec = importlib.util.find_spec("pyspark")  # it is not imported
    if spec is None or not spec.submodule_search_locations:
        return None
    found = Path(spec.submodule_search_locations[0]) / "jars"
    return found if found.is_dir() else None


def class_path(settings: Settings) -> str:
    """The jars that a server with these settings needs."""
    patterns = _JARS + _LOGGING_JARS + (_NETTY_JARS if settings.tls or settings.users else ())
    directory = _jars_directory()
    assert directory is not None
    found = [sorted(directory.glob(f"{pattern}.jar")) for pattern in patterns]
    lacking = [pattern for pattern, paths in zip(patterns, found, strict=True) if not paths]
    if lacking:
        raise ServerFailedError(f"{directory} has no {', '.join(lacking)}: this version of pyspark ships other jars")
    return ":".join(str(path) for paths in found for path in paths)


def ask(port: int, word: str, within_s: float = _ASKING_S) -> str:
    """The answer to one of ZooKeeper's four-letter words; "" if there is none."""
    try:
        with socket.create_connection((HOST, port), timeout=within_s) as connection:
            connection.settimeout(within_s)
            connection.sendall(word.encode())
            return b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode(errors="replace")
    except OSError:
        return ""


@attrs.frozen
class Peer:
    """What the members of an ensemble know of each other."""

    number: int
    peer_port: int
    election_port: int

    def line(self) -> str:
        return f"server.{self.number}={HOST}:{self.peer_port}:{self.election_port}"


class ZooKeeper:
    """One server. What it has stored and its ports survive `kill` and `stop`, and come back with `start`."""

    def __init__(
        self, directory: Path, settings: Settings | None = None, *, number: int = 1, peers: tuple[Peer, ...] = ()
    ) -> None:
        self.name = f"zookeeper-{number}"
        self.settings = settings or Settings()
        self.port = free_port()
        self.secure_port = free_port() if self.settings.tls else 0
        self._directory = directory / self.name
        self._number = number
        self._peers = peers
        self._server = self._make()

    def _make(self) -> Server:
        data = self._directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        (data / "myid").write_text(f"{self._number}\n")
        (self._directory / "zoo.cfg").write_text("\n".join(self._configuration(data)) + "\n")
        java = _java()
        assert java is not None, missing()
        main = "quorum.QuorumPeerMain" if self._peers else "ZooKeeperServerMain"
        command = [java, *self._flags(), f"-Xmx{self.settings.heap_mb}m", *self.settings.java_options]
        command += ["-cp", class_path(self.settings)]
        command += [f"org.apache.zookeeper.server.{main}", str(self._directory / "zoo.cfg")]
        return Server(self.name, command, self._directory, {"LC_ALL": "C.UTF-8"})

    def _configuration(self, data: Path) -> Iterator[str]:
        yield from (f"dataDir={data}", f"tickTime={self.settings.tick_ms}")
        yield from (f"clientPortAddress={HOST}", f"clientPort={self.port}", "maxClientCnxns=0")
        yield from ("admin.enableServer=false", "4lw.commands.whitelist=*")
        yield from (f"{name}={value}" for name, value in self.settings.more.items())
        if self._peers:
            yield from ("initLimit=20", "syncLimit=4")
            yield from (peer.line() for peer in self._peers)
        if tls := self.settings.tls:
            yield from ("serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",)
            yield from (f"secureClientPortAddress={HOST}", f"secureClientPort={self.secure_port}")
            yield from (f"ssl.keyStore.location={tls.identity}", "ssl.keyStore.type=PEM")
            yield from (f"ssl.trustStore.location={tls.trusted}", "ssl.trustStore.type=PEM")
            yield f"ssl.clientAuth={'need' if tls.clients_need_certificate else 'none'}"
            yield "ssl.clientHostnameVerification=false"
        if self.settings.users:
            yield "authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
            if self.settings.only_users:
                yield from ("enforce.auth.enabled=true", "enforce.auth.schemes=sasl")

    def _flags(self) -> Iterator[str]:
        logging = self._directory / "log4j2.properties"
        logging.write_text(_LOGGING.format(level=self.settings.log_level))
        yield from (f"-Dlog4j2.configurationFile={logging}", "-Djava.awt.headless=true")
        if not self.settings.is_synced:
            yield "-Dzookeeper.forceSync=no"
        if self.settings.users:
            jaas = self._directory / "jaas.conf"
            users = "\n  ".join(f'user_{name}="{password}"' for name, password in self.settings.users.items())
            module = "org.apache.zookeeper.server.auth.DigestLoginModule"
            jaas.write_text(f"Server {{\n  {module} required\n  {users};\n}};\n")
            yield f"-Djava.security.auth.login.config={jaas}"

    @property
    def address(self) -> str:
        """ "HOST:PORT" for clients: with TLS if there is TLS."""
        return f"{HOST}:{self.secure_port or self.port}"

    @property
    def data_directory(self) -> Path:
        """Where its snapshots and its log of transactions are."""
        return self._directory / "data"

    @property
    def pid(self) -> int:
        """Of the process that runs now."""
        return self._server.pid

    @property
    def is_running(self) -> bool:
        """Whether there is a process, frozen or not."""
        return self._server.is_running

    @property
    def is_frozen(self) -> bool:
        """Whether it was stopped by `freeze`."""
        return self._server.is_frozen

    def url(self, chroot: str = "/", **options: object) -> str:
        """Where a metastore finds it."""
        return url(self.address, chroot, **options)

    def log(self) -> str:
        """The last of what it said."""
        return self._server.log()

    # -- what is asked of it ------------------------------------------------------------------------------------------

    def mode(self) -> str:
        """ "standalone", "leader", "follower"; "" while it does not serve. `ruok` says imok too early."""
        if not self.is_running or self.is_frozen:
            return ""
        lines = ask(self.port, "srvr").splitlines()
        return next((line.removeprefix("Mode: ") for line in lines if line.startswith("Mode: ")), "")

    def sessions(self) -> int:
        """How many sessions it knows: those connected here, and those that were and have not expired yet."""
        lines = ask(self.port, "mntr").splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("zk_global_sessions")), 0)

    # -- what is done to it, blocking -----------------------------------------------------------------------------------

    def launch(self) -> None:
        """Starts the process, and does not wait until it serves."""
        self._server.launch()

    def wait_serving(self, within_s: float = STARTING_S) -> None:
        """Returns when it serves clients."""
        self._server.wait_until(lambda: bool(self.mode()) and self._is_ours(), "it serves", within_s)

    def _is_ours(self) -> bool:
        """Whether it is this server that listens at its port, and no other one that was there before."""
        return f"dataDir={self._directory / 'data'}" in ask(self.port, "conf")

    def start_blocking(self) -> None:
        """Starts it with the data that it had, and returns when it serves."""
        self.launch()
        self.wait_serving()

    def stop_blocking(self) -> None:
        """SIGTERM; returns when it has ended."""
        self._server.terminate()

    def kill(self) -> None:
        """SIGKILL; at once. Idempotent."""
        self._server.kill()

    def freeze(self) -> None:
        """SIGSTOP: connections stay, nothing is answered."""
        self._server.freeze()

    def thaw(self) -> None:
        """SIGCONT."""
        self._server.thaw()

    # -- the same from trio -------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts it with the data that it had, and returns when it serves."""
        await trio.to_thread.run_sync(self.start_blocking)

    async def stop(self) -> None:
        """SIGTERM; returns when it has ended."""
        await trio.to_thread.run_sync(self.stop_blocking)

    async def restart(self) -> None:
        """Killed, and started with the data that it had."""
        self.kill()
        await self.start()


def url(addresses: str, chroot: str = "/", **options: object) -> str:
    """`zookeeper://ADDRESSES/CHROOT?OPTIONS`."""
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return f"zookeeper://{addresses}/{chroot.strip('/')}{'?' if query else ''}{query}"


@contextmanager
def zookeeper_blocking(directory: Path, settings: Settings | None = None) -> Iterator[ZooKeeper]:
    """One server that serves, for what is not in trio (fixtures that outlast a test)."""
    server = _started(directory, settings)
    try:
        yield server
    finally:
        server.kill()


def _started(directory: Path, settings: Settings | None) -> ZooKeeper:
    for attempt in range(1, _ATTEMPTS + 1):
        server = ZooKeeper(directory / f"attempt-{attempt}", settings)
        try:
            server.start_blocking()
        except BaseException as error:
            server.kill()
            if not isinstance(error, ServerFailedError) or "in use" not in error.args[0] or attempt == _ATTEMPTS:
                raise
        else:
            return server
    raise AssertionError("unreachable")


@asynccontextmanager
async def zookeeper_server(directory: Path, settings: Settings | None = None) -> AsyncIterator[ZooKeeper]:
    """One server that serves; on leaving it is killed, whatever was done to it."""
    server = await trio.to_thread.run_sync(_started, directory, settings)
    try:
        yield server
    finally:
        server.kill()


class Ensemble:
    """Three servers, of which one leads. Any two go on without the third."""

    def __init__(self, directory: Path, settings: Settings | None = None, *, size: int = 3) -> None:
        peers = tuple(Peer(number, free_port(), free_port()) for number in range(1, size + 1))
        self.servers = [ZooKeeper(directory, settings, number=peer.number, peers=peers) for peer in peers]

    @property
    def addresses(self) -> str:
        """ "HOST:PORT,HOST:PORT,..." for clients."""
        return ",".join(server.address for server in self.servers)

    def url(self, chroot: str = "/", **options: object) -> str:
        """Where a metastore finds it."""
        return url(self.addresses, chroot, **options)

    def start_blocking(self) -> None:
        """Starts all of them, and returns when all serve."""
        for server in self.servers:
            server.launch()
        for server in self.servers:
            server.wait_serving()

    def heal_blocking(self) -> None:
        """Wakes those that are frozen, starts those that are dead, and returns when all serve."""
        for server in self.servers:
            server.thaw()
            if not server.is_running:
                server.kill()
                server.launch()
        for server in self.servers:
            server.wait_serving()

    def kill(self) -> None:
        """Ends all of them at once. Idempotent."""
        for server in self.servers:
            server.kill()

    def leader(self, within_s: float = STARTING_S) -> ZooKeeper:
        """The one that leads now; blocks while there is none, as after the last one's death."""
        deadline_s = time.monotonic() + within_s
        while time.monotonic() < deadline_s:
            found = [server for server in self.servers if server.mode() == "leader"]
            if len(found) == 1:
                return found[0]
            time.sleep(0.02)
        logs = "\n".join(f"--- {server.name}:\n{server.log()}" for server in self.servers)
        raise ServerFailedError(f"no leader within {within_s:.0f} s:\n{logs}")

    async def wait_leader(self, within_s: float = STARTING_S) -> ZooKeeper:
        """The one that leads now, or once one does."""
        return await trio.to_thread.run_sync(self.leader, within_s)

    async def followers(self) -> list[ZooKeeper]:
        """Those that serve and do not lead."""
        modes = [await trio.to_thread.run_sync(server.mode) for server in self.servers]
        return [server for server, mode in zip(self.servers, modes, strict=True) if mode == "follower"]


@contextmanager
def ensemble_blocking(directory: Path, settings: Settings | None = None) -> Iterator[Ensemble]:
    """Three servers that serve, for what is not in trio; on leaving all are killed, whatever was done to them."""
    ensemble = Ensemble(directory, settings)
    try:
        ensemble.start_blocking()
        yield ensemble
    finally:
        ensemble.kill()
