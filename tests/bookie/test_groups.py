"""Works that are committed in one group: what each of them may count on, and what one failure means for the rest."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from replog.abc import Mutation
from replog.backends.memory import MemoryStorage
from replog.config.bookie import BookieTuning
from replog.errors import StorageFailedError
from replog.protocol.messages import RecoveryReadRequest, Response, Status
from tests.bookie.test_server import FULL, KEY, a_batch, add, each_kind, fence, serving
from tests.kit import FaultyStorage, until


@each_kind
@pytest.mark.parametrize("is_recovery", [False, True])
async def test_a_recovery_read_finds_an_add_of_the_same_group(is_recovery: bool, is_instant: bool) -> None:
    """B2, R4: the add is acknowledged, so a denial behind it would be proof that a confirmed entry does not exist."""
    async with serving(is_instant=is_instant) as served:
        batch = a_batch(0)
        ids = served.asker.send(
            add(batch, 2 if is_recovery else 1, recovery=is_recovery), RecoveryReadRequest(0, 1, KEY, 2, 0, 1)
        )
        await until(lambda: ids[1] in served.asker.answers)
        added, found = (served.asker.answers[each] for each in ids)
        assert len(served.storage.commits) == 1, "the two did not share a group"
        assert (added.status, found.status) == (Status.OK, Status.OK)
        assert [each.data for each in found.batches] == [batch.data]


@each_kind
async def test_a_group_is_not_acknowledged_when_the_storage_fails(is_instant: bool) -> None:
    """B1: a group may need several commits. After a failed one, nobody knows what is durable of those before it."""

    class FailsAtSecond(FaultyStorage):
        def commit(self, mutations: Sequence[Mutation]) -> None:
            if self.commits:
                raise StorageFailedError("a sync failed", "restart the bookie")
            super().commit(mutations)

    storage = FailsAtSecond(MemoryStorage(), is_instant=is_instant)
    async with serving(storage=storage) as served:
        # The second add may be a resend of the first: the bookie commits the first one to look at what is stored.
        ids = served.asker.send(add(a_batch(0)), add(a_batch(0)), add(a_batch(1)))
        await until(lambda: ids[2] in served.asker.answers)
        assert len(storage.commits) == 1, "the failure did not come amid the group"
        assert [served.asker.answers[each].status for each in ids] == [Status.UNKNOWN] * 3


async def test_a_fence_does_not_fail_with_adds_from_before_a_failure() -> None:
    """R3: the fence is accepted after the disk was full, by a new machine, while an older add still waits.

    If both were one group, the fence would fail with the add, though there is space for it. Its machine would not be made
    again, and would refuse adds because of a fence that is not durable."""
    options = BookieTuning(storage="memory", commit_bytes_max=3000)
    async with serving(options, is_instant=True) as served:
        served.storage.commit_error = FULL
        statuses: dict[int, Status] = {}

        def answered(responses: Sequence[Response]) -> None:
            for response in responses:
                statuses[response.request_id] = response.status
            if served.storage.commit_error is not None:  # the first group failed; the second one waits
                served.storage.commit_error = None
                request = fence()
                request.request_id = 3
                served.server.handle([request], answered)

        requests = [add(a_batch(0, payload=bytes(2000))), add(a_batch(1, payload=bytes(2000)))]
        for number, each in enumerate(requests, 1):
            each.request_id = number
        served.server.handle(requests, answered)
        await until(lambda: len(statuses) == 3)
        assert statuses == {1: Status.READ_ONLY, 2: Status.READ_ONLY, 3: Status.OK}
        assert served.storage.marks(1).fence_term == 2  # type: ignore[union-attr]
