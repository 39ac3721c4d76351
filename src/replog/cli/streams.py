"""Standard input and output in a trio run: bytes, read and written by threads, so that a slow pipe stops neither the run nor a
signal.

When the run ends, a thread that waits for a pipe is left alone: it holds no lock, and ends with the process. That is why these
functions use the descriptors and not Python's buffers, whose locks an exit would wait for.
"""

from __future__ import annotations

import os
import select
import sys

import trio

from replog.cli.output import OutputClosed, StreamError, output_failed, standard_output
from replog.errors import ConfigError

_READ_BYTES = 256 << 10
_LOOK_EVERY_S = 0.5


async def read_input() -> bytes:
    """The next bytes of standard input, as soon as there are any; b"" at its end. If cancelled, some bytes may be lost.

    Raises `ConfigError` if there is no standard input, `StreamError`."""
    descriptor = _input_descriptor()
    try:
        # Abandoned when cancelled: a read of a terminal may wait for hours, and must not keep Ctrl-C waiting.
        return await trio.to_thread.run_sync(_read, descriptor, abandon_on_cancel=True)
    except OSError as error:
        raise StreamError(f"standard input: cannot be read: {error.strerror}") from error


def _read(descriptor: int) -> bytes:
    while True:
        try:
            return os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            # Another process that shares it has made it non-blocking: wait here.
            select.select([descriptor], [], [])


def input_bytes() -> int | None:
    """The size of standard input if it is a file; None if that is unknown."""
    try:
        found = os.fstat(_input_descriptor())
    except OSError:
        return None
    # A pipe and a terminal have the size 0.
    return found.st_size or None


async def write_output(data: bytes) -> None:
    """Write all of this to standard output. If cancelled, some of it may be written.

    Raises `OutputClosed` if it is not read any more, `StreamError` if it cannot be written."""
    descriptor = standard_output().fileno()
    try:
        await trio.to_thread.run_sync(_write, descriptor, data, abandon_on_cancel=True)
    except BrokenPipeError as error:
        raise OutputClosed from error
    except OSError as error:
        raise output_failed(error) from error


def _write(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:
            # As in `_read`: another program made it non-blocking.
            select.select([], [descriptor], [])


async def wait_output_closed() -> None:
    """Wait until standard output is not read any more, then raise `OutputClosed`; never returns if it is a file.

    This is for commands that may have nothing to write for a long time: otherwise a write would notice."""
    watched = select.poll()
    watched.register(standard_output().fileno(), 0)  # errors are reported in any case
    while not watched.poll(0):  # noqa: ASYNC110 - the kernel tells, but not trio
        await trio.sleep(_LOOK_EVERY_S)
    raise OutputClosed


def _input_descriptor() -> int:
    """The descriptor of standard input.

    Raises `ConfigError` if it was closed before the command began: another file may have its number now."""
    if sys.stdin is None:
        raise ConfigError("there is no standard input: it is closed")
    return sys.stdin.fileno()
