"""How the help of all commands looks: `-h` as well as `--help`, no type beside an option without a value, whole paragraphs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

Function = TypeVar("Function", bound=Callable[..., Any])

HELP_NAMES = {"help_option_names": ["-h", "--help"]}


class Command(TyperCommand):
    """A command. Typer would show `<bool>` beside each of its flags, and beside `--help`."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.help = _in_paragraphs(self.help)

    def get_params(self, ctx: Any) -> Any:
        return _without_types_of_flags(super().get_params(ctx))


class Group(TyperGroup):
    """A command that has commands."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.help = _in_paragraphs(self.help)

    def get_params(self, ctx: Any) -> Any:
        return _without_types_of_flags(super().get_params(ctx))


class App(typer.Typer):
    """A `Typer` whose commands are `Command`s. Tracebacks stay Python's own: typer's show the values of variables."""

    def __init__(self, *, cls: type[Group] = Group, **settings: Any) -> None:
        defaults = {"add_completion": False, "pretty_exceptions_enable": False, "context_settings": HELP_NAMES}
        super().__init__(cls=cls, **{**defaults, **settings})

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Function], Function]:
        """A decorator for the function that is this command."""
        return super().command(name, **{"cls": Command, **settings})


def _in_paragraphs(text: str | None) -> str | None:
    """A docstring without the line breaks of its source, which would stay in all paragraphs but the first."""
    if text is None:
        return None
    return "\n\n".join(" ".join(each.split()) for each in inspect.cleandoc(text).split("\n\n"))


def _without_types_of_flags(parameters: Any) -> Any:
    for each in parameters:
        if getattr(each, "is_flag", False):
            each.metavar = ""
    return parameters
