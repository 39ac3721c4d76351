"""Virtual time among real sockets, and a place for those that are files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio.testing


@pytest.fixture
def autojump_clock(patient_clock: trio.testing.MockClock) -> trio.testing.MockClock:
    """Nothing here runs without a socket."""
    return patient_clock


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory with a name that is short enough for sockets: those of `tmp_path` may not be."""
    with tempfile.TemporaryDirectory(prefix="replog-") as name:
        yield Path(name)
