"""The writer of a log: taking over, duels, rolling while many append, leaving (L1, L2, L4, L5)."""

from __future__ import annotations

import pytest
import trio
import trio.testing

import replog
from replog.config import ClientOptions
from replog.config.client import ClientTuning
from replog.errors import (
    FencedError,
    LedgerDeletedError,
    LogNotFoundError,
    MetastoreError,
    NotEnoughBookiesError,
    StorageError,
    StorageFailedError,
    StorageFullError,
    TakeoverFailedError,
)
from replog.hookspecs import LogRolled, LogTakenOver, WriterFenced
from replog.log.record_batches import Positions
from replog.protocol.messages import AddRequest
from replog.protocol.model import LedgerState, Position
from replog.records.paths import log_key_path
from replog.testing import Fault
from tests.kit import ONE, Cluster, cluster, read_log, settle, until
from tests.lanes.seeds import some

KEY = log_key_path("log")
QUICK = ClientTuning(
    add_timeout_s=1.0, read_timeout_s=1.0, add_quorum_timeout_s=10.0, bookie_retry_after_s=1.0, metastore_timeout_s=3.0
)


def numbers(last: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


async def segments(client: replog.Client, name: str = "log") -> list[int]:
    metadata, _ = await client._opened.logs.get(name)
    return [segment.number for segment in metadata.segments]


# -- the verbs ------------------------------------------------------------------------------------------------------


async def test_the_verbs_give_positions_in_order(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        async with client.write_log("log") as log:
            assert log.last_add_pushed is None
            assert log.last_add_confirmed is None
            assert await log.append(b"0") == Position(1, 0)
            assert log.push_nowait(b"1") == Position(1, 1)
            assert await log.push(b"2") == Position(1, 2)
            assert await log.extend([b"3", b"4"]) == [Position(1, 3), Position(1, 4)]
            assert list(await log.extend([])) == []
            await log.flush()
            assert log.last_add_confirmed == log.last_add_pushed == Position(1, 4)
            assert await log.roll() == Position(2, 0)
            assert log.last_add_confirmed == log.last_add_pushed == Position(1, 4)
            assert await log.roll() == Position(3, 0)
            assert log.last_add_confirmed == log.last_add_pushed == Position(1, 4)
            assert await log.append(b"5") == Position(3, 0)
        assert await read_log(client) == numbers(5)


async def test_after_close_every_verb_says_so(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        async with client.write_log("log") as log:
            await log.append(b"0")
        await log.aclose()
        for verb in (
            lambda: log.append(b"x"),
            lambda: log.push(b"x"),
            lambda: log.extend([b"x"]),
            lambda: log.flush(),
            lambda: log.roll(),
        ):
            with trio.fail_after(1), pytest.raises(trio.ClosedResourceError):
                await verb()
        with pytest.raises(trio.ClosedResourceError):
            log.push_nowait(b"x")


# -- taking over ----------------------------------------------------------------------------------------------------


async def test_taking_over_creates_recovers_and_goes_on(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        for turn in range(5):
            async with world.client() as writing:
                async with writing.write_log("log") as log:
                    for number in range(9):
                        await log.append(b"%d" % (10 * turn + number))
                    assert await log.append(b"%d" % (10 * turn + 9)) == Position(turn + 1, 9)
                    if turn % 2:
                        log._background.cancel()  # its process dies: nothing is closed
                        log._writer.leave()
        assert await read_log(client) == numbers(49)
        assert len(world.told(LogTakenOver)) == 5


async def test_a_deposed_leader_learns_it_at_its_next_append(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.deaf_client() as client, world.client() as other:
        async with client.write_log("log") as first:
            await first.append(b"0")
            async with other.write_log("log") as second:
                with pytest.raises(FencedError) as caught:
                    await first.append(b"lost")
                assert list(caught.value.positions) == [Position(1, 1)]
                assert await second.append(b"1") == Position(2, 0)
        assert await read_log(client) == numbers(1)


@pytest.mark.parametrize("verb", ["append", "extend", "push", "flush", "roll", "push_nowait"])
async def test_every_verb_tells_a_deposed_leader_and_the_positions(
    verb: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster() as world, world.deaf_client() as client, world.client() as other:
        async with client.write_log("log") as first:
            await first.append(b"0")
            async with other.write_log("log") as second:
                await second.append(b"1")
                if verb != "roll":
                    first.push_nowait(b"lost")
                    await trio.sleep(1)
                with pytest.raises(FencedError) as caught:
                    if verb == "push_nowait":
                        first.push_nowait(b"lost too")
                    elif verb in ("flush", "roll"):
                        await getattr(first, verb)()
                    else:
                        await getattr(first, verb)([b"lost too"] if verb == "extend" else b"lost too")
                assert list(caught.value.positions) == ([] if verb == "roll" else [Position(1, 1)])
        assert await read_log(client) == numbers(1)


async def test_the_block_of_a_deposed_leader_ends_with_the_error(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster() as world, world.deaf_client() as client, world.client() as other:
        with pytest.raises(FencedError) as caught:
            async with client.write_log("log") as first:
                await first.append(b"0")
                async with other.write_log("log") as second:
                    first.push_nowait(b"lost")
                    await second.append(b"1")
        assert list(caught.value.positions) == [Position(1, 1)]


async def test_a_deposed_leader_confirms_nothing_after_the_takeover(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        for bookie in world.bookies:
            bookie.wire.delay_s = 0.003
        confirmed: list[tuple[Position, bytes]] = []
        served_at: list[Position] = []

        async def lead(leading: replog.Client, name: bytes, start_s: float) -> None:
            await trio.sleep(start_s)
            try:
                async with leading.write_log("log") as log:
                    served_at.append(Position(log.segment, 0))

                    async def append(task: int) -> None:
                        for number in range(30):
                            data = name + b"/%d/%d" % (task, number)
                            confirmed.append((await log.append(data), data))
                            assert served_at[-1].segment <= confirmed[-1][0].segment, "after another has served"

                    async with trio.open_nursery() as nursery:
                        for task in range(5):
                            nursery.start_soon(append, task)
            except* FencedError:
                pass

        async with trio.open_nursery() as nursery:
            for turn in range(6):
                nursery.start_soon(lead, (client, other)[turn % 2], b"%d" % turn, 0.05 * turn)
        found = await read_log(client)
        assert len(found) == len(set(found))
        assert [data for data in found if data in {data for _, data in confirmed}] == [
            data for _, data in sorted(confirmed)
        ]
        assert len(served_at) == 6


@pytest.mark.slow
async def test_two_rival_takers_both_get_their_turn(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world:
        for bookie in world.bookies:
            bookie.wire.delay_s = 0.01
        turns = [0, 0, 0]

        async def contend(which: int) -> None:
            async with world.client(QUICK) as client:
                with trio.move_on_after(1):
                    while True:
                        try:
                            async with client.write_log("log") as log:
                                for _ in range(5):
                                    await log.append(b"%d" % which)
                                    turns[which] += 1
                        except FencedError:
                            pass

        async with trio.open_nursery() as nursery:
            for which in range(3):
                nursery.start_soon(contend, which)
        assert all(turns)
        async with world.client() as client:
            async with client.write_log("log"):
                pass  # it decides what the last ones left, who were cancelled amid a takeover
            found = await read_log(client)
        for which in range(3):
            assert found.count(b"%d" % which) >= turns[which]


@pytest.mark.parametrize("fault", [Fault.ANSWER_LOST, Fault.REQUEST_LOST, Fault.ARRIVES_LATE, Fault.UNAVAILABLE])
@pytest.mark.parametrize("operation", ["create", "put"])
async def test_the_answers_of_a_takeover_may_be_lost(
    operation: str, fault: Fault, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        if operation == "put":
            async with client.write_log("log") as log:
                await log.append(b"0")
        world.metastore.fail_next(operation, fault, under=KEY)
        async with client.write_log("log") as log:
            await log.append(b"1")
        assert world.metastore.planned() == 0
        assert await read_log(client) == (numbers(1) if operation == "put" else [b"1"])
        metadata, _ = await client._opened.logs.get("log")
        assert await client.ledgers() == [segment.ledger_id for segment in metadata.segments]


async def test_a_takeover_has_a_deadline(autojump_clock: trio.testing.MockClock) -> None:
    options = ClientTuning(takeover_timeout_s=3.0, recovery_timeout_s=20.0, add_timeout_s=15, read_timeout_s=15)
    async with cluster() as world, world.client(options) as client:
        with pytest.raises(FencedError):  # by its record, though no bookie heard of it
            async with client.write_log("log") as log:
                await log.append(b"0")
                for bookie in world.bookies:
                    bookie.wire.is_deaf = True
                with trio.fail_after(4), pytest.raises(TakeoverFailedError):
                    async with client.write_log("log"):
                        pass
                for bookie in world.bookies:
                    bookie.wire.is_deaf = False
                await log.append(b"1")
        async with client.write_log("log"):
            pass
        assert await read_log(client) == numbers(1)


async def test_without_enough_bookies_nothing_is_taken_over(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(2) as world, world.client() as client:
        with pytest.raises(NotEnoughBookiesError):
            async with client.write_log("log"):
                pass
        with pytest.raises(LogNotFoundError):
            await segments(client)


async def test_takeover_waits_for_restarting_bookies(autojump_clock: trio.testing.MockClock) -> None:
    """R12, C7: two of three are back after 4 s, and there is nothing to recover: the last writer closed its ledger."""
    async with cluster(3) as world, world.client() as client:
        async with client.write_log("log") as log:
            await log.append(b"before")
        for bookie in world.bookies[:2]:
            await bookie.kill()

        async def restart() -> None:
            await trio.sleep(4)
            for bookie in world.bookies[:2]:
                await bookie.start()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(restart)
            async with client.write_log("log") as log:
                assert (await log.append(b"after")).segment == 2


async def test_takeover_gives_up_on_absent_bookies(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client() as client:
        for bookie in world.bookies[:2]:
            await bookie.kill()
        started = trio.current_time()
        with pytest.raises(NotEnoughBookiesError, match=world.bookies[0].bookie_id):
            async with client.write_log("log"):
                pass
        assert trio.current_time() - started < 6


@pytest.mark.parametrize("kind", [StorageFullError, StorageFailedError])
async def test_takeover_does_not_wait_for_refusing_bookies(
    kind: type[StorageError], autojump_clock: trio.testing.MockClock
) -> None:
    """B10: their disks are full or failed, as they announce: that is told within a second, in their words."""
    async with cluster(3) as world, world.client() as client:
        with pytest.raises(NotEnoughBookiesError):
            async with client.create_ledger() as writer:
                for bookie in world.bookies[:2]:
                    bookie.storage.commit_error = kind("the disk's own words", "mend it")
                await writer.append(b"refused")
        started = trio.current_time()
        with pytest.raises(NotEnoughBookiesError, match="the disk's own words") as raised:
            async with client.write_log("log"):
                pass
        assert isinstance(raised.value.__cause__, kind)
        assert trio.current_time() - started <= 1


# -- rolling --------------------------------------------------------------------------------------------------------


async def append_from_many(log: replog.LogWriter, tasks: int, each: int) -> dict[Position, bytes]:
    """Appends from many tasks at once; what was confirmed where, after checking each task's own order."""
    confirmed: dict[Position, bytes] = {}

    async def append(task: int) -> None:
        last = Position(0, 0)
        for number in range(each):
            data = b"%d/%d" % (task, number)
            position = await log.append(data)
            assert position > last
            last = position
            confirmed[position] = data

    async with trio.open_nursery() as nursery:
        for task in range(tasks):
            nursery.start_soon(append, task)
    return confirmed


@pytest.mark.parametrize(
    "options",
    [
        ClientTuning(roll_entries=100),
        ClientOptions(roll_bytes=400),
        ClientOptions(roll_age_s=0.02),
        ClientTuning(roll_entries=1),
    ],
    ids=["entries", "bytes", "age", "one"],
)
async def test_a_log_rolls_while_many_tasks_append(
    options: ClientOptions, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster() as world, world.client(options) as client:
        for bookie in world.bookies:
            bookie.wire.delay_s = 0.002
        async with client.write_log("log") as log:
            confirmed = await append_from_many(log, 20, 30)
            assert log.statistics()["rolls"] >= 3
        async with client.read_log("log") as reader:
            found = [(record.position, record.data) async for record in reader]
        assert found == sorted(confirmed.items())
        assert len(await segments(client)) == len(world.told(LogRolled)) + 1


async def test_a_roll_by_size_happens_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster() as world, world.client(ClientTuning(roll_entries=100)) as client:
        for bookie in world.bookies:
            bookie.wire.delay_s = 0.01
        world.metastore.delay_s = 0.05
        async with client.write_log("log") as log:
            for number in range(105):
                log.push_nowait(b"%d" % number)
                await trio.sleep(0.002)
            await log.flush()
            await trio.sleep(10)
            assert log.statistics()["rolls"] == 1


async def test_pushes_keep_the_order_of_the_calls_across_rolls(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(ClientTuning(in_flight_bytes_max=50, batch_bytes_max=20)) as client:
        for bookie in world.bookies:
            bookie.wire.delay_s = 0.005
        async with client.write_log("log") as log, trio.open_nursery() as nursery:

            async def roll() -> None:
                for _ in range(10):
                    await trio.sleep(0.02)
                    await log.roll()

            nursery.start_soon(roll)
            positions = [await log.push(b"%d" % number) for number in range(500)]
            assert positions == sorted(positions)
        assert await read_log(client) == numbers(499)


async def test_the_new_ledger_confirms_only_after_the_previous_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """L2: the previous ledger's bookies are slow, the new one's are not."""
    async with cluster(6) as world, world.client(quorum=replog.Quorum(3, 3, 2)) as client:
        async with client.write_log("log") as log:
            await log.append(b"0")
            slow = world.named(log._writer.metadata.last_fragment.ensemble)
            previous = log.ledger_id
            for bookie in slow:
                bookie.wire.delay_s = 2.0
            log.push_nowait(b"1")
            async with trio.open_nursery() as nursery:
                done: list[Position] = []

                async def append(data: bytes) -> None:
                    done.append(await log.append(data))

                nursery.start_soon(log.roll)
                await until(lambda: log.ledger_id != previous)
                for bookie in slow:
                    if bookie.bookie_id in log._writer.metadata.last_fragment.ensemble:
                        bookie.wire.delay_s = 0.0
                assert log.last_add_pushed == Position(1, 1)
                assert log.last_add_confirmed == Position(1, 0)
                nursery.start_soon(append, b"2")
                flushed = trio.Event()

                async def flush() -> None:
                    await log.flush()
                    flushed.set()

                nursery.start_soon(flush)
                await trio.sleep(1)
                assert not done
                assert not flushed.is_set()
                assert not any(bookie.adds(log.ledger_id) for bookie in world.bookies)
            assert done == [Position(2, 0)]
            assert flushed.is_set()
        assert await read_log(client) == numbers(2)


async def test_flush_covers_entries_before_a_roll(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        async with client.write_log("log") as log:
            for bookie in world.bookies:
                bookie.wire.refuse = lambda _request: None
                bookie.wire.delay_s = 1.0
            log.push_nowait(b"0")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(log.roll)
                await until(lambda: log.segment == 2)
                assert log.last_add_confirmed is None
                await log.flush()
                assert log.last_add_confirmed == Position(1, 0)


FAULTS = [Fault.ANSWER_LOST, Fault.REQUEST_LOST, Fault.ARRIVES_LATE, Fault.UNAVAILABLE, Fault.CONFLICT]


@pytest.mark.parametrize("fault", FAULTS)
async def test_the_answer_of_a_roll_may_be_lost(fault: Fault, autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        async with client.write_log("log") as log:
            await log.append(b"0")
            world.metastore.fail_next("put", fault, under=KEY)
            await log.roll()
            assert world.metastore.planned() == 0
            await log.append(b"1")
            await log.roll()
            await log.append(b"2")
        assert await read_log(client) == numbers(2)
        assert await segments(client) == [1, 2, 3]


@pytest.mark.parametrize("first", [None, *FAULTS])
@pytest.mark.parametrize("moment", some(["put", "create"], fast=1))
async def test_a_roll_without_metastore_is_made_up_and_appends_go_on(
    moment: str, first: Fault | None, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        async with client.write_log("log") as log:
            await log.append(b"0")
            down = False

            def choose(operation: str, key: str) -> Fault | None:
                nonlocal down
                if down:
                    return Fault.UNAVAILABLE
                down = operation == moment and (moment == "create" or key == KEY)
                return (first or Fault.UNAVAILABLE) if down else None

            world.metastore._choose = choose
            with trio.fail_after(20), pytest.raises(MetastoreError):
                await log.roll()
            for number in range(1, 20):
                await log.append(b"%d" % number)
                await trio.sleep(1)
            world.metastore._choose = None
            await trio.sleep(20)
            await log.append(b"20")
            await log.roll()
            await log.append(b"21")
        assert await read_log(client) == numbers(21)
        metadata, _ = await client._opened.logs.get("log")
        async with client.write_log("log"):
            pass
        for segment in metadata.segments:
            assert (await client.recover_ledger(segment.ledger_id)).state is LedgerState.CLOSED
        numbers_found = await segments(client)
        assert numbers_found == sorted(set(numbers_found))


@pytest.mark.slow
async def test_a_leader_deposed_during_a_roll_confirms_nothing_more(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        for delay_ms in range(0, 60, 8):
            name = f"log{delay_ms}"
            for bookie in world.bookies:
                bookie.wire.delay_s = 0.004
            confirmed: list[Position] = []
            ended = trio.Event()

            async def lead(name: str, confirmed: list[Position], ended: trio.Event) -> None:
                try:
                    async with client.write_log(name) as log, trio.open_nursery() as nursery:

                        async def append() -> None:
                            while True:
                                confirmed.append(await log.append(b"x"))

                        for _ in range(3):
                            nursery.start_soon(append)
                        while True:
                            await log.roll()
                            await trio.sleep(0.01)
                except* FencedError:
                    ended.set()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(lead, name, confirmed, ended)
                await trio.sleep(0.1 + delay_ms / 1000)
                async with other.write_log(name) as second:
                    count = len(confirmed)
                    await trio.sleep(5)
                    assert len(confirmed) == count
                    assert ended.is_set()
                    await second.append(b"end")
            async with client.read_log(name) as reader:
                found = {record.position async for record in reader}
            assert set(confirmed) <= found


@pytest.mark.slow
async def test_trims_by_others_do_not_disturb_a_roll(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client, world.client() as other:
        async with client.write_log("log") as log, trio.open_nursery() as nursery:

            async def trim() -> None:
                while True:
                    await trio.sleep(0.01)
                    await other.trim_log("log", before=Position(log.segment, 0))

            nursery.start_soon(trim)
            world.metastore.delay_s = 0.004
            for number in range(12):
                await log.append(b"%d" % number)
                await log.roll()
            nursery.cancel_scope.cancel()
        assert len(await segments(client)) < 8


async def test_rolls_wait_until_the_previous_ledger_is_closed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        async with client.write_log("log") as log:
            await log.append(b"0")
            previous = log.ledger_id
            is_down = True

            def choose(operation: str, key: str) -> Fault | None:
                return Fault.UNAVAILABLE if is_down and operation == "put" and key.startswith("ledgers/") else None

            world.metastore._choose = choose
            async with trio.open_nursery() as nursery:
                nursery.start_soon(log.roll)
                for number in range(1, 30):
                    await log.append(b"%d" % number)
                    await trio.sleep(1)
                assert log.segment == 2
                is_down = False
            async with client.open_ledger(previous) as reader:
                assert reader.is_closed
        assert await read_log(client) == numbers(29)


async def test_leaving_waits_for_a_roll_only_a_limited_time(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        with trio.fail_after(60), pytest.raises(MetastoreError):
            async with client.write_log("log") as log:
                await log.append(b"0")
                world.metastore._choose = lambda operation, key: (
                    Fault.UNAVAILABLE if operation == "put" and key.startswith("ledgers/") else None
                )
                with trio.move_on_after(20):
                    await log.roll()
                assert log.segment == 2
                await log.append(b"1")
        world.metastore._choose = None
        async with client.write_log("log") as log:
            await log.append(b"2")
        assert await read_log(client) == numbers(2)


# -- leaving --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["error", "cancelled", "close"])
@pytest.mark.parametrize("after_ms", some([7, 28, 49, 0, 14, 21, 35, 42, 56], fast=3))
async def test_leaving_during_a_roll_loses_and_leaves_nothing(
    after_ms: int, way: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        for bookie in world.bookies:
            bookie.wire.delay_s = 0.01
        world.metastore.delay_s = 0.002
        confirmed: list[bytes] = []
        ended: list[BaseException] = []

        async def append(log: replog.LogWriter) -> None:
            try:
                for number in range(100):
                    await log.append(b"%d" % number)
                    confirmed.append(b"%d" % number)
            except trio.ClosedResourceError as error:
                ended.append(error)

        async def roll(log: replog.LogWriter) -> None:
            try:
                while True:
                    await log.roll()
            except trio.ClosedResourceError as error:
                ended.append(error)

        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:
                try:
                    async with client.write_log("log") as log:
                        nursery.start_soon(append, log)
                        nursery.start_soon(roll, log)
                        await trio.sleep(0.05 + after_ms / 1000)
                        if way == "error":
                            raise ZeroDivisionError
                        if way == "cancelled":
                            scope.cancel()
                except ZeroDivisionError:
                    assert way == "error"
            assert scope.cancelled_caught == (way == "cancelled")
            await until(lambda: len(ended) == 2)
        await trio.sleep(1)
        assert not client._opened.ledgers._writers, "writers are left that nobody uses"
        found = await read_log(client)
        assert found[: len(confirmed)] == confirmed
        async with client.write_log("log") as log:
            await log.append(b"end")
        assert await read_log(client) == [*found, b"end"]


async def test_a_roll_under_way_does_not_outlive_its_client(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world:
        async with world.client(QUICK) as client, client.write_log("log") as log:
            await log.append(b"0")
        with trio.fail_after(1), pytest.raises(trio.ClosedResourceError):
            await log.roll()


async def test_a_lost_roll_reports_no_fenced_writer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        async with client.write_log("log") as first, other.write_log("log"):
            with pytest.raises(FencedError):
                await first.roll()
        assert len(world.told(WriterFenced)) == 1
        metadata, _ = await client._opened.logs.get("log")
        assert await client.ledgers() == [segment.ledger_id for segment in metadata.segments]


# -- memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_rolled_and_trimmed_log_keeps_nothing(autojump_clock: trio.testing.MockClock) -> None:
    options = ClientTuning(roll_entries=500, in_flight_bytes_max=10_000, batch_bytes_max=1000)
    async with cluster(1) as world, world.client(options, ONE) as client:
        (bookie,) = world.bookies
        async with client.write_log("log") as log:
            most: dict[str, float] = {}
            for turn in range(8):
                for number in range(1000):
                    await log.push(b"%d" % number)
                position = log.last_add_confirmed
                if position is not None:
                    await client.trim_log("log", before=position)
                assert bookie.served is not None
                bookie.served.ask_for_collection()
                await trio.sleep(1)
                if turn >= 3:
                    for name, value in sizes(world, client, log).items():
                        most[name] = max(most.get(name, 0), value)
            assert most["ledgers stored"] <= 4
            assert most["ledgers named"] <= 4
            assert most["batches stored"] <= 2000
            assert most["machines"] <= 6
            assert most["writers"] <= 2
            assert most["outstanding"] == 0
            assert most["unconfirmed"] == 0
            assert most["waiting"] <= 2


def sizes(world: Cluster, client: replog.Client, log: replog.LogWriter) -> dict[str, float]:
    (bookie,) = world.bookies
    content = bookie.storage.inner._content  # type: ignore[attr-defined]
    batches = [each for ledger in content.ledgers.values() for each in ledger.stamps.values()]
    return {
        "ledgers stored": len(content.ledgers),
        "batches stored": sum(len(each._batches) for each in batches),
        "machines": bookie.server.statistics()["ledgers_in_memory"],
        "writers": len(client._opened.ledgers._writers),
        "outstanding": client.statistics()["client"]["outstanding_bytes"],
        "unconfirmed": log.unconfirmed_bytes,
        "waiting": len(log._writer.backlog._waiting) + len(log._writer.backlog._batches),
        "ledgers named": log.segment - log._next.metadata.segments[0].number if log._next.metadata.segments else 0,
    }


def test_positions_are_made_when_they_are_looked_at() -> None:
    positions = Positions(3, range(5, 1_000_000_000))
    assert len(positions) == 999_999_995
    assert positions[0] == Position(3, 5)
    assert positions[-1] == Position(3, 999_999_999)
    assert positions[1:3] == [Position(3, 6), Position(3, 7)]
    assert Positions(3, range(0)) == []
    assert repr(Positions(3, range(0)))


async def test_adds_of_a_log_carry_no_recovery_flag(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        async with client.write_log("log") as log:
            await log.append(b"0")
            await settle()
        for bookie in world.bookies:
            assert not any(isinstance(each, AddRequest) and each.recovery for each in bookie.wire.seen)


@pytest.mark.parametrize("is_pending", [False, True])
async def test_deposed_leader_learns_it_after_its_ledger_was_trimmed(
    is_pending: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """L5: it is fenced as any other, though it learns that from the ledger's record, and not from a bookie."""
    async with cluster(4) as world, world.deaf_client() as client, world.client() as other:
        with pytest.raises(FencedError) as caught:
            async with client.write_log("log") as log:
                await log.append(b"a")
                async with other.write_log("log") as successor:
                    await other.trim_log("log", before=Position(successor.segment, 0))
                if is_pending:
                    # No bookie tells it that it is fenced: so it looks for others, and writes that to the record.
                    for bookie in world.bookies:
                        bookie.wire.lose_answer = lambda request: isinstance(request, AddRequest)
                    log.push_nowait(b"b")
                    await log.flush()
        assert isinstance(caught.value, LedgerDeletedError)
        assert list(caught.value.positions) == [Position(1, 1)] * is_pending
