"""What all tests of the command share."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from typer.main import get_command

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
