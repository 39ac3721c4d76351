"""Ten thousand ledgers open for writing in one client, and an entry to each of them in turn."""

import pytest
import trio

import replog
from replog.client.ledger_writer import LedgerWriter
from replog.protocol.quorum import Quorum

LEDGERS = 10_000
ROUNDS = 2
TURNS_MAX = 8  # of tasks, for a ledger in a round


class _Turns(trio.abc.Instrument):
    def __init__(self) -> None:
        self.count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1


@pytest.mark.real
@pytest.mark.long(is_sampled=False)
async def test_ten_thousand_open_ledgers_work() -> None:
    quorum, turns = Quorum(1, 1, 1), _Turns()
    async with replog.embed("many", bookies=1, storage="memory", metastore="memory:", quorum=quorum) as client:
        async with trio.open_nursery() as writers:
            opened: list[LedgerWriter] = []
            done = trio.Event()

            async def keep(task_status: trio.TaskStatus[None]) -> None:
                async with client.create_ledger() as writer:
                    opened.append(writer)
                    task_status.started()
                    await done.wait()

            for _ in range(LEDGERS):
                await writers.start(keep)
            trio.lowlevel.add_instrument(turns)
            for number in range(ROUNDS):
                for writer in opened:
                    writer.push_nowait(b"%d" % number)
                for writer in opened:
                    await writer.flush()
            trio.lowlevel.remove_instrument(turns)
            assert {writer.last_add_confirmed for writer in opened} == {ROUNDS - 1}
            assert {len(writer.metadata.fragments) for writer in opened} == {1}, "no bookie was given up as too slow"
            assert turns.count < TURNS_MAX * ROUNDS * LEDGERS
            done.set()
        assert len(await client.ledgers()) == LEDGERS
        async with client.open_ledger(opened[-1].ledger_id) as reader:
            assert await reader.read(0, ROUNDS - 1) == [b"0", b"1"]
