"""The ledger cache: so many bytes and no more, and reads are right whether a page is in it or not."""

import contextlib
import random

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from replog.abc import PutBatch
from replog.backends.files.caches import LedgerCache
from replog.backends.files.index_page import ROWS_MAX, IndexPage
from replog.backends.files.log_file import EntryLogFile, Section
from replog.testing.disk import MemoryDisk
from replog.testing.storage_conformance import make_batch
from tests.backends.files.workload import open_small


def page_of(batches: int) -> IndexPage:
    page = IndexPage()
    for at in range(batches):
        page.put(at, at, 1, at, 1, at)
    return page


def sections(count: int) -> list[Section]:
    file = EntryLogFile(1, "/st/logs/000000000001.log", -1)
    return [Section(file, number, 1, 0, 0, 0) for number in range(count)]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 30), st.booleans()), max_size=80), st.integers(1000, 8000))
def test_recent_batches_stay_within_their_bound(admitted: list[tuple[int, int, bool]], bytes_max: int) -> None:
    cache = LedgerCache(bytes_max)
    known = sections(10)
    for number, batches, is_read in admitted:
        section = known[number]
        section.is_touched = section.is_touched or is_read
        if section.page is None:
            cache.admit(section, page_of(batches))
        kept = [each.page.memory_bytes for each in known if each.page is not None]
        assert cache.bytes == sum(kept)
        assert cache.bytes <= bytes_max or len(kept) == 1, "one page is needed to answer at all"
        assert known[number].page is not None or not section.is_touched


def test_pages_in_use_stay_in_the_cache() -> None:
    one, *others = sections(200)
    cache = LedgerCache(10 * page_of(1).memory_bytes)
    cache.admit(one, page_of(1))
    for other in others:
        one.is_touched = True
        cache.admit(other, page_of(1))
        assert one.page is not None
    assert sum(other.page is not None for other in others) == 9


def test_page_memory_is_about_its_memory_bytes() -> None:
    """The bound is one of memory: what a page says of itself is not far from what it takes."""
    import tracemalloc

    for batches in (1, ROWS_MAX, ROWS_MAX + 1, 100, 4096):
        (section,) = sections(1)
        # What the interpreter keeps of code that runs for the first time is no memory of a page.
        section.page = page_of(batches)
        section.page = None
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        section.page = page_of(batches)
        taken = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert section.page is not None
        assert 0.6 * taken <= section.page.memory_bytes <= 1.6 * taken


@pytest.mark.parametrize("pages", [1, 5, 40])
def test_reads_are_right_with_more_pages_than_fit(pages: int) -> None:
    disk = MemoryDisk()
    batches = [make_batch(ledger_id, 2 * turn, 2, size_bytes=1500) for turn in range(30) for ledger_id in range(1, 9)]
    with contextlib.closing(open_small(disk)) as storage:
        for batch in batches:
            storage.commit([PutBatch(batch)])
    with contextlib.closing(open_small(disk)) as storage:
        cache = storage._contents.cache
        cache._bytes_max = bytes_max = pages * page_of(5).memory_bytes
        chance = random.Random(pages)
        would_block = 0
        for _ in range(400):
            batch = chance.choice(batches)
            try:
                assert storage.read_nowait(batch.ledger_id, batch.last_entry_id, 1, 1) == [batch]
            except trio.WouldBlock:
                would_block += 1
            assert storage.read(batch.ledger_id, batch.first_entry_id, 1, 1) == [batch]
            assert storage.statistics()["ledger_cache_bytes"] <= max(bytes_max, page_of(5).memory_bytes + 200)
        assert would_block > 20, "not all pages were in memory"
        for ledger_id in range(1, 9):
            expected = [batch for batch in batches if batch.ledger_id == ledger_id]
            assert storage.read(ledger_id, 0, 1, 1 << 30) == expected
        assert storage.statistics()["ledger_cache_loaded_pages"] > 20
        storage.compact(is_major=True)
        for ledger_id in range(1, 9):
            expected = [batch for batch in batches if batch.ledger_id == ledger_id]
            assert storage.read(ledger_id, 0, 1, 1 << 30) == expected
