"""What all tests begin with."""

import signal

import pytest
import trio.testing
from hypothesis import HealthCheck, settings

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

pytest_plugins = [f"tests.lanes.{name}" for name in ("costs", "fast", "garbage", "long", "order")]


# Of Hypothesis, for each test: every run draws new ones, and the long lane as many as Hypothesis itself would.
EXAMPLES_FAST, EXAMPLES, EXAMPLES_LONG = 15, 40, 100


def pytest_configure(config: pytest.Config) -> None:
    """Ctrl-C interrupts, also where the shell started the tests in the background and had them ignore it. An example of
    Hypothesis may take as long as it takes, to be made and to run: how busy the machine is says nothing about what is tested."""
    is_long = config.getoption("long") and not config.getoption("sample")
    few = EXAMPLES_FAST if config.getoption("fast") else EXAMPLES
    settings.register_profile(
        "replog",
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        max_examples=EXAMPLES_LONG if is_long else few,
    )
    settings.load_profile("replog")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def patient_clock() -> trio.testing.MockClock:
    """Virtual time among sockets and threads: see `tests/lanes/clocks.py`. If neither takes part, `autojump_clock` is faster."""
    return clocks.patient_clock(0.01)
