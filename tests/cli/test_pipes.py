"""The real command at the ends of pipes: what comes is not held back, what was read is confirmed, leaving is quiet."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

import replog
from replog.cli.output import OutputClosed
from replog.cli.streams import read_input, wait_output_closed, write_output
from tests.cli.logs import command, entries_of, finish, make_log
from tests.forks import Forked, run

PATIENCE_S = 60


@contextmanager
def running(*arguments: str | Path) -> Iterator[Forked]:
    """The command with pipes at both ends; killed, should it be left behind."""
    process = Forked(command(*arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.close()
        process.wait()


def feed(process: Forked, data: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(data)


def line_of(process: Forked) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


def ended(process: Forked) -> tuple[int, bytes, str]:
    """Waits for its end: exit status, the rest of its output, errors."""
    output, errors = process.communicate(timeout=PATIENCE_S)
    assert b"Traceback" not in errors
    return process.wait(), output, errors.decode()


# -- append -------------------------------------------------------------------------------------------------------


def test_a_line_is_confirmed_before_the_next_one_comes(tmp_path: Path) -> None:
    """Each is sent only after the one before it was confirmed: were one held back, this would wait for ever."""
    with running("log", "append", "log", "--positions", "--dir", tmp_path) as process:
        for number in range(5):
            feed(process, b"line %d\n" % number)
            assert line_of(process) == b"1:%d\n" % number
        feed(process, b"the last one has no end")
        assert ended(process) == (0, b"1:5\n", "")
    assert entries_of(tmp_path) == [b"line 0", b"line 1", b"line 2", b"line 3", b"line 4", b"the last one has no end"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_input_read_before_a_signal_is_confirmed(number: signal.Signals, tmp_path: Path) -> None:
    with running("log", "append", "log", "--positions", "--json", "--dir", tmp_path) as process:
        feed(process, b"one\ntwo\nno en")
        assert json.loads(line_of(process))["position"] == "1:0"
        assert json.loads(line_of(process))["position"] == "1:1"
        process.send_signal(number)
        process.wait(PATIENCE_S)  # before its input is closed: else it may see that first
        status, output, errors = ended(process)
    assert (status, errors) == (128 + number, f"replog: stopped by {number.name}\n")
    summary = json.loads(output)
    assert (summary["entries"], summary["unfinished_bytes"], summary["last_position"]) == (2, 5, "1:1")
    assert entries_of(tmp_path) == [b"one", b"two"]


def test_signal_before_any_input_ends_it_at_once(tmp_path: Path) -> None:
    make_log(tmp_path, [b"one"])
    with running("log", "tail", "log", "-f", "--dir", tmp_path) as process:
        assert line_of(process) == b"one\n"
        process.send_signal(signal.SIGHUP)
        assert ended(process) == (129, b"", "replog: stopped by SIGHUP\n")


def test_much_is_appended_and_read_back(tmp_path: Path) -> None:
    lines = b"".join(b"%060d\n" % number for number in range(30_000))
    status, output, errors = finish("log", "append", "log", "--dir", tmp_path, given=lines)
    assert (status, errors) == (0, "")
    assert output.startswith(b"log log: 30000 entries appended from 1:0 to 1:29999, 1.7 MiB, ")
    assert finish("log", "read", "log", "--dir", tmp_path) == (0, lines, "")


def test_input_is_confirmed_when_positions_are_not_read(tmp_path: Path) -> None:
    with running("log", "append", "log", "--positions", "--dir", tmp_path) as process:
        assert process.stdout is not None
        feed(process, b"one\n")
        assert line_of(process) == b"1:0\n"
        process.stdout.close()
        feed(process, b"two\n")
        assert process.wait(PATIENCE_S) == 141
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert entries_of(tmp_path) == [b"one", b"two"]


@pytest.mark.parametrize("closed", ["<&-", ">&-", "> /dev/full"])
def test_closed_input_or_output_is_an_error(tmp_path: Path, closed: str) -> None:
    """A file that the storage opens could have the number of a stream that is closed: nothing is written to it blindly."""
    make_log(tmp_path, [b"one"])
    verb = ["append", "log"] if closed == "<&-" else ["read", "log"]
    arguments = command("log", *verb, "--dir", tmp_path)
    if closed == "> /dev/full":
        with open("/dev/full", "wb") as full:
            done = run(arguments, stdout=full, timeout=PATIENCE_S)
    else:
        shell = ["sh", "-c", f'exec "$@" {closed}', "sh", *arguments]
        done = subprocess.run(shell, capture_output=True, text=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL)
    expected = {
        "<&-": (2, "replog: there is no standard input: it is closed\n"),
        ">&-": (2, "replog: there is no standard output: it is closed\n"),
        "> /dev/full": (1, "replog: standard output: cannot be written: No space left on device\n"),
    }
    assert (done.returncode, done.stderr) == expected[closed]
    assert entries_of(tmp_path) == [b"one"]


# -- read and tail ------------------------------------------------------------------------------------------------


def test_reading_ends_without_a_message_when_the_reader_leaves(tmp_path: Path) -> None:
    make_log(tmp_path, [b"x" * 100] * 20_000)
    with running("log", "read", "log", "--dir", tmp_path) as process:
        assert line_of(process) == b"x" * 100 + b"\n"
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 141
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_idle_follower_ends_when_its_reader_leaves(tmp_path: Path) -> None:
    make_log(tmp_path, [b"one"])
    with running("log", "tail", "-f", "log", "--dir", tmp_path) as process:
        assert line_of(process) == b"one\n"
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 141


def test_signal_ends_it_even_when_output_is_not_read(tmp_path: Path) -> None:
    """The pipe is full, and the thread that writes to it waits: the command ends all the same, and at once."""
    make_log(tmp_path, [b"x" * 1000] * 3000)
    with running("log", "read", "log", "--dir", tmp_path) as process:
        assert line_of(process) == b"x" * 1000 + b"\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 143


# -- streams ------------------------------------------------------------------------------------------------------


class Piped:
    """Stands for `sys.stdin` or `sys.stdout`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    for each in (reading, writing):
        try:
            os.close(each)
        except OSError:
            continue  # the test closed it


