"""Apache's own bookies and client, in Java: what this plugin is judged by. ZooKeeper is that among PySpark's jars.

A bookie serves some 3 s after its start, and has 200 MB; so do the programs that drive Java's client.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import queue
import random
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest

from benchmarks.peers import programs
from benchmarks.peers.systems.bookkeeper_servers import COMMON_FLAGS, LOGGING
from tests.servers import zookeeper
from tests.servers.processes import HOST, Server, free_port
from tests.servers.zookeeper import ZooKeeper

SOURCES = Path(__file__).parent / "java"
HOW = (
    "type: make servers, which has Maven (Debian: maven) copy them; and javac comes with Debian's default-jdk-headless"
)
_LOGGING, _TALKATIVE = "log4j2.properties", "talkative.properties"
_SERVING = b"Started component bookie-server"
_RECOVERING = b"Started component autorecovery-server"
_STARTING_S = 90.0
_ANSWER_S = 90.0
_HEAP = ("-Xms64m", "-Xmx192m", "-XX:MaxDirectMemorySize=256m", "-XX:+UseSerialGC")
# For what lives for seconds. To verify what Apache has published costs a tenth of the start.
QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote")
COMPILER = ("-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC", "-proc:none")
_FLAGS = (*_HEAP, *COMMON_FLAGS)
_BOOKIE: Mapping[str, object] = {
    "allowLoopback": "true",
    "advertisedAddress": HOST,
    "listeningInterface": "lo",
    "enableStatistics": "false",
    "httpServerEnabled": "false",
    "autoRecoveryDaemonEnabled": "false",
    "diskUsageThreshold": 0.99,
    "diskUsageWarnThreshold": 0.98,
    "journalPreAllocSizeMB": 1,
    "logSizeLimit": 32 << 20,
    "numReadWorkerThreads": 2,
    "numHighPriorityWorkerThreads": 2,
    "serverNumIOThreads": 2,
    "zkTimeout": 4000,
}


def missing() -> str | None:
    """What lacks to run Java's bookies, and how to get it; None if all is there."""
    if (lacks := zookeeper.missing()) is not None:
        return lacks
    if not programs.jars("bookkeeper").is_dir():
        return f"no jars of BookKeeper: {HOW}"
    if shutil.which("javac") is None:
        return f"no javac, which compiles what drives Java's client: {HOW}"
    return None


def need_bookkeeper() -> None:
    """Skips the test if something is missing: nothing here installs a JDK or Maven."""
    if (lacks := missing()) is not None:
        pytest.skip(lacks)


@attrs.frozen
class Java:
    """How Java's programs are started: with the jars, and the classes of this directory."""

    directory: Path
    is_optimized: bool = False  # whether it is fast in the end, and not at the start
    logging: str = _LOGGING

    @classmethod
    def compiled(cls, directory: Path, *, is_optimized: bool = False) -> Java:
        """Compiles the programs beside this file."""
        jars = f"{programs.jars('bookkeeper')}/*"
        sources = [str(path) for path in sorted(SOURCES.glob("*.java"))]
        command = ["javac", *COMPILER, "-cp", jars, "-d", str(directory / "classes"), *sources]
        subprocess.run(command, check=True, timeout=120)
        (directory / _LOGGING).write_text(LOGGING)
        (directory / _TALKATIVE).write_text(LOGGING.replace("=WARN", "=INFO").replace("SYSTEM_ERR", "SYSTEM_OUT"))
        return cls(directory, is_optimized)

    def command(self, *arguments: str) -> list[str]:
        """Java with these flags, the name of a class and its arguments."""
        class_path = f"{programs.jars('bookkeeper')}/*:{self.directory / 'classes'}"
        logging = f"-Dlog4j2.configurationFile={self.directory / self.logging}"
        # Native libraries are unpacked there, and stay if the process is killed.
        temporary = f"-Djava.io.tmpdir={self.directory}"
        flags = _FLAGS if self.is_optimized else (*_FLAGS, *QUICK_START)
        return ["java", *flags, temporary, logging, "-cp", class_path, *arguments]

    def run(self, *arguments: str, within_s: float = 120.0) -> str:
        """Runs a program to its end; returns what it printed."""
        done = subprocess.run(self.command(*arguments), check=False, capture_output=True, text=True, timeout=within_s)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


