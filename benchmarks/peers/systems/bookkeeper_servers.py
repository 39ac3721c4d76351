"""Three bookies, each a process of its own, as a careful operator would have them, and the ZooKeeper that they need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs

from benchmarks.peers import programs
from benchmarks.peers.system import NotMeasured
from tests.servers import zookeeper
from tests.servers.processes import HOST, Server, ServerFailedError, free_port

COUNT = 3
_SERVING = b"Started component bookie-server"
_STARTING_S = 60.0
_MIB = 1 << 20

# What differs from BookKeeper's defaults, apart from places and ports. The first four are what Pulsar's distribution sets,
# which is where most bookies run; the others make fewer threads wake for an entry. Measured side by side in one run: for each
# load these are faster than the defaults, which in addition refuse entries now and then when 10 000 are in flight.
TUNED: Mapping[str, object] = {
    "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
    "journalMaxGroupWaitMSec": 1,
    "numAddWorkerThreads": 0,
    "flushEntrylogBytes": 32 * _MIB,
    "journalFlushWhenQueueEmpty": "true",
    "numJournalCallbackThreads": 0,
    "journalWriteBufferSizeKB": 512,
}
# Not what is measured.
_BESIDES: Mapping[str, object] = {
    "allowLoopback": "true",
    "enableStatistics": "false",
    "httpServerEnabled": "false",
    "autoRecoveryDaemonEnabled": "false",
    "journalMaxBackups": 0,  # so that loads of gigabytes don't fill the disk
    "gcWaitTime": 60_000,  # deleted ledgers are swept meanwhile
    "diskUsageThreshold": 0.99,
    "diskUsageWarnThreshold": 0.98,
}
_FLAGS = (
    "-Xms1g",
    "-Xmx1g",
    "-XX:MaxDirectMemorySize=2g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=10",
    "-XX:+ParallelRefProcEnabled",
    "-XX:+DisableExplicitGC",
)
# Without these it cannot reach for what it has fast ways for: checksums, direct memory, the page cache. Its own scripts set them.
_OPENED = ("java.io", "java.lang", "java.nio", "java.util.zip", "jdk.internal.misc", "sun.nio.ch")
COMMON_FLAGS = (
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.leakDetectionLevel=disabled",
    "-Djava.net.preferIPv4Stack=true",
)
LOGGING = """
appender.out.type=Console
appender.out.name=out
appender.out.target=SYSTEM_ERR
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d %p %c{1} %m %throwable{short.message}%n
rootLogger.level=WARN
rootLogger.appenderRef.out.ref=out
logger.started.name=org.apache.bookkeeper.common.component
logger.started.level=INFO
logger.benchmark.name=org.apache.bookkeeper.benchmark
logger.benchmark.level=INFO
"""


@attrs.frozen
class Java:
    """How BookKeeper's programs are started."""

    class_path: str
    directory: Path  # for what they log and how

    def command(self, *arguments: str) -> list[str]:
        """Java with these flags, the name of a class and its arguments."""
        logging = self.directory / "log4j2.properties"
        logging.write_text(LOGGING)
        java = programs.find("java")
        assert java is not None
        return [str(java), *COMMON_FLAGS, f"-Dlog4j2.configurationFile={logging}", "-cp", self.class_path, *arguments]


class Bookies:
    """The three, with their directories and ports however often they die."""

    def __init__(self, java: Java, directory: Path, metadata: str, settings: Mapping[str, object]) -> None:
        self.directory = directory
        self.servers = [self._make(java, number, metadata, settings) for number in range(1, COUNT + 1)]

    def _make(self, java: Java, number: int, metadata: str, settings: Mapping[str, object]) -> Server:
        directory = self.directory / f"bookie-{number}"
        directory.mkdir()
        configuration = {
            **_BESIDES,
            **settings,
            "bookiePort": free_port(),
            "bookieId": f"bookie-{number}",
            "advertisedAddress": HOST,
            "listeningInterface": "lo",
            "journalDirectories": directory / "journal",
            "ledgerDirectories": directory / "ledgers",
            "metadataServiceUri": metadata,
        }
        path = directory / "bookie.conf"
        path.write_text("".join(f"{name}={value}\n" for name, value in configuration.items()))
        command = java.command(*_FLAGS, "org.apache.bookkeeper.server.Main", "--conf", str(path))
        return Server(directory.name, command, directory, {"LC_ALL": "C.UTF-8"})

    def start(self) -> None:
        """Starts all, and returns when all serve."""
        said = [each.log_path.read_bytes().count(_SERVING) if each.log_path.exists() else 0 for each in self.servers]
        for each in self.servers:
            each.launch()
        for each, before in zip(self.servers, said, strict=True):
            each.wait_until(lambda each=each, before=before: _times(each) > before, "it serves", _STARTING_S)  # type: ignore[misc]

    def kill(self) -> None:
        """SIGKILL to all, at once. Idempotent."""
        for each in self.servers:
            each.kill()


def _times(server: Server) -> int:
    return server.log_path.read_bytes().count(_SERVING)


@contextmanager
def metadata_service(directory: Path) -> Iterator[str]:
    """The URI for bookies and clients."""
    with ExitStack() as resources:
        try:
            settings = zookeeper.Settings(is_synced=True)
            server = resources.enter_context(zookeeper.zookeeper_blocking(directory, settings))
        except ServerFailedError as error:
            raise NotMeasured(str(error)) from error
        yield f"zk+hierarchical://{server.address}/ledgers"
