"""Spark Connect: a client without a JVM, and a server that plans and commits."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import replog.blocking
from tests.servers.bookies import Bookies
from tests.servers.fixtures import need
from tests.servers.spark import PYTHONPATH
from tests.spark.connected import ROWS

pytestmark = [pytest.mark.needs_spark, pytest.mark.slow, pytest.mark.long(is_sampled=False)]

DEADLINE_S = 900  # on a busy machine Spark gives up some Pythons before they have started


def test_jobs_and_streams_of_spark_connect_write_once(spark_bookies: Bookies, spark_log: str, tmp_path: Path) -> None:
    need(
        None
        if importlib.util.find_spec("grpc")
        else "Spark Connect needs more packages: pip install 'pyspark[connect]'"
    )
    variables = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": PYTHONPATH,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [
        sys.executable,
        "-m",
        "tests.spark.connected",
        spark_bookies.metastore,
        spark_log,
        str(tmp_path / "checkpoints"),
    ]
    done = subprocess.run(
        command, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stderr[-5000:]
    rows = list(range(ROWS))
    assert json.loads(done.stdout.splitlines()[-1]) == rows
    with replog.blocking.connect(spark_bookies.metastore) as client:
        for way in ("saved", "parts", "streamed", "batches"):
            with client.read_log(f"{spark_log}-{way}") as reader:
                assert sorted(int(record.data) for record in reader) == rows, way
