"""The fast lane: the tests to run after each edit, in virtual time, without sockets and processes.

With `--sample` as well, one case of every third test runs: so it is on another Python, in the gate.

A test is in the fast lane if its file is below one of `PLACES` and it is not marked with one of `SLOWER`. It has the marker
`fast`, so that `-m fast` runs them all. While such a test runs, what would make it slow or dependent on the machine raises
`FastLaneError`: a socket, a process, `time.sleep`. Asynchronous tests run in virtual time: those without a clock of their own
(`autojump_clock`, the fastest, if no thread takes part) get `patient_clock`. So do those that are only too slow or long for
the lane. If a test starts trio itself, without a virtual clock, and a deadline passes in real time, it fails at its end.
"""

from __future__ import annotations

import functools
import multiprocessing.util
import os
import socket
import subprocess
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest
import trio

from tests.lanes.clocks import lane_clock

PLACES = (
    "tests/bookie/",
    "tests/client/",
    "tests/formats/",
    "tests/lanes/",
    "tests/log/",
    "tests/machine/",
    "tests/placements/",
    "tests/protocol/",
    "tests/records/",
    "tests/repair/",
    "tests/runtime/",
    "tests/test_config.py",
    "tests/test_registry.py",
    "tests/transports/test_memory.py",
)
REAL = frozenset({"real", "crash", "needs_zookeeper", "needs_bookkeeper", "needs_spark"})  # these need real time
SLOWER = REAL | {"slow", "long"}
REAL_FIXTURES = frozenset(
    {"zookeeper_url", "zookeeper", "own_zookeeper", "zookeeper_ensemble", "spark", "spark_bookies"}
)
_ADVICE = "mark the test `real` if it cannot do without, which takes it out of the fast lane (tests/lanes/fast.py)"


IDLE_S = 0.001
NEVER_S = 24 * 3600.0  # trio waits for longer than a day if there is no deadline


class FastLaneError(AssertionError):
    """A test of the fast lane asked for real time, a socket or a process."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="run the fast lane only, and collect no other folder")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("fast"):
        config.option.markexpr = " and ".join(filter(None, ["fast", config.option.markexpr]))
        if config.args_source is not pytest.Config.ArgsSource.ARGS:
            config.args[:] = PLACES


def pytest_itemcollected(item: pytest.Item) -> None:
    if is_virtual(item) and SLOWER.isdisjoint(marker.name for marker in item.iter_markers()):
        item.add_marker(pytest.mark.fast)


def is_virtual(item: pytest.Item) -> bool:
    """Whether virtual time is enough for it."""
    needs_servers = not REAL_FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
    is_real = not REAL.isdisjoint(marker.name for marker in item.iter_markers())
    return item.nodeid.startswith(PLACES) and not is_real and not needs_servers


@pytest.hookimpl(trylast=True)  # behind pytest-trio, whose marker ours replaces
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if is_virtual(item) and item.get_closest_marker("trio") is not None:
            item.add_marker(pytest.mark.trio(run=_run_in_virtual_time), append=False)
    if config.getoption("fast") and config.getoption("sample"):
        chosen = first_cases(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen


def first_cases(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """One of each third test: what differs between Pythons differs in all cases of a test, and mostly in many tests."""
    first: dict[tuple[pytest.Item | pytest.Collector | None, str], pytest.Item] = {}
    for item in items:
        first.setdefault((item.parent, getattr(item, "originalname", item.name)), item)
    # Each worker collects in another order.
    chosen = set(sorted(item.nodeid for item in first.values())[::3])
    return [item for item in first.values() if item.nodeid in chosen]


def _run_in_virtual_time(
    function: Callable[[], Awaitable[object]],
    *,
    clock: trio.abc.Clock | None = None,
    instruments: Sequence[trio.abc.Instrument] = (),
) -> object:
    return trio.run(function, clock=clock or lane_clock(IDLE_S), instruments=instruments)


@pytest.fixture(autouse=True)
def fast_lane(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """What the test did that the fast lane forbids. Outside the fast lane everything is allowed."""
    found: list[str] = []
    if request.node.get_closest_marker("fast") is None:
        yield found
        return
    with pytest.MonkeyPatch.context() as patch:
        _forbid(patch, found)
        yield found
    if found:  # even if the code under test caught the error
        raise FastLaneError("\n".join([*dict.fromkeys(found), _ADVICE]))


def _forbid(patch: pytest.MonkeyPatch, found: list[str]) -> None:
    # Threads that other tests of this process have left, such as those of a Java gateway, may go on as they like.
    others = {each.ident for each in threading.enumerate()} - {threading.get_ident()}

    def forbidden(what: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def refuse(*args: object, **kwargs: object) -> Any:
            if threading.get_ident() in others:
                return real(*args, **kwargs)
            found.append(f"the fast lane has no {what}")
            raise FastLaneError(f"{found[-1]}: {_ADVICE}")

        return refuse

    open_socket = socket.socket.__init__
    refuse_socket = forbidden("sockets", lambda: None)

    def open_only_pairs(
        self: socket.socket, family: int = -1, type: int = -1, proto: int = -1, fileno: int | None = None
    ) -> None:
        """Sockets that exist already are allowed: trio wakes itself by a pair of them."""
        if fileno is None:
            refuse_socket()
        open_socket(self, family, type, proto, fileno)

    patch.setattr(socket.socket, "__init__", open_only_pairs)
    patch.setattr(subprocess.Popen, "__init__", forbidden("processes (subprocess)", subprocess.Popen.__init__))
    patch.setattr(os, "fork", forbidden("processes (os.fork)", os.fork))
    patch.setattr(os, "posix_spawn", forbidden("processes (os.posix_spawn)", os.posix_spawn))
    spawn = multiprocessing.util.spawnv_passfds
    patch.setattr(multiprocessing.util, "spawnv_passfds", forbidden("processes (multiprocessing)", spawn))
    patch.setattr(time, "sleep", forbidden("time.sleep: wait for the event, or use virtual time", time.sleep))
    _watch_system_clock(patch, found)


def _watch_system_clock(patch: pytest.MonkeyPatch, found: list[str]) -> None:
    """Notice each time that trio, without a virtual clock, had nothing to do until a deadline and slept until it passed."""
    system_clock = _class_of_system_clock()
    until = weakref.WeakKeyDictionary[trio.abc.Clock, float]()  # when its run wakes up if nothing happens before

    def deadline_to_sleep_time(clock: trio.abc.Clock, deadline: float) -> float:
        now = clock.current_time()
        if now >= until.pop(clock, now + 1):
            found.append("the fast lane has no real time: use autojump_clock, or patient_clock if a thread takes part")
        if now < deadline < now + NEVER_S:
            until[clock] = deadline
        return deadline - now

    patch.setattr(system_clock, "deadline_to_sleep_time", deadline_to_sleep_time)


@functools.cache  # a run of trio for each of thousands of tests took a second
def _class_of_system_clock() -> type[trio.abc.Clock]:
    async def current() -> type[trio.abc.Clock]:
        return type(trio.lowlevel.current_clock())

    return trio.run(current)
