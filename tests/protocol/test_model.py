"""The records of ledgers and logs."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replog.errors import PositionError
from replog.protocol.digest import DigestType
from replog.protocol.model import Fragment, LedgerMetadata, LedgerState, LogMetadata, Position, Segment, Transaction
from replog.protocol.quorum import Quorum


def ledger(*firsts: int) -> LedgerMetadata:
    fragments = tuple(Fragment(first, (f"of {first}",)) for first in firsts)
    return LedgerMetadata(7, Quorum(1, 1, 1), DigestType.CRC32C, "", fragments)


@given(st.sets(st.integers(1, 60), max_size=6), st.integers(0, 70))
def test_an_entry_belongs_to_the_last_fragment_not_after_it(firsts: set[int], entry_id: int) -> None:
    metadata = ledger(0, *sorted(firsts))
    expected = max(first for first in {0} | firsts if first <= entry_id)
    assert metadata.fragment_of(entry_id).first_entry_id == expected
    assert metadata.last_fragment.first_entry_id == max({0} | firsts)


def test_a_fragment_is_appended_or_replaces_one_of_its_start() -> None:
    """C2: and a fragment that would start before the last one is a bug, never a record."""
    metadata = ledger(0, 5)
    assert [each.first_entry_id for each in metadata.with_fragment(Fragment(9, ("x",))).fragments] == [0, 5, 9]
    replaced = metadata.with_fragment(Fragment(5, ("x",)))
    assert [each.ensemble for each in replaced.fragments] == [("of 0",), ("x",)]
    assert ledger(0).with_fragment(Fragment(0, ("x",))).fragments == (Fragment(0, ("x",)),)
    with pytest.raises(AssertionError):
        metadata.with_fragment(Fragment(4, ("x",)))
    with pytest.raises(AssertionError):
        metadata.with_fragment(Fragment(0, ("x",)))


@pytest.mark.parametrize(
    ("last_entry_id", "firsts"), [(-1, [0]), (0, [0]), (4, [0]), (5, [0, 5]), (8, [0, 5]), (9, [0, 5, 9])]
)
def test_closing_drops_empty_fragments_but_never_the_first(last_entry_id: int, firsts: list[int]) -> None:
    """R1, R8."""
    closed = ledger(0, 5, 9).closed_at(last_entry_id)
    assert [each.first_entry_id for each in closed.fragments] == firsts
    assert (closed.state, closed.last_entry_id) == (LedgerState.CLOSED, last_entry_id)


@given(st.integers(2, 5), st.lists(st.tuples(st.integers(1, 13), st.none() | st.integers(0, 60)), max_size=30))
def test_segment_numbers_grow_after_any_trim(size: int, changes: list[tuple[int, int | None]]) -> None:
    """L3: add, trim, add ...: numbers are never reused, the last segment always stays, and each stands in the head or in
    its page, which is written once."""
    log, pages = LogMetadata("log", page_segments=size), dict[int, tuple[Segment, ...]]()
    truth: list[Segment] = []
    for count, before in changes:
        left, log = log.split()
        assert not pages.keys() & {page.number for page in left}
        pages |= {page.number: page.segments for page in left}
        assert len(log.segments) < 2 * size
        assert len(log.segments) >= min(size, len(truth))
        assert log.segments[-2:] == tuple(truth[-2:])
        log = log.with_ledgers(range(count), 0)
        log = log.open_from(log.next_segment_number)
        truth += log.segments[-count:]
        if before is not None:
            log = log.trimmed_before(before)
            truth = [each for each in truth if each.number >= before] or truth[-1:]
        assert log.faults() == []
        assert log.segment_count == len(truth)
        assert all(log.listed(each.number) == each or each in pages[log.page_of(each.number)] for each in truth)
        assert log.segments == tuple(each for each in truth if each.number >= log.first_listed_number)
        assert [each.number for each in truth] == list(range(log.first_segment_number, log.next_segment_number))
    assert log.listed(log.next_segment_number) is log.listed(log.first_listed_number - 1) is None


def test_a_long_list_leaves_several_pages_at_once() -> None:
    """A record of format 1 becomes full pages, and the rest, of which the last two are a takeover's to recover."""
    log = LogMetadata("log").with_ledgers(range(1234), 0).open_from(1233).trimmed_before(250)
    pages, head = log.split()
    assert [(page.number, page.segments[0].number, len(page.segments)) for page in pages] == [
        (2, 250, 50),
        *((number, 100 * number, 100) for number in range(3, 11)),
    ]
    assert (head.first_segment_number, head.segments[0].number, len(head.segments)) == (250, 1100, 135)
    assert head.faults() == []
    assert head.split() == ((), head)


def test_possibly_open_segments_stay_in_the_head() -> None:
    """L8: pages name closed ledgers only, and a takeover finds in the head whatever may be open."""
    log = LogMetadata("log").with_ledgers(range(1234), 0).open_from(250)
    pages, head = log.split()
    assert [page.number for page in pages] == [0, 1]
    assert [segment.number for segment in head.to_recover()] == list(range(250, 1235))
    assert [segment.number for segment in head.open_from(1235).to_recover()] == [1233, 1234]
    for wrong in (199, 1236):
        assert [fault[:17] for fault in attrs.evolve(head, first_open_number=wrong).faults()] == ["first_open_number"]
    assert head.trimmed_before(300).first_open_number == 300
    assert head.deleted(0).to_recover() == ()


def test_transactions_are_retired_by_id_and_by_age() -> None:
    log = LogMetadata("log")
    for name, committed_at_ms in (("a", 10), ("b", 20), ("c", 30), ("a", 40)):
        log = log.with_transaction(Transaction(name, 1, committed_at_ms))
    assert [each.transaction_id for each in log.without_transactions((), 30).transactions] == ["c", "a"]
    assert [each.transaction_id for each in log.without_transactions(("c",), 0).transactions] == ["b", "a"]


def test_a_deleted_log_keeps_its_numbers() -> None:
    log = LogMetadata("log").with_ledgers(range(7), 1)
    deleted = log.deleted(0)
    assert (deleted.is_deleted, deleted.segments, deleted.segment_count, deleted.deletions) == (True, (), 0, 1)
    assert deleted.faults() == []
    assert deleted.with_ledger(9, 2).segments == (Segment(8, 9, 2),)
    assert not log.is_deleted


@given(st.text(max_size=12) | st.from_regex(r"\d{1,25}:\d{1,25}", fullmatch=True))
def test_position_round_trips_or_is_refused(text: str) -> None:
    """L4: leading zeros and spaces are forgiven, nothing else is."""
    try:
        position = Position.parse(text)
    except PositionError:
        return
    segment, entry = text.strip().split(":")
    assert position == Position(int(segment), int(entry))
    assert Position.parse(str(position)) == position