async def test_reading_stops_no_other_task(monkeypatch: pytest.MonkeyPatch, pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    monkeypatch.setattr(sys, "stdin", Piped(reading))
    os.set_blocking(reading, False)  # as somebody may have left it
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def write_later() -> None:
            await trio.sleep(0.05)
            os.write(writing, b"came late")

        assert await read_input() == b"came late"
    with trio.move_on_after(0.05) as scope:
        await read_input()
    assert scope.cancelled_caught
    os.write(writing, b"x")  # the thread that was left behind ends
    with trio.fail_after(PATIENCE_S):
        # It must have read before the descriptor is closed: the next pipe has the same number.
        while select.select([reading], [], [], 0)[0]:  # noqa: ASYNC110 - the kernel tells, but not trio
            await trio.sleep(0.001)
    os.close(writing)


async def test_all_output_reaches_a_slow_pipe(monkeypatch: pytest.MonkeyPatch, pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    monkeypatch.setattr(sys, "stdout", Piped(writing))
    os.set_blocking(writing, False)
    data = os.urandom(300_000)
    found = b""
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write_output, data)
            while len(found) < len(data):
                found += await trio.to_thread.run_sync(os.read, reading, 1 << 16, abandon_on_cancel=True)
    assert found == data


async def test_closed_output_is_noticed(monkeypatch: pytest.MonkeyPatch, pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    monkeypatch.setattr(sys, "stdout", Piped(writing))
    with trio.move_on_after(0.05) as scope:
        await wait_output_closed()
    assert scope.cancelled_caught
    os.close(reading)
    with trio.fail_after(PATIENCE_S), pytest.raises(OutputClosed):
        await wait_output_closed()
    with pytest.raises(OutputClosed):
        await write_output(b"x")


# -- completion ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "expected"),
    [("replog lo", ["log"]), ("replog log ap", ["append"]), ("replog log tail --fol", ["--follow"])],
)
def test_a_shell_completes_commands_and_options(typed: str, expected: list[str]) -> None:
    environment = {
        **os.environ,
        "_REPLOG_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split()) - 1),
    }
    script = "import sys; sys.argv = ['replog']; from replog.cli import main; main()"
    done = run([sys.executable, "-c", script], env=environment)
    assert done.stdout.split() == expected
    assert done.stderr == ""


def test_processes_run_the_package_under_test() -> None:
    """Else all of the above would look at another one."""
    script = "import replog; print(replog.__file__)"
    done = run([sys.executable, "-c", script])
    assert done.stdout.strip() == replog.__file__
