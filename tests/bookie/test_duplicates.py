"""Two adds for one identity in one group commit: the second is judged once the first is durable, and stored once (T3)."""

from __future__ import annotations

import threading

import pytest
import trio

from replog.protocol.messages import Status
from replog.protocol.mutations import PutBatch
from tests.bookie.test_server import Served, a_batch, add, each_kind, fence, serving
from tests.kit import until


async def commit_together(served: Served, *payloads: bytes) -> list[Status]:
    """Adds with these payloads, for the same entry, which are taken into one group; what they were answered."""
    served.storage.gate = None if served.storage.is_instant else threading.Event()
    served.asker.send(fence(1, ledger_id=9))  # the commit thread waits with this one, while the others gather behind it
    ids = served.asker.send(*(add(a_batch(0, 1, payload=payload)) for payload in payloads))
    if served.storage.gate is not None:
        await trio.testing.wait_all_tasks_blocked()
        served.storage.gate.set()
    await until(lambda: all(each in served.asker.answers for each in ids))
    return [served.asker.answers[each].status for each in ids]


@each_kind
async def test_other_bytes_in_the_same_group_are_refused(is_instant: bool) -> None:
    async with serving(is_instant=is_instant) as served:
        assert await commit_together(served, b"first", b"other") == [Status.OK, Status.CONFLICT]
        assert [batch.data for batch in served.storage.read(1, 0, 1, 1 << 20)] == [a_batch(payload=b"first").data]


@each_kind
@pytest.mark.parametrize("copies", [2, 5])
async def test_a_resend_in_the_same_group_is_stored_once(copies: int, is_instant: bool) -> None:
    async with serving(is_instant=is_instant) as served:
        assert await commit_together(served, *[b"same"] * copies) == [Status.OK] * copies
        put = [each for commit in served.storage.commits for each in commit if isinstance(each, PutBatch)]
        assert len(put) == 1
