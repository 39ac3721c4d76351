"""Child processes are watched, waited for with deadlines, and end with their parent: left, killed, even while stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trio

from replog.runtime.children import Child, ChildFailedError, ChildProcess, python_module, running_child
from tests.lanes.seeds import some

pytestmark = pytest.mark.real

DEADLINE_S = 30.0
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]

# A parent that prints its child's process id once the child runs, and then waits to be killed.
PARENT = """
import sys, trio
from replog.runtime.children import python_module, running_child
async def main():
    said = []
    command = python_module("endless") if sys.argv[1] == "module" else [sys.executable, "-m", "endless"]
    async with running_child("it", command, said.append, takes_input=sys.argv[1] == "input") as child:
        await child.until(lambda: said, "it speaks", 30)
        print(child.pid, flush=True)
        await trio.sleep_forever()
trio.run(main)
"""


@pytest.fixture
def endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that prints its arguments and never ends."""
    script = "import sys, time\nprint(sys.argv[1:], flush=True)\nwhile True: time.sleep(1)\n"
    (tmp_path / "endless.py").write_text(script, encoding="utf-8")
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *([before] if before else [])]))


def script(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def ignore(line: bytes) -> None:
    pass


def is_running(pid: int) -> bool:
    """False for a zombie too: nobody waits for it but init."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# -- they end with their parent -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("endless")
async def test_child_is_dead_when_its_context_is_left() -> None:
    said: list[bytes] = []
    with pytest.raises(KeyError), trio.fail_after(DEADLINE_S):
        async with running_child("it", python_module("endless", "a b", "c"), said.append) as child:
            assert await child.until(lambda: said, "it speaks", DEADLINE_S) == [b"['a b', 'c']"]
            await child.stop()
            raise KeyError
    assert child.process.status == -signal.SIGKILL


@pytest.mark.usefixtures("endless")
@pytest.mark.parametrize(
    ("kind", "is_stopped"),
    some(
        [
            ("module", False),
            ("program", False),
            ("input", True),
            ("module", True),
            ("program", True),
            ("input", False),
        ],
        few=3,
    ),
)
def test_child_is_killed_when_its_parent_is(kind: str, is_stopped: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, kind], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        if is_stopped:
            os.kill(child, signal.SIGSTOP)
        parent.kill()
        deadline = time.monotonic() + DEADLINE_S
        while is_running(child):
            assert time.monotonic() < deadline, "the child outlives its parent"
            time.sleep(0.01)


def test_child_ends_at_once_when_its_parent_is_gone_at_its_start() -> None:
    ours, theirs = os.pipe()
    os.close(theirs)
    with open(ours, "rb") as stdin:
        done = subprocess.run(python_module("this"), stdin=stdin, capture_output=True, timeout=DEADLINE_S)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"")


def test_blocking_programs_end_a_child_even_if_it_is_stopped() -> None:
    child = ChildProcess(SLEEP)
    child.signal(signal.SIGSTOP)
    child.end()
    child.end()
    assert child.status == -signal.SIGKILL


# -- they are watched -------------------------------------------------------------------------------------------------


async def test_all_lines_are_heard_and_logged_before_the_end_is_known(tmp_path: Path) -> None:
    said: list[bytes] = []
    log = tmp_path / "log"
    text = "import sys; print('x' * 300000); print('to err', file=sys.stderr); print('torn', end='')"
    async with running_child("it", script(text), said.append, log=log, may_end=True) as child:
        assert await child.ended(DEADLINE_S) == 0
    assert said == [b"x" * 300_000, b"to err"] or said == [b"to err", b"x" * 300_000]
    assert len(log.read_bytes()) == 300_000 + len("\nto err\ntorn")
    assert not child.is_running


async def test_end_is_known_when_a_grandchild_holds_the_output() -> None:
    """The end of the pipe does not come then: it must not be waited for."""
    said: list[bytes] = []
    text = f"import subprocess; print(subprocess.Popen({SLEEP!r}).pid, flush=True)"
    async with running_child("it", script(text), said.append, may_end=True) as child:
        try:
            with trio.fail_after(DEADLINE_S):
                assert await child.ended(DEADLINE_S) == 0
        finally:
            os.kill(int(said[0]), signal.SIGKILL)


async def test_body_is_cancelled_when_a_child_ends_by_itself() -> None:
    with pytest.raises(ChildFailedError, match=r"^it \(process \d+\) ended by itself with status 3: so long$"):
        async with running_child("it", script("import sys; print('so long'); sys.exit(3)"), ignore):
            with trio.fail_after(DEADLINE_S):
                await trio.sleep_forever()


async def test_last_words_are_the_problem_of_a_log_line() -> None:
    text = """import json; print(json.dumps({"event": "failed", "problem": "no disk"}))"""
    with pytest.raises(ChildFailedError, match=r"with status 0: no disk$"):
        async with running_child("it", script(text), ignore):
            await trio.sleep_forever()


async def test_awaiting_a_line_fails_at_its_deadline() -> None:
    async with running_child("it", SLEEP, ignore) as child:
        with pytest.raises(ChildFailedError, match=r"did not come within 0.01 s to this: it speaks: it wrote nothing"):
            await child.until(lambda: False, "it speaks", 0.01)
        with pytest.raises(ChildFailedError, match=r"did not end within 0.01 s"):
            await child.ended(0.01)


async def test_waiting_ends_when_the_child_has_ended() -> None:
    async with running_child("it", script("print('no')"), ignore, may_end=True) as child:
        with pytest.raises(ChildFailedError, match="ended by itself with status 0: no"):
            await child.until(lambda: False, "it speaks", DEADLINE_S)


async def test_missing_program_cannot_be_started() -> None:
    with pytest.raises(ChildFailedError, match="it cannot be started: /no/such: No such file"):
        async with running_child("it", ["/no/such"], ignore):
            pass


async def test_child_takes_input_and_ends_with_it() -> None:
    said: list[bytes] = []
    text = "import sys\nfor line in sys.stdin: print(line.upper(), end='', flush=True)"
    async with running_child("it", script(text), said.append, takes_input=True, may_end=True) as child:
        assert child.input is not None
        await child.input.send_all(b"once\n")
        await child.until(lambda: said == [b"ONCE"], "it answers", DEADLINE_S)
        await child.input.aclose()
        assert await child.ended(DEADLINE_S) == 0


# -- they are ended ---------------------------------------------------------------------------------------------------


async def wait_for_ready(child: Child, said: list[bytes]) -> None:
    await child.until(lambda: b"ready" in said, "it is ready", DEADLINE_S)


async def test_child_leaves_when_asked() -> None:
    said: list[bytes] = []
    text = "import signal; signal.signal(15, lambda *_: exit(0)); print('ready', flush=True); signal.pause()"
    async with running_child("it", script(text), said.append) as child:
        await wait_for_ready(child, said)
        await child.leave(DEADLINE_S)
        assert child.process.status == 0


async def test_child_is_killed_when_it_does_not_leave() -> None:
    said: list[bytes] = []
    text = "import signal; signal.signal(15, lambda *_: None); print('ready', flush=True)\nwhile True: signal.pause()"
    async with running_child("it", script(text), said.append) as child:
        await wait_for_ready(child, said)
        with pytest.raises(ChildFailedError, match=r"did not end within 0.2 s"):
            await child.leave(0.2)
        assert child.process.status == -signal.SIGKILL


async def test_bad_exit_of_a_child_is_reported() -> None:
    async with running_child("it", SLEEP, ignore) as child:
        with pytest.raises(ChildFailedError, match="was asked to end, and ended with status -15"):
            await child.leave(DEADLINE_S)


async def test_child_is_stopped_and_goes_on() -> None:
    said: list[bytes] = []
    text = "import time\nwhile True: print('tick', flush=True); time.sleep(0.001)"
    async with running_child("it", script(text), said.append) as child:
        await child.until(lambda: said, "it ticks", DEADLINE_S)
        await child.stop()
        assert child.process.is_stopped
        assert child.is_running
        before = len(said)
        child.wake()
        await child.until(lambda: len(said) > before + 100, "it ticks again", DEADLINE_S)
        assert not child.process.is_stopped


async def test_end_is_known_without_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> int:
        raise OSError

    monkeypatch.setattr(os, "pidfd_open", refuse)
    async with running_child("it", script("print('bye')"), ignore, may_end=True) as child:
        assert await child.ended(DEADLINE_S) == 0


async def test_a_child_left_by_cancellation_has_its_pipes_closed() -> None:
    """One that takes input, too: closing that may be cancelled."""
    with trio.CancelScope() as scope:
        async with running_child("it", SLEEP, lambda _: None, takes_input=True) as child:
            scope.cancel()
            await trio.sleep_forever()
    assert child.process.stdout is not None
    assert child.process.stdout.closed
