"""Embedded logs for commands to work on, and the commands themselves as processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import trio

import replog
from tests.cli.test_inspect import COMMAND
from tests.forks import run

Replog = Callable[..., tuple[int, str, str]]  # the fixture `typed`: arguments; status, output, errors

SIX = [b"one", b"two", b"three", b"four", b"", b"six"]


def make_log(
    path: Path,
    *segments: Sequence[bytes],
    name: str = "log",
    password: bytes = b"",
    storage: str = "files",
    page_segments: int = 100,
) -> Path:
    """An embedded log in a directory, with these entries in its segments. Gives the directory."""

    async def write() -> None:
        async with replog.embed(path, storage=storage) as client:
            client._opened.logs.page_segments = page_segments
            async with client.write_log(name, password=password) as log:
                await log.extend(segments[0])
                for entries in segments[1:]:
                    await log.roll()
                    await log.extend(entries)

    trio.run(write)
    return path


def entries_of(path: Path, name: str = "log", password: bytes = b"") -> list[bytes]:
    """What the log in this directory holds."""

    async def read() -> list[bytes]:
        async with replog.embed(path) as client, client.read_log(name, password=password) as reader:
            return [record.data async for record in reader]

    return trio.run(read)


def command(*arguments: str | Path) -> list[str]:
    """The real command, for a process of its own."""
    return [*COMMAND, *map(str, arguments)]


def finish(*arguments: str | Path, given: bytes = b"") -> tuple[int, bytes, str]:
    """Runs it with this on its standard input: exit status, output, errors."""
    done = run(command(*arguments), given=given, text=False)
    errors = done.stderr.decode()
    assert "Traceback" not in errors
    return done.returncode, done.stdout, errors
