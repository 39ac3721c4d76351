"""Celery's prefork pool: each process has a log of its own, and a task whose process is killed is done again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.examples.orders import connected, everything
from tests.examples.programs import ROOT, WAIT_S, Program, short_path

__all__ = ["short_path"]

pytestmark = pytest.mark.skipif(find_spec("celery") is None, reason="needs the extra `recipes`")
TASKS = 8  # at a time: as many as the worker takes at once
CELERY = ("-m", "celery", "--app", "examples.celery_orders", "worker", "--concurrency", "2", "--loglevel", "INFO")


@pytest.mark.long
@pytest.mark.crash
def test_results_of_tasks_survive_a_killed_worker(short_path: Path) -> None:
    (short_path / "queue").mkdir()
    finished: set[str] = set()
    with Program("examples/web_host.py", str(short_path)) as host:
        host.wait_for("serving")
        for first in (0, TASKS):
            send(range(first, first + TASKS), short_path)
            with Program(*CELERY, ORDERS=str(short_path)) as worker:
                wait_done(worker, TASKS)
                finished |= done(worker)
                worker.kill()  # with its pool
        with connected(short_path) as client:
            kept = everything(client)
        assert host.stop(signal.SIGTERM) == 0
    assert {log for log, _ in kept} <= {"orders-0", "orders-1"}, "the next processes took the logs of those before"
    assert sorted(each["id"] for each in kept.values()) == sorted(finished)
    assert {int(each["item"]) for each in kept.values()} == set(range(2 * TASKS))


def send(numbers: range, directory: Path) -> None:
    """Sends a task for each of these, as another program would."""
    code = f"from examples.celery_orders import order\nfor number in {numbers}: order.delay(str(number))"
    environment = {**os.environ, "ORDERS": str(directory)}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, timeout=WAIT_S, check=True)


def wait_done(worker: Program, tasks: int) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while len(done(worker)) < tasks and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert len(done(worker)) == tasks, worker.lines


def done(worker: Program) -> set[str]:
    """The ids of the tasks that succeeded."""
    return {match[1] for match in (re.search(r"\[([\w-]{36})\] succeeded", line) for line in worker.lines) if match}
