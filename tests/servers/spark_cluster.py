"""A real cluster of Spark's: a master and two workers, each a Java of its own, as they run on several machines.

The workers are on 127.0.0.1 and 127.0.0.2: Spark runs a task speculatively only on another host than that of the first attempt.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.servers.processes import HOST, Server, free_port
from tests.servers.spark import PYTHONPATH

HOSTS = (HOST, "127.0.0.2")
CORES = 2  # of each worker
_LAUNCHING_S = 120.0  # three Javas at once, on two busy cores
_FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-Dspark.master.rest.enabled=false")


class _Daemon(Server):
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

    def wait_until_logged(self, text: str) -> None:
        self.wait_until(lambda: text in self.log_path.read_text(errors="replace"), text, _LAUNCHING_S)


@contextmanager
def spark_cluster(directory: Path) -> Iterator[str]:
    """The URL of a master that has its two workers, until the context is left; then all have ended, executors, too."""
    port = free_port()
    url = f"spark://{HOST}:{port}"
    master = _Daemon("spark-master", HOST, "master.Master", ["--port", str(port)], directory)
    daemons = [master]
    for host in HOSTS:
        work = directory / f"work-{host}"
        arguments = ["--cores", str(CORES), "--memory", "1g", "--work-dir", str(work), url]
        daemons.append(_Daemon(f"spark-worker-{host}", host, "worker.Worker", arguments, directory))
    with ExitStack() as stack:
        for daemon in daemons:
            stack.callback(daemon.kill)
            daemon.launch()
        master.wait_until_logged("I have been elected leader")
        for worker in daemons[1:]:
            worker.wait_until_logged("Successfully registered with master")
        yield url
        for worker in reversed(daemons):
            worker.terminate()  # a worker ends its executors
