"""A streaming query for tests: files in, a log out, one batch for each file.

As a program, `python -m tests.spark.queries METASTORE LOG DIRECTORY`, it is a driver that gets killed by its own query: amid
the commit of its second batch, when the log has the rows and Spark does not know it yet.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tests.servers.spark import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Result = TypeVar("Result")
STARTS_MAX = 5
ENDING_S = 240


def put(directory: Path, number: int) -> None:
    """One more file, which becomes one batch of the stream."""
    directory.mkdir(exist_ok=True)
    (directory / f"{number}.txt").write_text("".join(f"{number}-{row}\n" for row in range(3)))


def rows(*numbers: int) -> list[bytes]:
    return [f"{number}-{row}".encode() for number in numbers for row in range(3)]


def restarted(run: Callable[[], Result]) -> Result:
    """What `run` returns or raises, once Spark could start its Pythons.

    Spark gives a Python 10 s to start and has no option for it, which is too little on a busy machine. A query goes on from its
    checkpoint."""
    from pyspark.errors import PySparkException

    for _ in range(STARTS_MAX):
        try:
            return run()
        except PySparkException as error:  # of a query or, from Spark Connect, of its start
            if "connect back" not in str(error):
                raise
    return run()


class Query:
    """A query that reads files, one for each batch, and ends when it has read all that are there."""

    def __init__(self, spark: SparkSession, metastore: str, log: str, tmp_path: Path) -> None:
        from tests.spark.faulty import FaultySource

        spark.dataSource.register(FaultySource)
        self.files = tmp_path / "files"
        self.checkpoint = tmp_path / "checkpoint"
        self._once = tmp_path / "once"
        self._spark = spark
        self._metastore = metastore
        self._log = log

    def run(self, fault: str = "", victims: Sequence[int] = ()) -> None:
        """Raises what the query ended with. `victims` are the processes that the fault kills, if it does that."""
        restarted(lambda: self._run(fault, victims))

    def _run(self, fault: str, victims: Sequence[int]) -> None:
        lines = self._spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.files))
        values = lines.selectExpr("cast(value as binary) as value")
        writer = values.writeStream.format("replog-faulty" if fault else "replog").trigger(availableNow=True)
        writer = writer.option("metastore", self._metastore).option("log", self._log)
        if fault:
            writer = writer.option("fault", fault).option("once", str(self._once))
            writer = writer.option("victims", " ".join(map(str, victims)))
        query = writer.option("checkpointLocation", str(self.checkpoint)).start()
        try:
            assert query.awaitTermination(ENDING_S), f"the query did not end within {ENDING_S} s"
        finally:
            query.stop()

    def committed_batches(self) -> list[int]:
        """Those that Spark has noted as done."""
        return sorted(int(each.name) for each in (self.checkpoint / "commits").iterdir() if each.name.isdigit())


def main(metastore: str, log: str, directory: Path) -> None:
    """Never returns, if all is well."""
    from pyspark import SparkContext

    from tests.spark.faulty import DRIVER_KILLED

    with spark_session(directory) as session:
        gateway = SparkContext._gateway
        assert gateway is not None
        Query(session, metastore, log, directory).run(DRIVER_KILLED, [gateway.proc.pid, os.getpid()])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
