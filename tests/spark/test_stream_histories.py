"""Random lives of a log, under a stream that is begun again and again: each entry is read once, in order."""

from __future__ import annotations

import random
from contextlib import ExitStack
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

import replog
from replog import blocking
from replog.protocol.model import Position
from tests.lanes.seeds import seeds
from tests.servers.bookies import Bookies
from tests.spark.logs import ask
from tests.spark.readers import rows, stream_reader, wait_for

pytestmark = pytest.mark.needs_spark

STEPS = 60
Row = tuple[str, bytes]


class Writing:
    """Leaders and jobs that write a log, one after the other; `written` is what was confirmed to them, in order."""

    def __init__(self, metastore: str, log: str, chance: random.Random, stack: ExitStack) -> None:
        self._log = log
        self._chance = chance
        self._stack = stack
        self._client = stack.enter_context(blocking.connect(metastore))
        self._leaders = ExitStack()
        self._leader: blocking.LogWriter | None = None
        self.written: list[bytes] = []

    def step(self) -> str:
        """Something happens; says what."""
        action = self._chance.choice(
            [self.append, self.append, self.append, self.roll, self.take_over, self.leave, self.job]
        )
        action()
        return action.__name__

    def _payloads(self) -> list[bytes]:
        first = len(self.written)
        count = self._chance.choice([1, 3, 40])
        return [b"%d " % number + bytes(self._chance.randrange(60)) for number in range(first, first + count)]

    def append(self) -> None:
        if self._leader is None:
            self.take_over()
        assert self._leader is not None
        payloads = self._payloads()
        self._leader.extend(payloads)
        self.written += payloads

    def roll(self) -> None:
        if self._leader is not None:
            self._leader.roll()

    def take_over(self) -> None:
        """The leader before is deposed, and learns it when it leaves."""
        deposed, leaders = self._leader, self._leaders
        self._leaders = ExitStack()
        self._leader = self._leaders.enter_context(self._client.write_log(self._log))
        self._give_up(deposed, leaders)

    def _give_up(self, deposed: blocking.LogWriter | None, leaders: ExitStack) -> None:
        if deposed is not None:
            with pytest.raises(replog.FencedError):
                deposed.append(b"deposed")
            leaders.close()

    def leave(self) -> None:
        self._leaders.close()
        self._leader = None

    def job(self) -> None:
        """As Spark writes: ledgers of its own, added at once."""
        job = f"job at {len(self.written)}"
        ledger_ids = []
        for _ in range(self._chance.choice([1, 3])):
            with self._client.create_ledger(custom={"log": self._log, "job": job}) as writer:
                payloads = self._payloads()
                writer.extend(payloads)
                self.written += payloads
                ledger_ids.append(writer.ledger_id)
        patience_s = self._chance.choice([0.0, 60.0])
        self._client.jobs.append_ledgers(self._log, ledger_ids, job=job, patience_s=patience_s)
        if not patience_s:  # it asks no leader, and deposes it (L10)
            deposed, leaders = self._leader, self._leaders
            self._leader, self._leaders = None, ExitStack()
            self._give_up(deposed, leaders)


class Reading:
    """A query and its checkpoint: the offsets of the last micro-batch, and what all have read."""

    def __init__(self, metastore: str, log: str, chance: random.Random) -> None:
        self._metastore = metastore
        self._log = log
        self._chance = chance
        self._reader = self._begin()
        self._last: tuple[dict[str, Any], dict[str, Any], list[Row]] | None = None
        self.end = self._reader.initialOffset()
        self.read: list[Row] = []

    def _begin(self) -> Any:
        return stream_reader(self._metastore, self._log, "position string, value binary", partitionBytes="1KiB")

    def micro_batch(self, limit: ReadLimit | None = None) -> bool:
        """Reads on. False if there is nothing."""
        if self._chance.random() < 0.3:
            self.begin_again()
        chosen = limit or self._chance.choice([ReadAllAvailable(), ReadMaxRows(7), ReadMaxBytes(500), ReadMaxRows(100)])
        start, end = self.end, self._reader.latestOffset(self.end, chosen)
        if end == start:
            return False
        found = self._rows(start, end)
        if isinstance(chosen, ReadMaxRows):
            assert len(found) <= chosen.max_rows
        self._last, self.end = (start, end, found), end
        self.read += found
        return True

    def begin_again(self) -> None:
        """From the checkpoint: the last micro-batch is repeated, and has the same rows."""
        self._reader = self._begin()
        if self._last is not None:
            start, end, found = self._last
            assert self._rows(start, end) == found

    def _rows(self, start: dict[str, Any], end: dict[str, Any]) -> list[Row]:
        return [(row["position"], row["value"]) for row in rows(self._reader, self._reader.partitions(start, end))]

    @property
    def not_needed_before(self) -> str:
        """What lies before it may be trimmed."""
        return "1:0" if self._last is None else str(self._last[0]["position"])


@pytest.mark.parametrize("seed", seeds(4, few=1))
def test_each_entry_is_read_once(spark_bookies: Bookies, spark_log: str, seed: int) -> None:
    chance = random.Random(seed)
    metastore = spark_bookies.metastore
    happened = []
    with ExitStack() as stack:
        writing = Writing(metastore, spark_log, chance, stack)
        writing.append()
        reading = Reading(metastore, spark_log, chance)
        for _ in range(STEPS):
            happened.append(writing.step())
            if chance.random() < 0.5:
                happened.append(f"micro-batch {reading.micro_batch()}")
            if chance.random() < 0.1:
                ask(metastore, lambda client: client.trim_log(spark_log, before=reading.not_needed_before))
                happened.append(f"trim before {reading.not_needed_before}")
        writing.append()
        wait_for_all(metastore, spark_log, reading, writing)
        writing.leave()
        while reading.micro_batch():
            pass
    assert [payload for _, payload in reading.read] == writing.written, happened
    positions = [Position.parse(text) for text, _ in reading.read]
    assert positions == sorted(set(positions))


def wait_for_all(metastore: str, log: str, reading: Reading, writing: Writing) -> None:
    """Somebody else follows to the end of an open ledger, and then the stream reads just as far."""
    wait_for(metastore, log, writing.written[-1])
    while reading.micro_batch():
        pass
    assert len(reading.read) == len(writing.written)
