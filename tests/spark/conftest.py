"""What tests of Spark share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _active_session(request: pytest.FixtureRequest) -> None:
    """Spark looks for a data source in the session that is active in Java's thread. A streaming query makes a copy of the session
    active, in which what later tests register is not found: a test must begin with the session itself."""
    if "spark" in request.fixturenames:
        request.getfixturevalue("spark").createDataFrame([], "nothing int")  # makes it active
