"""Topics that Pulsar's own classes write, without a broker (`java/pulsar/PulsarTopic.java`), and the golden bytes they made."""

from __future__ import annotations

import subprocess
from pathlib import Path

import attrs
import pytest
from java_bookies import COMPILER, QUICK_START, SOURCES, Cluster, need_bookkeeper

from benchmarks.peers import programs

PATH = Path(__file__).parent / "golden_pulsar.txt"


def golden_entries() -> list[bytes]:
    """The entries of the topic that `PulsarJava.write` writes."""
    return [bytes.fromhex(value) for name, value in _golden() if name == "entry"]


def golden_records() -> dict[str, bytes]:
    """A topic's record and a cursor's, by their kind and how they are compressed."""
    return {name: bytes.fromhex(value) for name, value in _golden() if name != "entry"}


def _golden() -> list[list[str]]:
    return [line.split(" ") for line in PATH.read_text().splitlines()]


def need_pulsar(jars: str = "pulsar") -> None:
    """Skips the test if something is missing."""
    need_bookkeeper()
    if not programs.jars(jars).is_dir():
        pytest.skip(f"no jars of Pulsar: type: python -m benchmarks.peers.programs {jars}")


@attrs.frozen
class PulsarJava:
    """A compiled program, and the jars that it needs."""

    directory: Path
    source: Path
    jars: str

    @classmethod
    def compiled(cls, directory: Path, source: str = "pulsar/PulsarTopic.java", jars: str = "pulsar") -> PulsarJava:
        """Compiles it."""
        found = cls(directory, SOURCES / source, f"{programs.jars(jars)}/*")
        command = ["javac", *COMPILER, "-cp", found.jars, "-d", str(directory), str(found.source)]
        subprocess.run(command, check=True, timeout=120)
        return found

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """Starts it."""
        flags = ["-Xmx512m", "-XX:+UseSerialGC", *QUICK_START, f"-Djava.io.tmpdir={self.directory}"]
        # Pulsar's own scripts open these modules to it.
        for module in ("java.base/java.lang", "java.base/sun.net", "java.management/sun.management"):
            flags += ["--add-opens", f"{module}=ALL-UNNAMED"]
        flags += ["--add-opens", "jdk.management/com.sun.management.internal=ALL-UNNAMED"]
        command = ["java", *flags, "-cp", f"{self.jars}:{self.directory}", self.source.stem, *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def run(self, *arguments: str) -> str:
        """Runs it to its end; returns what it printed."""
        with self.begin(*arguments) as process:
            words, problems = process.communicate(timeout=120)
        assert process.returncode == 0, words + problems
        return words

    def write(
        self, cluster: Cluster, managed_ledger: str, compression: str = "NONE", *, closes: bool = True
    ) -> list[str]:
        """Writes a topic of the golden entries; returns where each of them is. One that is not closed was left by a broker that
        died."""
        zookeeper = cluster.zookeeper.address
        how = "close" if closes else "halt"
        return self.run("write", zookeeper, cluster.uri, managed_ledger, compression, how).split()
