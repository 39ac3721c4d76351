"""What people see: control codes in a terminal and nowhere else, and only characters that can be shown."""

from __future__ import annotations

import io
import re

import pytest
import trio
import trio.testing
from rich.console import Console

from replog.demo.results import ActResult, Rate, Takeover
from replog.demo.summary import summary
from replog.demo.verdict import Findings
from replog.demo.view import View


async def perform(console: Console) -> None:
    async with trio.open_nursery() as nursery:
        with View(console) as view:
            nursery.start_soon(view.animate)
            view.heading("Act")
            view.step("leader [bold]1[/bold] appends")
            for entries in (1, 500, 1000):
                view.progress(entries, "1:999", in_flight=3, fraction=entries / 1000)
                await trio.sleep(1)
            view.done("leader 1 was killed")
            view.done("leader 2 lied", bad=True)
        nursery.cancel_scope.cancel()


def console(*, encoding: str, is_terminal: bool) -> Console:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    environment = {"TERM": "xterm"}
    return Console(
        file=file,
        force_terminal=is_terminal,
        width=100,
        _environ=environment,
        markup=False,
        emoji=False,
        highlight=False,
    )


def written(console: Console) -> str:
    console.file.flush()
    assert isinstance(console.file, io.TextIOWrapper)
    return console.file.buffer.getvalue().decode(console.file.encoding)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
async def test_without_a_terminal_there_are_plain_lines(
    encoding: str, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replog.demo.view.time.monotonic", trio.current_time)
    target = console(encoding=encoding, is_terminal=False)
    await perform(target)
    marks = ("✔", "✘") if encoding == "utf-8" else ("ok", "!!")
    assert written(target).splitlines() == [
        "",
        "Act",
        "  ..  leader [bold]1[/bold] appends: 500 entries, 499/s, at 1:999",
        "  ..  leader [bold]1[/bold] appends: 1,000 entries, 500/s, at 1:999",
        f"  {marks[0]}  leader 1 was killed",
        f"  {marks[1]}  leader 2 lied",
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
async def test_in_a_terminal_the_picture_moves(
    encoding: str, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replog.demo.view.time.monotonic", trio.current_time)
    target = console(encoding=encoding, is_terminal=True)
    await perform(target)
    shown = written(target)
    assert "\x1b[?25l" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l"), "the cursor must come back"
    assert "leader [bold]1[/bold] appends" in shown
    assert re.search(r"\d entries/s", shown)
    assert "1,000" in shown
    assert "3 in flight" in shown
    assert shown.count("leader 1 was killed") == 1


def test_the_table_says_failed_in_words() -> None:
    act = ActResult(
        title="Act one: a test",
        confirmed_by_first=5,
        in_flight=2,
        survived=1,
        takeover=Takeover(0.5, 0.25, 0.125, 0.125, 2),
        first_rate=Rate(10, 1.0),
        second_rate=Rate(20, 1.0),
        findings=Findings(6, 5, 500, "a" * 64, "b" * 64, ("missing: one",)),
    )
    target = console(encoding="utf-8", is_terminal=False)
    target.print(summary([act]))
    shown = written(target)
    assert "FAILED" in shown
    assert "WRONG" in shown
    assert "1.000 s" in shown
    assert "PASSED" not in shown
    assert act.to_json()["passed"] is False
    assert (act.to_json()["entries_per_s"], act.to_json()["bytes_per_s"]) == (15.0, 1500.0)
