"""Executors that have Spark and pyarrow, and no replog: it comes to them as an archive, as docs/how-to/spark.md says."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from packaging.requirements import Requirement

import replog
import replog.blocking
from tests.servers.bookies import Bookies

pytestmark = [pytest.mark.needs_spark, pytest.mark.slow, pytest.mark.long(is_sampled=False)]

ROOT = Path(__file__).parents[2]
DEADLINE_S = 240


def needed_by(name: str) -> dict[str, importlib.metadata.Distribution]:
    """What `pip install name` installs, by normalized names."""
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = [name]
    while waiting:
        distribution = importlib.metadata.distribution(waiting.pop())
        key = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
        if key not in found:
            found[key] = distribution
            for requirement in map(Requirement, distribution.requires or []):
                if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                    waiting.append(requirement.name)
    return found


def install(target: Path) -> None:
    """As `pip install --target=... replog` does, from what is installed here: tests don't load anything."""
    for key, distribution in needed_by("replog").items():
        for file in distribution.files or []:
            if key != "replog" and ".." not in file.parts and file.suffix != ".pyc":
                (target / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(distribution.locate_file(file), target / file)  # type: ignore[arg-type]
    for package in ("replog", "pyspark_replog"):
        shutil.copytree(ROOT / "src" / package, target / package, ignore=shutil.ignore_patterns("__pycache__"))


def test_executors_get_replog_as_an_archive(spark_bookies: Bookies, spark_log: str, tmp_path: Path) -> None:
    environment, executors_own = tmp_path / "environment", tmp_path / "executors-own"
    install(environment)
    archive = shutil.make_archive(str(tmp_path / "environment"), "zip", environment)
    executors_own.mkdir()
    for name in ("pyarrow", "pyspark", "py4j"):
        (executors_own / name).symlink_to(Path(str(importlib.metadata.distribution(name).locate_file(name))))
    bare_python = os.path.realpath(sys.executable)  # that of no virtual environment
    variables = {
        **os.environ,
        "PYSPARK_PYTHON": bare_python,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": f"{environment}:{executors_own}",  # of the driver
    }
    work = Path(pyspark.__file__).parent / "work"
    command = [bare_python, str(Path(__file__).with_name("shipped.py")), archive, str(executors_own)]
    done = subprocess.run(
        [*command, spark_bookies.metastore, spark_log],
        env=variables,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    where, read = map(json.loads, done.stdout.splitlines())
    executors_place = work / where["application"]
    try:
        assert where["python"] == bare_python
        assert Path(where["found"]).is_relative_to(executors_place), "it was found elsewhere than in the archive"
        assert read == ["0", "1", "2"]
        with replog.blocking.connect(spark_bookies.metastore) as client:
            for log in (spark_log, f"{spark_log}-0"):
                with client.read_log(log) as reader:
                    assert [record.data for record in reader] == [b"0", b"1", b"2"]
    finally:
        shutil.rmtree(executors_place)
        if not any(work.iterdir()):
            work.rmdir()
