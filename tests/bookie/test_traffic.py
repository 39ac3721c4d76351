"""A bookie's counters of its traffic, and the durations of its commits."""

from __future__ import annotations

import threading

import trio.testing

from replog.bookie import traffic
from replog.errors import StorageFailedError
from replog.protocol.messages import RecoveryReadRequest, Status
from tests.bookie.test_server import KEY, a_batch, add, fence, read, serving


async def test_adds_and_reads_are_counted() -> None:
    async with serving(is_instant=True) as served:
        sizes = 0
        for first in (0, 5):
            batch = a_batch(first, count=5)
            sizes += len(batch.data)
            assert (await served.ask(add(batch))).status is Status.OK
        await served.ask(add(a_batch(0, ledger_id=2)))
        await served.ask(read())
        await served.ask(read(entry_id=5))
        found = served.server.statistics()
        assert (found["added_batches"], found["added_entries"], found["active_ledgers"]) == (3, 11, 2)
        assert found["added_bytes"] == sizes + len(a_batch(0, ledger_id=2).data)
        assert (found["reads"], found["read_bytes"]) == (2, sizes + len(a_batch(5, count=5).data))
        assert (found["queued_bytes"], found["queued_requests"]) == (0, 0)


async def test_only_accepted_fences_and_recovery_reads_are_counted() -> None:
    async with serving(is_instant=True) as served:
        await served.ask(add(a_batch()))
        await served.ask(fence(term=3))
        await served.ask(RecoveryReadRequest(0, 1, KEY, 3, 0, 1))
        assert (await served.ask(add(a_batch(1), term=1))).status is Status.FENCED
        assert (await served.ask(fence(term=2))).status is Status.FENCED
        assert (await served.ask(add(a_batch(1), term=3, key=b"another" * 4))).status is Status.UNAUTHORIZED
        found = served.server.statistics()
        assert (found["added_batches"], found["fence_requests"], found["recovery_reads"]) == (1, 1, 1)


async def test_ledger_without_adds_is_not_active_for_long(autojump_clock: trio.testing.MockClock) -> None:
    async with serving(is_instant=True) as served:
        await served.ask(add(a_batch()))
        await trio.sleep(traffic._TURN_S * 0.9)
        assert served.server.statistics()["active_ledgers"] == 1
        await trio.sleep(traffic._TURN_S * 1.2)
        assert served.server.statistics()["active_ledgers"] == 0


async def test_a_commit_and_its_group_are_observed_once() -> None:
    async with serving() as served:
        await served.ask(add(a_batch(ledger_id=2)))  # so that all that follows finds the thread at work
        served.storage.gate = threading.Event()
        ids = served.asker.send(add(a_batch(0)))
        ids += served.asker.send(*(add(a_batch(first)) for first in range(1, 50)))
        assert served.server.statistics()["queued_requests"] == 50
        served.storage.gate.set()
        await served.ask(add(a_batch(50)))
        latencies = served.server.latencies()
        assert len(served.asker.answers) == 52
        assert latencies["commit"].count == len(served.storage.commits)
        assert latencies["answer"].count == len(served.storage.commits)
        assert latencies["answer"].total_s > latencies["commit"].total_s > 0
        assert len(served.storage.commits) <= 4 < len(ids)


async def test_a_copy_of_the_latencies_stays_as_it_is() -> None:
    async with serving(is_instant=True) as served:
        before = served.server.latencies()
        await served.ask(add(a_batch()))
        assert before["commit"].count == 0
        assert served.server.latencies()["commit"].since(before["commit"]).count == 1


async def test_failed_storage_leaves_the_other_numbers() -> None:
    async with serving(is_instant=True) as served:
        await served.ask(add(a_batch()))
        assert served.server.statistics()["storage_failed"] == 0
        served.storage.commit_error = StorageFailedError("no such device")
        assert (await served.ask(add(a_batch(1)))).status is Status.UNKNOWN
        found = served.server.statistics()
        assert (found["storage_failed"], found["read_only"], found["added_batches"]) == (1, 1, 2)
        assert "batches" not in found
