"""Virtual time among real sockets."""

from __future__ import annotations

import pytest
import trio.testing


@pytest.fixture
def autojump_clock(patient_clock: trio.testing.MockClock) -> trio.testing.MockClock:
    """Nothing here runs without a socket."""
    return patient_clock
