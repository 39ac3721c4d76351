"""Child processes that never outlive their parent, however it ends.

The parent holds the other end of the child's standard input, and never writes to it. The child has asked the kernel to kill
it once that end is gone: this works also while the child is stopped, and needs no thread and no polling. A command is run
so as `python -m replog.runtime.children MODULE ARGUMENT...`, which is what `running_child` does.
"""

from __future__ import annotations

import fcntl
import os
import runpy
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import IO

import trio

_F_SETSIG = 10  # Linux; the module `fcntl` does not name it
_STANDARD_INPUT = 0
_EXIT_S = 15.0


def end_with_parent() -> None:
    """From now on this process is killed (SIGKILL) once nobody holds the other end of its standard input any more, which
    must be a pipe or a socket. Raises OSError if it is something else."""
    fcntl.fcntl(_STANDARD_INPUT, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(_STANDARD_INPUT, _F_SETSIG, signal.SIGKILL)
    flags = fcntl.fcntl(_STANDARD_INPUT, fcntl.F_GETFL)
    fcntl.fcntl(_STANDARD_INPUT, fcntl.F_SETFL, flags | os.O_ASYNC)
    watch = select.poll()
    watch.register(_STANDARD_INPUT, 0)
    if watch.poll(0):  # the parent was gone before the kernel was asked
        os.kill(os.getpid(), signal.SIGKILL)


@asynccontextmanager
async def running_child(
    arguments: Sequence[str], *, stdout: int | IO[bytes] | None = None, stderr: int | IO[bytes] | None = None
) -> AsyncIterator[trio.Process]:
    """`python -m ARGUMENTS...` as a child, as a context: whatever happens, it is dead when the context is left.

    It is in a session of its own, so that a Ctrl-C comes to its parent alone. Raises OSError if it cannot be started."""
    process = await trio.lowlevel.open_process(
        [sys.executable, "-P", "-m", "replog.runtime.children", *arguments],
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with trio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
            with trio.move_on_after(_EXIT_S):  # a process whose disk hangs cannot die before that answers
                await process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    await pipe.aclose()


def main() -> None:
    """The process: `python -m replog.runtime.children MODULE ARGUMENT...`."""
    end_with_parent()
    module, *sys.argv[1:] = sys.argv[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
