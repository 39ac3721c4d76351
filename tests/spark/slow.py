"""The data source with one attempt that is slower than its job, or that dies with its executor, or a driver that dies.

The option `fault` says which. What happens waits for what must have happened before, by files in the directory `place`; so
nothing depends on how fast the machine is. Spark's workers and its processes on the driver's side import this by its name.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from replog.errors import ReplogError
from replog.spark import ReplogDataSource
from replog.spark.writing import JobWriter, WrittenPartition

# The first attempt at a partition is the slow one; Spark sees that, and has another one run on another host.
DONE_BEFORE_COMMIT = "done-before-commit"  # it has closed its ledger when the other one is committed
AMID_COMMIT = "amid-commit"  # it has a ledger with some rows, and writes on when the other one is committed
BEGUN_AFTER_COMMIT = "begun-after-commit"  # it makes its ledger when the other one is committed

EXECUTOR_KILLED = "executor-killed"  # SIGKILL to the first attempt's Java, and to its Python, amid its rows
DRIVER_KILLED = (
    "driver-killed"  # SIGKILL to the processes `victims`, when all tasks have ended and nothing is committed
)

SPECULATED = (DONE_BEFORE_COMMIT, AMID_COMMIT, BEGUN_AFTER_COMMIT)
FAULTY_PARTITION = 1
WAIT_S = 150.0
_LOOK_S = 0.05


class GateError(Exception):
    """What was waited for did not come."""


class Gates:
    """Files by which the processes of one job tell each other what has happened."""

    def __init__(self, place: str, job: str) -> None:
        self._place = Path(place)
        self._job = job

    def tell(self, what: str, **told: Any) -> None:
        path = self._path(what)
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps(told))
        unfinished.rename(path)

    def wait_for(self, what: str) -> dict[str, Any]:
        """What was told. Raises `GateError`."""
        deadline_s = time.monotonic() + WAIT_S
        while not self._path(what).exists():
            if time.monotonic() > deadline_s:
                raise GateError(f"{self._job}: not within {WAIT_S:.0f} s: {what}")
            time.sleep(_LOOK_S)
        told: dict[str, Any] = json.loads(self._path(what).read_text())
        return told

    def _path(self, what: str) -> Path:
        return self._place / f"{self._job}.{what}"


class SlowSource(ReplogDataSource):
    """The format `replog-slow`: options `fault`, `place`, `victims`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        rest = dict(options)
        self._fault = rest.pop("fault")
        self._place = rest.pop("place")
        self._victims = [int(each) for each in rest.pop("victims", "").split()]
        super().__init__(rest)

    @classmethod
    def name(cls) -> str:
        return "replog-slow"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return SlowWriter(self._parsed, schema, self._fault, Gates(self._place, self._fault), self._victims)


class SlowWriter(JobWriter):
    def __init__(self, options: Any, schema: StructType, fault: str, gates: Gates, victims: Sequence[int]) -> None:
        super().__init__(options, schema)
        self._fault = fault
        self._gates = gates
        self._victims = victims

    def write(self, iterator: Iterator[Any]) -> WrittenPartition:
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() != FAULTY_PARTITION:
            return super().write(iterator)
        if context.attemptNumber() > 0:
            if self._fault != DRIVER_KILLED:
                self._gates.wait_for("ready")  # Spark cuts the slow one off when this one has ended
            return super().write(iterator)
        if self._fault == EXECUTOR_KILLED:
            return super().write(self._dying(iterator))
        if self._fault in SPECULATED:
            return self._write_slowly(list(iterator), context.taskAttemptId())
        return super().write(iterator)

    def _write_slowly(self, batches: list[Any], attempt: int) -> WrittenPartition:
        try:
            if self._fault == BEGUN_AFTER_COMMIT:
                self._gates.tell("ready")
                self._gates.wait_for("committed")
            written = super().write(self._amid(batches) if self._fault == AMID_COMMIT else iter(batches))
        except (ReplogError, GateError) as error:
            self._gates.tell("lost", attempt=attempt, error=type(error).__name__)
            raise
        self._gates.tell("lost", attempt=attempt, ledger_id=written.ledger_id)
        if self._fault == DONE_BEFORE_COMMIT:
            self._gates.tell("ready")
            self._gates.wait_for("committed")
        return written

    def _amid(self, batches: list[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            if number == 2:
                self._gates.tell("ready")
                self._gates.wait_for("committed")
            yield batch

    def _dying(self, batches: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            if number == 2:
                executor = parent_of(os.getppid())  # this process was forked by a daemon, which Java started
                assert b"CoarseGrainedExecutorBackend" in Path(f"/proc/{executor}/cmdline").read_bytes()
                self._gates.tell("lost", executor=executor)
                self._gates.tell("ready")
                os.kill(executor, signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self._fault == DRIVER_KILLED:
            for victim in [*self._victims, os.getpid()]:
                os.kill(victim, signal.SIGKILL)
        super().commit(messages)
        self._gates.tell("committed")


def parent_of(process: int) -> int:
    """The process that started this one."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.split("PPid:")[1].split()[0])
