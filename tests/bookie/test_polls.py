"""Many long polls at once (D1): each is answered when its ledger has news for it, or when its own time is up."""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing

from replog.config.bookie import BookieTuning
from tests.bookie.test_server import a_batch, add, poll, serving
from tests.lanes.seeds import seeds

WAIT_MAX_S = 40.0


@pytest.mark.parametrize("seed", seeds(10))
async def test_each_poll_is_answered_in_its_time(seed: int, autojump_clock: trio.testing.MockClock) -> None:
    chance = random.Random(seed)
    options = BookieTuning(storage="memory", long_poll_max_s=WAIT_MAX_S)
    async with serving(options, is_instant=True) as served:
        asker = served.asker
        due: dict[int, float] = {}  # by request: when its time is up
        asked: dict[int, tuple[int, int]] = {}  # by request: its ledger, and what its asker knew
        confirmed = {1: -1, 2: -1, 3: -1}

        async def check(now_s: float) -> None:
            await trio.testing.wait_all_tasks_blocked()
            for request_id, ends_s in due.items():
                ledger_id, after = asked[request_id]
                is_due = ends_s <= now_s or confirmed[ledger_id] > after
                assert (request_id in asker.answers) is is_due, f"poll {asked[request_id]} until {ends_s} at {now_s}"
            waiting = sum(each not in asker.answers for each in due)
            assert served.server.statistics()["waiting_polls"] == waiting

        for _ in range(60):
            now_s, ledger_id = trio.current_time(), chance.choice((1, 2, 3))
            if chance.random() < 0.6:
                after, wait_s = (
                    confirmed[ledger_id] + chance.choice((-1, 0, 0, 0, 1, 2)),
                    chance.choice((1, 3, 10, 30, 99)),
                )
                (request_id,) = asker.send(poll(after, wait_s * 1000, ledger_id))
                asked[request_id], due[request_id] = (ledger_id, after), now_s + min(wait_s, WAIT_MAX_S)
            elif chance.random() < 0.4:
                # Its header says that all before it is confirmed.
                asker.send(add(a_batch(confirmed[ledger_id] + 2, 1, ledger_id)))
                confirmed[ledger_id] += 1
            await check(now_s)
            await trio.sleep(chance.choice((0.25, 0.5, 1.25, 4.125)))
            await check(trio.current_time())
        await trio.sleep(WAIT_MAX_S)
        await check(trio.current_time())
        assert due.keys() <= asker.answers.keys()
