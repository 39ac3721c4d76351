"""How writers end: what leaving one does, and how one failure is raised to many tasks."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self, TypeVar

import trio

from replog.errors import FencedError, ReplogError

Error = TypeVar("Error", bound=ReplogError)


class WriterContext(ABC):
    """A writer as a context manager: leaving it closes it; leaving it on an error, or cancelled, says farewell."""

    @abstractmethod
    async def aclose(self) -> None:
        """Confirms everything and closes."""

    @abstractmethod
    async def _say_farewell(self, error: BaseException) -> None:
        """Closes at the last confirmed entry, if that can be done in a few seconds; if not, adds a note to the error."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            await self._say_farewell(error)
            return
        try:
            await self.aclose()
        except trio.Cancelled as cancelled:
            await self._say_farewell(cancelled)
            raise


_IN_SPARK = (
    "this is a task of Spark: if several tasks write one log, each takes it over, and fences the others. Write it by a job, with "
    "one commit for all tasks: with replog.spark.job(spark, metastore=URL, log=NAME, txn_id=ID) as job: "
    "df.foreachPartition(job.writer(encode))"
)


def copy_for_raise(error: Error) -> Error:
    """An equal exception, caused by this one: each task that raises a failure they share gets its own traceback."""
    # Not `type(error)(*error.args)`: constructors take other arguments than those that `args` keeps.
    copy = type(error).__new__(type(error), *error.args)
    copy.__dict__.update(error.__dict__)
    copy.__cause__ = error
    if isinstance(copy, FencedError) and _is_in_spark_task() and _IN_SPARK not in getattr(copy, "__notes__", ()):
        # What everybody tries first: each task takes the log over, and fences the others.
        copy.add_note(_IN_SPARK)
    return copy


def _is_in_spark_task() -> bool:
    module = sys.modules.get("pyspark.taskcontext")
    return module is not None and module.TaskContext.get() is not None
