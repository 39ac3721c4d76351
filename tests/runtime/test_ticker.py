"""One task looks after all writers of a client."""

from collections import Counter

import pytest
import trio
import trio.testing

import replog
from replog.client.ledger_writer import LedgerWriter
from replog.config.client import ClientTuning
from replog.runtime import ticker as module
from replog.runtime.ticker import Ticker


class Patient:
    """Wants to be looked after so many times."""

    def __init__(self, looks: int) -> None:
        self.wanted = looks
        self.looked_at: list[float] = []

    def look(self) -> bool:
        self.looked_at.append(trio.current_time())
        return len(self.looked_at) < self.wanted


async def test_ticker_looks_until_a_watched_object_has_enough(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    ticker = Ticker(0.1)
    nursery.start_soon(ticker.run)
    one, three = Patient(1), Patient(3)
    await trio.sleep(1)
    started = trio.current_time()
    ticker.watch(one)
    ticker.watch(three)
    ticker.watch(three)
    await trio.sleep(1)
    assert [round(each - started, 3) for each in three.looked_at] == [0.1, 0.2, 0.3]
    assert len(one.looked_at) == 1
    assert len(ticker) == 0
    ticker.watch(one)
    await trio.sleep(1)
    assert len(one.looked_at) == 2, "it is looked after again when it comes again"


async def test_others_get_their_turn_among_many(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOOKS_PER_TURN", 10)
    ticker, seen = Ticker(0.1), []
    patients = [Patient(1) for _ in range(100)]
    for patient in patients:
        ticker.watch(patient)
    nursery.start_soon(ticker.run)
    await trio.sleep(0.1)
    for _ in range(30):
        seen.append(sum(len(patient.looked_at) for patient in patients))
        await trio.lowlevel.checkpoint()
    assert seen[-1] == 100
    assert len(set(seen)) >= 5


class _Turns(trio.abc.Instrument):
    def __init__(self) -> None:
        self.by_task: Counter[str] = Counter()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.by_task[task.name] += 1


async def test_writers_waiting_for_a_bookie_cost_no_task_switches(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ten thousand, each with a task that wakes ten times a second, a processor did nothing else: what was appended to all of
    them over TCP was not confirmed in time."""
    ledgers, options = 50, ClientTuning(explicit_last_add_confirmed_after_s=0.1, follow_wait_s=60.0)
    async with replog.embed("waiting", bookies=1, storage="memory", metastore="memory:", options=options) as client:
        async with trio.open_nursery() as writers:
            opened: list[LedgerWriter] = []

            async def keep(task_status: trio.TaskStatus[None]) -> None:
                async with client.create_ledger() as writer:
                    opened.append(writer)
                    task_status.started()
                    await trio.sleep_forever()

            for _ in range(ledgers):
                await writers.start(keep)
            channel = opened[0]._entries._sender._context.connections.channel(client.bookies[0]._server.bookie_id)
            assert channel is not None
            assert channel.connection is not None
            monkeypatch.setattr(channel.connection, "_handle", lambda requests, reply: None)
            for writer in opened:
                writer.push_nowait(b"never answered")
            turns = _Turns()
            trio.lowlevel.add_instrument(turns)
            await trio.sleep(2)
            trio.lowlevel.remove_instrument(turns)
            assert sum(turns.by_task.values()) < 2 * ledgers, turns.by_task
            writers.cancel_scope.cancel()
