"""What is timed is a read out of the page cache, and nothing else."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from benchmarks.setting import NotMeasured
from benchmarks.storage import reading
from benchmarks.storage.stores import FILES, Source
from replog.abc import Storage
from replog.protocol.batch import Batch

SOURCE = Source(10, 100)


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    opened = FILES.open(tmp_path)
    try:
        reading.STATES["current"](opened, SOURCE)
        yield opened
    finally:
        opened.close()


class Forgetful:
    """Reads, but for the first so many times, when the page cache has let go of the batch."""

    def __init__(self, storage: Storage, times: int) -> None:
        self._storage = storage
        self.times = times

    def __call__(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        if self.times:
            self.times -= 1
            raise trio.WouldBlock
        return self._storage.read_nowait(ledger_id, entry_id, stamp, bytes_max)


def test_a_batch_dropped_from_the_page_cache_is_timed_again(storage: Storage) -> None:
    read = Forgetful(storage, 3)
    assert reading._time_points(storage, read, SOURCE, 40)["p50_us"] > 0
    assert read.times == 0


def test_no_read_is_measured_when_the_page_cache_is_too_small(storage: Storage) -> None:
    with pytest.raises(NotMeasured, match="page cache"):
        reading._time_points(storage, Forgetful(storage, 100), SOURCE, 40)
