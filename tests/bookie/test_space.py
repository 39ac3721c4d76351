"""Whether a bookie takes new entries: two bounds, and what commits met (B5)."""

import pytest

from replog.bookie.space import TRY_AGAIN_S, Space
from replog.config import BookieOptions
from replog.config.bookie import tuned
from replog.errors import ConfigError, StorageFullError

FULL = StorageFullError("no space", "make some")


def test_between_the_bounds_it_stays_as_it_is() -> None:
    space = Space("b", 100, 200)
    seen = []
    for now, free_bytes in enumerate([1000, 150, 100, 99, 100, 150, 199, 200, 150, 100, 0, 200]):
        space.looked(free_bytes, now)
        seen.append((free_bytes, space.error is None))
    assert [free_bytes for free_bytes, takes_entries in seen if not takes_entries] == [99, 100, 150, 199, 0]


def test_the_error_says_how_much_is_needed() -> None:
    space = Space("bookie-7", 100, 200)
    space.looked(7, 0.0)
    assert "bookie-7: disk full: 7 bytes are free" in str(space.error)
    assert "200" in str(space.error)


def test_an_unknown_disk_is_presumed_to_have_space_after_a_while() -> None:
    space = Space("b", 100, 200)
    space.met_full(FULL, 10.0)
    space.looked(None, 10.0 + TRY_AGAIN_S - 0.1)
    assert space.error is FULL
    space.looked(None, 10.0 + TRY_AGAIN_S)
    assert space.error is None


def test_a_commit_without_space_outweighs_the_disks_own_figure() -> None:
    space = Space("b", 100, 200)
    space.met_full(FULL, 10.0)
    space.looked(1 << 30, 10.1)
    assert space.error is FULL
    space.looked(150, 10.0 + TRY_AGAIN_S)
    assert space.error is FULL, "it was full, and is not above the upper bound"
    space.looked(200, 10.1 + TRY_AGAIN_S)
    assert space.error is None


def test_only_commits_detect_full_space_without_a_bound() -> None:
    space = Space("b", 0, 0)
    space.looked(0, 0.0)
    assert space.error is None


def test_wrong_bounds_are_refused() -> None:
    for wrong in (-1, "many"):
        with pytest.raises(ConfigError, match="read_only_below_bytes"):
            BookieOptions(read_only_below_bytes=wrong)  # type: ignore[arg-type]
    assert tuned(BookieOptions(read_only_below_bytes=6)).writable_above_bytes == 12
