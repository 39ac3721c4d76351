"""A log's memory of its producers follows from its entries alone (L11)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replog.errors import DuplicateError, ProducersFullError
from replog.protocol import producers
from replog.protocol.envelope import EntryId
from replog.protocol.model import Position
from replog.protocol.producers import KnownProducer, ProducersRecord, ProducerWindow, RetiredProducer

EMPTY = ProducersRecord("log", 2, 0)
IDS = 6  # in the window of these tests


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "IDS_MAX", IDS)


@st.composite
def logs(draw: st.DrawFn) -> list[tuple[Position, EntryId]]:
    """The ids of a log of some segments, in order: each once, nearly in the order of their sequences."""
    names = draw(st.lists(st.sampled_from("abcd"), max_size=40))
    numbers = dict.fromkeys("abcd", 0)
    found, segment, entry = [], 1, 0
    for name in names:
        numbers[name] += 1
        found.append((Position(segment, entry), EntryId(name, numbers[name])))
        segment, entry = draw(st.sampled_from([(segment, entry + 1), (segment, entry + 3), (segment + 1, 0)]))
    return found


def folded(log: list[tuple[Position, EntryId]], through: int, record: ProducersRecord = EMPTY) -> ProducerWindow:
    window = ProducerWindow(record)
    for position, entry_id in log:
        if position.segment > record.through:
            window.add(position, entry_id, position.segment)
    window.fold(through)
    return window


@given(logs(), st.data())
def test_record_is_the_same_from_any_maker(log: list[tuple[Position, EntryId]], data: st.DataObject) -> None:
    """L11: in one go, in steps of any size, with later entries known or not, and written down and read between."""
    last = log[-1][0].segment if log else 1
    through = data.draw(st.integers(0, last))
    wanted = folded([each for each in log if each[0].segment <= through], through).record()
    assert folded(log, through).record() == wanted
    record = EMPTY
    for step in sorted(data.draw(st.lists(st.integers(0, through)))):
        record = folded(log, step, record).record()
    assert folded(log, through, record).record() == wanted


@given(logs(), st.integers(0, 12))
def test_window_knows_the_newest_and_each_last_one(log: list[tuple[Position, EntryId]], through: int) -> None:
    """L11: an id of the log is found at its place or refused; one that was never there is free, unless it is below."""
    closed = [each for each in log if each[0].segment <= through]
    lasts = {entry_id.producer: entry_id for _, entry_id in closed}
    window = folded(log, through)
    for place, (position, entry_id) in enumerate(log):
        is_known = place >= len(closed) - IDS or lasts[entry_id.producer] == entry_id
        if is_known:
            assert window.find(entry_id) == position
        else:
            with pytest.raises(DuplicateError):
                window.find(entry_id)
    for name in "abcd":
        highest = max((entry_id.sequence for _, entry_id in log if entry_id.producer == name), default=0)
        assert window.find(EntryId(name, highest + 1)) is None


def test_entries_of_open_segments_make_it_forget_nothing() -> None:
    """L11: they may be lost, and then nobody would ever take them again."""
    window = ProducerWindow(EMPTY)
    for each in range(5 * IDS):
        window.add(Position(1, each), EntryId("me", each), 0)
    assert window.find(EntryId("me", 0)) == Position(1, 0)
    assert window.record() == EMPTY
    assert window.recent == 5 * IDS
    window.fold(1)
    assert window.recent == 0
    with pytest.raises(DuplicateError):
        window.find(EntryId("me", 0))


def test_id_written_twice_is_found_at_its_first_place() -> None:
    window = ProducerWindow(EMPTY)
    window.add(Position(1, 0), EntryId("me", 0), 0)
    window.add(Position(1, 5), EntryId("me", 0), 0)
    window.fold(1)
    assert window.record().producers == (KnownProducer("me", -1, 0, ((0, 1, 0),)),)


def test_more_producers_than_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 2)
    window = ProducerWindow(EMPTY)
    for each in range(2):
        window.check_room("b")
        window.add(Position(1, each), EntryId("ab"[each], 0), 0)
    window.check_room("a")
    with pytest.raises(ProducersFullError, match="'a', 'b'"):
        window.check_room("c")


@given(logs(), st.integers(0, 12), st.sets(st.sampled_from("abcd")))
def test_window_forgets_only_retired_producers(
    log: list[tuple[Position, EntryId]], through: int, names: set[str]
) -> None:
    """The window forgets producers in the record, unless they have written behind it."""
    record = folded(log, through, EMPTY).record()
    changed = record.without(names, 0)
    known = {each.name for each in record.producers}
    assert {each.name for each in changed.producers} == known - names
    window = folded(log, through)
    alive = {entry_id.producer for position, entry_id in log if position.segment > through}
    assert window.retire(changed.retired) == bool((known & names) - alive)
    for position, entry_id in log:
        if entry_id.producer in (known & names) - alive:
            assert window.find(entry_id) is None
        elif position.segment > through:
            assert window.find(entry_id) == position
    window.fold(99)
    gone = (known & names) - alive
    assert {each.name for each in window.record().producers} == {entry_id.producer for _, entry_id in log} - gone
    assert folded(log, through, changed).retire((RetiredProducer("nobody", 1),)) is False
