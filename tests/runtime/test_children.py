"""Children end with their parent: left, killed, and also while they are stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trio

from replog.runtime.children import running_child

DEADLINE_S = 30.0

# A parent that tells its child's process id, as the child does, and then waits to be killed.
PARENT = """
import subprocess, sys, trio
from replog.runtime.children import running_child
async def main():
    async with running_child(["endless"], stdout=subprocess.PIPE) as child:
        await child.stdout.receive_some()
        print(child.pid, flush=True)
        await trio.sleep_forever()
trio.run(main)
"""


@pytest.fixture
def endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that runs for ever, and speaks once it does."""
    script = "import os, sys, time\nos.write(1, repr(sys.argv[1:]).encode())\nwhile True: time.sleep(1)\n"
    (tmp_path / "endless.py").write_text(script, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def is_running(pid: int) -> bool:
    """A process that nobody waits for any more is a zombie until init has seen it; that is as good as gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.usefixtures("endless")
async def test_a_child_is_dead_when_its_context_is_left() -> None:
    with pytest.raises(KeyError), trio.fail_after(DEADLINE_S):
        async with running_child(["endless", "a b", "c"], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert await child.stdout.receive_some() == b"['a b', 'c']"
            os.kill(child.pid, signal.SIGSTOP)
            raise KeyError
    assert child.returncode == -signal.SIGKILL


@pytest.mark.usefixtures("endless")
@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_child_is_killed_when_its_parent_is(is_stopped: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        if is_stopped:
            os.kill(child, signal.SIGSTOP)
        parent.kill()
        deadline = time.monotonic() + DEADLINE_S
        while is_running(child):
            assert time.monotonic() < deadline, "the child outlives its parent"
            time.sleep(0.01)


def test_whose_parent_is_gone_at_its_start_ends_at_once() -> None:
    ours, theirs = os.pipe()
    os.close(theirs)
    command = [sys.executable, "-m", "replog.runtime.children", "this"]
    with open(ours, "rb") as stdin:
        done = subprocess.run(command, stdin=stdin, capture_output=True, timeout=DEADLINE_S)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"")
