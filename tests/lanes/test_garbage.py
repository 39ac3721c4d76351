"""What was collected is no garbage."""

import gc


def test_what_was_collected_is_not_looked_through_again() -> None:
    assert gc.isenabled()
    assert gc.get_freeze_count() > 10_000
