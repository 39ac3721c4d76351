"""What tests of Spark share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from replog.spark.clients import close_idle_clients


@pytest.fixture(autouse=True)
def _active_session(request: pytest.FixtureRequest) -> None:
    """Spark looks for a data source in the session that is active in Java's thread. A streaming query makes a copy of the session
    active, in which what later tests register is not found: a test must begin with the session itself."""
    if "spark" in request.fixturenames:
        request.getfixturevalue("spark").createDataFrame([], "nothing int")  # makes it active


@pytest.fixture(autouse=True)
def _no_client_is_left() -> Iterator[None]:
    """What runs in processes of Spark's keeps its client, and here that is this process."""
    yield
    close_idle_clients()
