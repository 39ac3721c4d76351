"""A process with a bookie and a member, whose clock can be set and whose disk can be made to fail from outside.

    python -m tests.failures.quorum_process FAULTS ARGUMENTS...

ARGUMENTS are those of `replog`. FAULTS is a file, which is read whenever it has changed: `ahead_s` is how far the clock is ahead,
`error` the number of the error that calls on files below `below` give, `count` how many of them do. The calls need
`tests/disks/failing_calls.c` in LD_PRELOAD. What the member does is appended to the file that the environment's
REPLOG_TEST_TRACE names, one line a step, for `tests/spec/council_processes.py`.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

_LOOK_S = 0.02
_sleep, _time, _time_ns = time.sleep, time.time, time.time_ns


class Outside:
    """What was said from outside."""

    def __init__(self, faults: Path) -> None:
        self.ahead_s = 0
        self._faults = faults
        self._obeyed = ""

    def watch(self) -> None:
        """Reads the file again and again, as long as the process runs."""
        while True:
            _sleep(_LOOK_S)
            self.obey()

    def obey(self) -> None:
        """Reads the file, and does what it says if that is new."""
        text = self._faults.read_text()
        if text != self._obeyed:
            self._obeyed = text
            said: dict[str, Any] = json.loads(text)
            self.ahead_s = said["ahead_s"]
            if said["count"]:
                fail_calls(said["below"], CHANGES, said["error"], count=said["count"])
            else:
                end_failing()

    def set_clock(self) -> None:
        """From now on the time of day is ahead by `ahead_s`. Deadlines have another clock, as they do everywhere."""
        vars(time)["time"] = lambda: _time() + self.ahead_s
        vars(time)["time_ns"] = lambda: _time_ns() + self.ahead_s * 10**9


if __name__ == "__main__":
    outside = Outside(Path(sys.argv[1]))
    outside.set_clock()  # before anything of replog keeps the function
    from tests.disks.failing import CHANGES, end_failing, fail_calls

    outside.obey()
    threading.Thread(target=outside.watch, daemon=True).start()
    sys.argv[1:2] = []
    from tests.spec.council_processes import TRACE, recording_to

    with recording_to(os.environ[TRACE]) if TRACE in os.environ else nullcontext():
        runpy.run_module("replog.cli", run_name="__main__", alter_sys=True)
