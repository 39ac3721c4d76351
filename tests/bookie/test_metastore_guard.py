"""B6a: a metastore that was emptied, went back, or is another cluster's costs no entry. M5: and gives out no id twice."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import attrs
import pytest
import trio
import trio.testing

import replog
from replog.abc import Sighting
from replog.backends import memory
from replog.bookie import newcomers
from replog.bookie.healing import Healing
from replog.bookie.releasing import Releasing
from replog.errors import (
    KeyNotFoundError,
    MetastoreDoubtedError,
    NotEnoughBookiesError,
    RecoveryUndecidedError,
    StorageIdentityError,
)
from replog.metrics.health import State, health_of
from replog.protocol.messages import AddRequest, FenceRequest, Status
from replog.protocol.quorum import Quorum
from replog.records.bookies import (
    READ_ONLY_BOOKIES_KEY,
    Cookie,
    cookie_key,
    decode_address,
    decode_cookie,
    encode_cookie,
)
from replog.records.ids import raise_next_ledger_id, read_next_ledger_id
from replog.records.paths import LEDGERS_KEY, NEXT_LEDGER_ID_KEY, ledger_key_path
from replog.testing import Fault
from replog.testing.storage_conformance import make_batch
from tests.bookie.test_hostile_requests import Asker
from tests.client.test_recovering import QUICK, vanished
from tests.kit import Cluster, cluster, read_ledger, read_log, until
from tests.went_back import Snapshot, put_back, snapshot_of

THREE = Quorum(3, 3, 2)


async def written(client: replog.Client, count: int) -> list[int]:
    """Ledgers with one entry each, their own ids."""
    ids = []
    for _ in range(count):
        async with client.create_ledger() as writer:
            await writer.append(b"%d" % writer.ledger_id)
        ids.append(writer.ledger_id)
    return ids


@asynccontextmanager
async def with_ledgers(count: int = 20) -> AsyncIterator[tuple[Cluster, replog.Client, list[int]]]:
    async with cluster() as world, world.client(QUICK, THREE) as client:
        yield world, client, await written(client, count)


async def all_read(client: replog.Client, ids: list[int]) -> None:
    for ledger_id in ids:
        assert await read_ledger(client, ledger_id) == [b"%d" % ledger_id]


@pytest.mark.parametrize("how", ["emptied", "older", "other cluster", "ledgers gone", "counter lower", "counter gone"])
async def test_nothing_is_dropped_when_the_metastore_went_back(
    how: str, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with with_ledgers(10) as (world, client, ids):
        older = snapshot_of(world.metastore)
        ids += await written(client, 10)
        newest = snapshot_of(world.metastore)
        if how == "emptied":
            put_back(world.metastore)
        elif how == "older":
            put_back(world.metastore, older)
        elif how == "other cluster":
            values = dict(newest.values)
            for bookie in world.bookies:
                values[cookie_key(bookie.bookie_id)] = encode_cookie(Cookie(token="another", times_raised=99))
            values = {key: value for key, value in values.items() if not key.startswith("ledgers/")}
            put_back(world.metastore, attrs.evolve(newest, values={**values, NEXT_LEDGER_ID_KEY: b"1000"}))
        elif how == "ledgers gone":
            put_back(
                world.metastore,
                attrs.evolve(newest, values={k: v for k, v in newest.values.items() if not k.startswith("ledgers")}),
            )
        elif how == "counter lower":
            put_back(world.metastore, attrs.evolve(newest, values={**newest.values, NEXT_LEDGER_ID_KEY: b"5"}))
        else:
            values = {key: value for key, value in newest.values.items() if key != NEXT_LEDGER_ID_KEY}
            put_back(world.metastore, attrs.evolve(newest, values=values))
        for bookie in world.bookies:
            assert bookie.served is not None
            with pytest.raises(MetastoreDoubtedError, match="B6a"):
                await bookie.served.collect_garbage()
            for ledger_id in ids:
                bookie.served._maintenance.hints.hear(ledger_id)
        await trio.sleep(1300)  # two passes by the clock
        assert any(
            "doubts its metastore" in each.getMessage() for each in caplog.records if each.levelno == logging.ERROR
        )
        put_back(world.metastore, newest)
        await trio.sleep(700)
        await all_read(client, ids)
        assert await world.bookies[0].served.collect_garbage() == []  # type: ignore[union-attr]
        assert not any(bookie.server.guard.problem for bookie in world.bookies)


async def test_doubt_ends_when_the_metastore_is_right_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with with_ledgers(3) as (world, client, ids):
        newest = snapshot_of(world.metastore)
        put_back(world.metastore)
        await trio.sleep(5)
        bookie = world.bookies[0]
        assert bookie.served is not None
        announced = await world.metastore.announced(READ_ONLY_BOOKIES_KEY)
        address = decode_address(f"{READ_ONLY_BOOKIES_KEY}/{bookie.bookie_id}", announced[bookie.bookie_id])
        assert address.doubts_metastore
        assert address.read_only
        assert "emptied" in address.problem
        assert bookie.served.statistics()["metastore_doubted"] == 1
        health = health_of([bookie.served])
        assert health.state is State.METASTORE_DOUBTED
        assert "emptied" in health.problems[bookie.bookie_id]
        assert (await client.admin.bookies())[0].doubts_metastore
        with pytest.raises(NotEnoughBookiesError, match="emptied"):
            async with client.create_ledger():
                pass
        put_back(world.metastore, newest)
        await trio.sleep(5)
        assert health_of([bookie.served]).state is State.SERVING
        assert not await world.metastore.announced(READ_ONLY_BOOKIES_KEY)
        ids += await written(client, 1)


@pytest.mark.parametrize("fault", [None, *Fault])
async def test_counter_shows_an_older_metastore_with_the_same_next_id(
    fault: Fault | None, autojump_clock: trio.testing.MockClock
) -> None:
    """A client takes ids in blocks: the next ledger id is the same before and behind the creation of a ledger. The counters are
    raised although the metastore fails at first."""
    async with with_ledgers(1) as (world, client, ids):
        client._opened.ledgers.records._ids._count = 32
        ids += await written(client, 1)
        older = snapshot_of(world.metastore)
        client._opened.ledgers.records._ids._count = 1
        async with client.create_ledger() as writer:
            await writer.append(b"%d" % writer.ledger_id)
        ids.append(writer.ledger_id)
        assert older.values[NEXT_LEDGER_ID_KEY] == snapshot_of(world.metastore).values[NEXT_LEDGER_ID_KEY]
        if fault is not None:
            world.metastore.fail_next("put", fault, under="cookies", times=len(world.bookies))
        await trio.sleep(10)  # the bookies raise their counters
        assert not world.metastore.planned()
        newest = snapshot_of(world.metastore)
        put_back(world.metastore, older)
        for bookie in world.bookies:
            assert bookie.served is not None
            with pytest.raises(MetastoreDoubtedError, match="was raised"):
                await bookie.served.collect_garbage()
        put_back(world.metastore, newest)
        await trio.sleep(5)
        await all_read(client, ids)


async def test_lower_next_id_is_noticed_without_held_ledgers_above_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The ledgers with the highest ids were deleted and dropped before."""
    async with with_ledgers(6) as (world, client, ids):
        for ledger_id in ids[3:]:
            await client.delete_ledger(ledger_id)
        await until(lambda: all(bookie.storage.ledger_ids() == ids[:3] for bookie in world.bookies))
        bookie = world.bookies[0]
        await bookie.kill()
        await bookie.start()
        newest = snapshot_of(world.metastore)
        put_back(world.metastore, attrs.evolve(newest, values={**newest.values, NEXT_LEDGER_ID_KEY: b"%d" % ids[4]}))
        with pytest.raises(MetastoreDoubtedError, match="and had been"):
            await bookie.server.guard.check()


