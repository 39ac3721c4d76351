"""Entries with ids: each is in its log at most once, whatever is repeated, and when (L11)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pytest
import trio
import trio.testing

import replog
from replog.config import ClientOptions
from replog.errors import (
    ConfigError,
    DuplicateError,
    FencedError,
    KeyNotFoundError,
    LogNotFoundError,
    MetastoreError,
    PayloadTooLargeError,
    ProducersFullError,
    ReplogError,
)
from replog.log import producers as log_producers
from replog.log.log_writer import LogWriter
from replog.protocol import producers as protocol_producers
from replog.protocol.batch import ENTRY_BYTES_MAX
from replog.protocol.envelope import EntryId
from replog.protocol.messages import AddRequest
from replog.protocol.model import Position
from replog.protocol.quorum import Quorum
from replog.records.logs import decode_producers
from replog.records.paths import log_key_path, log_producers_key_path
from replog.testing import Fault
from tests.cases import case
from tests.kit import ONE, Cluster, cluster

KEY = log_producers_key_path("log")
QUICK = ClientOptions(metastore_timeout_s=1)
THREE = Quorum(3, 3, 2)


async def ids(client: replog.Client) -> list[Any]:
    async with client.read_log("log") as reader:
        return [record.id async for record in reader]


async def known(world: Cluster) -> dict[str, list[tuple[int, int, int]]]:
    """The positions of each producer in the metastore's record."""
    record = decode_producers(KEY, (await world.metastore.get(KEY)).value, "log")
    return {each.name: list(each.ids) for each in record.producers}


