"""The index: any batches in any order and in any files, against a plain list; and what it costs."""

from __future__ import annotations

import gc
import itertools
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replog.backends.files.caches import LedgerCache
from replog.backends.files.index import Index
from replog.backends.files.index_page import PAGE_BATCHES, IndexPage
from replog.backends.files.log_file import JournalFile, Location, LogFile, Section
from replog.backends.files.stamp_sections import PageMissing
from replog.protocol.mutations import Marks
from tests.protocol.bookies import proof_of

Identity = tuple[int, int, int]  # first id, last id, stride
# Of each batch the file that it is put into, first id, count, stride and size. Files are written one after the other.
PUTS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(1, 9), st.integers(1, 5), st.integers(1, 50)),
    max_size=40,
).map(lambda puts: sorted(puts, key=lambda put: put[0]))


class Files:
    """An index over some files, its pages taken out of memory as if they were only on disk, and a plain list beside it."""

    def __init__(self, puts: list[tuple[int, int, int, int, int]], ages: list[int]) -> None:
        self.index = Index()
        self.files: list[LogFile] = [journal_file(number) for number in range(4)]
        for file, age in zip(self.files, ages, strict=True):
            file.age = age
        self.pages: dict[Section, IndexPage] = {}
        self.list: list[tuple[Identity, Location]] = []
        for at, (number, first, count, stride, size) in enumerate(puts):
            last = first + (count - 1) * stride
            location = Location(self.files[number], 1000 * (at + 1), size, 7 * at)
            self.index.put_batch(1, 1, first, last, stride, -1, location)
            self.list = [
                each for each in self.list if (each[0], each[1].file) != ((first, last, stride), location.file)
            ]
            self.list.append(((first, last, stride), location))

    def evict(self, numbers: set[int]) -> None:
        for number in numbers:
            for section in self.files[number].sections:
                assert section.page is not None
                self.pages[section] = section.page
                section.page = None

    def locate(self, entry_id: int, bytes_max: int) -> list[Location]:
        """As the storage does it: a page that is missing is loaded, and asked for once."""
        loaded: dict[Section, IndexPage] = {}
        while True:
            try:
                return self.index.locate(1, entry_id, 1, bytes_max, loaded)
            except PageMissing as missing:
                wanted = missing.section
            assert wanted not in loaded
            loaded[wanted] = self.pages[wanted]

    def newest(self) -> dict[Identity, Location]:
        """Of copies of one batch that in the file of the highest age."""
        found: dict[Identity, Location] = {}
        for identity, location in sorted(self.list, key=lambda each: each[1].file.age):
            found[identity] = location
        return found


def journal_file(number: int) -> JournalFile:
    return JournalFile(number, f"/st/journal/{number:012}.journal", -1, bytes(16), 0, 0)


@given(PUTS, st.permutations(range(4)), st.sets(st.integers(0, 3)), st.integers(0, 300))
def test_page_finds_the_same_as_a_plain_list(
    puts: list[tuple[int, int, int, int, int]], ages: list[int], on_disk: set[int], bytes_max: int
) -> None:
    files = Files(puts, ages)
    newest = files.newest()
    files.evict(on_disk)
    identities = {location: identity for identity, location in newest.items()}
    for entry_id in range(110):
        holders = [identity for identity in newest if entry_id in range(identity[0], identity[1] + 1, identity[2])]
        found = files.locate(entry_id, bytes_max)
        assert bool(found) == bool(holders)
        if not found:
            continue
        assert all(location in identities for location in found), "of two copies the one in the newer file counts"
        first = identities[found[0]]
        assert first in holders
        assert newest[first].file.age == max(newest[each].file.age for each in holders)
        expect_following([identities[each] for each in found], newest, bytes_max)


def expect_following(found: list[Identity], newest: dict[Identity, Location], bytes_max: int) -> None:
    """What follows starts later, is in order, has no gap, and ends where the next one doesn't fit."""
    later = sorted(identity for identity in newest if identity[0] > found[0][0])
    starts = [identity[0] for identity in later]
    assert [identity[0] for identity in found[1:]] == starts[: len(found) - 1]
    assert len(set(found)) == len(found)
    total = sum(newest[identity].size for identity in found)
    assert len(found) == 1 or total <= bytes_max
    if len(found) <= len(later):
        left = [identity for identity in later if identity not in found]
        next_sizes = [newest[identity].size for identity in left if identity[0] == left[0][0]]
        assert total + max(next_sizes) > bytes_max


