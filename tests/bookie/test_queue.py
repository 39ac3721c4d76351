"""The next commit of a bookie: copies wait beside appends, and never before earlier works (B2, B9)."""

from __future__ import annotations

import random
import threading
from collections import defaultdict

from replog.abc import Mutation, PutBatch
from replog.bookie.groups import Work
from replog.bookie.queue import COPIES_BYTES_MAX, CommitQueue
from replog.protocol.bookie import Accepted, LedgerOnBookie, OrderedRequest
from replog.protocol.messages import AddRequest, CopyRequest, FenceRequest
from replog.protocol.mutations import Marks
from replog.testing.storage_conformance import make_batch
from tests.bookie.test_server import KEY, Served, each_kind, serving
from tests.kit import until

COPY_BYTES = COPIES_BYTES_MAX // 2
APPENDED_TO = 99


def copy_of(ledger_id: int, first: int = 0) -> CopyRequest:
    batch = make_batch(ledger_id, first, 1, size_bytes=COPY_BYTES - 1000)
    return CopyRequest(0, ledger_id, KEY, 1, batch, recovery=True)


def add_to(ledger_id: int, first: int = 0) -> AddRequest:
    return AddRequest(0, ledger_id, KEY, 1, make_batch(ledger_id, first))


def batches(commit: list[Mutation]) -> list[tuple[int, int]]:
    """Ledger and size of each batch of a commit."""
    return [(each.batch.ledger_id, len(each.batch.data)) for each in commit if isinstance(each, PutBatch)]


def bytes_before(served: Served, ledger_id: int) -> int:
    """Bytes of other ledgers that were committed before, or together with, the first batch of this one."""
    found = 0
    for commit in served.storage.commits:
        sizes = batches(commit)
        found += sum(size for each, size in sizes if each != ledger_id)
        if any(each == ledger_id for each, _ in sizes):
            return found
    raise AssertionError("it was not committed")


@each_kind
async def test_append_waits_for_few_bytes_of_copies(is_instant: bool) -> None:
    """Sixteen copies, 4 MiB, came before it: all of them had to be durable before it was answered."""
    async with serving(is_instant=is_instant) as served:
        await served.ask(add_to(1))  # appends come
        served.storage.commits.clear()
        gate = threading.Event()
        if not is_instant:
            served.storage.gate = gate
        ids = [each for number in range(16) for each in served.asker.send(copy_of(10 + number))]
        ids += served.asker.send(add_to(APPENDED_TO))
        gate.set()
        await until(lambda: all(each in served.asker.answers for each in ids))
        # A group of copies may be under way when it comes, and its own has none.
        assert bytes_before(served, APPENDED_TO) <= COPIES_BYTES_MAX + 1024
        assert sum(size for commit in served.storage.commits for _, size in batches(commit)) > 7 * COPIES_BYTES_MAX


@each_kind
async def test_copies_go_on_beside_appends(is_instant: bool) -> None:
    """Each append is sent when the one before is answered, and each time some copies are taken."""
    async with serving(is_instant=is_instant) as served:
        await served.ask(add_to(1))
        ids = [each for number in range(8) for each in served.asker.send(copy_of(10 + number))]
        for number in range(1, 40):
            await served.ask(add_to(1, 3 * number))
            if all(each in served.asker.answers for each in ids):
                break
        assert number <= 10, "two copies for each append"


async def test_copies_alone_are_committed_together() -> None:
    async with serving(is_instant=True) as served:
        ids = [each for number in range(8) for each in served.asker.send(copy_of(10 + number))]
        await until(lambda: all(each in served.asker.answers for each in ids))
        assert [len(batches(each)) for each in served.storage.commits] == [8]


@each_kind
async def test_fence_is_durable_behind_copies_of_its_ledger(is_instant: bool) -> None:
    """B2: what was accepted before it is committed before it, and it does not hold up others'."""
    async with serving(is_instant=is_instant) as served:
        await served.ask(add_to(1))
        order = served.asker.order
        order.clear()
        requests: list[OrderedRequest] = [
            copy_of(10),
            copy_of(11),
            FenceRequest(0, 11, KEY, 2),
            add_to(1, 3),
            FenceRequest(0, 1, KEY, 2),
        ]
        ids = [each for request in requests for each in served.asker.send(request)]
        await until(lambda: all(each in served.asker.answers for each in ids))
        assert order.index(ids[1]) < order.index(ids[2])
        assert order.index(ids[3]) < order.index(ids[4])


def work(number: int, request: OrderedRequest, size_bytes: int, now_s: float) -> Work:
    request.request_id = number
    ledger, accepted = LedgerOnBookie(request.ledger_id, Marks()), Accepted(request, [])
    return Work(ledger, accepted, lambda _answers: None, size_bytes, 0, now_s)


BATCH = make_batch(1, 0)


def any_request(chance: random.Random, ledger_id: int) -> OrderedRequest:
    return chance.choice(
        (
            CopyRequest(0, ledger_id, KEY, 1, BATCH, recovery=True),
            AddRequest(0, ledger_id, KEY, 1, BATCH),
            FenceRequest(0, ledger_id, KEY, 1),
        )
    )


def test_each_ledger_keeps_its_order_in_any_schedule() -> None:
    """B2, for a thousand schedules of adds, copies and fences to three ledgers; nothing is lost, and no group too large."""
    for seed in range(1000):
        chance = random.Random(seed)
        now_s, number = 0.0, 0
        queue = CommitQueue(1000, lambda: now_s)  # noqa: B023
        put: dict[int, list[int]] = defaultdict(list)
        taken: dict[int, list[int]] = defaultdict(list)
        unanswered: list[list[Work]] = []

        def take() -> None:
            group = queue.take()  # noqa: B023
            assert len(group) < 2 or sum(each.size_bytes for each in group) <= COPIES_BYTES_MAX
            for each in group:
                taken[each.accepted.request.ledger_id].append(each.accepted.request.request_id)  # noqa: B023
            unanswered.append(group)  # noqa: B023

        for _ in range(40):
            now_s += chance.choice((0, 0, 0.001, 0.7))
            match chance.randrange(3):
                case 0:
                    works = []
                    for _ in range(chance.randrange(1, 4)):
                        number += 1
                        ledger_id = chance.randrange(3)
                        request = any_request(chance, ledger_id)
                        queue.is_parted |= isinstance(request, CopyRequest)
                        works.append(work(number, request, chance.randrange(600), now_s))
                        put[ledger_id].append(number)
                    if queue.is_parted:
                        queue.put(works)
                    else:
                        queue.waiting += works
                case 1:
                    take()
                case _ if unanswered:
                    queue.answered(unanswered.pop(0))
        while queue.waiting or queue.copies:
            take()
        assert taken == put, seed
        for group in unanswered:
            queue.answered(group)
        assert not queue._behind
        assert not queue._ledgers
