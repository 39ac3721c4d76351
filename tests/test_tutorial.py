"""The tutorial's pages as somebody would follow them: files are saved, commands typed, and the output is what the page shows.

What a page has, by the comment above a block:

| comment | block |
|---|---|
| `<!-- file NAME -->` | is saved as this file |
| `<!-- type -->` | its commands (`$ ...`) are run to their end, and print the lines below them |
| `<!-- keeps running -->` | its command runs to the end of the page, in a terminal of its own; it prints the lines below |
| `<!-- appears -->` | its lines appear in one of those terminals, and were not seen before |

In expected lines `...` stands for anything; a line of only `...` for any lines.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs
import pytest

from tests import forks

PAGES = Path(__file__).parents[1] / "docs" / "tutorial"
STEP = re.compile(r"^<!-- (file|type|keeps running|appears) ?(\S*) -->\n+```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Programs that are forked from a process that has imported replog, if nothing of their line is for a shell to do.
FORKED = {"python": (), "replog": ("-m", "replog.cli")}
MEANT_FOR_A_SHELL = frozenset("|&;<>()$`\n*?[]#~=%{}!")
WITHIN_S = 120.0  # for one step, on a busy machine


@attrs.frozen
class Command:
    line: str
    expected: list[str]


def commands_of(block: str) -> list[Command]:
    found: list[Command] = []
    for line in block.splitlines():
        if found and found[-1].line.endswith("&"):  # the next command may ask for its process, by `$!`
            found[-1] = Command(f"{found[-1].line}\n{line[2:]}", [])
        elif line.startswith("$ "):
            found.append(Command(line[2:], []))
        else:
            found[-1].expected.append(line)
    return found


def pattern_of(line: str) -> str:
    """For one line; its spaces may be of another number, since a table's columns are as wide as what is in them."""
    parts = (r"\s+".join(map(re.escape, re.split(r"\s+", part))) for part in line.strip().split("..."))
    return rf"\s*{'.*'.join(parts)}\s*"


def is_shown(expected: list[str], printed: str) -> bool:
    pattern = "".join(r"(?:[^\n]*\n)*?" if line == "..." else f"{pattern_of(line)}\n" for line in expected)
    return re.fullmatch(pattern, printed.rstrip("\n") + "\n" if printed else "") is not None


def test_dots_stand_for_anything() -> None:
    assert is_shown(["one", "...", "a ... b"], "one\ntwo\nthree\na  c  b\n")
    assert is_shown(["..."], "")
    assert not is_shown(["one"], "one\ntwo\n")
    assert not is_shown(["one", "three"], "one\ntwo\nthree\n")


class Terminals:
    """What keeps running, and the lines that it printed and nobody asked for yet."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.exports: list[str] = []
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def type(self, command: Command) -> None:
        if command.line.startswith("export "):
            self.exports.append(command.line)
            return
        done = self._run(command.line)
        assert done.returncode == 0, f"{command.line}: {done.stderr}"
        assert is_shown(command.expected, done.stdout), f"{command.line} printed:\n{done.stdout}{done.stderr}"

    def _run(self, line: str) -> subprocess.CompletedProcess[str]:
        program, *arguments = line.split(maxsplit=1)
        if program in FORKED and not self.exports and not set(line) & MEANT_FOR_A_SHELL:
            command = [sys.executable, *FORKED[program], *shlex.split(" ".join(arguments))]
            return forks.run(command, cwd=self.directory, env=self._environment, timeout=WITHIN_S)
        return subprocess.run(
            ["bash", "-c", "\n".join([*self.exports, line])],
            cwd=self.directory,
            env=self._environment,
            timeout=WITHIN_S,
            capture_output=True,
            text=True,
        )

    @contextmanager
    def running(self, command: Command) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            ["bash", "-c", "\n".join([*self.exports, f"exec {command.line}"])],
            cwd=self.directory,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        thread = threading.Thread(target=self._read, args=(process,))
        thread.start()
        try:
            for line in command.expected:
                self.wait_for(line)
            yield process
        finally:
            process.send_signal(signal.SIGINT)  # as Ctrl-C
            try:
                process.wait(60)
            finally:
                process.kill()
                process.wait()
                thread.join()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                with self._news:
                    self._lines.append(line)
                    self._news.notify_all()

    def wait_for(self, expected: str) -> None:
        until = time.monotonic() + WITHIN_S
        with self._news:
            while not (found := [line for line in self._lines if re.fullmatch(pattern_of(expected), line)]):
                assert self._news.wait(until - time.monotonic()), f"no line {expected!r} among {self._lines}"
            self._lines.remove(found[0])


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["first-log"], id="log"),
        # The second page goes on with the first one's.
        pytest.param(["first-cluster", "first-failover"], id="cluster", marks=pytest.mark.long),
    ],
)
def test_pages_can_be_followed(names: list[str], tmp_path: Path) -> None:
    text = "\n".join((PAGES / f"{name}.md").read_text(encoding="utf-8") for name in names)
    steps = STEP.findall(text)
    assert len(steps) == text.count("<!-- ") >= 8
    with ExitStack() as stack:
        terminals = Terminals(tmp_path)
        for kind, file_name, block in steps:
            match kind:
                case "file":
                    (tmp_path / file_name).write_text(block, encoding="utf-8")
                case "type":
                    for command in commands_of(block):
                        terminals.type(command)
                case "keeps running":
                    (command,) = commands_of(block)
                    stack.enter_context(terminals.running(command))
                case "appears":
                    for line in block.splitlines():
                        terminals.wait_for(line)
