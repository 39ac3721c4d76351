"""The data source with things going wrong on purpose: the option `fault` says what, at one place of the commit protocol.

Spark's workers and its processes on the driver's side import this by its name.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from replog.spark import ReplogDataSource
from replog.spark.stream_writing import BatchWriter
from replog.spark.writing import JobWriter, WrittenPartition

FIRST_ATTEMPT_FAILS = "first attempt fails"  # when it has written all, and closed its ledger
FIRST_ATTEMPT_KILLED = "first attempt killed"  # SIGKILL, amid its rows
EVERY_ATTEMPT_FAILS = "every attempt fails"  # amid its rows
COMMIT_FAILS = "commit fails"  # before anything was changed
ANSWER_LOST = "answer lost"  # the commit is done, and raises
DRIVER_KILLED = "driver killed"  # SIGKILL to the processes `victims`, when the commit is done and nobody knows it yet
FAULTY_PARTITION = 1


class InjectedError(Exception):
    """What a test wanted to happen."""


class FaultySource(ReplogDataSource):
    """The format `replog-faulty`: options `fault`, and `once`, a path that is made when a fault of a commit has happened, and
    keeps it from happening again."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        rest = dict(options)
        self._fault = rest.pop("fault", "")
        self._once = rest.pop("once", "")
        self._victims = [int(each) for each in rest.pop("victims", "").split()]
        super().__init__(rest)

    @classmethod
    def name(cls) -> str:
        return "replog-faulty"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return FaultyJobWriter(self._parsed, schema, self._fault)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return FaultyBatchWriter(self._parsed, schema, self._fault, self._once, self._victims)


def _is_faulty_task() -> bool:
    context = TaskContext.get()
    assert context is not None
    return context.partitionId() == FAULTY_PARTITION


def _is_first_attempt() -> bool:
    context = TaskContext.get()
    assert context is not None
    return context.attemptNumber() == 0


def _failing(batches: Iterator[Any], fault: str) -> Iterator[Any]:
    for number, batch in enumerate(batches):
        if number == 2:
            if fault == EVERY_ATTEMPT_FAILS:
                raise InjectedError(fault)
            if fault == FIRST_ATTEMPT_KILLED and _is_first_attempt():
                os.kill(os.getpid(), signal.SIGKILL)
        yield batch


class FaultyJobWriter(JobWriter):
    def __init__(self, options: Any, schema: StructType, fault: str) -> None:
        super().__init__(options, schema)
        self._fault = fault

    def write(self, iterator: Iterator[Any]) -> WrittenPartition:
        if not _is_faulty_task():
            return super().write(iterator)
        written = super().write(_failing(iterator, self._fault))
        if self._fault == FIRST_ATTEMPT_FAILS and _is_first_attempt():
            raise InjectedError(self._fault)
        return written

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self._fault == COMMIT_FAILS:
            raise InjectedError(self._fault)
        super().commit(messages)
        if self._fault == ANSWER_LOST:
            raise InjectedError(self._fault)


class FaultyBatchWriter(BatchWriter):
    def __init__(self, options: Any, schema: StructType, fault: str, once: str, victims: Sequence[int]) -> None:
        super().__init__(options, schema)
        self._fault = fault
        self._once = once
        self._victims = victims

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        fault = self._fault if batchId == 1 and not Path(self._once).exists() else ""
        if fault:
            Path(self._once).touch()
        if fault == COMMIT_FAILS:
            raise InjectedError(fault)
        super().commit(messages, batchId)
        if fault == DRIVER_KILLED:
            for victim in self._victims:
                os.kill(victim, signal.SIGKILL)
            signal.pause()  # until the death of those is noticed
        if fault == ANSWER_LOST:
            raise InjectedError(fault)
