"""The judge lets a good history pass, and catches each way to break a rule: one hand-made history for each."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from replog.protocol.model import Position
from replog.testing import History, check_history, read_histories
from replog.testing.history import RULES, Event, HistoryError, latencies_s, quantile
from tests.forks import Forked

Final = list[tuple[Position, str]]


def at(text: str) -> Position:
    return Position.parse(text)


class Story:
    """A history in memory: each event is a second after the one before."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._seconds = itertools.count(1)
        self._calls: dict[str, int] = {}

    def tell(self, actor: str, kind: str, **details: object) -> None:
        self.events.append(Event(float(next(self._seconds)), actor, kind, **details))  # type: ignore[arg-type]

    def serve(self, actor: str, segment: int) -> None:
        self.tell(actor, "takeover began")
        self.tell(actor, "served", segment=segment)

    def invoke(self, actor: str, payload: str) -> int:
        call = self._calls[actor] = self._calls.get(actor, 0) + 1
        self.tell(actor, "invoked", call=call, payload=payload)
        return call

    def confirm(self, actor: str, call: int, position: str) -> None:
        self.tell(actor, "confirmed", call=call, position=at(position))

    def append(self, actor: str, payload: str, position: str) -> None:
        self.confirm(actor, self.invoke(actor, payload), position)

    def read(self, actor: str, *seen: tuple[str, str], after: str | None = None) -> None:
        self.tell(actor, "reading", position=None if after is None else at(after))
        for position, payload in seen:
            self.tell(actor, "saw", position=at(position), payload=payload)


def good() -> tuple[Story, Final]:
    """Two writers and a reader: a is confirmed, b unknown and kept, c unknown and lost; then d by the next writer."""
    story = Story()
    story.serve("one", 1)
    story.append("one", "a", "1:0")
    b, c = story.invoke("one", "b"), story.invoke("one", "c")
    story.serve("two", 2)
    story.tell("one", "unknown", call=b)
    story.tell("one", "unknown", call=c)
    story.tell("one", "fenced")
    story.invoke("one", "e")  # after it: nobody heard of it again
    story.append("two", "d", "2:0")
    story.read("reader", ("1:0", "a"), ("1:1", "b"), ("2:0", "d"))
    return story, [(at("1:0"), "a"), (at("1:1"), "b"), (at("2:0"), "d")]


def test_a_good_history_passes() -> None:
    story, final = good()
    assert check_history(story.events, final) == []


def test_late_or_partial_reader_passes() -> None:
    story, final = good()
    story.read("late", ("2:0", "d"), after="1:1")
    story.read("short", ("1:0", "a"))
    story.read("not yet")
    assert check_history(story.events, final) == []


def test_entries_in_flight_at_a_takeover_may_be_confirmed_late() -> None:
    """The bookies' answers were there, the writer was stopped: the entry was recovered, and stands before the next one's."""
    story = Story()
    story.serve("one", 1)
    call = story.invoke("one", "a")
    story.serve("two", 2)
    story.append("two", "b", "2:0")
    story.confirm("one", call, "1:0")
    assert check_history(story.events, [(at("1:0"), "a"), (at("2:0"), "b")]) == []


def lost(story: Story, final: Final) -> None:
    del final[0]


def moved(story: Story, final: Final) -> None:
    story.append("two", "f", "2:1")
    final.append((at("2:2"), "f"))


def changed(story: Story, final: Final) -> None:
    final[0] = (at("1:0"), "A")


def doubled(story: Story, final: Final) -> None:
    final.append((at("2:1"), "b"))


def one_place_twice(story: Story, final: Final) -> None:
    final.append(final[-1])


def never_appended(story: Story, final: Final) -> None:
    final.append((at("2:1"), "x"))


def said_not_to_be_written(story: Story, final: Final) -> None:
    story.tell("two", "not written", call=story.invoke("two", "f"))
    final.append((at("2:1"), "f"))


def calls_exchanged(story: Story, final: Final) -> None:
    story.invoke("two", "f")
    story.invoke("two", "g")
    final += [(at("2:1"), "g"), (at("2:2"), "f")]


def read_backwards(story: Story, final: Final) -> None:
    final.reverse()


def left_out(story: Story, final: Final) -> None:
    story.invoke("two", "f")
    story.invoke("two", "g")
    final.append((at("2:1"), "g"))


def before_what_was_confirmed(story: Story, final: Final) -> None:
    story.append("two", "f", "2:2")
    story.serve("three", 3)
    story.invoke("three", "g")
    final += [(at("2:1"), "g"), (at("2:2"), "f")]


def confirmed_after_the_next_served(story: Story, final: Final) -> None:
    story.serve("three", 3)
    story.append("two", "f", "2:1")
    final.append((at("2:1"), "f"))


def confirmed_after_it_was_fenced(story: Story, final: Final) -> None:
    story.tell("two", "fenced")
    story.append("two", "f", "2:1")
    final.append((at("2:1"), "f"))


def behind_the_next_ones_entries(story: Story, final: Final) -> None:
    story.invoke("two", "f")
    story.serve("three", 3)
    story.append("three", "g", "3:0")
    final += [(at("3:0"), "g"), (at("3:1"), "f")]


def appended_without_serving(story: Story, final: Final) -> None:
    story.invoke("three", "f")


def read_with_a_gap(story: Story, final: Final) -> None:
    story.read("other", ("1:0", "a"), ("2:0", "d"))


def read_twice(story: Story, final: Final) -> None:
    story.read("other", ("1:0", "a"), ("1:0", "a"))


def read_what_vanished(story: Story, final: Final) -> None:
    story.read("other", ("1:0", "a"), ("1:1", "b"), ("1:2", "c"))


def read_otherwise(story: Story, final: Final) -> None:
    story.read("other", ("1:0", "z"))


