"""A process that is forked is what one that is started as usual would be."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests import forks
from tests.forks import Forked
from tests.servers import spark_forks

PROGRAMS = {
    "what it has": """
        import os, sys
        print(sys.argv, os.environ.get("MADE"), __name__, os.getcwd(), sys.stdin.read(), sorted(os.listdir("/proc/self/fd"))[3:])
    """,
    "a status": "import sys; print('said', file=sys.stderr); sys.exit(7)",
    "an error": "raise ValueError('on purpose')",
    "an interrupt": "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    "a thread and an exit handler": """
        import atexit, threading, time
        atexit.register(print, "handled")
        threading.Thread(target=lambda: (time.sleep(0.05), print("joined"))).start()
    """,
    "no descriptor for errors": "import os, sys; os.write(2, b'bytes'); print('\\udcff', file=sys.stderr)",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_fork_acts_like_a_new_interpreter(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(PROGRAMS[name]), "first", "second"]
    environment = {"MADE": "here"}
    real = subprocess.run(command, input=b"given", capture_output=True, cwd=tmp_path, env=environment, timeout=60)
    done = forks.run(command, given=b"given", text=False, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stdout) == (real.returncode, real.stdout)
    assert done.stderr.splitlines()[-1:] == real.stderr.splitlines()[-1:]


def test_file_and_module_are_programs(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("WORD = 'beside'")
    (tmp_path / "program.py").write_text("import sys, beside\nprint(sys.argv[1:], beside.WORD, __name__)")
    for command in (["program.py", "x"], ["-m", "program", "x"]):
        assert forks.run([sys.executable, *command], cwd=tmp_path).stdout == "['x'] beside __main__\n"


def test_it_is_stopped_and_killed_while_others_run() -> None:
    command = [sys.executable, "-c", "import sys; print('runs', flush=True); sys.stdin.read(); sys.exit(3)"]
    with (
        Forked(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other,
        Forked(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True) as killed,
    ):
        for each in (other, killed):
            assert each.stdout is not None
            assert each.stdout.readline() == "runs\n"
            assert each.poll() is None
        killed.send_signal(signal.SIGSTOP)
        with pytest.raises(subprocess.TimeoutExpired):
            killed.wait(0.01)
        killed.kill()
        assert killed.wait(60) == -signal.SIGKILL
        assert other.communicate("")[0] == ""
        assert other.returncode == 3


def test_only_processes_of_spark_are_forked_for_it() -> None:
    """The session of Spark sets variables that each process has that a later test of the same worker starts."""
    environment = {spark_forks.VARIABLE: "/nobody/listens", "PYTHONPATH": str(spark_forks.STAND_IN)}
    ours = subprocess.run([sys.executable, "-m", "this"], capture_output=True, env=environment, timeout=60)
    assert (ours.returncode, ours.stderr) == (0, b"")
    theirs = subprocess.run([sys.executable, "-m", "pyspark.daemon"], capture_output=True, env=environment, timeout=60)
    assert b"FileNotFoundError" in theirs.stderr
