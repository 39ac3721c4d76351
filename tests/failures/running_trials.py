"""Trials from within a test: in a process that runs no event loop and no threads, from which they can fork."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.failures.processes import ROOT


def run_command(*arguments: str, directory: Path) -> list[dict[str, Any]]:
    """The results of `python -m tests.failures.storage_faults` with these arguments. Nothing outlives it."""
    command = [sys.executable, "-m", "replog.runtime.children", "tests.failures.storage_faults", "--json"]
    printed = directory / "printed"
    with printed.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--directory", str(directory), *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,  # it ends when this end is gone
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        with process:
            try:
                process.wait()
            finally:
                process.kill()
    lines = printed.read_text(errors="replace").splitlines()
    assert all(line.startswith("{") for line in lines), "\n".join(lines[-40:])
    return [json.loads(line) for line in lines]
