"""The records of ledgers and logs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replog.errors import PositionError
from replog.protocol.digest import DigestType
from replog.protocol.model import Fragment, LedgerMetadata, LedgerState, LogMetadata, Position
from replog.protocol.quorum import Quorum


def ledger(*firsts: int) -> LedgerMetadata:
    fragments = tuple(Fragment(first, (f"of {first}",)) for first in firsts)
    return LedgerMetadata(7, Quorum(1, 1, 1), DigestType.CRC32C, "", fragments)


@given(st.sets(st.integers(1, 60), max_size=6), st.integers(0, 70))
def test_each_entry_belongs_to_the_last_fragment_that_starts_at_or_before_it(firsts: set[int], entry_id: int) -> None:
    metadata = ledger(0, *sorted(firsts))
    expected = max(first for first in {0} | firsts if first <= entry_id)
    assert metadata.fragment_of(entry_id).first_entry_id == expected
    assert metadata.last_fragment.first_entry_id == max({0} | firsts)


def test_a_fragment_is_appended_or_replaces_the_one_that_starts_there() -> None:
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
def test_closing_drops_fragments_without_entries_but_never_the_first(last_entry_id: int, firsts: list[int]) -> None:
    """R1, R8."""
    closed = ledger(0, 5, 9).closed_at(last_entry_id)
    assert [each.first_entry_id for each in closed.fragments] == firsts
    assert (closed.state, closed.last_entry_id) == (LedgerState.CLOSED, last_entry_id)


@given(st.lists(st.integers(0, 12), max_size=12))
def test_segment_numbers_grow_whatever_is_trimmed(trims: list[int]) -> None:
    """L3: add, trim, add, trim ...: numbers are never reused, and the last segment always stays."""
    log = LogMetadata("log")
    seen: set[int] = set()
    for ledger_id, before in enumerate(trims):
        log = log.with_ledger(ledger_id, 0)
        assert log.segments[-1].number not in seen
        assert log.segments[-1].number == max(seen, default=0) + 1
        seen.add(log.segments[-1].number)
        trimmed = log.trimmed_before(before)
        assert trimmed.segments[-1] == log.segments[-1]
        assert all(each.number >= before for each in trimmed.segments[:-1])
        assert [each for each in log.segments if each.number >= before or each == log.segments[-1]] == list(
            trimmed.segments
        )
        log = trimmed


@given(st.text(max_size=12) | st.from_regex(r"\d{1,25}:\d{1,25}", fullmatch=True))
def test_a_position_parses_to_what_prints_the_same_or_is_refused(text: str) -> None:
    """L4: leading zeros and spaces are forgiven, nothing else is."""
    try:
        position = Position.parse(text)
    except PositionError:
        return
    segment, entry = text.strip().split(":")
    assert position == Position(int(segment), int(entry))
    assert Position.parse(str(position)) == position
