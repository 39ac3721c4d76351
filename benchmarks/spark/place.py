"""Where to measure: a process with Spark's driver, and three bookie processes, both shared by all cases of a run."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.figures import Figures
from benchmarks.setting import NotMeasured
from tests.servers import spark as spark_servers

_PROGRAM = (sys.executable, "-m", "benchmarks.spark.driver")
_START_S = 120.0
_JOB_S = 900.0
_END_S = 60.0
_SHOWN_BYTES = 2000  # of the driver's log, if it has died


@cache
def missing() -> Mapping[str, str]:
    """What can't run on this machine, and why."""
    reason = spark_servers.missing()
    return {} if reason is None else {"Spark": reason}


class SparkDriver:
    """The process: started when it is asked for something, and there until this is closed."""

    def __init__(self, directory: Path, program: Sequence[str] = _PROGRAM) -> None:
        self._directory = directory
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self, job: str, **arguments: Any) -> Figures:
        """What `benchmarks.spark.driver.Jobs` measures. Raises `NotMeasured` if it fails, or takes a quarter of an hour."""
        process = self._process or self._start()
        assert process.stdin is not None
        process.stdin.write(json.dumps({"job": job, **arguments}).encode() + b"\n")
        process.stdin.flush()
        answer = self._answer(process, job, _JOB_S)
        if "error" in answer:
            raise NotMeasured(f"{job}: {answer['error'][:_SHOWN_BYTES]}")
        return dict(answer["figures"])

    @property
    def process_id(self) -> int:
        """Starts it, if it does not run."""
        return (self._process or self._start()).pid

    def close(self) -> None:
        """Ends it; its Java ends with it."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def _start(self) -> subprocess.Popen[bytes]:
        self._directory.mkdir(exist_ok=True)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),  # for the workers, too
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        command = [*self._program, str(self._directory)]
        with self._log.open("wb") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment
            )
        self._process = process
        self._answer(process, "start", _START_S)
        return process

    @property
    def _log(self) -> Path:
        return self._directory / "driver.log"

    def _answer(self, process: subprocess.Popen[bytes], job: str, timeout_s: float) -> dict[str, Any]:
        """An answer is one line, written at once."""
        assert process.stdout is not None
        is_there, _, _ = select.select([process.stdout], [], [], timeout_s)
        line = process.stdout.readline() if is_there else b""
        if not line:
            self._process = None
            process.kill()
            process.communicate()
            why = "has ended" if is_there else f"has not answered for {timeout_s} s"
            told = self._log.read_bytes()[-_SHOWN_BYTES:].decode(errors="replace")
            raise NotMeasured(f"{job}: Spark's driver {why}: {told}")
        return dict(json.loads(line))
