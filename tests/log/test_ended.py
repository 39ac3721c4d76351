"""`LogWriter.wait_ended`: a leader that appends nothing hears that it was deposed, and what else changes the log's record ends
nobody (L5)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

import replog
from replog.config.client import ClientTuning
from replog.errors import FencedError
from replog.log.log_writer import LogWriter
from replog.protocol.model import Position
from replog.testing import Fault
from tests.kit import cluster, read_log, settle, until

# Idle writers publish nothing (W5): so no bookie tells them of their fence.
QUIET = ClientTuning(add_timeout_s=1.0, read_timeout_s=1.0, explicit_last_add_confirmed_after_s=600.0)
SOON_S = 10.0
KINDS = pytest.mark.parametrize("ledgers", ["bounded", "unbounded"])


class Ending:
    """A task that waits until a writer has ended, and how that came out."""

    def __init__(self, log: LogWriter, nursery: trio.Nursery) -> None:
        self.error: Exception | None = None
        self.over = trio.Event()
        self._log = log
        nursery.start_soon(self._wait)

    async def _wait(self) -> None:
        try:
            await self._log.wait_ended()
        except FencedError as error:
            self.error = error
        self.over.set()


@KINDS
async def test_idle_deposed_leader_hears_of_it_and_leaves_cleanly(
    ledgers: str, autojump_clock: trio.testing.MockClock
) -> None:
    """R1: nothing was in doubt, so leaving raises nothing, whether or not somebody waited."""
    async with cluster() as world, world.client(QUIET) as client, world.client(QUIET) as other:
        async with client.lead_log("log", options=replog.LogOptions(ledgers=ledgers)) as log:
            await log.append(b"0")
            async with other.write_log("log") as second:
                await until(lambda: log._writer.error is not None, SOON_S)
                await second.append(b"1")
        async with client.lead_log("log") as log:
            await log.append(b"2")
        assert await read_log(other) == [b"0", b"1", b"2"]


@KINDS
async def test_positions_in_doubt_are_reported(ledgers: str, autojump_clock: trio.testing.MockClock) -> None:
    """W4: the metastore told before the bookies did, which hang."""
    async with cluster() as world, world.client(QUIET) as client, world.client(QUIET) as other:
        async with client.write_log("log", options=replog.LogOptions(ledgers=ledgers)) as log:
            await log.append(b"0")
            for bookie in world.bookies:
                bookie.wire.lose_answer = lambda request: getattr(request, "term", 0) == 1
            log.push_nowait(b"in doubt")
            async with other.write_log("log"):
                with trio.fail_after(SOON_S), pytest.raises(FencedError) as caught:
                    await log.wait_ended()
            assert list(caught.value.positions) == [Position(1, 1)]


async def test_leader_of_deleted_log_hears_of_it(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUIET) as client, world.client(QUIET) as other:
        async with client.write_log("log") as log:
            await log.append(b"0")
            await other.delete_log("log")
            with trio.fail_after(SOON_S), pytest.raises(FencedError):
                await log.wait_ended()


async def test_wait_returns_when_writer_is_closed(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUIET) as client, trio.open_nursery() as nursery:
        async with client.write_log("log") as log:
            ending = Ending(log, nursery)
            await log.append(b"0")
            await settle()
            assert not ending.over.is_set()
        with trio.fail_after(SOON_S):
            await ending.over.wait()
            await log.wait_ended()
        assert ending.error is None


async def test_cancelled_wait_changes_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUIET) as client, client.write_log("log") as log:
        with trio.move_on_after(1.0) as scope:
            await log.wait_ended()
        assert scope.cancelled_caught
        assert await log.append(b"0") == Position(1, 0)


async def _trim(log: LogWriter, other: replog.Client) -> None:
    await log.append(b"0")
    await log.roll()
    await other.trim_log("log", before=Position(2, 0))


async def _cursor(_log: LogWriter, other: replog.Client) -> None:
    async with other.cursor("log", "cursor"):
        pass


async def _roll(log: LogWriter, _other: replog.Client) -> None:
    await log.append(b"0")
    await log.roll()
    await log.roll()


async def _splice(log: LogWriter, other: replog.Client) -> None:
    async with other.create_ledger(custom={"log": "log", "job": "job"}) as ledger:
        await ledger.append(b"of a job")
    await other.jobs.append_ledgers("log", [ledger.ledger_id])


@pytest.mark.parametrize("change", [_trim, _cursor, _roll, _splice])
@KINDS
async def test_other_changes_of_the_record_end_no_leader(
    change: Callable[[LogWriter, replog.Client], Awaitable[None]], ledgers: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster() as world, world.client(QUIET) as client, world.client(QUIET) as other:
        async with (
            trio.open_nursery() as nursery,
            client.write_log("log", options=replog.LogOptions(ledgers=ledgers)) as log,
        ):
            ending = Ending(log, nursery)
            await change(log, other)
            await trio.sleep(SOON_S)
            assert not ending.over.is_set()
            await log.append(b"goes on")


@pytest.mark.parametrize("fault", [None, Fault.ANSWER_LOST, Fault.ARRIVES_LATE, Fault.CONFLICT])
async def test_roll_of_unknown_outcome_ends_no_leader(
    fault: Fault | None, autojump_clock: trio.testing.MockClock
) -> None:
    """M1: the record may name a ledger of the leader's own, which it does not write to yet."""
    async with cluster() as world, world.client(QUIET) as client:
        async with trio.open_nursery() as nursery, client.write_log("log") as log:
            ending = Ending(log, nursery)
            await log.append(b"0")
            world.metastore.delay_s = 0.5
            if fault is not None:
                world.metastore.fail_next("put", fault, under="logs/log")
            await log.roll()
            assert world.metastore.planned() == 0
            await log.append(b"1")
            assert not ending.over.is_set()
        assert await read_log(client) == [b"0", b"1"]
