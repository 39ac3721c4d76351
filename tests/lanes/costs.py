"""`--costs FILE` appends what each test took to a file, and shows the dearest tests at the end.

A line is a JSON object: the test, seconds of wall time, and seconds of processor time. Processor time includes the processes
that the test started, ended or not: this process's, its threads' and its descendants'. It hardly depends on what else the
machine does, so that tests can be compared even on a busy one. A server that many tests share is charged to the test that was
running.

A test whose wall time is far more than its processor time, on an idle machine, waits for something.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

SHOWN = 10
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_OWN_TICKS = slice(11, 15)  # of /proc/PID/stat, behind the command: utime, stime, cutime, cstime


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", metavar="FILE", help="append wall and processor time of each test to this file")


def descendants(pid: int) -> Iterator[int]:
    """The processes below this one, as they are now."""
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found = [int(each) for each in children.read_text().split()]
        except OSError:
            continue  # the thread has ended
        for child in found:
            yield child
            yield from descendants(child)


def _ticks(pid: int) -> int:
    try:
        behind_command = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0  # the process has ended
    return sum(int(each) for each in behind_command[_OWN_TICKS])


def processor_s() -> float:
    """Processor time of this process, of its ended children and of its running descendants, in seconds."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    running = sum(_ticks(pid) for pid in descendants(os.getpid()))
    return time.process_time() + ended.ru_utime + ended.ru_stime + running / _TICKS_PER_S


def spent_s(before_s: float, after_s: float) -> float:
    """What was used between two readings. One is too low if a process ends while it is taken: then the test may seem to have
    given time back, and nothing is known but that it used little."""
    return max(0.0, after_s - before_s)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    path = item.config.getoption("costs")
    if not path:
        return (yield)
    wall_s, used_s = time.perf_counter(), processor_s()
    result = yield
    cost = {
        "test": item.nodeid,
        "wall_s": round(time.perf_counter() - wall_s, 3),
        "cpu_s": round(spent_s(used_s, processor_s()), 3),
    }
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(cost) + "\n")  # one write, so that lines of several workers don't mix
    return result


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    path = config.getoption("costs")
    if not path or not Path(path).exists():
        return
    costs = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
    for key, name in (("cpu_s", "processor time"), ("wall_s", "wall time")):
        total_s = sum(each[key] for each in costs)
        terminalreporter.section(f"{name} of {len(costs)} tests: {total_s:.1f} s; most of it in")
        for each in sorted(costs, key=lambda cost: -cost[key])[:SHOWN]:
            terminalreporter.line(f"{each[key]:8.2f} s  {each['test']}")
