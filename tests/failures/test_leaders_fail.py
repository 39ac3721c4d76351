"""Writers are stopped, woken and killed, and others take over: the deposed one learns it, and confirms nothing any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.failures.actors import AFTER_FENCED
from tests.failures.cluster import CONFIRMING_S, cluster


# Five bookies, four more processes, half a minute of a processor. Among all tests, `tests/examples/test_failover.py` kills and
# stops leaders in processes of their own.
@pytest.mark.long(is_sampled=False)
async def test_a_stopped_leader_is_fenced_and_a_killed_one_succeeded(tmp_path: Path) -> None:
    async with cluster(tmp_path) as found:
        first = await found.start_writer("first")
        await found.start_reader("reader")
        await found.confirms(100, CONFIRMING_S)

        found.note("the first writer is stopped")
        first.stop()
        second = await found.start_writer("second")
        await found.confirms(100, CONFIRMING_S)
        found.note("the first writer wakes")
        first.wake()
        await first.says("fenced")
        await first.ended()

        await found.confirms(100, CONFIRMING_S)
        found.note("the second writer is killed")
        await second.kill()
        await found.start_writer("third")
        await found.confirms(100, CONFIRMING_S)

        events = await found.judged(confirmed_min=400)
        (fenced,) = (event for event in events if event.kind == "fenced")
        assert fenced.actor == "first.1"
        tried = [event for event in events if event.actor == "first.1" and event.at_s > fenced.at_s]
        assert sum(event.kind == "invoked" for event in tried) == AFTER_FENCED
        assert not any(event.kind == "confirmed" for event in tried)
