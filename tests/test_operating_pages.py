"""The pages for operators as somebody would follow them: several machines, an upgrade, years.

Their commands are run as they are written, but that each machine is a directory, ZooKeeper a map of LMDB, and all addresses are
here. As in the tutorial, with other comments above a block:

| comment | block |
|---|---|
| `<!-- on m1 m2 -->` | its command keeps running on each of these machines |
| `<!-- begin m1 -->` | the same, but it says nothing until other machines have done something |
| `<!-- end m1 -->` | no block: what runs there is asked to end |
| `<!-- off m1 -->` | no block: the machine is gone |
| `<!-- restart m1 -->` | its first command ends what runs there, the second one runs in its place |
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.servers.processes import HOST, free_port
from tests.test_tutorial import WITHIN_S, Command, Terminals, commands_of

PAGES = Path(__file__).parents[1] / "docs" / "how-to"
FOLLOWED = (("several-machines", "upgrade", "run-for-years"), ("leave-zookeeper",))
STEP = re.compile(
    r"^<!-- (on|begin|end|off|restart|type) ?([\w ]*) -->\n(?:\n*```console\n(.*?)^```)?", re.MULTILINE | re.DOTALL
)


class Machines:
    """Directories in place of machines, and what runs on them."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self._terminals = Terminals(directory)
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._addresses: dict[str, str] = {}

    def type(self, command: Command) -> None:
        self._terminals.type(self._here("m1", command))

    def start(self, machines: Sequence[str], command: Command) -> None:
        """All of them begin before any of them is waited for: peers wait for each other."""
        for machine in machines:
            running = self._terminals.running(Command(self._here(machine, command).line, []))
            self._processes[machine] = self._stack.enter_context(running)
        for machine in machines:
            for line in self._here(machine, command).expected:
                self._terminals.wait_for(line)

    def end(self, machines: Sequence[str], command: Command) -> None:
        ending = [self._processes.pop(machine) for machine in machines]
        for process in ending:
            self.type(Command(command.line.replace("PID", str(process.pid)), command.expected))
        assert all(process.wait(WITHIN_S) in (0, -9) for process in ending)

    def _here(self, machine: str, command: Command) -> Command:
        line = re.sub(r"(?<=--advertise )m\d:3181|0\.0\.0\.0:3181", self._address(machine), command.line)
        line, *expected = (re.sub(r"\b(m\d):3181", self._found, each) for each in (line, *command.expected))
        for written, here in (
            ("zookeeper://m1,m2,m3/prod", f"lmdb:{self._directory}/metadata"),
            ("/var/lib/replog", str(self._directory / machine)),
            ("/var/lib", str(self._directory)),
            ("/mnt", str(self._directory)),
            ("0.0.0.0:9181", f"{HOST}:0"),
            ("--seconds 5", "--seconds 0.2"),
        ):
            line = line.replace(written, here)
        return Command(line, expected)

    def _address(self, machine: str) -> str:
        return self._addresses.setdefault(machine, f"{HOST}:{free_port()}")

    def _found(self, written: re.Match[str]) -> str:
        return self._address(written[1])


@pytest.mark.long
@pytest.mark.parametrize("names", FOLLOWED, ids=lambda names: names[0])
def test_the_pages_for_operators_can_be_followed(names: tuple[str, ...], tmp_path: Path) -> None:
    text = "\n".join((PAGES / f"{name}.md").read_text(encoding="utf-8") for name in names)
    steps = STEP.findall(text)
    assert len(steps) == text.count("<!-- ") >= 8
    with ExitStack() as stack:
        machines = Machines(tmp_path, stack)
        for kind, where, block in steps:
            commands = commands_of(block)
            names_here = where.split() or ["m1"]
            match kind:
                case "on" | "begin":
                    machines.start(names_here, commands[0])
                case "end":
                    machines.end(names_here, Command("kill PID", []))
                case "off":
                    machines.end(names_here, Command("kill -9 PID", []))
                case "restart":
                    machines.end(names_here, commands[0])
                    machines.start(names_here, commands[1])
                case "type":
                    for command in commands:
                        machines.type(command)