class JavaBookie:
    """One bookie: its port, directories and id stay however often it dies."""

    def __init__(self, java: Java, directory: Path, number: int, uri: str, settings: Mapping[str, object]) -> None:
        self.bookie_id = f"bookie-{number}"
        self.port = free_port()
        own = directory / self.bookie_id
        own.mkdir(parents=True)
        configuration = {
            **_BOOKIE,
            "bookiePort": self.port,
            "bookieId": self.bookie_id,
            "journalDirectories": own / "journal",
            "ledgerDirectories": own / "ledgers",
            "metadataServiceUri": uri,
            **settings,
        }
        path = own / "bookie.conf"
        path.write_text("".join(f"{name}={value}\n" for name, value in configuration.items() if value is not None))
        command = java.command("org.apache.bookkeeper.server.Main", "--conf", str(path))
        self.configuration = path
        self.server = Server(self.bookie_id, command, own, {"LC_ALL": "C.UTF-8"})
        self._served = 0

    def launch(self) -> None:
        """Starts the process, and does not wait until it serves."""
        self._served = self._times_served()
        self.server.launch()

    def wait_serving(self) -> None:
        """Returns when it serves."""
        self.server.wait_until(lambda: self._times_served() > self._served, "it serves", _STARTING_S)

    def _times_served(self) -> int:
        log = self.server.log_path
        return log.read_bytes().count(_SERVING) if log.exists() else 0

    def kill(self) -> None:
        """SIGKILL. Idempotent."""
        self.server.kill()


class PythonBookie:
    """A bookie of replog's, in a process of its own, as `JavaBookie` is: its port and directory stay however often it dies."""

    def __init__(self, directory: Path, number: int, uri: str, storage: str) -> None:
        self.port = free_port()
        self.bookie_id = ""  # known when it serves
        own = directory / f"python-{number}"
        own.mkdir(parents=True)
        arguments = ["--metastore", uri, "--data", str(own / "data"), "--listen", f"{HOST}:{self.port}"]
        command = [
            sys.executable,
            "-m",
            "replog.cli",
            "bookkeeper",
            "bookie",
            *arguments,
            "--storage",
            storage,
            "--json",
        ]
        self.server = Server(f"python-{number}", command, own, {})
        self._served = 0

    def launch(self) -> None:
        """Starts the process, and does not wait until it serves."""
        self._served = len(self._lines())
        self.server.launch()

    def wait_serving(self) -> None:
        """Returns when it serves."""
        self.server.wait_until(lambda: len(self._lines()) > self._served, "it serves", _STARTING_S)
        self.bookie_id = json.loads(self._lines()[-1])["bookie"]

    def _lines(self) -> list[bytes]:
        log = self.server.log_path
        lines = log.read_bytes().splitlines() if log.exists() else []
        return [line for line in lines if b'"event": "serving"' in line]

    def kill(self) -> None:
        """SIGKILL. Idempotent."""
        self.server.kill()


