"""What all tests begin with."""

import signal

import pytest
import trio.testing
from hypothesis import settings

from tests.lanes import clocks
from tests.servers.fixtures import own_zookeeper as own_zookeeper
from tests.servers.fixtures import pytest_runtest_makereport as pytest_runtest_makereport
from tests.servers.fixtures import shared_ensemble as shared_ensemble
from tests.servers.fixtures import zookeeper as zookeeper
from tests.servers.fixtures import zookeeper_chroot as zookeeper_chroot
from tests.servers.fixtures import zookeeper_ensemble as zookeeper_ensemble
from tests.servers.fixtures import zookeeper_url as zookeeper_url
from tests.servers.spark import spark as spark
from tests.servers.spark import spark_bookies as spark_bookies
from tests.servers.spark import spark_log as spark_log

pytest_plugins = ["tests.lanes.costs", "tests.lanes.fast", "tests.lanes.long", "tests.lanes.order"]


def pytest_configure() -> None:
    """Ctrl-C interrupts, also where the shell started the tests in the background and had them ignore it. An example of
    Hypothesis may take as long as it takes: how busy the machine is says nothing about what is tested."""
    settings.register_profile("replog", parent=settings(), deadline=None)
    settings.load_profile("replog")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def patient_clock() -> trio.testing.MockClock:
    """Virtual time among sockets and threads: see `tests/lanes/clocks.py`. If neither takes part, `autojump_clock` is faster."""
    return clocks.patient_clock(0.01)
