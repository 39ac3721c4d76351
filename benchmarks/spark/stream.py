"""Measures a stream of small micro-batches for long: `python -m benchmarks.spark.stream --minutes 60 [--dir /some/disk]`.

Eight tasks write a hundred rows each, a micro-batch a second, to a log on three bookies, with ZooKeeper. A line a minute: how
long commits and whole micro-batches take, and how many segments of the log and packets to ZooKeeper each of these makes. At the
end the figures to judge, with exit code 1 if one is not met: in the median a commit of the last quarter takes at most a quarter
longer than one of the first, and needs at most a quarter more packets; no micro-batch leaves more than one segment; and the log
has each row once.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import replog.blocking
from benchmarks.spark.sources import COMMITS_FILE, TimedSource
from tests.servers.bookies import Bookies
from tests.servers.spark import spark_session
from tests.servers.zookeeper import Settings, ZooKeeper, ask, zookeeper_blocking

TASKS = 8
_TASK_ROWS_S = 100
_TRIGGER = "1 second"
_LOG = "streamed"
_WARM_UP_S = 60.0
_GROWTH_MAX = 1.25


@attrs.frozen
class Minute:
    """What was seen in a minute."""

    commits_s: list[float]
    batches_s: list[float]
    segments: int  # that came in it
    packets: int  # that ZooKeeper got in it

    def shown(self) -> str:
        """For people."""
        batches = len(self.commits_s)
        return (
            f"{batches:3} micro-batches: commit {_ms(self.commits_s)}, all of it {_ms(self.batches_s)}; "
            f"{self.segments / batches:.2f} segments and {self.packets / batches:.1f} packets each"
        )


def _ms(times_s: list[float]) -> str:
    return f"median {statistics.median(times_s) * 1e3:5.0f} ms, slowest {max(times_s) * 1e3:5.0f} ms"


class Stream:
    """One query, looked at once a minute."""

    def __init__(
        self, query: StreamingQuery, client: replog.blocking.Client, zookeeper: ZooKeeper, commits: Path
    ) -> None:
        self._query = query
        self._client = client
        self._zookeeper = zookeeper
        self._commits = commits
        self._commits_seen = 0
        self._batch_seen = -1
        self._segments_seen = 0
        self._packets_seen = 0

    def look(self) -> Minute:
        """What has come since the last look. Raises what the query ended with, if it did."""
        if (error := self._query.exception()) is not None:
            raise error
        commits_s = [float(line) for line in self._commits.read_text().splitlines()]
        progress = [each for each in self._query.recentProgress if each.batchId > self._batch_seen]
        segments = len(list(self._client.log_segments(_LOG)))
        packets = packets_received(self._zookeeper)
        minute = Minute(
            commits_s[self._commits_seen :],
            [each.durationMs["triggerExecution"] / 1e3 for each in progress if each.numInputRows],
            segments - self._segments_seen,
            packets - self._packets_seen,
        )
        self._batch_seen = max([each.batchId for each in progress], default=self._batch_seen)
        self._commits_seen, self._segments_seen, self._packets_seen = len(commits_s), segments, packets
        return minute

    def miscounted(self) -> Iterator[str]:
        """Stops the query, and says so if the log does not have each of its rows once, or more segments than micro-batches."""
        self._query.stop()
        segments, commits = len(list(self._client.log_segments(_LOG))), len(self._commits.read_text().splitlines())
        with self._client.read_log(_LOG) as records:
            found = [int(record.data.rstrip(b"x")) for record in records]
        print(
            f"{commits} commits, {segments} segments, {len(found)} entries, {len(set(found))} different, up to {max(found)}"
        )
        if segments > commits + 1:  # the last one may be stopped before it is noted
            yield "there are more segments than micro-batches"
        if sorted(found) != list(range(len(found))):
            yield "the log does not have each row once"


def packets_received(zookeeper: ZooKeeper) -> int:
    """From all of its clients, since it was started."""
    lines = ask(zookeeper.port, "mntr").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("zk_packets_received"))


@contextmanager
def running(directory: Path) -> Iterator[Stream]:
    """A cluster, and a query that writes to a log of it."""
    commits = directory / "commits"
    commits.touch()
    with zookeeper_blocking(directory, Settings(heap_mb=256, is_synced=True)) as zookeeper:
        bookies = Bookies(directory, 3, zookeeper.url("/replog"), "files")
        bookies.start()
        try:
            with (
                spark_session(directory, f"local[{TASKS}]", environment={COMMITS_FILE: str(commits)}) as session,
                replog.blocking.connect(bookies.metastore) as client,
            ):
                query = _started(session, directory, bookies.metastore)
                try:
                    yield Stream(query, client, zookeeper, commits)
                finally:
                    query.stop()
            bookies.terminate()
        finally:
            bookies.kill()


def _started(session: SparkSession, directory: Path, metastore: str) -> StreamingQuery:
    session.dataSource.register(TimedSource)
    rows = (
        session.readStream.format("rate").option("rowsPerSecond", TASKS * _TASK_ROWS_S).option("numPartitions", TASKS)
    )
    values = rows.load().selectExpr("CAST(rpad(CAST(value AS STRING), 100, 'x') AS BINARY) AS value")
    writer = values.writeStream.format(TimedSource.name()).outputMode("append").trigger(processingTime=_TRIGGER)
    options = {"metastore": metastore, "log": _LOG, "checkpointLocation": str(directory / "checkpoint")}
    return writer.options(**options).start()


def watch(stream: Stream, minutes: int) -> list[Minute]:
    """A line for each minute."""
    time.sleep(_WARM_UP_S)
    stream.look()
    seen = []
    for number in range(1, minutes + 1):
        time.sleep(60.0)
        seen.append(stream.look())
        print(f"minute {number:3}: {seen[-1].shown()}", flush=True)
    return seen


def failures(seen: list[Minute]) -> Iterator[str]:
    """Which of the bars of time is not met."""
    quarter = max(1, len(seen) // 4)
    first, last = seen[:quarter], seen[-quarter:]
    commit_s = [statistics.median(each for minute in part for each in minute.commits_s) for part in (first, last)]
    # Of a middle minute: every ten minutes bookies look which of their ledgers are still there.
    packets = [statistics.median(each.packets / len(each.commits_s) for each in part) for part in (first, last)]
    print(
        f"first and last quarter: commit {commit_s[0] * 1e3:.0f} and {commit_s[1] * 1e3:.0f} ms, {packets[0]:.1f} and "
        f"{packets[1]:.1f} packets for each micro-batch"
    )
    if commit_s[1] > commit_s[0] * _GROWTH_MAX:
        yield "commits take longer and longer"
    if packets[1] > packets[0] * _GROWTH_MAX:
        yield "micro-batches need more and more of the metastore"


def main() -> None:
    """Parses the command line, and runs."""
    parser = argparse.ArgumentParser(prog="benchmarks.spark.stream", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=int, default=60, help="after the first, which warms up")
    parser.add_argument(
        "--dir", default=None, help="where the bookies keep their data; default: the system's directory"
    )
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="replog-stream-", dir=options.dir) as directory,
        running(Path(directory)) as stream,
    ):
        failed = list(failures(watch(stream, options.minutes)))
        failed += stream.miscounted()
    for reason in failed:
        print(f"not met: {reason}")
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
