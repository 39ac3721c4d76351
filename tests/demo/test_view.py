"""What people see meanwhile: control codes in a terminal and nowhere else, and only characters that can be shown."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from replog.demo import view as view_module
from replog.demo.view import View


class Clock:
    """The time of day, which goes on when told to."""

    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


def perform(console: Console, monkeypatch: pytest.MonkeyPatch) -> str:
    clock = Clock()
    monkeypatch.setattr(view_module, "time", clock)
    view = View(console)
    with view.status:
        view.heading("Act")
        view.step("leader [bold]1[/bold] appends")
        for entries in (1, 500, 1000):
            view.progress(entries, "at 1:999")
            clock.now_s += 1
        view.progress(1500, "at 1:999")
        view.done("leader 1 was killed")
        view.done("leader 2 lied", is_bad=True)
    console.file.flush()
    assert isinstance(console.file, io.TextIOWrapper)
    return console.file.buffer.getvalue().decode(console.file.encoding)


def console(*, encoding: str, is_terminal: bool) -> Console:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    return Console(
        file=file,
        force_terminal=is_terminal,
        width=100,
        _environ={"TERM": "xterm"},
        markup=False,
        emoji=False,
        highlight=False,
    )


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_plain_lines_are_shown_without_a_terminal(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = perform(console(encoding=encoding, is_terminal=False), monkeypatch)
    marks = ("✔", "✘") if encoding == "utf-8" else ("ok", "!!")
    assert text.splitlines() == [
        "",
        "Act",
        "  ..  leader [bold]1[/bold] appends: 500 entries, 499/s, at 1:999",
        "  ..  leader [bold]1[/bold] appends: 1,000 entries, 500/s, at 1:999",
        "  ..  leader [bold]1[/bold] appends: 1,500 entries, 500/s, at 1:999",
        f"  {marks[0]}  leader 1 was killed",
        f"  {marks[1]}  leader 2 lied",
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_cursor_comes_back_in_a_terminal(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = perform(console(encoding=encoding, is_terminal=True), monkeypatch)
    assert "\x1b[?25l" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert text.count("leader 1 was killed") == 1
    assert re.search(r"leader 2 lied", text)
