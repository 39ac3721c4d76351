"""The members' log: how much of it there is, and how much of it stays."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replog.protocol.consensus.log import Base, EntryLog, Kind, LogEntry

sizes = st.lists(st.integers(0, 500), max_size=20)


def log_of(sizes: list[int]) -> EntryLog:
    return EntryLog(Base(), [LogEntry(1, Kind.COMMANDS, bytes(size)) for size in sizes])


@given(sizes, sizes, st.data())
def test_size_is_that_of_what_is_there(first: list[int], more: list[int], data: st.DataObject) -> None:
    log = log_of(first)
    log.append([LogEntry(2, Kind.COMMANDS, bytes(size)) for size in more])
    if log.last:
        log.cut(data.draw(st.integers(1, log.last)))
    log.drop(data.draw(st.integers(0, log.last)))
    there = log.entries_from(log.base.index + 1) if log.last > log.base.index else ()
    assert log.size_bytes == sum(each.size_bytes for each in there)
    log.restart(Base(log.last + 1, 2))
    assert log.size_bytes == 0


@given(sizes, st.integers(0, 20), st.integers(0, 3000))
def test_so_much_is_kept(sizes: list[int], count_max: int, bytes_max: int) -> None:
    log = log_of(sizes)
    index = log.index_before(count_max, bytes_max)
    kept = [log[each].size_bytes for each in range(index + 1, log.last + 1)]
    assert len(kept) <= count_max
    assert sum(kept) <= bytes_max
    if index:
        assert len(kept) == count_max or sum(kept) + log[index].size_bytes > bytes_max
