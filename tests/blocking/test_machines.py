"""State machines for threads: the same commands, results and errors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import replog
from replog import blocking
from tests.machine.counters import Counters


def test_commands_of_many_threads_are_applied_once(tmp_path: Path) -> None:
    with blocking.embed(tmp_path) as client, client.run_machine("counters", Counters, listen=()) as counters:
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda _: counters.add("visits"), range(20)))
        assert sorted(found) == list(range(1, 21))
        assert counters.call(Counters.add, "visits", amount=2) == 22
        assert counters.read(lambda state: state.values["visits"]) == 22
        assert counters.machine_name == "counters"
        command_id = counters.next_id()
        assert [counters.call_as(command_id, Counters.add, "visits") for _ in range(2)] == [23, 23]
        with pytest.raises(replog.errors.CommandFailedError, match="ValueError"):
            counters.take("none", 1)
    with pytest.raises(replog.ClosedError):
        counters.add("visits")


def test_local_state_is_a_copy(tmp_path: Path) -> None:
    """The trio thread applies the next command while the caller looks at it."""
    with blocking.embed(tmp_path) as client, client.run_machine("counters", Counters, listen=()) as counters:
        counters.add("visits")
        local = counters.local
        counters.add("visits")
        assert [local.values, counters.local.values] == [{"visits": 1}, {"visits": 2}]
