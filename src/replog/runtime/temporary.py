"""A temporary directory for a program's own use, with errors for the person who runs it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from replog.errors import ConfigError, ReplogError
from replog.runtime.threads import run_in_thread


@asynccontextmanager
async def temporary_directory(prefix: str, *, option: str, failed: type[ReplogError]) -> AsyncIterator[Path]:
    """A directory whose name begins so, removed with all that is in it on leaving, even if cancelled.

    Raises `ConfigError` if none can be made: `option` is how to name one instead; and `failed` if it can't be removed."""
    try:
        directory = Path(tempfile.mkdtemp(prefix=prefix))
    except OSError as error:
        raise ConfigError(f"no temporary directory can be made: {error}; name one with {option}") from error
    try:
        yield directory
    finally:
        with trio.CancelScope(shield=True):
            try:
                await run_in_thread(shutil.rmtree, directory)
            except OSError as error:
                raise failed(f"{directory}: cannot be removed: {error}; remove it yourself") from error
