"""What the leaders append: lines, the same ones in the same order for everybody who asks, and never an end of them."""

from __future__ import annotations

import os
import platform
import sysconfig
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import attrs

from replog.errors import ConfigError

LINE_BYTES_MAX = 1 << 20  # what is longer is cut into several
SPOOLED_BYTES_MAX = 64 << 20
_PIECE_BYTES = 1 << 20
_SKIPPED = {"site-packages", "dist-packages", "__pycache__"}


@attrs.frozen
class Input:
    """The lines of a file, or else of the sources of Python's standard library; over again when they are used up.

    A line has its line end, so the entries of a log put together are the input, byte for byte."""

    path: Path | None = None
    name: str = ""  # for people, where the path is that of a copy

    def lines(self, start: int = 0) -> Iterator[bytes]:
        """The lines from number `start` on, without end. Those before it are skipped before this returns.

        Raises `ConfigError`, as the iterator does too, if there are none or they can't be read."""
        lines = self._lines_over_and_over()
        next(islice(lines, start, start), None)
        return lines

    def _lines_over_and_over(self) -> Iterator[bytes]:
        while True:
            is_empty = True
            for line in self._lines_once():
                is_empty = False
                yield line
            if is_empty:
                raise ConfigError(f"input {self}: has no line; name another one with --input")

    def _lines_once(self) -> Iterator[bytes]:
        paths = [self.path] if self.path is not None else _standard_library()
        for path in paths:
            try:
                with open(path, "rb") as file:
                    yield from iter(partial(file.readline, LINE_BYTES_MAX), b"")
            except OSError as error:
                raise ConfigError(f"input {path}: cannot be read: {error.strerror}") from error

    def __str__(self) -> str:
        if self.path is not None:
            return f"the lines of {self.name or self.path}"
        return f"the standard library's sources of Python {platform.python_version()}"


def _standard_library() -> Iterator[Path]:
    """Python's own sources in an order that depends on their names alone."""
    for directory, below, names in os.walk(sysconfig.get_path("stdlib")):
        below[:] = sorted(set(below) - _SKIPPED)
        yield from (Path(directory, name) for name in sorted(names) if name.endswith(".py"))


def spool(source: BinaryIO, target: Path, what: str) -> bool:
    """Copies an input, so that it is the same for all who read it; False if only its beginning was taken.

    Raises `ConfigError` if it is empty or can't be read."""
    copied = 0
    try:
        with open(target, "wb") as copy:
            while copied < SPOOLED_BYTES_MAX and (piece := source.read(min(_PIECE_BYTES, SPOOLED_BYTES_MAX - copied))):
                copied += copy.write(piece)
            is_whole = copied < SPOOLED_BYTES_MAX or not source.read(1)
    except OSError as error:
        raise ConfigError(f"input {what}: cannot be copied to {target}: {error.strerror}") from error
    if not copied:
        raise ConfigError(f"input {what}: is empty; name another one with --input")
    return is_whole
