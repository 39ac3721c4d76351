"""What `--costs` says of a test."""

from __future__ import annotations

from tests.lanes.costs import spent_s


def test_processor_time_is_never_negative() -> None:
    """A child that ends between two readings may be in neither sum."""
    assert spent_s(1.0, 3.5) == 2.5
    assert spent_s(3.5, 3.0) == 0.0