def skipped_the_first(story: Story, final: Final) -> None:
    story.read("other", ("1:1", "b"))


def read_after_what_is_not_there(story: Story, final: Final) -> None:
    story.read("other", after="1:7")


def read_before_it_was_appended(story: Story, final: Final) -> None:
    story.read("other", *[(str(position), payload) for position, payload in final], ("2:1", "f"))
    story.invoke("two", "f")
    final.append((at("2:1"), "f"))


BROKEN: list[tuple[str, Callable[[Story, Final], None]]] = [
    ("lost", lost),
    ("lost", moved),
    ("lost", changed),
    ("twice", doubled),
    ("twice", one_place_twice),
    ("foreign", never_appended),
    ("foreign", said_not_to_be_written),
    ("order", calls_exchanged),
    ("order", read_backwards),
    ("hole", left_out),
    ("real time", before_what_was_confirmed),
    ("deposed", confirmed_after_the_next_served),
    ("deposed", confirmed_after_it_was_fenced),
    ("deposed", behind_the_next_ones_entries),
    ("deposed", appended_without_serving),
    ("readers", read_with_a_gap),
    ("readers", read_twice),
    ("readers", read_what_vanished),
    ("readers", read_otherwise),
    ("readers", skipped_the_first),
    ("readers", read_after_what_is_not_there),
    ("readers", read_before_it_was_appended),
]


@pytest.mark.parametrize(("rule", "breaks"), BROKEN, ids=lambda each: getattr(each, "__name__", None))
def test_broken_rule_is_found(rule: str, breaks: Callable[[Story, Final], None]) -> None:
    story, final = good()
    breaks(story, final)
    findings = check_history(story.events, final)
    assert rule in {finding.rule for finding in findings}, findings


def test_each_rule_has_a_breaking_history() -> None:
    assert {rule for rule, _ in BROKEN} == set(RULES)


def test_a_few_findings_of_a_rule_are_enough() -> None:
    final = [(Position(1, number), f"x{number}") for number in range(100)]
    findings = check_history([], final)
    assert [finding.rule for finding in findings] == ["foreign"] * 6
    assert findings[-1].text == "and more"


@pytest.mark.parametrize(
    ("kind", "details"),
    [
        ("confirmed", {"call": 1, "position": at("1:0")}),
        ("invoked", {"call": 2, "payload": "x"}),
        ("saw", {"position": at("1:0"), "payload": "x"}),
        ("guessed", {}),
    ],
)
def test_impossible_history_is_refused(kind: str, details: dict[str, object]) -> None:
    story = Story()
    story.tell("one", kind, **details)
    with pytest.raises(HistoryError):
        check_history(story.events, [])


def test_a_payload_is_appended_once_and_a_takeover_is_an_actor() -> None:
    story, final = good()
    story.invoke("two", "a")
    with pytest.raises(HistoryError, match="appended before"):
        check_history(story.events, final)
    story, final = good()
    story.serve("two", 3)
    with pytest.raises(HistoryError, match="must be another actor"):
        check_history(story.events, final)


# -- files --------------------------------------------------------------------------------------------------------


def test_a_history_is_read_back_in_the_order_of_time(tmp_path: Path) -> None:
    seconds = iter(range(100))
    with (
        History(tmp_path / "one", "one", lambda: float(next(seconds))) as writer,
        History(tmp_path / "reader", "reader", lambda: float(next(seconds))) as reader,
    ):
        writer.takeover_began()
        writer.served(7)
        call = writer.invoked("a")
        reader.reading(None)
        writer.confirmed(call, at("7:0"))
        reader.saw(at("7:0"), "a")
        writer.unknown(writer.invoked("b"), TimeoutError("too slow"))
        writer.not_written(writer.invoked("c"), ValueError("no entry"))
        writer.fenced(ValueError("deposed"))
        reader.note("it is late")
    events = read_histories([tmp_path / "reader", tmp_path / "one"])
    assert [event.at_s for event in events] == [float(number) for number in range(12)]
    assert events[1].segment == 7
    assert events[4].position == at("7:0")
    assert events[7].detail == "TimeoutError: too slow"
    assert check_history(events, [(at("7:0"), "a")]) == []


WRITER = """
import itertools, sys
from replog.testing import History
history = History(sys.argv[1], "one")
history.served(1)
print("ready", flush=True)
for number in itertools.count():
    history.invoked(f"payload {number}")
"""


def test_a_killed_process_leaves_a_readable_file(tmp_path: Path) -> None:
    path = tmp_path / "history"
    with Forked([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        while path.stat().st_size < 10_000:
            os.sched_yield()
        process.kill()
        assert process.wait() == -signal.SIGKILL
    events = read_histories([path])
    assert [event.call for event in events[1:]] == list(range(1, len(events)))
    assert check_history(events, []) == []


def test_a_torn_last_line_is_left_out_and_other_damage_is_not(tmp_path: Path) -> None:
    path = tmp_path / "history"
    with History(path, "one") as history:
        history.served(1)
        history.invoked("a")
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    assert [event.kind for event in read_histories([path])] == ["served"]
    path.write_bytes(b"{" + whole)
    with pytest.raises(HistoryError, match="line 1"):
        read_histories([path])


def test_latencies_are_of_calls_begun_in_a_span_of_time() -> None:
    story, _ = good()  # a is invoked at 3 and confirmed at 4, d at 12 and 13
    assert latencies_s(story.events) == [1.0, 1.0]
    assert latencies_s(story.events, 4.0) == [1.0]
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 3.0
    assert quantile([1.0, 2.0], 0.99) == 2.0
    with pytest.raises(ValueError, match="no appends"):
        quantile(latencies_s(story.events, 20.0), 0.99)
