"""Trials from within a test: in a process that runs no event loop and no threads, from which they can fork."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from replog.runtime.children import ChildProcess
from tests.failures.processes import ROOT

TRIALS_S = 3600.0  # the longest run of them, of thousands of rounds


def run_command(*arguments: str, directory: Path) -> list[dict[str, Any]]:
    """The results of `python -m tests.failures.storage_faults` with these arguments. Nothing outlives it."""
    # Not `python_module`, which would not find the tests in this directory.
    command = [sys.executable, "-m", "replog.runtime.children", "tests.failures.storage_faults", "--json"]
    command += ["--directory", str(directory), *arguments]
    printed = directory / "printed"
    with printed.open("wb") as output:
        process = ChildProcess(command, output=output, errors=subprocess.STDOUT, directory=ROOT)
        try:
            process.wait(TRIALS_S)
        finally:
            process.end()
    lines = printed.read_text(errors="replace").splitlines()
    assert all(line.startswith("{") for line in lines), "\n".join(lines[-40:])
    return [json.loads(line) for line in lines]