class Cluster:
    """Bookies, and the ZooKeeper that knows them."""

    def __init__(
        self, java: Java, directory: Path, server: ZooKeeper, root: str, scheme: str = "zk+hierarchical"
    ) -> None:
        self.java = java
        self.directory = directory
        self.uri = f"{scheme}://{server.address}{root}"
        self.zookeeper = server
        self.bookies: list[JavaBookie | PythonBookie] = []
        self._changing = threading.Lock()

    def begin(self) -> None:
        """Makes the cluster's nodes, as an operator does."""
        self.shell("initnewcluster")

    def shell(self, *commands: str) -> list[str]:
        """Runs commands of `bookkeeper shell`, and returns what each says: it does so in its log."""
        path = self.directory / "shell.conf"
        path.write_text(f"metadataServiceUri={self.uri}\n")
        said = attrs.evolve(self.java, logging=_TALKATIVE).run("Shell", str(path), *commands)
        _, *found = re.split(r"^command \d+$", said, flags=re.MULTILINE)
        assert len(found) == len(commands), said
        return found

    @contextmanager
    def autorecovery(self) -> Iterator[None]:
        """Java's auditor, and the worker that copies what a lost bookie had."""
        own = self.directory / "autorecovery"
        own.mkdir()
        conf = {
            **_BOOKIE,
            "metadataServiceUri": self.uri,
            "journalDirectories": own / "journal",
            "ledgerDirectories": own / "ledgers",
            "rwRereplicateBackoffMs": 200,
        }
        path = own / "autorecovery.conf"
        path.write_text("".join(f"{name}={value}\n" for name, value in conf.items()))
        command = self.java.command("org.apache.bookkeeper.replication.AutoRecoveryMain", "--conf", str(path))
        server = Server("autorecovery", command, own, {"LC_ALL": "C.UTF-8"})
        server.launch()
        try:
            server.wait_until(lambda: _RECOVERING in server.log_path.read_bytes(), "it has begun", _STARTING_S)
            yield
        finally:
            server.kill()

    def start(self, count: int, **settings: object) -> None:
        """Starts so many more bookies, and returns when all serve."""
        first = len(self.bookies) + 1
        started = [
            JavaBookie(self.java, self.directory, each, self.uri, settings) for each in range(first, first + count)
        ]
        self._start(started)

    def start_python(self, count: int, storages: Sequence[str] = ("files", "files", "lmdb")) -> None:
        """Starts so many bookies of replog's, over these storages in turn, and returns when all serve."""
        first = len(self.bookies) + 1
        kinds = zip(range(first, first + count), itertools.cycle(storages), strict=False)
        self._start([PythonBookie(self.directory, each, self.uri, kind) for each, kind in kinds])

    def _start(self, started: Sequence[JavaBookie | PythonBookie]) -> None:
        self.bookies += started
        for each in started:
            each.launch()
        for each in started:
            each.wait_serving()

    def heal(self) -> None:
        """Wakes and starts what is frozen or dead, and returns when all serve."""
        # Two threads would each start what is dead: the first of the two processes would be forgotten, and in the way.
        with self._changing:
            for each in self.bookies:
                each.server.thaw()
            dead = [each for each in self.bookies if not each.server.is_running]
            for each in dead:
                each.kill()
                each.launch()
            for each in dead:
                each.wait_serving()

    def kill_one(self, bookie: JavaBookie | PythonBookie) -> None:
        """SIGKILL, and not while another thread waits until all serve."""
        with self._changing:
            bookie.kill()

    def kill(self) -> None:
        """Ends all bookies."""
        for each in self.bookies:
            each.kill()


class JavaError(AssertionError):
    """Java's client answered with an error; `code` is BookKeeper's (`BKException.Code`)."""

    def __init__(self, command: str, code: int, words: str) -> None:
        super().__init__(f"{command}: {code} {words}")
        self.code = code


class Driver:
    """A program that drives Java's client (`java/Driver.java`). Calls block until it answers."""

    def __init__(self, java: Java, uri: str, log: Path) -> None:
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            java.command("Driver", uri), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._answers.get(timeout=_ANSWER_S) == "ok ready\n"

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("error 0 the driver has ended\n")

    def __call__(self, *words: object) -> list[str]:
        """Performs a command; returns the words of its answer. Raises `JavaError`."""
        command = " ".join(map(str, words))
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        outcome, *found = self._answers.get(timeout=_ANSWER_S).split()
        if outcome != "ok":
            raise JavaError(command, int(found[0]), " ".join(found[1:]))
        return found

    def kill(self) -> None:
        """SIGKILL. Idempotent."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            assert stream is not None
            stream.close()


def payload(seed: int, place: int, size: int) -> bytes:
    """The bytes of an entry, as the driver makes them."""
    block = hashlib.sha256(f"{seed}:{place}".encode()).digest()
    return (block * (size // len(block) + 1))[:size]


def digest_of(payloads: Sequence[bytes]) -> str:
    """What the driver answers to `read`."""
    found = hashlib.sha256()
    for each in payloads:
        found.update(len(each).to_bytes(8, "big") + each)
    return found.hexdigest()


@contextmanager
def cluster(
    directory: Path, bookies: int, *, python_bookies: int = 0, is_optimized: bool = False, java: Java | None = None
) -> Iterator[Cluster]:
    """A cluster of its own, with so many of Java's bookies, and of replog's. `java`: if it is compiled already."""
    java = java or Java.compiled(directory, is_optimized=is_optimized)
    with zookeeper.zookeeper_blocking(directory) as server:
        found = Cluster(java, directory, server, f"/ledgers-{random.getrandbits(32):08x}")
        try:
            found.begin()
            found.start(bookies)
            found.start_python(python_bookies)
            yield found
        finally:
            found.kill()
