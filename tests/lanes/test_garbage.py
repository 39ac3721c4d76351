"""What was collected is no garbage."""

import gc


def test_collected_objects_are_not_searched_again() -> None:
    assert gc.isenabled()
    assert gc.get_freeze_count() > 10_000
