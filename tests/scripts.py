"""Runs scripts as processes of their own, without each of them importing replog again: `python -m tests.scripts` forks for each.

It reads directories from standard input, runs `script.py` in each, and answers with its exit status. What the script prints is
then in `output` beside it.
"""

from __future__ import annotations

import gc
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import TracebackType


class Scripts:
    """A context: the process that forks."""

    def __enter__(self) -> Scripts:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.scripts"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=60)  # closes its standard input, which ends it

    def run(self, directory: Path) -> tuple[int, str]:
        """Exit status, and all that it printed. A script that hangs is ended by the harness after two minutes."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{directory}\n")
        self._process.stdin.flush()
        status = int(self._process.stdout.readline())
        return status, (directory / "output").read_text(encoding="utf-8")


def serve() -> None:
    import asyncio  # noqa: F401
    import signal

    import trio  # noqa: F401

    import replog.aio
    import replog.blocking  # noqa: F401

    gc.freeze()  # what is imported is not looked through by each child
    for line in sys.stdin:
        if (pid := os.fork()) == 0:
            signal.alarm(120)
            run_here(Path(line.rstrip("\n")))
            return  # ends as any program does: threads are joined, exit handlers run
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def run_here(directory: Path) -> None:
    os.chdir(directory)
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open("output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - for the rest of the process; the old one has read ahead
    sys.argv = ["script.py"]
    runpy.run_path("script.py", run_name="__main__")


if __name__ == "__main__":
    serve()
