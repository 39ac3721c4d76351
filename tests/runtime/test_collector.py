"""Python's search for cycles stops while much is made, and not for longer."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from replog.runtime.collector import no_collections


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    was_enabled = gc.isenabled()
    yield
    gc.unfreeze()
    (gc.enable if was_enabled else gc.disable)()


@pytest.mark.parametrize("is_kept", [False, True])
def test_it_goes_on_afterwards(is_kept: bool) -> None:
    gc.enable()
    gc.unfreeze()
    with no_collections(is_kept=is_kept):
        assert not gc.isenabled()
        made = [[number] for number in range(1000)]
    assert gc.isenabled()
    assert (gc.get_freeze_count() > len(made)) == is_kept


@pytest.mark.parametrize("was_enabled", [False, True])
def test_an_error_leaves_it_as_it_was(was_enabled: bool) -> None:
    (gc.enable if was_enabled else gc.disable)()
    gc.unfreeze()
    with pytest.raises(LookupError), no_collections(is_kept=True):
        raise LookupError
    assert gc.isenabled() == was_enabled
    assert not gc.get_freeze_count(), "a program may go on: its garbage must be found"
