"""A real cluster of Spark's: a master and two workers, each a Java of its own, as they run on several machines.

The workers are on 127.0.0.1 and 127.0.0.2: Spark runs a task speculatively only on another host than that of the first attempt.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs

from tests.lanes.costs import descendants
from tests.servers.processes import HOST, Server, free_port
from tests.servers.spark import PYTHONPATH

HOSTS = (HOST, "127.0.0.2")
CORES = 2  # of each worker
_LAUNCHING_S = 120.0  # three Javas at once, on two busy cores
_FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-Dspark.master.rest.enabled=false")
_REGISTERED = "Successfully registered with master"
_EXECUTOR = b"CoarseGrainedExecutorBackend"


class Daemon(Server):
    """One process of Spark's own."""

    def __init__(self, name: str, host: str, main_class: str, arguments: list[str], directory: Path) -> None:
        import pyspark

        java = shutil.which("java")
        assert java is not None
        home = Path(pyspark.__file__).parent
        command = [java, *_FLAGS, "-cp", f"{home}/jars/*", f"org.apache.spark.deploy.{main_class}", "--host", host]
        [core] = (home / "jars").glob("spark-core_*.jar")
        environment = {
            "SPARK_HOME": str(home),
            "SPARK_SCALA_VERSION": core.name.split("_")[1].split("-")[0],  # else a worker looks for Spark's sources
            "SPARK_LOCAL_IP": host,
            "PYTHONPATH": PYTHONPATH,
        }
        super().__init__(name, [*command, "--webui-port", "0", *arguments], directory, environment)

    def wait_until_logged(self, text: str, times: int = 1) -> None:
        """Returns when its log, which all of its processes write, has this so many times."""
        is_there = lambda: self.log_path.read_text(errors="replace").count(text) >= times  # noqa: E731
        self.wait_until(is_there, text, _LAUNCHING_S)

    def restart(self) -> None:
        """Kills a worker, whose executors then end by themselves; starts it again, and returns when the master has it."""
        times = self.log_path.read_text(errors="replace").count(_REGISTERED)
        self.kill()
        self.launch()
        self.wait_until_logged(_REGISTERED, times + 1)

    def executors(self) -> list[int]:
        """The processes of a worker's executors that run now."""
        return [pid for pid in descendants(self.pid) if _EXECUTOR in _command_of(pid)]


def _command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""  # it has ended


@attrs.frozen
class SparkCluster:
    """A master and its workers."""

    url: str
    master: Daemon
    workers: list[Daemon]


@contextmanager
def spark_cluster(directory: Path) -> Iterator[SparkCluster]:
    """A master that has its two workers, until the context is left; then all have ended, executors, too."""
    port = free_port()
    url = f"spark://{HOST}:{port}"
    master = Daemon("spark-master", HOST, "master.Master", ["--port", str(port)], directory)
    cluster = SparkCluster(url, master, [])
    for host in HOSTS:
        work = directory / f"work-{host}"
        arguments = ["--cores", str(CORES), "--memory", "1g", "--work-dir", str(work), url]
        cluster.workers.append(Daemon(f"spark-worker-{host}", host, "worker.Worker", arguments, directory))
    daemons = [master, *cluster.workers]
    with ExitStack() as stack:
        for daemon in daemons:
            stack.callback(daemon.kill)
            daemon.launch()
        master.wait_until_logged("I have been elected leader")
        for worker in cluster.workers:
            worker.wait_until_logged(_REGISTERED)
        yield cluster
        for daemon in reversed(daemons):
            daemon.terminate()  # a worker ends its executors
