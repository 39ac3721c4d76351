"""Spark's jobs and a live app write to one log while processes are killed; and the judge of that, on wrong logs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from replog.protocol.model import Position
from replog.testing.history import Event
from tests.failures.actors import encode
from tests.failures.spark_counting import Waited, violations, why_fenced
from tests.failures.spark_rounds import FAULTS, campaign
from tests.servers.fixtures import need
from tests.servers.spark import missing

ROUNDS = 3


@pytest.mark.needs_spark
@pytest.mark.crash
@pytest.mark.long(is_sampled=False)  # twelve Javas and Pythons, for many minutes
async def test_every_row_is_there_once_when_processes_are_killed(tmp_path: Path) -> None:
    need(missing())
    counts, wrong = await campaign(tmp_path, 1, ROUNDS)
    assert not wrong, "\n".join(wrong)
    assert counts.keys() >= {f"{fault} killed" for fault in FAULTS}, counts
    assert counts["confirmed appends"] > 100


# -- the judge --------------------------------------------------------------------------------------------------------


def app(*payloads: str) -> list[bytes]:
    return [encode(f"app.1/0/{payload}") for payload in payloads]


def rows(job: str, *numbers: int) -> list[bytes]:
    return [f"{job} {number}".encode() for number in numbers]


def log_of(entries: Sequence[bytes]) -> list[tuple[Position, bytes]]:
    return [(Position(1, number), entry) for number, entry in enumerate(entries)]


def history(*confirmed: int) -> list[Event]:
    """The app has appended 1 and 2, which were confirmed at these entries of the log."""
    events = [Event(0.0, "app.1", "takeover began"), Event(0.1, "app.1", "served", segment=1)]
    for call, entry in enumerate(confirmed, start=1):
        events.append(Event(call, "app.1", "invoked", call, f"app.1/0/{call}"))
        events.append(Event(call + 0.5, "app.1", "confirmed", call, position=Position(1, entry)))
    return events


WANTED = {"batch-1": 2, "stream-1.0": 1}
ENTRIES = [*app("1"), *rows("batch-1", 0, 1), *app("2"), *rows("stream-1.0", 0)]


def test_judge_accepts_a_log_with_every_row_once() -> None:
    assert violations(log_of(ENTRIES), history(0, 3), WANTED) == []


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([*app("1"), *rows("batch-1", 0), *app("2"), *rows("stream-1.0", 0)], "batch-1: 1 of 2 rows are lost, 0 too many"),
        ([*ENTRIES, *rows("stream-1.0", 0)], "stream-1.0: 0 of 1 rows are lost, 1 too many"),
        ([*app("1"), *rows("batch-1", 1, 0), *app("2"), *rows("stream-1.0", 0)], "in another order"),
        ([*app("1"), *rows("batch-1", 0), *app("2"), *rows("batch-1", 1), *rows("stream-1.0", 0)], "others are between"),
        ([*ENTRIES, *rows("given_up-1.1", 0)], "given_up-1.1: 1 rows of a job that was not committed"),
        ([*ENTRIES, *rows("batch-2", 0)], "batch-2: 1 rows of a job that was not committed"),
        ([*ENTRIES, b"?"], "is of no job"),
        ([*app("1"), *rows("batch-1", 0, 1), b"x x", *rows("stream-1.0", 0)], "was confirmed at 1:3"),
        ([*ENTRIES, *app("2")], "2 times"),
    ],
    ids=["lost", "twice", "reordered", "torn", "given-up", "uncommitted", "stranger", "lost-append", "append-twice"],
)  # fmt: skip
def test_judge_finds_faults(entries: list[bytes], said: str) -> None:
    found = violations(log_of(entries), history(0, 3), WANTED)
    assert any(said in each for each in found), found


def test_judge_finds_entries_read_twice() -> None:
    entries = log_of(ENTRIES)
    assert violations([*entries, entries[-1]], history(0, 3), WANTED)


@pytest.mark.parametrize(
    ("waits", "faults", "served_s", "why"),
    [
        ([Waited(90, 95)], [], 0, "not answered in time"),
        ([Waited(90, 93)], [], 0, ""),
        ([Waited(10, 15)], [], 0, ""),
        ([Waited(98, 105)], [], 0, ""),
        ([], [(70, 80)], 0, "its announcement was lost"),
        ([], [(10, 20)], 0, ""),
        ([], [(101, 120)], 0, ""),
        ([], [], 98, "not announced yet"),
    ],
)
def test_why_a_commit_deposed_the_app_at_100_s(
    waits: list[Waited], faults: list[tuple[float, float]], served_s: float, why: str
) -> None:
    assert why_fenced(100.0, served_s, waits, faults) == why
