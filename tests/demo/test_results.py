"""What is computed from the histories, and the tables that people see."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from replog.demo.results import Act, Evidence, Result
from replog.demo.view import show_result
from replog.protocol.model import Position
from replog.testing import Finding
from replog.testing.history import Event

PARTS = {"start_s": 0.5, "recovery_s": 0.25, "replay_s": 0.125, "append_s": 0.125}


def append(actor: str, call: int, invoked_s: float, outcome: str = "", ended_s: float = 0.0) -> list[Event]:
    found = [Event(invoked_s, actor, "invoked", call, f"{actor} {call}")]
    return [*found, Event(ended_s, actor, outcome, call)] if outcome else found


def evidence() -> Evidence:
    """Leader 1 gets two of four entries confirmed until it is killed at 3.5; leader 2 finds a third, and appends two more."""
    events = [
        *append("leader 1", 1, 1.0, "confirmed", 2.0),
        *append("leader 1", 2, 1.5, "confirmed", 3.0),
        *append("leader 1", 3, 2.5),
        *append("leader 1", 4, 2.6),
        *append("leader 2", 1, 5.0, "confirmed", 5.5),
        *append("leader 2", 2, 5.2, "not written", 5.7),
        *append("leader 2", 3, 5.6, "confirmed", 6.0),
        *(Event(6.0 + number, "follower", "saw") for number in range(5)),
    ]
    payloads = ["leader 1 1", "leader 1 2", "leader 1 3", "leader 2 1", "leader 2 3"]
    final = [(Position(1, number), payload) for number, payload in enumerate(payloads)]
    return Evidence(sorted(events, key=lambda event: event.at_s), final)


def result(*findings: Finding, faults: tuple[str, ...] = ()) -> Result:
    acts = [
        Act("Act one: a test", "leader 1", 3.5, "leader 1", {"total": 1.0, **PARTS}),
        Act("Act two: another", "leader 2", 5.65, "leader 2", bookie_replaced_s=0.0625, faults=faults),
    ]
    return Result(acts, evidence(), findings)


def shown(result: Result, width: int = 100) -> str:
    file = io.StringIO()
    show_result(Console(file=file, width=width, markup=False, emoji=False, highlight=False), result)
    return file.getvalue()


def test_evidence_includes_entries_in_flight() -> None:
    found = evidence()
    assert found.confirmed() == 4
    assert found.confirmed(2.5) == 1
    assert found.in_flight("leader 1", 1.7) == {"leader 1 1", "leader 1 2"}
    assert found.in_flight("leader 1", float("inf")) == {"leader 1 3", "leader 1 4"}
    assert found.in_flight("leader 2", float("inf")) == set()
    assert found.in_flight("leader 2", 5.65) == {"leader 2 2", "leader 2 3"}
    assert (found.followed, found.behind_s) == (5, 4.0)


def test_evidence_measures_stalls_and_rates() -> None:
    found = evidence()
    assert found.stalled_s(3.5, 5.6) == 2.5
    assert found.stalled_s(5.6, 9.0) == 0.5
    assert found.stalled_s(7.0, 9.0) == 0.0
    assert found.rate("leader 1") == 2.0
    assert found.rate("leader 1", "leader 2") == pytest.approx(4 / 1.5)
    assert found.rate("nobody") == 0.0


def test_result_is_data_for_programs() -> None:
    found = result().to_json()
    first, second = found["acts"]
    expected: dict[str, Any] = {
        "title": "Act one: a test",
        "passed": True,
        "faults": [],
        "entries_confirmed": 2,
        "entries_in_flight": 2,
        "entries_in_flight_survived": 1,
        "stalled_s": 2.5,
        "takeover_s": {"total": 1.0, **PARTS},
        "bookie_replaced_s": None,
        "leader_learnt_s": None,
        "entries_in_doubt": None,
        "entries_per_s": 2.0,
    }
    assert first == expected
    assert (second["entries_confirmed"], second["entries_in_flight"], second["takeover_s"]) == (3, 2, None)
    assert second["bookie_replaced_s"] == 0.0625
    assert (found["passed"], found["log"]["passed"]) == (True, True)
    assert (found["log"]["entries_confirmed"], found["log"]["entries_read"]) == (4, 5)
    assert found["bytes_per_s"] == pytest.approx(found["entries_per_s"] * 10)


def test_tables_say_failed_in_words() -> None:
    failed = result(Finding("lost", "one is missing"), faults=("nothing happened",))
    text = shown(failed)
    assert failed.faults == ["Act two: another: nothing happened", "The log: lost: one is missing"]
    assert all(fault in text for fault in failed.faults)
    assert text.count("FAILED") == 2
    assert text.count("PASSED") == 1
    assert "Every confirmed entry is there" not in text
    found = failed.to_json()
    assert (found["passed"], found["log"]["passed"]) == (False, False)
    assert [act["passed"] for act in found["acts"]] == [True, False]


def test_finding_alone_fails_the_demonstration() -> None:
    assert not result(Finding("lost", "one is missing")).to_json()["passed"]
    assert "Every confirmed entry is there: once, unchanged, in order." in shown(result())


@pytest.mark.parametrize("width", [40, 80, 120])
def test_tables_fit_in_a_terminal(width: int) -> None:
    lines = shown(result(), width).splitlines()
    assert max(len(line) for line in lines if line.startswith(("│", "╭"))) <= width
    assert "…" not in "".join(lines)
    assert sum("appends stalled" in line for line in lines) == (2 if width == 40 else 1)
