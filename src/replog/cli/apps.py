"""How the help of all commands looks: `-h` as well as `--help`, no type beside an option without a value, whole paragraphs.

And how they start: typer reads every value with pydantic, which takes longer to import than the rest of a command. Text needs no
reading, and neither does an option that is not given.
"""

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
        return _as_ours(super().get_params(ctx))


class Group(TyperGroup):
    """A command that has commands."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.help = _in_paragraphs(self.help)

    def get_params(self, ctx: Any) -> Any:
        return _as_ours(super().get_params(ctx))


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


def _as_ours(parameters: Any) -> Any:
    """The same parameters, without a type beside flags, and with values that are read as needed."""
    for each in parameters:
        if getattr(each, "is_flag", False):
            each.metavar = ""
        _read_as_needed(each)
    return parameters


# -- values -------------------------------------------------------------------------------------------------------


class _ReadAsNeeded:
    """Reads the values of one parameter; asks typer, which imports pydantic, only for a value that is not text."""

    def __init__(self, typers: Callable[[], Any], takes_text: bool) -> None:
        self._typers = typers
        self._takes_text = takes_text

    def __call__(self) -> _ReadAsNeeded:
        """Itself, where typer would make its own."""
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value as the command's function takes it."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if self._takes_text:
            if isinstance(value, str):
                return value
            if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
                return list(value)
        return self._typers().coerce(value, param=param, ctx=ctx)


def _read_as_needed(parameter: Any) -> None:
    # Versions of typer that don't use pydantic have neither of these.
    typers, kind = getattr(parameter, "get_runtime_param", None), getattr(parameter, "type_descriptor", None)
    if typers is not None and kind is not None and not isinstance(typers, _ReadAsNeeded):
        takes_text = kind.annotation in (str, list[str]) and kind.parameter_info.parser is None
        parameter.get_runtime_param = _ReadAsNeeded(typers, takes_text)
