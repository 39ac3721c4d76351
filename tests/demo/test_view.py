"""What people see: control codes in a terminal and nowhere else, and only characters that can be shown."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
import trio
import trio.testing
from rich.console import Console

from replog.demo.results import ActResult, Rate, Reading, Result, Takeover
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
                view.progress(entries, "1:999", in_flight=3, followed=7, fraction=entries / 1000)
                await trio.sleep(1)
            view.done("leader 1 was killed")
            view.done("leader 2 lied", bad=True)
        nursery.cancel_scope.cancel()


def console(*, encoding: str, is_terminal: bool, width: int = 100) -> Console:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    environment = {"TERM": "xterm"}
    return Console(
        file=file,
        force_terminal=is_terminal,
        width=width,
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
    assert "3 in flight, the follower at 7" in shown
    assert shown.count("leader 1 was killed") == 1


def act(title: str, **more: Any) -> ActResult:
    return ActResult(title=title, confirmed=5, in_flight=2, stalled_s=0.25, rate=Rate(10, 1.0), **more)


def result(*faults: str) -> Result:
    takeover = Takeover(0.5, 0.25, 0.125, 0.125, 2)
    acts = [
        act("Act one: a test", survived=1, takeover=takeover),
        act("Act two: another", replaced_s=0.0625, faults=faults),
    ]
    read = 5 if faults else 6
    digests = ("a" * 64, "b" * 64) if faults else ("a" * 64, "a" * 64)
    return Result(acts, Reading(Findings(6, read, 500, *digests, faults), 6, digests[1], 0.5))


def test_the_tables_say_failed_in_words() -> None:
    target = console(encoding="utf-8", is_terminal=False)
    failed = result("missing: one")
    target.print(summary(failed, 100))
    shown = written(target)
    assert shown.count("FAILED") == 2
    assert shown.count("PASSED") == 1
    assert "WRONG" in shown
    assert "1.000 s" in shown
    assert "0.062 s" in shown
    assert failed.faults == (
        "Act two: another: missing: one",
        "The log: missing: one",
        "The log: the follower read 6 entries, and 5 were read back",
    )
    found = failed.to_json()
    assert (found["passed"], found["log"]["passed"]) == (False, False)
    assert [each["passed"] for each in found["acts"]] == [True, False]
    assert (found["entries_per_s"], found["bytes_per_s"]) == (10.0, 1000.0)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_tables_fit_in_a_terminal(width: int) -> None:
    target = console(encoding="utf-8", is_terminal=False, width=width)
    target.print(summary(result(), width))
    lines = written(target).splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    assert sum("appends stalled" in line for line in lines) == (2 if width == 40 else 1)
    assert result().faults == ()