async def test_held_ledgers_alone_reveal_a_rollback(autojump_clock: trio.testing.MockClock) -> None:
    """The bookie's sighting is gone, as with a damaged file: the metastore went back to before the ledgers that it holds."""
    async with cluster() as world, world.client(QUICK, THREE) as client:
        await trio.sleep(5)
        older = snapshot_of(world.metastore)
        ids = await written(client, 5)
        await trio.sleep(5)
        newest, bookie = snapshot_of(world.metastore), world.bookies[0]
        await bookie.kill()
        put_back(world.metastore, older)
        storage = memory.open_storage(bookie.name)
        storage.keep_sighting(Sighting())
        storage.close()
        await bookie.start()
        assert bookie.served is not None
        with pytest.raises(MetastoreDoubtedError, match="holds ledger"):
            await bookie.served.collect_garbage()
        assert bookie.storage.ledger_ids() == ids
        put_back(world.metastore, newest)
        await trio.sleep(700)
        await all_read(client, ids)


@pytest.mark.parametrize("back_before", [LEDGERS_KEY, "cookies", NEXT_LEDGER_ID_KEY])
async def test_metastore_rollback_during_a_pass_costs_nothing(
    back_before: str, autojump_clock: trio.testing.MockClock
) -> None:
    """Right before a call of the pass: the first, the second, and so on."""
    async with with_ledgers(3) as (world, client, ids):
        bookie = world.bookies[0]
        assert bookie.served is not None
        for at in range(1, 12):
            left, newest = [at], list[Snapshot]()

            def choose(_operation: str, key: str, left: list[int] = left, newest: list[Snapshot] = newest) -> None:
                left[0] -= key.startswith(back_before)
                if not left[0] and not newest:
                    newest.append(snapshot_of(world.metastore))
                    put_back(world.metastore)

            world.metastore._choose = choose
            with suppress(MetastoreDoubtedError, KeyNotFoundError):
                assert await bookie.served.collect_garbage() == []
            world.metastore._choose = None
            if newest:
                put_back(world.metastore, newest[0])
            await bookie.server.guard.check()
        await all_read(client, ids)


