"""What these tests begin with: the servers of replog's own tests, and what they said when a test failed."""

from tests.servers.fixtures import pytest_runtest_makereport as pytest_runtest_makereport

pytest_plugins = ["tests.lanes.costs", "tests.lanes.order"]
