"""Applies one mutant at a time to a copy of the source, and runs the tests that should see it.

python -m tests.mutation                      # all of them, and write down what caught each
python -m tests.mutation --layer client --name found-record-is-own

The test that caught a mutant the last time runs first. What was compiled is kept, but for the file of the mutant: the change may
be within the second of the last one, and as long.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.mutation.table import ROOT, SOURCE, SourceMutant

_TIMEOUT_S = 400.0  # of one run of pytest: what hangs is caught, too
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
UNCAUGHT = ""
_fails_anyway: set[str] = set()


@contextmanager
def copied_source() -> Iterator[Path]:
    """A copy of `src`, to be changed."""
    with tempfile.TemporaryDirectory(prefix="replog-mutation-") as directory:
        copy = Path(directory) / "src"
        shutil.copytree(SOURCE.parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
        yield copy


@contextmanager
def applied(mutant: SourceMutant, source: Path) -> Iterator[None]:
    """The copy has this mistake while the context lasts."""
    path = source / "replog" / mutant.file
    before = path.read_text(encoding="utf-8")
    _write(path, mutant.changed(before))
    try:
        yield
    finally:
        _write(path, before)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()


def catching(mutant: SourceMutant, source: Path, tests: Sequence[str] | None = None) -> str:
    """The first test that fails with this mistake, and passes without it, or `UNCAUGHT`."""
    for target in mutant.tests if tests is None else tests:
        while True:
            with applied(mutant, source):
                found = _failing(target, source)
            if found == UNCAUGHT:
                break
            if "::" not in found or not _failing(found, source):
                return found
            _fails_anyway.add(found)
    return UNCAUGHT


def _failing(target: str, source: Path) -> str:
    """The first test of a file, or of a directory, that fails."""
    path = os.pathsep.join([str(source), *map(str, sorted(ROOT.glob("plugins/*/src"))), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "--tb=no", "-p", "no:cacheprovider", target]
    command += [f"--deselect={each}" for each in sorted(_fails_anyway)]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{target} (hangs)"
    if done.returncode in (0, 5):  # 5: all of it was left out
        return UNCAUGHT
    found = _FAILED.search(done.stdout)
    return found.group(1) if found else f"{target} (does not start)"
