"""Rows of logs from what polls have found, and the picture of them."""

from __future__ import annotations

import attrs
import pytest

from replog.cli.top.logs import LOG_ORDERS, LogRow, Logs, log_picture
from replog.cli.top.screen import View
from replog.log.log_looks import LogListing
from replog.log.log_summaries import CursorLag, LogSummary
from replog.protocol.closed_contents import Contents
from replog.protocol.cursors import CursorRecord
from replog.protocol.model import LedgerState, LogMetadata, Position, Segment


def summary(
    name: str = "orders", *, first: int = 1, held: tuple[int | None, ...] = (10,), **known: object
) -> LogSummary:
    """A log whose segments hold so many entries of 5 bytes each; the last one is open."""
    segments = tuple(Segment(first + place, 100 + place, 0) for place in range(len(held)))
    metadata = LogMetadata(name, segments, first_segment_number=first, next_segment_number=first + len(held))
    end = None if held[-1] is None else Position(segments[-1].number, held[-1])
    contents = {
        segment.number: None if count is None else Contents(count, 5 * count)
        for segment, count in zip(segments, held, strict=True)
    }
    entries = None if None in held else sum(filter(None, held))
    return LogSummary(metadata, state=LedgerState.OPEN, end=end, entries=entries, held=contents, **known)  # type: ignore[arg-type]


def listing(*names: str, are_more: bool = False, bookies: frozenset[str] = frozenset()) -> LogListing:
    return LogListing(names, are_more, bookies)


def with_cursor(name: str, lag: CursorLag) -> LogSummary:
    cursor = CursorRecord(name, "billing-of-a-long-name", Position(1, 7))
    return attrs.evolve(
        summary(name), cursors=(cursor,), lags={cursor.name: lag}, size_bytes=3 << 20, writer="worker-1"
    )


@pytest.mark.parametrize(
    ("before", "after", "rate"),
    [
        (summary(held=(10,)), summary(held=(30,)), 10.0),
        (summary(held=(10,)), summary(held=(10,)), 0.0),
        (summary(held=(10,)), summary(held=(12, 8)), 5.0),  # rolled meanwhile
        (summary(held=(3, 10)), summary(first=2, held=(14,)), 2.0),  # trimmed meanwhile
        (summary(held=(3, 10)), summary(first=2, held=(14, 0, 6)), 5.0),  # both
        (summary(held=(10,)), summary(first=2, held=(14,)), None),  # what was there is gone, and nobody counted it
        (summary(held=(10,)), summary(held=(None, 4)), None),
        (summary(held=(None,)), summary(held=(14,)), None),
        (summary(held=(14,)), summary(held=(None,)), None),
        (summary(held=(14,)), summary(held=(1,)), None),  # fewer bookies answered
        (summary(held=(14,)), summary(first=2, held=(1,)), None),  # another log of this name
    ],
)
def test_rate_follows_from_two_looks(before: LogSummary, after: LogSummary, rate: float | None) -> None:
    logs = Logs()
    logs.listed(listing("orders"))
    assert logs.rows() == [LogRow(name="orders")]
    logs.summarized(before, 100.0)
    assert logs.rows()[0].entries_rate is None
    logs.summarized(after, 102.0)
    assert logs.rows()[0].entries_rate == rate
    appended = after.appended_since(before)
    assert (None if appended is None else appended.size_bytes) == (None if rate is None else 10 * rate)


def test_missing_bookies_of_a_written_log_are_counted() -> None:
    logs = Logs()
    logs.listed(listing("a", "b", "c", bookies=frozenset("124")))
    logs.summarized(summary("a", bookies=("1", "2", "3")), 1.0)
    logs.summarized(summary("b", bookies=("1", "2", "4")), 1.0)
    logs.summarized(summary("c"), 1.0)
    assert [row.absent_bookies for row in logs.rows()] == [1, 0, None]


def test_known_values_stay_when_a_look_fails() -> None:
    logs = Logs()
    logs.listed(listing("a", "b", are_more=True))
    logs.summarized(summary("a"), 1.0)
    logs.failed("a", "no answer")
    logs.failed("gone", "no answer")
    logs.summarized(summary("gone"), 1.0)
    [first, second] = logs.rows()
    assert (first.problem, first.state, first.entries_rate, second.state) == ("no answer", "open", None, "unknown")
    logs.listed(listing("b"))
    assert [row.name for row in logs.rows()] == ["b"]
    assert not logs.are_more


ROWS = [
    LogRow(name="audit", summary=with_cursor("audit", CursorLag(1234, 5 << 10, 75.0)), entries_rate=99.0),
    LogRow(name="orders", summary=with_cursor("orders", CursorLag(0, 0, 0.0)), entries_rate=12_345.0),
    LogRow(name="a-name-that-is-longer-than-its-column", summary=summary(held=(None,)), problem="bookies are away"),
    LogRow(name="zero", problem="not known within 3 s"),
]

GOLDEN_100 = """\
replog top  lmdb:/m  4 logs: 3 open, 1 unknown                                              12:34:56

log                   state        entries/s  entries       bytes  segments  slowest cursor     lag
a-name-that-is-long~  open                 -        -           -         1               -       -…
audit                 open                99       10     3.0 MiB         1  billing-of-a-l   1.23k
orders                open             12.3k       10     3.0 MiB         1  billing-of-a-l       0
zero                  unknown      not known within 3 s

q quit   p pause   s order: log   l bookies"""


def drawn(rows: list[LogRow], view: View, are_more: bool = False, problem: str = "") -> list[str]:
    return [line.plain.rstrip() for line in log_picture(rows, are_more, problem, view)]


def test_the_whole_picture() -> None:
    assert "\n".join(drawn(ROWS, View(100, 9, title="lmdb:/m", clock="12:34:56"))) == GOLDEN_100


def test_the_widest_has_everything() -> None:
    [_, _, headings, odd, first, *_] = drawn(ROWS, View(200, 9))
    assert " ".join(headings.split()) == (
        "log state entries/s entries bytes archived segments slowest cursor lag lag bytes behind droppable absent writer"
    )
    assert first.split()[-6:] == ["5.0", "KiB", "1m15s", "0", "-", "worker-1"]
    assert odd.endswith("bookies are away")


@pytest.mark.parametrize(("order", "first"), [("log", "a-name"), ("entries/s", "orders"), ("lag", "audit")])
def test_orders(order: str, first: str) -> None:
    sort = [each.name for each in LOG_ORDERS].index(order)
    lines = drawn(ROWS, View(100, 20, sort=sort))
    assert lines[3].startswith(first)
    assert f"s order: {order}   l bookies" in lines[-1]


@pytest.mark.parametrize("width", [1, 10, 60, 200])
@pytest.mark.parametrize("height", [1, 2, 5, 40])
def test_picture_never_exceeds_the_terminal(width: int, height: int) -> None:
    for rows in ([], ROWS, [attrs.evolve(ROWS[0], name=f"{number:032}") for number in range(100)]):
        for problem in ("", "no metastore"):
            lines = drawn(rows, View(width, height, title="x" * 50, clock="12:34:56"), True, problem)
            assert len(lines) <= height
            assert max(map(len, lines), default=0) <= width


def test_hidden_rows_are_counted() -> None:
    shown = "\n".join(drawn([attrs.evolve(ROWS[0], name=f"{number}") for number in range(100)], View(80, 15), True))
    assert "first 100 logs" in shown
    assert "... and 91 more" in shown
    assert "more are not looked at: replog log list --long" in shown
    assert "there is no log" in "\n".join(drawn([], View(80, 15)))