async def test_release_drops_nothing_when_the_metastore_went_back(autojump_clock: trio.testing.MockClock) -> None:
    """F5: the record of an older metastore names others, and this bookie was given the only copies since."""
    async with cluster(4) as world, world.client(QUICK, THREE) as client:
        (ledger_id,) = await written(client, 1)
        ensemble = (await client.ledger_metadata(ledger_id)).last_fragment.ensemble
        older = snapshot_of(world.metastore)
        (spare,) = world.spare(ensemble)
        (lost,) = world.named(ensemble[:1])
        await lost.kill()
        await client.admin.repair(lost=[lost.bookie_id])
        assert spare.storage.ranges(ledger_id)
        newest = snapshot_of(world.metastore)
        await trio.sleep(700)
        await spare.kill()
        put_back(world.metastore, older)
        await spare.start()
        with pytest.raises(MetastoreDoubtedError):
            await Releasing(spare.server, world.metastore).run()
        assert spare.storage.ranges(ledger_id)
        put_back(world.metastore, newest)
        await all_read(client, [ledger_id])


async def test_rolled_back_metastore_does_not_settle_storage_doubt(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """B8, B6a: an empty metastore has no ledger that would have to be compared."""
    async with with_ledgers(2) as (world, _client, _ids):
        (bookie, *_) = world.bookies
        doubt = bookie.storage.doubt().raised(("lost a disk",), is_lost=True)
        bookie.storage.doubts = doubt.bounded(await read_next_ledger_id(world.metastore))
        put_back(world.metastore)
        with pytest.raises(MetastoreDoubtedError):
            await Healing(bookie.server, world.metastore).heal()
        assert bookie.storage.doubt().doubted_below


async def test_recovery_waits_while_bookies_doubt_their_metastore(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world:
        ledger_id = await vanished(world, 5)
        newest = snapshot_of(world.metastore)
        values = {**newest.values, NEXT_LEDGER_ID_KEY: b"1"}
        put_back(world.metastore, attrs.evolve(newest, values=values))
        await trio.sleep(5)
        async with world.client(QUICK) as client:
            with pytest.raises(RecoveryUndecidedError, match="next ledger id is 1"):
                await client.recover_ledger(ledger_id)
            put_back(world.metastore, newest)
            await trio.sleep(5)
            assert (await client.recover_ledger(ledger_id)).last_entry_id == 4


async def test_writer_goes_on_in_its_ledger_while_bookies_doubt(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK, THREE) as client, client.create_ledger() as writer:
        await writer.append(b"0")
        newest = snapshot_of(world.metastore)
        put_back(world.metastore, attrs.evolve(newest, values={**newest.values, NEXT_LEDGER_ID_KEY: b"1"}))
        await trio.sleep(5)
        await writer.append(b"1")
        put_back(world.metastore, newest)


# -- clients -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["sweep", "repair", "drain", "lost"])
async def test_clients_delete_nothing_when_the_metastore_went_back(
    what: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster(4) as world, world.client(QUICK, THREE) as client:
        async with client.write_log("log") as log:
            await log.append(b"a")
        before = snapshot_of(world.metastore)
        custom = {"log": "log", "job": "nightly"}
        async with client.create_ledger(custom=custom) as writer:
            await writer.append(b"b")
        (spare,) = world.spare(writer.metadata.last_fragment.ensemble)
        await client.jobs.append_ledgers("log", [writer.ledger_id], job="nightly")
        newest = snapshot_of(world.metastore)
        # The log went back, but not the ledgers: so the job's ledger looks as if nobody had committed it.
        keys = (NEXT_LEDGER_ID_KEY, "logs/log")
        put_back(world.metastore, attrs.evolve(newest, values={**newest.values, **{k: before.values[k] for k in keys}}))
        await trio.sleep(5)
        with pytest.raises(MetastoreDoubtedError, match="gone back"):
            if what == "sweep":
                await client.jobs.sweep("log", grace_s=0.0)
            elif what == "repair":
                await client.admin.repair()
            elif what == "drain":
                await client.admin.drain_status(spare.bookie_id)
            else:
                await spare.kill()
                await client.admin.declare_lost([spare.bookie_id])
        put_back(world.metastore, newest)
        assert await read_log(client) == [b"a", b"b"]


# -- the operator ----------------------------------------------------------------------------------------------------


async def test_operator_confirms_an_older_metastore(autojump_clock: trio.testing.MockClock) -> None:
    async with with_ledgers(5) as (world, client, ids):
        older = snapshot_of(world.metastore)
        lost = await written(client, 5)
        await trio.sleep(5)
        put_back(world.metastore, older)
        await trio.sleep(5)
        assert await client.admin.raise_ledger_ids() > lost[-1]
        for bookie in await client.admin.bookies():
            assert bookie.doubts_metastore
            await bookie.confirm_metastore()
            await bookie.collect_garbage()
        for each in world.bookies:
            assert each.storage.ledger_ids() == ids
            assert not each.server.guard.problem
        await trio.sleep(5)
        assert min(await written(client, 2)) > lost[-1]
        await all_read(client, ids)


async def test_confirmed_metastore_reissues_no_id_seen_by_the_bookie(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with with_ledgers(5) as (world, _client, ids):
        put_back(world.metastore)
        for bookie in world.bookies:
            assert bookie.served is not None
            await bookie.served.confirm_metastore()
        assert await read_next_ledger_id(world.metastore) > ids[-1]


async def test_bookie_restarts_in_doubt_and_after_a_restore(autojump_clock: trio.testing.MockClock) -> None:
    async with with_ledgers(5) as (world, client, _ids):
        older = snapshot_of(world.metastore)
        await written(client, 5)
        await trio.sleep(5)
        bookie = world.bookies[0]
        await bookie.kill()
        put_back(world.metastore, older)
        await bookie.start()
        assert bookie.server.guard.problem
        await bookie.kill()
        put_back(world.metastore)
        with pytest.raises(StorageIdentityError, match="--after-restore"):
            await bookie.start()


# -- ids ---------------------------------------------------------------------------------------------------------------


async def test_new_ids_are_above_all_announced_ids(autojump_clock: trio.testing.MockClock) -> None:
    """M5: even while bookies doubt the metastore, and whoever creates the first ledger after a restore."""
    async with with_ledgers(5) as (world, client, ids):
        older = snapshot_of(world.metastore)
        ids += await written(client, 5)
        await world.bookies[0].kill()
        await world.bookies[0].start()  # announces what it has seen
        await trio.sleep(11)  # the ids that this client holds are too old by then
        put_back(world.metastore, older)
        assert await client._opened.ledgers.records.new_id() <= ids[-1], "nothing was announced to this client yet"
        async with world.client(QUICK, THREE) as other:
            await other.admin.bookies()
            assert await other._opened.ledgers.records.new_id() > ids[-1]


async def test_stray_request_neither_raises_the_alarm_nor_uses_up_ids(autojump_clock: trio.testing.MockClock) -> None:
    async with with_ledgers(2) as (world, client, ids):
        bookie = world.bookies[0]
        next_id = await read_next_ledger_id(world.metastore)
        for stray in (next_id, 1 << 40):
            (answer,) = await Asker(bookie.server).ask(FenceRequest(1, stray, b"k" * 32, 2))
            assert answer.status is Status.METASTORE_DOUBTED
            assert "has not given out" in answer.detail
            assert bookie.storage.marks(stray) is None
        assert bookie.served is not None
        assert await bookie.served.collect_garbage() == []
        assert bookie.server.guard.ledgers_below == next_id
        assert (await written(client, 1)) == [ids[-1] + 1]


async def test_silent_metastore_stops_no_new_ledger(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK, THREE) as client, client.create_ledger() as writer:
        world.metastore.delay_s = 1000.0
        began_s = trio.current_time()
        for number in range(10):
            await writer.append(b"%d" % number)
        assert trio.current_time() - began_s < 1.5
        world.metastore.delay_s = 0.0


async def test_requests_for_a_new_ledger_keep_their_order(autojump_clock: trio.testing.MockClock) -> None:
    """B2: what waits for the metastore is taken in the order in which it came: adds, then a fence, then an add that is late."""
    async with cluster(1) as world:
        await raise_next_ledger_id(world.metastore, 8)
        world.metastore.delay_s = 0.3
        key = b"k" * 32
        first, late = (AddRequest(number, 7, key, 1, make_batch(7, number)) for number in (0, 3))
        answers = await Asker(world.bookies[0].server).ask(first, FenceRequest(1, 7, key, 2), late)
        assert [answer.status for answer in answers] == [Status.OK, Status.OK, Status.FENCED]
        assert world.bookies[0].storage.ranges(7)[0].last_entry_id == 2


async def test_waited_requests_leave_room_for_others(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B9: whether they were taken or refused."""
    key = b"k" * 32
    async with cluster(1) as world:
        asker = Asker(world.bookies[0].server)
        monkeypatch.setattr(newcomers, "_WAITING_BYTES_MAX", 2000)
        for number in range(20):
            await raise_next_ledger_id(world.metastore, 10 * number + 8)
            (taken,) = await asker.ask(AddRequest(number, 10 * number + 7, key, 1, make_batch(10 * number + 7, 0)))
            (refused,) = await asker.ask(
                AddRequest(100 + number, 10 * number + 9, key, 1, make_batch(10 * number + 9, 0))
            )
            assert (taken.status, refused.status) == (Status.OK, Status.METASTORE_DOUBTED)


async def test_bookie_remembers_its_sightings_after_a_restart(autojump_clock: trio.testing.MockClock) -> None:
    async with with_ledgers(3) as (world, _client, ids):
        bookie = world.bookies[0]
        await trio.sleep(5)
        await bookie.kill()
        value = (await world.metastore.get(cookie_key(bookie.bookie_id))).value
        cookie = decode_cookie(cookie_key(bookie.bookie_id), value)
        storage = memory.open_storage(bookie.name)
        seen = storage.sighting()
        storage.close()
        assert (seen.token, seen.times_raised) == (cookie.token, cookie.times_raised)
        assert seen.next_ledger_id == ids[-1] + 1
        assert json.loads(value)["times_raised"] >= 2
        await bookie.start()
        assert bookie.server.guard.ledgers_below == ids[-1] + 1


async def test_deleted_ledger_is_dropped_after_others_have_begun(autojump_clock: trio.testing.MockClock) -> None:
    async with with_ledgers(2) as (world, client, ids):
        await client.delete_ledger(ids[0])
        await until(lambda: all(bookie.storage.ledger_ids() == ids[1:] for bookie in world.bookies))
        await world.metastore.delete(ledger_key_path(ids[1]))
        for bookie in world.bookies:
            assert bookie.served is not None
            assert await bookie.served.collect_garbage() == [ids[1]]
