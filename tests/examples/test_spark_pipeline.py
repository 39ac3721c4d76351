"""The tutorial's pipeline as real processes: the app, a task and all of Spark are killed, and each visit is counted once."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import attrs
import pytest
import trio

import replog
from tests.failures.options import STORAGE
from tests.failures.processes import ROOT, Process, Starter, starting, until
from tests.servers.fixtures import need
from tests.servers.processes import Server
from tests.servers.spark import missing

EXAMPLE = ROOT / "examples" / "spark_pipeline.py"
PAGE = ROOT / "docs" / "tutorial" / "first-pipeline.md"
WITHIN_S = 300.0  # for Spark to begin and do a batch on two busy cores; it gives up earlier if Spark has ended
ENDING_S = 60.0
PAUSE_S = 1.0
WINDOW = timedelta(seconds=2)
LATE = timedelta(seconds=1)
VISITS = "visits"
COUNTS = "counts"
ATTEMPTS = 12  # at a task: while there is no sign that one was lost, workers are killed again

Key = tuple[str, str]  # of a count: since when, and the page
Count = tuple[int, int]  # how many, and the slowest


# -- what should come out -----------------------------------------------------------------------------------------


def counts_of(entries: Sequence[bytes]) -> dict[Key, Count]:
    """What the pipeline makes of these entries, counted another way: windows that no further visit can belong to."""
    visits = [json.loads(entry) for entry in entries if entry.startswith(b"{")]
    found: dict[Key, Count] = {}
    ends: dict[Key, datetime] = {}
    times = [datetime.fromisoformat(visit["at"]) for visit in visits]
    for visit, at in zip(visits, times, strict=True):
        since = datetime.fromtimestamp(at.timestamp() // WINDOW.total_seconds() * WINDOW.total_seconds(), UTC)
        key = (since.isoformat(timespec="microseconds"), visit["page"])
        count, slowest = found.get(key, (0, 0))
        found[key] = (count + 1, max(slowest, visit["took_ms"]))
        ends[key] = since + WINDOW
    newest = max(times)
    watermark = newest.replace(microsecond=newest.microsecond // 1000 * 1000) - LATE  # Spark's is in milliseconds
    return {key: count for key, count in found.items() if ends[key] <= watermark}


def test_windows_are_counted_when_they_are_over() -> None:
    at = ["00:00.5", "00:01.999999", "00:02.0", "00:03.0"]
    entries = [b'{"at": "2026-11-20T12:%s+00:00", "page": "/", "took_ms": %d}' % (time.encode(), 7) for time in at]
    first = {("2026-11-20T12:00:00.000000+00:00", "/"): (2, 7)}
    assert counts_of([*entries, b"noise"]) == first
    assert counts_of(entries[:3]) == {}


def test_the_tutorial_shows_the_example() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    example = EXAMPLE.read_text(encoding="utf-8")
    assert len(blocks) == 3
    assert [block for block in blocks if f"\n\n\n{block}\n\n" not in example] == [], "a whole function, to the letter"


# -- processes ----------------------------------------------------------------------------------------------------


@attrs.frozen
class Running:
    """A process of this machine, as the kernel shows it."""

    pid: int
    parent: int
    group: int
    command: tuple[str, ...]

    @classmethod
    def all(cls) -> Iterator[Running]:
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has just ended
                command = (place / "cmdline").read_text(errors="replace").rstrip("\0").split("\0")
                state, parent, group = (place / "stat").read_text().rpartition(")")[2].split()[:3]
                if state != "Z":
                    yield cls(int(place.name), int(parent), int(group), tuple(command))


class Pipeline(Server):
    """Spark: the driver, which is Python and the Java that it starts, in one group of processes; and its workers."""

    def __init__(self, metastore: str, directory: Path) -> None:
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.extraJavaOptions": "'-XX:TieredStopAtLevel=1 -XX:+UseSerialGC'",
            "spark.local.dir": str(directory / "local"),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }
        words = [f"--conf {name}={value}" for name, value in settings.items()]
        environment = {
            "PYSPARK_SUBMIT_ARGS": f"--master local[2,{ATTEMPTS}] {' '.join(words)} pyspark-shell",
            "PYTHONPATH": str(ROOT / "src"),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        command = [sys.executable, str(EXAMPLE), metastore, "pipeline", str(directory / "checkpoint")]
        super().__init__("pipeline", command, directory, environment)

    def descendants(self) -> list[Running]:
        """All that belong to the driver."""
        children: dict[int, list[Running]] = {}
        for each in Running.all():
            children.setdefault(each.parent, []).append(each)
        found: list[Running] = []
        parents = [self.pid]
        while parents:
            below = children.get(parents.pop(), [])
            found += below
            parents += [each.pid for each in below]
        return found

    def workers(self) -> list[int]:
        """The processes that run tasks: forks of the one that Java starts for that."""
        tasks = [each for each in self.descendants() if each.command[-2:] == ("pyspark.daemon", "pyspark.worker")]
        forked_from = {each.pid for each in tasks}
        return [each.pid for each in tasks if each.parent in forked_from]

    def has_lost_a_task(self) -> bool:
        """Whether it has said so."""
        return b"Lost task" in self.log_path.read_bytes()

    async def lose_a_task(self) -> None:
        """Kills workers until one of them had a task."""
        with trio.move_on_after(WITHIN_S):
            while not self.has_lost_a_task():
                assert self.is_running, self.log()
                for pid in self.workers()[:1]:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                await trio.sleep(PAUSE_S)
            return
        raise self.failed("no task was lost")

    async def kill_all(self) -> None:
        """SIGKILL to the driver, both of its halves at once. Its workers end by themselves, when they notice."""
        if not self.is_running:
            self.kill()
            return
        left = {each.pid: each.command for each in self.descendants()}
        os.killpg(self.pid, signal.SIGKILL)
        self.kill()
        what = f"its workers end, which were {left}"
        with trio.CancelScope(shield=True):
            await until(lambda: not any(left.get(each.pid) == each.command for each in Running.all()), ENDING_S, what)


@attrs.frozen
class Shop:
    """Bookies, the app and the follower, which are real processes."""

    metastore: str
    directory: Path
    starter: Starter

    async def add_bookie(self, number: int) -> None:
        data = str(self.directory / f"bookie-{number}")
        command = ["replog.cli", "bookie", "--log-format", "json", "--metastore", self.metastore]
        process = await self.starter.run(
            f"bookie-{number}", [*command, "--data", data, "--storage", STORAGE, "--listen", "127.0.0.1:0"]
        )
        await process.says("listen", WITHIN_S)

    async def run(self, name: str, word: str) -> Process:
        """The example, in one of its roles."""
        return await self.starter.run(name, ["examples.spark_pipeline", self.metastore, word])

    def followed(self) -> list[str]:
        """What the follower has shown."""
        path = self.directory / "follow.output"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if re.match(r"\d+:\d+ ", line)]

    async def follows(self, count: int, pipeline: Pipeline) -> None:
        """Waits until the follower has shown so many lines."""

        def is_so() -> bool:
            if not pipeline.is_running:
                raise pipeline.failed("it has ended by itself")
            return len(self.followed()) >= count

        await until(is_so, WITHIN_S, f"the follower shows {count} lines, not {len(self.followed())}; {pipeline.log()}")

    async def is_visited(self) -> None:
        """Waits until there is something for Spark to read."""
        with trio.fail_after(WITHIN_S):
            async with replog.connect(self.metastore) as client, client.read_log(VISITS, follow=True) as reader:
                await anext(aiter(reader))

    async def take_over(self) -> None:
        """As the next app would: from here on it is known what the one before has appended."""
        async with replog.connect(self.metastore) as client, client.write_log(VISITS):
            pass

    async def entries(self, log: str) -> list[replog.Record]:
        """All of a log."""
        with trio.fail_after(WITHIN_S):
            async with replog.connect(self.metastore) as client, client.read_log(log) as reader:
                return [record async for record in reader]


@asynccontextmanager
async def shop(directory: Path, metastore: str) -> AsyncIterator[Shop]:
    async with starting(directory) as starter:
        made = Shop(metastore, directory, starter)
        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(made.add_bookie, number)
        yield made


# -- the tests ----------------------------------------------------------------------------------------------------


@pytest.mark.long(is_sampled=False)
@pytest.mark.slow
@pytest.mark.needs_spark
@pytest.mark.needs_zookeeper
async def test_each_visit_is_counted_once(tmp_path: Path, zookeeper_url: str) -> None:
    need(missing())
    async with shop(tmp_path, zookeeper_url) as found:
        app = await found.run("app", "app")
        await found.run("follow", "follow")
        await found.is_visited()
        pipeline = Pipeline(zookeeper_url, tmp_path)
        try:
            pipeline.launch()
            await found.follows(1, pipeline)
            await pipeline.lose_a_task()
            before = len(found.followed())
            await found.follows(before + 1, pipeline)  # Spark may not have noted yet that this batch is in the log
            await pipeline.kill_all()

            pipeline.launch()
            await found.follows(before + 2, pipeline)
            await app.kill()
            await found.take_over()
            raw = [record.data for record in await found.entries(VISITS)]
            expected = counts_of(raw)
            await found.follows(len(expected), pipeline)
        finally:
            await pipeline.kill_all()
        counted = await found.entries(COUNTS)
        check(raw, expected, counted)
        assert found.followed() == [shown(record) for record in counted]


def check(raw: Sequence[bytes], expected: dict[Key, Count], counted: Sequence[replog.Record]) -> None:
    """Each count is there, once, and right."""
    counts = [json.loads(record.data) for record in counted]
    keys = [(each["since"], each["page"]) for each in counts]
    assert [key for key, times in Counter(keys).items() if times > 1] == [], "counts that are there twice"
    assert dict(zip(keys, [(each["visits"], each["slowest_ms"]) for each in counts], strict=True)) == expected
    assert b"what a cat types" in raw
    assert len({since for since, _ in expected}) >= 3


def shown(record: replog.Record) -> str:
    """The follower's line for this."""
    count = json.loads(record.data)
    return f"{record.position} {count['since']} {count['page']} {count['visits']} {count['slowest_ms']}"
