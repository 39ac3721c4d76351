"""Which test runs when, and in which worker of pytest-xdist.

The tests of a file run in one worker, one after the other: the fixtures of the file are made once. The same holds for files
that use the same server (`SHARING`), so that it is started once. What takes longest begins first (`FIRST`): in the end no
worker waits for another one.

Each worker begins to collect at another place. To rewrite the assertions of all files takes half a minute of a processor, and
the result is kept beside the files: so each worker does its share of it, and finds the rest done.

`--shuffle SEED` runs files in a random order, and the tests of each file, too. The same seed gives the same order.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import Scheduling  # type: ignore[import-untyped]

# Files below these places share a server, or another dear process, that lasts for the session.
SHARING = {
    "tests/spark/": "spark",
    "tests/metastores/zookeeper/": "zookeeper",
    "tests/bookie/test_on_zookeeper.py": "zookeeper",
    "tests/servers/test_zookeeper.py": "zookeeper",
    "tests/disks/": "preloaded",  # the process that forks, with a library of their own
    "plugins/replog-etcd/": "etcd",
    "plugins/replog-bookkeeper/": "bookkeeper",
    "plugins/replog-objects/": "moto",
}
FIRST = (
    "tests/spark/",
    "tests/metastores/zookeeper/",
    "plugins/replog-bookkeeper/",
    "plugins/replog-etcd/",
    "plugins/replog-objects/",
    "tests/failures/",
    "tests/disks/",
    "tests/examples/",
    "tests/test_tutorial.py",
    "tests/packaging/",
    "tests/simulator/",
    "tests/backends/",
    "tests/demo/",
    "tests/cli/",
    "plugins/",
    "tests/benchmarks/",
    "tests/test_docs.py",
    "tests/test_reference.py",
    "tests/mutation/",
    "tests/testing/",
    "tests/blocking/",
    "tests/runtime/test_leases.py",
    "tests/runtime/test_children.py",
    "tests/test_bad_disks.py",
    "tests/test_importing.py",
    "tests/aio/",
    "tests/log/",
    "tests/machine/",
    "tests/protocol/test_jobs.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run the tests in the random order of this number")


def pytest_report_header(config: pytest.Config) -> str | None:
    seed = config.getoption("shuffle")
    return None if seed is None else f"order of tests: --shuffle {seed}"


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, pytest.CollectReport]:
    report: pytest.CollectReport = yield
    worker = getattr(collector.config, "workerinput", None)
    if worker is not None and isinstance(collector, pytest.Directory):
        report.result = rotated(report.result, int(worker["workerid"].removeprefix("gw")), worker["workercount"])
    return report


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: (rank(item.nodeid), item.path))
    seed = config.getoption("shuffle")
    if seed is not None:
        shuffle(items, random.Random(seed))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling | None:
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class SharedServerScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope(nodeid)

    return SharedServerScheduling(config, log)


def scope(nodeid: str) -> str:
    """Tests of the same scope run in the same worker."""
    file = nodeid.partition("::")[0]
    return next((shared for place, shared in SHARING.items() if file.startswith(place)), file)


def rank(nodeid: str) -> int:
    """Tests of a lower rank begin earlier."""
    return next((number for number, place in enumerate(FIRST) if nodeid.startswith(place)), len(FIRST))


def rotated(found: list[Any], number: int, count: int) -> list[Any]:
    """The same list, but it begins at another place for each number below `count`."""
    start = len(found) * (number % count) // count
    return found[start:] + found[:start]


def shuffle(items: list[pytest.Item], choices: random.Random) -> None:
    """In place. The tests of a file stay together, so that its fixtures are made once."""
    by_file: dict[str, list[pytest.Item]] = {}
    for item in items:
        by_file.setdefault(item.nodeid.partition("::")[0], []).append(item)
    files = [by_file[name] for name in sorted(by_file)]
    choices.shuffle(files)
    for each in files:
        choices.shuffle(each)
    items[:] = [item for each in files for item in each]