async def through(world: Cluster) -> int:
    return decode_producers(KEY, (await world.metastore.get(KEY)).value, "log").through


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of three ids and two producers."""
    monkeypatch.setattr(protocol_producers, "IDS_MAX", 3)
    monkeypatch.setattr(protocol_producers, "PRODUCERS_MAX", 2)


@attrs.define
class Scripted:
    """A writer that is left by the test, not by its block: it is deposed, or its process dies."""

    log: LogWriter
    scope: trio.CancelScope
    ended: trio.Event


async def leading(world: Cluster, nursery: trio.Nursery, **options: Any) -> Scripted:
    """A process that leads the log until its scope is cancelled, which is its sudden end."""

    async def lead(task_status: trio.TaskStatus[Scripted]) -> None:
        ended = trio.Event()
        with trio.CancelScope() as scope:
            try:
                async with world.client(QUICK) as client, client.write_log("log", **options) as log:
                    task_status.started(Scripted(log, scope, ended))
                    await trio.sleep_forever()
            except ReplogError:
                pass  # it was deposed, and says so when it is left
        ended.set()

    started: Scripted = await nursery.start(lead)
    return started


def hold(world: Cluster) -> None:
    for bookie in world.bookies:
        bookie.wire.is_held = True


def release(world: Cluster) -> None:
    for bookie in world.bookies:
        bookie.wire.release()


async def test_repeat_returns_the_position_of_the_first(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        async with client.write_log("log") as log:
            first = await log.append(b"one", id=("me", 7))
            assert first == Position(1, 0)
            assert await log.append(b"two", key=b"k", headers={"a": b"1"}, id=("me", 8)) == Position(1, 1)
            assert await log.append(b"one", id=("me", 7)) == first
            assert await log.append(b"other data", id=("me", 7)) == first
            assert await log.push(b"one", id=("me", 7)) == first
            assert await log.append(b"one", id=("you", 7)) == Position(1, 2)
            assert await log.append(b"none") == Position(1, 3)
            assert await log.append(None, key=b"k", id=("me", 9)) == Position(1, 4)
        assert await ids(client) == [("me", 7), ("me", 8), ("you", 7), None, ("me", 9)]
        async with client.read_log("log") as reader:
            second = [record async for record in reader][1]
        assert (second.data, second.key, dict(second.headers)) == (b"two", b"k", {"a": b"1"})


async def test_sequences_may_come_late_but_not_twice(autojump_clock: trio.testing.MockClock) -> None:
    """Tasks that append at once may be in any order: what was never in the log is appended."""
    async with cluster() as world, world.client() as client, client.write_log("log") as log:
        assert await log.append(b"5", id=("me", 5)) == Position(1, 0)
        assert await log.append(b"4", id=("me", 4)) == Position(1, 1)
        assert await log.append(b"5", id=("me", 5)) == Position(1, 0)


@pytest.mark.parametrize("kind", ["bounded", "unbounded"])
@pytest.mark.parametrize("ending", ["left", "died", "deposed"])
async def test_repeat_after_a_takeover_is_found(kind: str, ending: str, autojump_clock: trio.testing.MockClock) -> None:
    """Also in the ledger that the next leader goes on with (L9), and after more than one takeover."""
    async with cluster(3) as world, trio.open_nursery() as nursery:
        first = await leading(world, nursery, quorum=THREE, options=replog.LogOptions(ledgers=kind))
        places = {each: await first.log.append(b"x", id=("me", each)) for each in range(3)}
        await first.log.roll()
        places |= {each: await first.log.append(b"x", id=("me", each)) for each in range(3, 6)}
        if ending == "left":
            await first.log.aclose()
        elif ending == "died":
            first.scope.cancel()
            await first.ended.wait()
        for turn in range(2):
            async with (
                world.client() as client,
                client.write_log("log", quorum=THREE, options=replog.LogOptions(ledgers=kind)) as log,
            ):
                for each, place in places.items():
                    assert await log.append(b"x", id=("me", each)) == place
                places[10 + turn] = await log.append(b"x", id=("me", 10 + turn))
        if ending == "deposed":
            # Of what it has confirmed itself, a deposed leader may still say where it is.
            assert await first.log.append(b"x", id=("me", 1)) == places[1]
            with pytest.raises(FencedError):
                await first.log.append(b"x", id=("me", 10))
        first.scope.cancel()
        async with world.client() as client:
            assert await ids(client) == [("me", each) for each in places]


async def test_repeat_in_flight_waits_for_the_first(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client, client.write_log("log") as log:
        await log.append(b"0", id=("me", 0))
        hold(world)
        returned: list[Position] = []

        async def repeat() -> None:
            returned.append(await log.append(b"1", id=("me", 1)))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(repeat)
            await trio.testing.wait_all_tasks_blocked()
            assert await log.push(b"1", id=("me", 1)) == Position(1, 1)
            assert not returned
            assert log.last_add_pushed == Position(1, 1)
            release(world)
        assert returned == [Position(1, 1)] * 3


async def test_repeat_of_a_cancelled_append_is_not_a_second_entry(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        async with client.write_log("log") as log:
            await log.append(b"0", id=("me", 0))
            hold(world)
            with trio.move_on_after(1) as scope:
                await log.append(b"1", id=("me", 1))
            assert scope.cancelled_caught
            with trio.move_on_after(1) as scope:
                await log.append(b"1", id=("me", 1))
            assert scope.cancelled_caught
            release(world)
            assert await log.append(b"1", id=("me", 1)) == Position(1, 1)
        assert await ids(client) == [("me", 0), ("me", 1)]


async def test_repeat_of_a_waiting_append_is_not_a_second_one(autojump_clock: trio.testing.MockClock) -> None:
    """Two tasks with one id wait for the byte budget: whoever goes on first appends it."""
    options = ClientOptions(in_flight_bytes_max=1 << 20)
    async with cluster() as world, world.client(options) as client:
        async with client.write_log("log") as log:
            hold(world)
            returned: dict[int, set[Position]] = {each: set() for each in range(3)}

            async def append(sequence: int) -> None:
                returned[sequence].add(await log.append(b"x" * 600_000, id=("me", sequence)))

            async with trio.open_nursery() as nursery:
                for sequence in (0, 1, 1, 2, 2, 1):
                    nursery.start_soon(append, sequence)
                await trio.testing.wait_all_tasks_blocked()
                release(world)
        found = await ids(client)
        assert sorted(found) == [("me", 0), ("me", 1), ("me", 2)]
        assert returned == {sequence: {Position(1, found.index(("me", sequence)))} for sequence in range(3)}


@pytest.mark.parametrize("is_recovered", [True, False])
async def test_unknown_entry_of_a_deposed_leader_is_settled(
    is_recovered: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """It is in the log if the takeover found it, and appended by the repetition if not; never both."""
    async with cluster(3) as world, trio.open_nursery() as nursery:
        first = await leading(world, nursery, quorum=THREE)
        await first.log.append(b"0", id=("me", 0))
        for bookie in world.bookies:
            if is_recovered:
                bookie.wire.lose_answer = lambda request: isinstance(request, AddRequest)
            else:
                bookie.wire.is_deaf = True
        lost = await first.log.push(b"1", id=("me", 1))
        await trio.sleep(0.1)
        for bookie in world.bookies:
            bookie.wire.lose_answer = lambda _request: False
            bookie.wire.is_deaf = False
        async with world.client() as client, client.write_log("log", quorum=THREE) as log:
            for _ in range(2):  # a writer that has failed says so again, and never appends it elsewhere
                with pytest.raises(FencedError) as fenced:
                    await first.log.append(b"1", id=("me", 1))
                assert lost in list(fenced.value.positions)
            found = await log.append(b"1", id=("me", 1))
            assert (found == lost) is is_recovered
        first.scope.cancel()
        async with world.client() as client:
            assert await ids(client) == [("me", 0), ("me", 1)]


async def test_acknowledged_trimmed_entry_is_known(autojump_clock: trio.testing.MockClock) -> None:
    """Acknowledged, the answer lost, trimmed, repeated: by the same leader, and by the next one."""
    async with cluster() as world, world.client() as client:
        async with client.write_log("log") as log:
            first = await log.append(b"0", id=("me", 0))
            end = await log.roll()
            assert await client.trim_log("log", before=end) == end
            assert await log.append(b"0", id=("me", 0)) == first
        async with client.write_log("log") as log:
            assert await log.append(b"0", id=("me", 0)) == first
        assert await ids(client) == []


async def test_trim_leaves_entries_without_a_record(autojump_clock: trio.testing.MockClock) -> None:
    """A leader dies before it has summarised its ledger: until the next one has read that, no trim drops it."""
    async with cluster() as world, world.client(QUICK) as client, trio.open_nursery() as nursery:
        first = await leading(world, nursery)
        place = await first.log.append(b"0", id=("me", 0))
        world.metastore._choose = lambda operation, key: Fault.UNAVAILABLE if key == KEY else None
        end = await first.log.roll()
        first.scope.cancel()
        await first.ended.wait()
        world.metastore._choose = None
        assert await client.trim_log("log", before=end) == Position(1, 0)
        async with client.write_log("log") as log:
            assert await log.append(b"0", id=("me", 0)) == place
            assert await client.trim_log("log", before=end) == end
            assert await log.append(b"0", id=("me", 0)) == place


async def test_trim_without_a_record_loses_to_the_first_id(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A roll has failed, so that the log's record names a segment behind the leader's. A trim up to there looks for producers,
    and only then the first id is appended: the trim must not drop it."""
    monkeypatch.setattr("replog.log.trimming._CLOSING_S", 0.0)  # or the leader would have rolled by then
    async with cluster() as world, world.client(QUICK) as client, client.write_log("log") as log:
        await log.append(b"plain")
        head, puts = log_key_path("log"), list[str]()

        def fails(operation: str, key: str) -> Fault | None:
            if key != head:
                return None
            puts.extend([operation] if operation == "put" else [])
            return Fault.ANSWER_LOST if puts == ["put"] and operation == "put" else Fault.UNAVAILABLE if puts else None

        world.metastore._choose = fails
        with pytest.raises(MetastoreError):
            await log.roll()
        world.metastore._choose = None
        assert log.segment == 1
        get, places = world.metastore.inner.get, list[Position]()

        async def append_after(key: str) -> Any:
            try:
                return await get(key)
            finally:
                if key == KEY and not places:
                    places.append(Position(0, 0))
                    places[0] = await log.append(b"0", id=("me", 0))

        world.metastore.inner.get = append_after  # type: ignore[method-assign]
        assert await client.trim_log("log", before=Position(2, 0)) == Position(1, 0)
        assert places == [Position(1, 1)]


