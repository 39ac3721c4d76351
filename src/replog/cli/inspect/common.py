"""The shared part of the inspections: finding the directory, printing problems, and the exit status."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import attrs
import typer

from replog.backends.files.directory import FORMAT_NAME as FILES_FORMAT_NAME
from replog.backends.inspection.read_only import format_name
from replog.cli.output import emit
from replog.errors import ConfigError

if TYPE_CHECKING:
    from replog.backends.files.inspecting import Place
    from replog.backends.inspection.reports import Problem

LMDB_FORMAT_NAME = "replog lmdb storage"

JournalDir = Annotated[
    str | None,
    typer.Option("--journal-dir", metavar="DIR", help="Where the journal is, if the storage has it elsewhere."),
]
PathArgument = Annotated[str, typer.Argument(metavar="PATH", help="A storage's directory, one within it, or one file.")]
Directory = Annotated[str, typer.Argument(metavar="DIR", help="A storage's directory.")]


def files_place(path: str, journal_dir: str | None) -> Place:
    """A place of the files storage. Raises `ConfigError` that says what can be inspected, if it is another storage's."""
    # Imported here: commands that inspect nothing take their options from this file, too.
    from replog.backends.files.inspecting import find_place

    name = format_name(path)
    if name == LMDB_FORMAT_NAME:
        raise ConfigError(
            f"{path} is a {name}: it has no such files; of it there are `inspect ledger` and `bookie info`"
        )
    # None: a single file, or a directory whose format file is lost, which is worth looking into all the more.
    if name not in (None, FILES_FORMAT_NAME):
        raise ConfigError(f"{path} is a {name!r}: this cannot inspect it")
    return find_place(path, journal_dir)


def is_lmdb(path: str, journal_dir: str | None) -> bool:
    """Whether this is a storage of LMDB. Raises `ConfigError` if a journal was named for it."""
    if format_name(path) != LMDB_FORMAT_NAME:
        return False
    if journal_dir is not None:
        raise ConfigError(f"{path} is a {LMDB_FORMAT_NAME}: it has no journal; leave --journal-dir out")
    return True


def as_json(report: attrs.AttrsInstance) -> dict[str, object]:
    """A report as an object of JSON."""
    return attrs.asdict(report)


def tell(problems: Sequence[Problem], shown_max: int = 50) -> None:
    """Prints problems for people, one in a line."""
    for problem in problems[:shown_max]:
        emit(f"{problem}\n")
    if len(problems) > shown_max:
        emit(f"... and {len(problems) - shown_max} more\n")


def end(problems: Iterable[Problem]) -> None:
    """Ends the command with status 1 if any of these is damage."""
    if any(problem.is_damage for problem in problems):
        raise typer.Exit(1)
