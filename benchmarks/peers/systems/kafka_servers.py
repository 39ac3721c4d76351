"""Three Kafka brokers, each a process of its own that is a KRaft controller too, with the settings of Kafka's distribution."""

from __future__ import annotations

import base64
import subprocess
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs

from benchmarks.peers import programs
from benchmarks.peers.system import NotMeasured
from tests.servers.processes import HOST, Server, free_port

COUNT = 3
_FORMATTING_S = 120.0
# Those of `kafka-run-class.sh`, which starts brokers.
_FLAGS = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
    "-Djava.net.preferIPv4Stack=true",
)
_TOOL_FLAGS = ("-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")  # it runs for a second
# Not what is measured.
_BESIDES: Mapping[str, object] = {
    "auto.create.topics.enable": "false",
    "auto.leader.rebalance.enable": "false",  # nothing moves the leader in the midst of a load
    "log.segment.delete.delay.ms": 0,  # so that loads of gigabytes don't fill the disk
    # A client looks for its group's coordinator even if it keeps no offsets there, and so makes this topic.
    "offsets.topic.num.partitions": 1,
    "offsets.topic.replication.factor": COUNT,
}
_LOGGING = """
appender.out.type=Console
appender.out.name=out
appender.out.target=SYSTEM_ERR
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d %p %c{1} %m%n%throwable{short.message}
rootLogger.level=WARN
rootLogger.appenderRef.out.ref=out
"""


@attrs.frozen
class Settings:
    """What may differ between systems, and in tests."""

    is_synced: bool  # each batch, before it is confirmed
    heap_mb: int = 1024  # as Kafka's own scripts have it


class Brokers:
    """The three, with their directories and ports however often they die."""

    def __init__(self, directory: Path, settings: Settings) -> None:
        self._directory = directory
        self._settings = settings
        self._ports = [free_port() for _ in range(COUNT)]
        self._controller_ports = [free_port() for _ in range(COUNT)]
        self._logging = directory / "log4j2.properties"
        self._logging.write_text(_LOGGING)
        self.servers = [self._server(number) for number in range(COUNT)]

    @property
    def addresses(self) -> list[str]:
        """Of each, for clients."""
        return [f"{HOST}:{port}" for port in self._ports]

    def format(self) -> None:
        """Prepares the empty directories, as each broker requires before its first start."""
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        with ThreadPoolExecutor(COUNT) as threads:
            list(threads.map(lambda number: self._format(number, cluster), range(COUNT)))

    def _format(self, number: int, cluster: str) -> None:
        tool = ("kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "--config")
        command = self._java(*_TOOL_FLAGS, *tool, str(self._place(number) / "server.properties"))
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_FORMATTING_S, check=False
        )
        if done.returncode:
            raise NotMeasured(f"Kafka's directories could not be formatted:\n{done.stdout}{done.stderr}")

    def _place(self, number: int) -> Path:
        return self._directory / f"kafka-{number}"

    def _server(self, number: int) -> Server:
        place = self._place(number)
        place.mkdir()
        voters = ",".join(f"{each}@{HOST}:{port}" for each, port in enumerate(self._controller_ports, 1))
        configuration = {
            **_BESIDES,
            "process.roles": "broker,controller",
            "node.id": number + 1,
            "controller.quorum.voters": voters,
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.addresses[number]},CONTROLLER://{HOST}:{self._controller_ports[number]}",
            "log.dirs": place / "log",
        }
        path = place / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in configuration.items()))
        heap = (f"-Xms{self._settings.heap_mb}m", f"-Xmx{self._settings.heap_mb}m")
        command = self._java(*heap, *_FLAGS, "kafka.Kafka", str(path))
        return Server(place.name, command, place, {"LC_ALL": "C.UTF-8"})

    def _java(self, *arguments: str) -> list[str]:
        java = programs.find("java")
        assert java is not None
        logging = f"-Dlog4j2.configurationFile={self._logging}"
        return [str(java), logging, "-cp", f"{programs.jars('kafka')}/*", *arguments]