async def test_trim_drops_nothing_when_the_record_is_unreadable(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client, client.write_log("log") as log:
        await log.append(b"0", id=("me", 0))
        end = await log.roll()
        world.metastore._choose = lambda operation, key: Fault.UNAVAILABLE if key == KEY else None
        with pytest.raises(MetastoreError):
            await client.trim_log("log", before=end)
        world.metastore._choose = None
        assert (await client.log_metadata("log")).first_segment_number == 1


async def test_leaders_without_ids_let_trims_continue(autojump_clock: trio.testing.MockClock) -> None:
    """A log had ids once; whoever writes it since has none, and reads them all the same."""
    async with cluster() as world, world.client() as client:
        async with client.write_log("log") as log:
            first = await log.append(b"0", id=("me", 0))
        async with client.write_log("log") as log:
            await log.append(b"1")
            end = await log.roll()
            assert await client.trim_log("log", before=end) == end
            assert await log.append(b"0", id=("me", 0)) == first


async def test_id_below_the_window_is_refused(small: None, autojump_clock: trio.testing.MockClock) -> None:
    """A forgotten id may have been written: it is never appended again. Each producer's last one is never forgotten."""
    async with cluster() as world, world.client() as client:
        async with client.write_log("log") as log:
            you = await log.append(b"0", id=("you", 0))
            places = [await log.append(b"x", id=("me", each)) for each in range(5)]
            # Before the roll all are known.
            assert await log.append(b"0", id=("me", 0)) == places[0]
            await log.roll()
            assert await known(world) == {"me": [(each, 1, each + 1) for each in (2, 3, 4)], "you": [(0, 1, 0)]}
        for _ in range(2):
            async with client.write_log("log") as log:
                for each in (0, 1):
                    with pytest.raises(DuplicateError, match="written before") as refused:
                        await log.append(b"x", id=("me", each))
                    assert (refused.value.producer, refused.value.sequence, refused.value.forgotten) == ("me", each, 1)
                for each in (2, 3, 4):
                    assert await log.append(b"x", id=("me", each)) == places[each]
                assert await log.append(b"0", id=("you", 0)) == you
        assert len(await ids(client)) == 6


async def test_too_many_producers_are_refused(small: None, autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client, client.write_log("log") as log:
        await log.append(b"x", id=("a", 0))
        await log.roll()
        await log.append(b"x", id=("b", 0))
        with pytest.raises(ProducersFullError, match="names that stay") as refused:
            await log.append(b"x", id=("c", 0))
        assert refused.value.producer == "c"
        assert "a" in refused.value.oldest
        await log.append(b"x", id=("a", 1))
        assert len(await ids(client)) == 3


async def test_retired_producers_make_room_and_are_new_again(
    small: None, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster() as world, world.client() as client, world.client() as operator:
        async with client.write_log("log") as log:
            await log.append(b"x", id=("a", 0))
            first = await log.append(b"x", id=("b", 0))
            with pytest.raises(ProducersFullError, match="log producers log --retire"):
                await log.append(b"x", id=("c", 0))
            # Nobody could retire them before: the record knew none. So the writer has rolled.
            while len(await operator.jobs.producers("log")) < 2:  # noqa: ASYNC110 - only the record says so
                await trio.sleep(0.1)
            assert log.segment == 2
            assert await operator.jobs.retire_producers("log", ["a", "nobody"]) == ["a"]
            assert await operator.jobs.retire_producers("log", ["a"]) == []
            await log.append(b"x", id=("c", 0))
            assert await log.append(b"x", id=("b", 0)) == first
            with pytest.raises(ProducersFullError):
                await log.append(b"x", id=("a", 0))
            await log.roll()
            await log.roll()
            assert sorted(await known(world)) == ["b", "c"]
            segment = log.segment
            with pytest.raises(ProducersFullError):
                await log.append(b"x", id=("a", 0))
            await trio.sleep(10)
            assert log.segment == segment, "all of them are in the record: another roll is of no use"
        assert await operator.jobs.retire_producers("log", ["b", "c"], older_than_s=3600) == ["b", "c"]
        async with client.write_log("log") as log:
            assert await log.append(b"x", id=("b", 0)) > first
        assert await ids(client) == [("a", 0), ("b", 0), ("c", 0), ("b", 0)]


async def test_recently_writing_producer_is_not_forgotten(small: None, autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client, client.write_log("log") as log:
        await log.append(b"x", id=("a", 0))
        await log.roll()
        again = await log.append(b"x", id=("a", 1))
        assert await client.jobs.retire_producers("log", ["a"]) == ["a"]
        await log.roll()
        assert await log.append(b"x", id=("a", 1)) == again
        assert sorted(await known(world)) == ["a"]


async def test_next_writer_forgets_retired_producers(small: None, autojump_clock: trio.testing.MockClock) -> None:
    """One that has read the record before, too: it looks again before it writes its own."""
    async with cluster() as world, world.client() as client, world.client() as operator:
        async with client.write_log("log") as log:
            await log.append(b"x", id=("a", 0))
        async with client.write_log("log") as log:
            first = await log.append(b"x", id=("b", 0))
            await operator.jobs.retire_producers("log", ["a"])
            await log.roll()
            assert sorted(await known(world)) == ["b"]
        async with operator.write_log("log") as log:
            await log.append(b"x", id=("a", 0))
            assert await log.append(b"x", id=("b", 0)) == first
        assert await ids(client) == [("a", 0), ("b", 0), ("a", 0)]


async def test_retirement_survives_a_lost_answer(small: None, autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        async with client.write_log("log") as log:
            await log.append(b"x", id=("a", 0))
        faults = iter([Fault.ANSWER_LOST])
        world.metastore._choose = lambda operation, key: (
            next(faults, None) if (operation, key) == ("put", KEY) else None
        )
        assert await client.jobs.retire_producers("log", ["a"]) == ["a"]
        assert await client.jobs.producers("log") == []
        with pytest.raises(LogNotFoundError):
            await client.jobs.retire_producers("absent", ["a"])
        for wrong in ("a", 5):
            with pytest.raises(ConfigError, match="a list of texts"):
                await client.jobs.retire_producers("log", wrong)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="older_than_s"):
            await client.jobs.retire_producers("log", older_than_s=-1)


async def test_many_ids_make_the_log_roll(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """So that a takeover has no more than these to read. A roll whose record can't be written is not repeated at once."""
    monkeypatch.setattr(log_producers, "IDS_UNSAVED_MAX", 5)
    async with cluster() as world, world.client(QUICK) as client:
        async with client.write_log("log") as log:
            for each in range(12):
                await log.append(b"x", id=("me", each))
                await trio.sleep(1)
            assert log.segment == 3
            assert await through(world) == 2
            world.metastore._choose = lambda operation, key: Fault.UNAVAILABLE if key == KEY else None
            for each in range(12, 19):
                await log.append(b"x", id=("me", each))
                await trio.sleep(10)
            assert log.segment == 4
            world.metastore._choose = None
            for each in range(19, 30):
                await log.append(b"x", id=("me", each))
                await trio.sleep(1)
            for each in range(30):
                assert (await log.append(b"x", id=("me", each))).entry >= 0
        assert await ids(client) == [("me", each) for each in range(30)]


async def test_repeat_finds_entries_before_a_splice(autojump_clock: trio.testing.MockClock) -> None:
    """A committer's ledgers come between two of the leader's (L10): the window goes on over them."""
    async with cluster() as world, world.client() as client:
        async with client.create_ledger(quorum=ONE, custom={"log": "log", "job": "job"}) as writer:
            await writer.extend([b"a", b"b"])
        async with client.write_log("log") as log:
            first = await log.append(b"0", id=("me", 0))
            await client.jobs.append_ledgers("log", [writer.ledger_id])
            assert log.segment == 3
            second = await log.append(b"1", id=("me", 1))
            assert second.segment == 3
            assert await log.append(b"0", id=("me", 0)) == first
            await trio.sleep(1)
            assert await through(world) == 2
            assert (await client.trim_log("log", before=second)).segment == 3
            assert await log.append(b"0", id=("me", 0)) == first
        async with client.write_log("log") as log:
            assert await log.append(b"0", id=("me", 0)) == first
            assert await log.append(b"1", id=("me", 1)) == second


async def test_deposing_committer_loses_no_id(autojump_clock: trio.testing.MockClock) -> None:
    """A committer that asks nobody takes the log over: its ledgers are behind the leader's last one."""
    async with cluster() as world, world.client() as client, trio.open_nursery() as nursery:
        async with client.create_ledger(quorum=ONE, custom={"log": "log", "job": "job"}) as writer:
            await writer.extend([b"a", b"b"])
        first = await leading(world, nursery)
        place = await first.log.append(b"0", id=("me", 0))
        await client.jobs.append_ledgers("log", [writer.ledger_id], patience_s=0)
        async with client.write_log("log") as log:
            assert await log.append(b"0", id=("me", 0)) == place
        first.scope.cancel()


async def test_log_of_the_same_name_knows_no_ids_of_a_deleted_one(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        async with client.write_log("log") as log:
            await log.append(b"0", id=("me", 0))
        await client.delete_log("log")
        with pytest.raises(KeyNotFoundError):
            await world.metastore.get(KEY)
        async with client.write_log("log") as log:
            assert await log.append(b"0", id=("me", 0)) == Position(2, 0)


@pytest.mark.parametrize("operation", ["delete", "get"])
async def test_record_left_by_a_deletion_is_not_used(operation: str, autojump_clock: trio.testing.MockClock) -> None:
    """The new log's trims don't heed it, its writer writes over it, and sweeping up behind the deletion leaves the new one."""
    async with cluster() as world, world.client(QUICK) as client:
        async with client.write_log("log") as log:
            await log.append(b"0", id=("me", 0))
        world.metastore._choose = lambda done, key: Fault.UNAVAILABLE if (done, key) == (operation, KEY) else None
        with pytest.raises(MetastoreError):
            await client.delete_log("log")
        world.metastore._choose = None
        assert await known(world) == {"me": [(0, 1, 0)]}
        async with client.write_log("log") as log:
            await log.append(b"no id")
            end = await log.roll()
            assert await client.trim_log("log", before=end) == end
            place = await log.append(b"0", id=("me", 0))
            assert place == end
        assert await known(world) == {"me": [(0, *place)]}
        await client.delete_log("log")
        with pytest.raises(LogNotFoundError):
            await client.delete_log("log")
        with pytest.raises(KeyNotFoundError):
            await world.metastore.get(KEY)


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.ANSWER_LOST])
async def test_first_id_survives_a_faulty_metastore(fault: Fault, autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        async with client.write_log("log") as log:
            await trio.sleep(1)
            world.metastore.fail_next("create", fault, under=KEY)
            assert await log.append(b"0", id=("me", 0)) == Position(1, 0)
            assert await log.append(b"0", id=("me", 0)) == Position(1, 0)
        assert await ids(client) == [("me", 0)]


async def test_without_the_metastore_the_first_id_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    """No entry with an id is sent before the record exists: a trim would take the log for one without ids."""
    async with cluster() as world, world.client(QUICK) as client:
        async with client.write_log("log") as log:
            world.metastore._choose = lambda operation, key: Fault.UNAVAILABLE if key == KEY else None
            with pytest.raises(MetastoreError):
                await log.append(b"0", id=("me", 0))
            assert log.last_add_pushed is None
            assert await log.append(b"plain") == Position(1, 0)
            world.metastore._choose = None
            assert await log.append(b"0", id=("me", 0)) == Position(1, 1)


async def test_deposed_leader_writes_no_record_over_its_successors(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, trio.open_nursery() as nursery:
        first = await leading(world, nursery)
        await first.log.append(b"0", id=("me", 0))
        async with world.client() as client, client.write_log("log") as log:
            await log.append(b"1", id=("me", 1))
            await log.roll()
            after = await known(world)
            await first.log._producers.closed(1)
            assert await known(world) == after == {"me": [(0, 1, 0), (1, 2, 0)]}
        first.scope.cancel()


async def test_deposed_leader_appends_nothing_when_it_looks_late(autojump_clock: trio.testing.MockClock) -> None:
    """Its first id comes after its successor has read the log, and has summarised it: with that, it knows what is in it."""
    async with cluster() as world, trio.open_nursery() as nursery:
        first = await leading(world, nursery)
        async with world.client() as client, client.write_log("log") as log:
            place = await log.append(b"0", id=("me", 0))
            await log.roll()
            assert await first.log.append(b"0", id=("me", 0)) == place
            with pytest.raises(FencedError):
                await first.log.append(b"1", id=("me", 1))
            assert await log.append(b"1", id=("me", 1)) == Position(3, 0)
            assert await ids(client) == [("me", 0), ("me", 1)]
        first.scope.cancel()


def bad_ids() -> Iterator[Any]:
    yield from (
        ("me",),
        ("me", -1),
        ("me", 1 << 63),
        ("me", True),
        ("me", "1"),
        ("", 1),
        ("x" * 201, 1),
        ("\ud800", 1),
        ("a\n", 1),
    )
    yield from ((b"me", 1), "me", ["me", 1], 7)


async def test_bad_id_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client, client.write_log("log") as log:
        for bad in bad_ids():
            with case(bad), pytest.raises((TypeError, ConfigError), match="nothing was written"):
                await log.append(b"x", id=bad)
        with pytest.raises(PayloadTooLargeError):
            await log.append(b"x" * ENTRY_BYTES_MAX, id=("me", 1))
        assert log.last_add_pushed is None
        assert await log.append(b"x", id=EntryId("me", 1)) == Position(1, 0)


async def test_logs_without_ids_ask_the_metastore_once(autojump_clock: trio.testing.MockClock) -> None:
    """A takeover looks whether there is a record; appends, rolls and closing don't."""
    async with cluster() as world, world.client() as client:
        calls: list[tuple[str, str]] = []
        async with client.write_log("log") as log:
            await trio.sleep(1)
            world.metastore._choose = lambda operation, key: calls.append((operation, key))
            await log.append(b"0")
            await log.roll()
            await log.append(b"1")
        assert calls
        assert not [each for each in calls if each[1] == KEY]
