"""The script: Ctrl-C ends it as a user expects, and what it printed is kept."""

from __future__ import annotations

import signal
from pathlib import Path

from replog import blocking
from tests.examples.programs import Program

EXAMPLE = "examples/lines.py"


def test_ctrl_c_ends_it_and_keeps_the_printed_lines(tmp_path: Path) -> None:
    with Program(EXAMPLE, str(tmp_path)) as script:
        for number in range(3):
            script.say(f"line {number}")
        script.wait_for(r"^1:2$")
        assert script.stop(signal.SIGINT) == 130
        assert script.lines == ["1:0", "1:1", "1:2"], "no traceback"
    with Program(EXAMPLE, str(tmp_path)) as script:
        script.say("line 3")
        script.wait_for(r"^2:0$")
        script.kill()
    with blocking.embed(tmp_path) as client, client.write_log("lines"), client.read_log("lines") as reader:
        assert [(str(each.position), each.data) for each in reader] == [
            ("1:0", b"line 0"),
            ("1:1", b"line 1"),
            ("1:2", b"line 2"),
            ("2:0", b"line 3"),
        ]
