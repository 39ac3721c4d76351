"""Virtual time among real sockets."""

from __future__ import annotations

import pytest
import trio.testing


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    """Jumps when nothing has happened for some milliseconds: what one socket sends may take a moment to another one."""
    return trio.testing.MockClock(autojump_threshold=0.01)
