"""What is counted, and what is not."""

import sys

import pytest
import trio

from benchmarks.speed.counting import counting, holding
from replog.protocol.quorum import Quorum

pytestmark = pytest.mark.skipif(
    sys.gettrace() is not None or sys.getprofile() is not None, reason="something traces this run"
)


def test_only_replogs_code_and_its_callees_count() -> None:
    quorum = Quorum(3, 3, 2)
    quorum.is_covered(0b11)  # it makes its write sets when it is first asked
    with counting() as none:
        sorted(range(100), key=lambda number: -number)
    assert (none.calls, none.instructions) == (0, 0)
    with counting() as once:
        quorum.is_covered(0b11)
    with counting() as twice:
        quorum.is_covered(0b11)
        quorum.is_covered(0b11)
    assert once.calls > 0
    assert once.instructions > once.calls
    assert (twice.calls, twice.instructions) == (2 * once.calls, 2 * once.instructions)


async def test_turns_of_tasks_count() -> None:
    with counting() as counts:
        for _ in range(10):
            await trio.lowlevel.checkpoint()
    assert counts.steps == 10


def test_counting_is_refused_when_something_traces_already() -> None:
    with counting(), pytest.raises(RuntimeError, match="traced already"), counting():
        pass
    assert sys.gettrace() is None
    with holding(), pytest.raises(RuntimeError, match="traced already"), holding():
        pass


def test_copies_count_while_they_live() -> None:
    size = 1 << 20
    with holding() as once:
        bytes(size)
        bytes(size)
    with holding() as both:
        kept = bytes(size)
        bytearray(kept)
    assert once.peak_bytes == pytest.approx(size, rel=0.01)
    assert both.peak_bytes == pytest.approx(2 * size, rel=0.01)
