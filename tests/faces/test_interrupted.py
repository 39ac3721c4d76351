"""A table of programs that are interrupted, for each face: none hangs, none loses what was confirmed, and each ends as it should.

Each case is a real process. `make test-versions` runs them on every Python that is promised."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import replog.blocking
from tests.faces.programs import FACES, whole_script
from tests.lanes.seeds import some

DEADLINE_S = 60
CASES = [(face, case) for face, programs in FACES.items() for case in programs if face != "uvloop"]
CASES_OF_ASYNCIO_AGAIN = some((("uvloop", case) for case in FACES["uvloop"]), few=2)
pytestmark = pytest.mark.real


@pytest.mark.parametrize(("face", "case"), [*CASES, *CASES_OF_ASYNCIO_AGAIN], ids=lambda each: each.replace(" ", "-"))
def test_program_ends_with_its_entries_when_interrupted(tmp_path: Path, face: str, case: str) -> None:
    if face == "uvloop" and importlib.util.find_spec("uvloop") is None:
        pytest.skip("pip install uvloop, or 'replog[test]'")
    program = FACES[face][case]
    # 3.12 warns of forking. An interruption may fall between the call of a coroutine function and its await.
    ignored = ["-W", "ignore::DeprecationWarning", "-W", "ignore:coroutine :RuntimeWarning"]
    options = [*ignored, "-W", "always::ResourceWarning"]
    # Not one of `tests.forks`: how the interpreter ends is what is tested.
    command = [sys.executable, *options, "-c", whole_script(face, case)]
    done = subprocess.run(command, cwd=tmp_path, timeout=DEADLINE_S, capture_output=True, text=True)
    assert done.returncode == program.status, done.stderr
    assert program.says in done.stderr
    is_silent = not program.says and program.status == 0
    assert not is_silent or done.stderr == ""
    assert program.says == "SystemExit" or "Traceback" not in done.stderr
    confirmed = int(re.findall(r"confirmed (\d+)", done.stdout)[-1]) if "confirmed" in done.stdout else 0
    with replog.blocking.embed(tmp_path / "wal") as client:
        with client.write_log("log"):
            pass  # as whoever writes next does after a crash
        with client.read_log("log") as reader:
            found = [record.data for record in reader]
    assert [b"%d" % number for number in range(confirmed)] == [each for each in found if each.isdigit()][:confirmed]
