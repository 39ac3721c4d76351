"""A real Spark, one for all tests that need it, and the bookies that its workers can reach.

Tests name what they use (`spark`, `spark_bookies`) and have `pytestmark = pytest.mark.needs_spark`. Each takes logs of its
own: `spark_log` is a name that no other test has. The master is `local[2,3]`: two tasks at once, each tried three times.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.servers import spark_forks
from tests.servers.bookies import Bookies, serving_bookies
from tests.servers.fixtures import need

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER = "local[2,3]"
_ROOT = Path(__file__).parents[2]
PYTHONPATH = os.pathsep.join([str(_ROOT / "src"), str(_ROOT)])
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    # To verify the classes of a package that pip has checked is a seventh of what a session takes to start.
    "spark.driver.extraJavaOptions": (
        "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
    ),
    "spark.default.parallelism": "2",
    "spark.sql.shuffle.partitions": "2",
    # To compile Java for each query takes longer than to run it on a few rows.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_logs = itertools.count(1)


def missing() -> str | None:
    """What Spark lacks on this machine and how to get it, or None."""
    if importlib.util.find_spec("pyspark") is None:
        return "tests of Spark need pyspark: pip install 'replog[spark]'"
    if shutil.which("java") is None:
        return "tests of Spark need Java 17 or newer: apt install default-jre-headless"
    return None


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[SparkSession]:
    """The one session. Its workers are this Python, and find replog and the tests; the format `replog` is found by the module
    `pyspark_replog`. In the long lane they import all of that themselves."""
    need(missing())
    place = tmp_path_factory.mktemp("spark")
    with ExitStack() as stack:
        environment = {}
        if not pytestconfig.getoption("long"):
            forks = stack.enter_context(spark_forks.forking(place, {"PYTHONPATH": PYTHONPATH}))
            path = os.pathsep.join([PYTHONPATH, str(spark_forks.STAND_IN)])
            environment = {"PYTHONPATH": path, spark_forks.VARIABLE: forks}
        yield stack.enter_context(spark_session(place, environment=environment))


@contextmanager
def spark_session(
    place: Path,
    master: str = MASTER,
    more_settings: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """A session with a Java of its own, which has ended when the context is left."""
    from pyspark.sql import SparkSession

    variables = {
        "PYSPARK_PYTHON": sys.executable,  # else workers run whatever python3 is first in PATH
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": PYTHONPATH,
        **(environment or {}),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        builder = SparkSession.builder.master(master).appName("replog's tests")
        settings = {"spark.local.dir": str(place / "local"), "spark.sql.warehouse.dir": str(place / "warehouse")}
        for name, value in {**_SETTINGS, **settings, **(more_settings or {})}.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        try:
            session.sparkContext.setLogLevel("OFF")  # tests that fail tasks on purpose fill the screen
            yield session
        finally:
            session.stop()
            _end_java()


def _end_java() -> None:
    """`stop` leaves the JVM and its pipe until this process ends; a test session may not leave anything."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        java = gateway.proc
        java.stdin.close()  # which is how it learns that nobody needs it
        java.wait(30)
        SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture(scope="session")
def spark_bookies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bookies]:
    """Three bookies that Spark's workers reach by TCP; `spark_bookies.metastore` is where they announce themselves."""
    need(missing())
    with serving_bookies(tmp_path_factory.mktemp("spark-bookies")) as bookies:
        yield bookies


@pytest.fixture
def spark_log(request: pytest.FixtureRequest) -> str:
    """The name of a log that no other test has."""
    return f"{next(_logs)}-{re.sub(r'[^a-zA-Z0-9_]+', '-', request.node.name)[:60]}"