@given(PUTS)
def test_files_count_their_batch_bytes(puts: list[tuple[int, int, int, int, int]]) -> None:
    files = Files(puts, [0, 1, 2, 3])
    for file in files.files:
        sizes = [location.size for _, location in files.list if location.file is file]
        assert sum(section.count for section in file.sections) == len(sizes)
        # one that is put again takes space again, if its size differs
        assert file.live_bytes == sum(section.data_bytes for section in file.sections)
    files.index.drop(1)
    assert not any(file.sections or file.live_bytes for file in files.files)
    files.index.put_batch(1, 1, 0, 0, 1, 0, Location(files.files[0], 0, 1, 0))
    assert files.index.ledgers == {}, "it is deleted for good"


@given(PUTS)
def test_a_page_comes_back_from_its_bytes(puts: list[tuple[int, int, int, int, int]]) -> None:
    page = IndexPage()
    for at, (_, first, count, stride, size) in enumerate(puts):
        page.put(first, first + (count - 1) * stride, stride, at, size, 7 * at)
    again = IndexPage.from_bytes(b"".join(column.tobytes() for column in page.columns), len(page))
    assert list(again.firsts) == sorted(again.firsts)
    assert [again.identity(at) for at in range(len(page))] == [page.identity(at) for at in range(len(page))]
    assert [again.find(entry_id) for entry_id in range(110)] == [page.find(entry_id) for entry_id in range(110)]


def test_a_long_section_becomes_several() -> None:
    index = Index()
    file = journal_file(1)
    for number in range(3 * PAGE_BATCHES):
        index.put_batch(1, 1, number, number, 1, -1, Location(file, number, 1, 0))
    assert sorted(section.count for section in file.sections) == [PAGE_BATCHES] * 3
    for entry_id in (0, PAGE_BATCHES - 1, PAGE_BATCHES, 3 * PAGE_BATCHES - 1):
        assert index.locate(1, entry_id, 1, 0, {}) == [Location(file, entry_id, 1, 0)]
    assert len(index.locate(1, 0, 1, 1 << 40, {})) == 3 * PAGE_BATCHES


def test_later_copy_counts_when_one_file_has_two() -> None:
    """A repair stored it again while the file was still written, and there are more batches than in a section."""
    index = Index()
    file = journal_file(1)
    for number in range(2 * PAGE_BATCHES + 10):
        index.put_batch(1, 1, number, number, 1, -1, Location(file, number, 1, 0))
    again = [Location(file, 1_000_000 + number, 1, 0) for number in range(4)]
    for number, place in zip((0, 5, PAGE_BATCHES, 2 * PAGE_BATCHES + 5), again, strict=True):
        index.put_batch(1, 1, number, number, 1, -1, place)
        assert index.locate(1, number, 1, 0, {}) == [place]
    places = index.locate(1, 0, 1, 1 << 40, {})
    assert [places[number] for number in (0, 5, PAGE_BATCHES, 2 * PAGE_BATCHES + 5)] == again
    assert len(places) == 2 * PAGE_BATCHES + 10
    assert len(set(places)) == len(places)


def test_entry_past_the_end_needs_no_page() -> None:
    index = Index()
    file = journal_file(1)
    index.put_batch(1, 1, 0, 5, 1, -1, Location(file, 0, 1, 0))
    (section,) = file.sections
    section.page = None
    assert index.locate(1, 6, 1, 0, {}) == []
    with pytest.raises(PageMissing):
        index.locate(1, 5, 1, 0, {})


def test_marks_and_deleted_ledgers() -> None:
    index = Index()
    index.put_marks(1, b"key", 3, 4, proof_of(4), 0)
    index.put_marks(1, b"other", 2, 9, proof_of(3), 0)
    ledger = index.ledgers[1]
    assert ledger.marks() == Marks(b"key", 3, 9, -1, proof_of(4))
    index.put_batch(1, 1, 10, 14, 2, 11, Location(journal_file(1), 0, 1, 0))
    assert (ledger.last_add_confirmed, ledger.last_entry_id) == (11, 14)
    index.put_marks(5, None, 1, -1, b"", 0)
    index.put_catalog([(0, 3), (9, 9)], ())
    assert list(index.ledgers) == [5]
    index.put_marks(2, b"late", 1, 1, b"", 0)
    assert list(index.ledgers) == [5]


@given(PUTS)
def test_section_keeps_the_same_as_its_page(puts: list[tuple[int, int, int, int, int]]) -> None:
    """A small section holds rows instead of a page, and gets a page when it grows, or when batches come out of order."""
    section = Section(journal_file(1), 1, 1, 0, -1, -1)
    page = IndexPage()
    for at, (_, first, count, stride, size) in enumerate(puts):
        batch = first, first + (count - 1) * stride, stride, at, size, 7 * at
        is_new = section.put(*batch)
        assert is_new == page.put(*batch)
        section.count += is_new
        section.last_first = max(first, section.last_first)
        assert section.page is not None
        assert section.page.columns == page.columns
        assert section.page.reaches == page.reaches
        assert section.count == len(page)
    section.page = IndexPage.from_rows(page.rows())  # as the cache does with a page that was read
    assert section.page is not None
    assert section.page.columns == page.columns


