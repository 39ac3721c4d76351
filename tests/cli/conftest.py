"""What all tests of the command share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from typer.main import get_command

from replog import cli
from replog.cli import commands


@pytest.fixture(scope="session", autouse=True)
def _commands_are_made_once() -> Iterator[None]:
    """A process makes the one that is asked of it, in ten milliseconds; tests run hundreds in one process."""
    make = commands._Commands.get_command

    @cache
    def made(name: str) -> Any:
        return make(whole, None, name)

    whole: Any = get_command(commands.app)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commands._Commands, "get_command", lambda self, ctx, name: made(name))
        yield


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs `replog`: its exit status, and what it printed."""

    def command(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["replog", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        shown = capsys.readouterr()
        return int(ended.value.code or 0), shown.out, shown.err

    return command