def test_batches_of_each_stamp_are_found_in_one_ledger() -> None:
    index = Index()
    files = [journal_file(number) for number in range(2)]
    places = {
        (stamp, first): Location(files[first // 20], 100 * stamp + first, 1, 0)
        for first in (0, 10, 20, 30)
        for stamp in (1, 2, 3)
    }
    for (stamp, first), place in places.items():
        index.put_batch(1, stamp, first, first + 9, 1, -1, place)
    for (stamp, first), place in places.items():
        assert index.locate(1, first, stamp, 0, {}) == [place]
        assert index.locate_lone(1, first, stamp) == place
    assert index.locate(1, 0, 4, 0, {}) == []
    assert len(index.drop(1)) == 6


# -- what it costs ------------------------------------------------------------------------------------------------

BATCH_ENTRIES = 1000
CACHE_BYTES = 1 << 20  # the least: what the cache holds is bounded, and no matter of how much is stored


def fill(ledgers: int, entry_bytes: int, file_bytes: int, batches: int, make: Callable[[int], LogFile]) -> Index:
    """Batches of many ledgers in turn, in files that are indexed when they are full, as a storage does."""
    index = Index()
    cache = LedgerCache(CACHE_BYTES)
    size = 72 + 4 * (BATCH_ENTRIES + 1) + BATCH_ENTRIES * entry_bytes + 4
    file = make(1)
    offset = 0
    for number in range(batches):
        ledger_id, first = number % ledgers, number // ledgers * BATCH_ENTRIES
        index.put_batch(ledger_id, 1, first, first + BATCH_ENTRIES - 1, 1, -1, Location(file, offset, size, number))
        offset += size
        if offset > file_bytes:
            for section in file.sections:
                assert section.page is not None
                section.page_offset, section.page_checksum = 72 + number, 0xC0FFEE + number
                cache.admit(section, section.page)
            file, offset = make(file.number + 1), 0
    return index


@pytest.mark.parametrize(
    ("ledgers", "entry_bytes", "file_bytes", "bytes_per_entry"),
    [
        pytest.param(1, 1024, 64 << 20, 0.1, id="one ledger, 1 KiB", marks=pytest.mark.long(is_sampled=False)),
        pytest.param(1, 100, 64 << 20, 0.1, id="one ledger, 100 B"),
        pytest.param(100, 100, 64 << 20, 0.1, id="a hundred in turn, 100 B"),
        pytest.param(
            100, 1024, 1 << 30, 0.1, id="a hundred in entry logs, 1 KiB", marks=pytest.mark.long(is_sampled=False)
        ),
        # one batch of each ledger in each journal file: a section for each, until major compaction puts them in order
        pytest.param(100, 1024, 64 << 20, 0.4, id="a hundred in turn, 1 KiB", marks=pytest.mark.long(is_sampled=False)),
    ],
)
def test_bytes_per_entry(ledgers: int, entry_bytes: int, file_bytes: int, bytes_per_entry: float) -> None:
    batches = 20_000
    spent = memory_of(lambda: fill(ledgers, entry_bytes, file_bytes, batches, journal_file)) - CACHE_BYTES
    assert spent / (batches * BATCH_ENTRIES) <= bytes_per_entry


@pytest.mark.parametrize(("batches", "bytes_per_ledger"), [(0, 350), (1, 900), (8, 1200)])
def test_bytes_per_ledger(batches: int, bytes_per_ledger: int) -> None:
    """What a bookie with very many small ledgers keeps for each of them: one batch took 1900 bytes once."""
    ledgers = 2000

    def make() -> Index:
        index = Index()
        file = journal_file(1)
        for ledger_id in range(ledgers):
            index.put_marks(ledger_id, ledger_id.to_bytes(20, "big"), 0, -1, b"", 0)
        for number, ledger_id in itertools.product(range(batches), range(ledgers)):
            place = Location(file, (number * ledgers + ledger_id) * 300, 300, 0xC0FFEE)
            index.put_batch(ledger_id, 1, number, number, 1, number - 1, place)
        return index

    assert memory_of(make) / ledgers <= bytes_per_ledger


def memory_of(make: Callable[[], object]) -> int:
    """The bytes that what this makes takes, with all that it refers to."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        made = make()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        del made
        return after - before
    finally:
        tracemalloc.stop()
