"""L7: whatever a log named, or was about to name, is deleted in the end, whichever change of the metastore came last.

Each verb is cut short after each of its changes in turn: by an error, or by its end, as a crash would. The same verb is then
repeated, by somebody else. After that every ledger that exists is one that the log names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import pytest
import trio
import trio.testing

import replog
from replog.config.client import ClientTuning
from replog.errors import LogNotFoundError, ReplogError
from replog.log import log_driver
from replog.metastores.memory import MemoryMetastore
from replog.records.logs import decode_log
from replog.records.paths import log_key_path
from replog.testing import FaultyMetastore
from tests.kit import Cluster, cluster, read_log
from tests.lanes.seeds import some

QUICK = ClientTuning(
    add_timeout_s=1.0,
    read_timeout_s=1.0,
    add_quorum_timeout_s=4.0,
    metastore_timeout_s=0.5,
    recovery_timeout_s=4.0,
    takeover_timeout_s=10.0,
)
Verb = Callable[[replog.Client], Awaitable[object]]
LAST = 60  # no verb here makes as many changes


class CutMetastore(FaultyMetastore):
    """Dies after so many changes: what comes then never reaches the store."""

    def __init__(self, inner: MemoryMetastore, changes: int) -> None:
        super().__init__(inner)
        self.left = changes
        self.cut = trio.Event()

    async def _change(self, operation: str, key: str, apply: Callable[[], Awaitable[object]]) -> object:  # type: ignore[override]
        if not key.startswith(("logs/", "ledgers/")):
            return await super()._change(operation, key, apply)
        if self.left == 0:  # and below, never
            self.cut.set()
            await trio.sleep_forever()
        self.left -= 1
        return await super()._change(operation, key, apply)


async def write(client: replog.Client, segments: int) -> None:
    async with client.write_log("log") as log:
        for number in range(segments):
            if number:
                await log.roll()
            await log.append(b"%d" % number)


async def lead(client: replog.Client) -> None:
    async with client.write_log("log") as log:
        await log.append(b"led")


async def roll(client: replog.Client) -> None:
    async with client.write_log("log") as log:
        await log.roll()
        await log.append(b"rolled")
        await log.roll()


async def trim(client: replog.Client) -> None:
    await client.trim_log("log", before="5:0")


async def delete(client: replog.Client) -> None:
    await client.delete_log("log")


async def add(client: replog.Client) -> None:
    ledger_ids = []
    for _ in range(2):
        async with client.create_ledger(custom={"log": "log", "job": "j"}) as writer:
            await writer.append(b"a row")
        ledger_ids.append(writer.ledger_id)
    await client.jobs.append_ledgers("log", ledger_ids, transaction=("t", 1), job="j")


async def sweep(client: replog.Client) -> None:
    await client.jobs.sweep("log")


async def unnamed(client: replog.Client) -> set[int]:
    """The ledgers that exist, and that the log does not name."""
    try:
        named = {segment.ledger_id for segment in await client.log_segments("log")}
    except LogNotFoundError:
        named = set()
    return set(await client.ledgers()) - named


async def run_until_cut(world: Cluster, verb: Verb, changes: int, *, is_cancelled: bool) -> bool:
    """Runs the verb in a client that is cut off after so many changes. False if it came to its end before."""
    inner = world.metastore.inner
    assert isinstance(inner, MemoryMetastore)
    metastore = CutMetastore(inner, changes)
    with trio.CancelScope() as scope, suppress(ReplogError):
        async with world.client(QUICK, metastore=metastore) as client, trio.open_nursery() as nursery:
            if is_cancelled:

                async def cancel() -> None:
                    await metastore.cut.wait()
                    scope.cancel()

                nursery.start_soon(cancel)
            with suppress(ReplogError), trio.move_on_after(12):  # a leader tries to roll for as long as it leads
                await verb(client)
            nursery.cancel_scope.cancel()
    return metastore.cut.is_set()


@pytest.mark.slow
@pytest.mark.sized
@pytest.mark.parametrize("is_cancelled", [False, True], ids=["failed", "cancelled"])
@pytest.mark.parametrize(
    ("verb", "repeated"),
    some(  # each verb is cut short and each is repeated, a sweep after all of them
        [
            (trim, trim),
            (trim, sweep),
            (delete, lead),
            (delete, sweep),
            (lead, lead),
            (lead, sweep),
            (roll, roll),
            (roll, sweep),
            (roll, delete),
            (trim, lead),
            (trim, delete),
            (delete, delete),
            (lead, trim),
            (lead, delete),
            (roll, lead),
            (roll, trim),
        ],
        few=9,
    ),
    ids=lambda verb: verb.__name__,
)
async def test_no_ledger_is_left_when_a_verb_is_cut_short(
    verb: Verb, repeated: Verb, is_cancelled: bool, is_long: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """After every second change in `make test`: after those between them in the other of the two ways."""
    changes = 0
    for changes in range(LAST) if is_long else range(int(is_cancelled), LAST, 2):
        async with cluster() as world:
            async with world.client(QUICK) as client:
                client._opened.logs.page_segments = 2
                await write(client, 7)
            was_cut = await run_until_cut(world, verb, changes, is_cancelled=is_cancelled)
            async with world.client(QUICK) as client:
                with suppress(LogNotFoundError):
                    await repeated(client)
                assert await unnamed(client) == set(), f"after {changes} changes"
                assert await dropped(world) == ()
        if not was_cut:
            break
    assert 3 < changes < LAST - 2, "the verb was cut short everywhere"


async def dropped(world: Cluster) -> object:
    key = log_key_path("log")
    return decode_log(key, (await world.metastore.inner.get(key)).value).dropped


@pytest.mark.parametrize("verb", [lead, delete, sweep], ids=lambda verb: verb.__name__)
async def test_no_ledger_is_left_when_the_first_takeover_is_cut_short(
    verb: Verb, autojump_clock: trio.testing.MockClock
) -> None:
    """There is no record of the log, only of what was pending for it."""
    for changes in range(LAST):
        async with cluster() as world:
            was_cut = await run_until_cut(world, lead, changes, is_cancelled=True)
            async with world.client(QUICK) as client:
                with suppress(LogNotFoundError):
                    await verb(client)
                assert await unnamed(client) == set(), f"after {changes} changes"
        if not was_cut:
            return
    raise AssertionError("it never came to its end")


async def test_no_ledger_is_left_when_a_job_is_cut_short(autojump_clock: trio.testing.MockClock) -> None:
    """Ledgers that a job wrote and did not commit are swept; the ledger that it deposed belongs to another writer, and
    is in the log."""
    for changes in range(LAST):
        async with cluster() as world:
            async with world.client(QUICK) as client:
                await write(client, 2)
            was_cut = await run_until_cut(world, add, changes, is_cancelled=True)
            async with world.client(QUICK) as client:
                await client.jobs.sweep("log", job="j")
                assert await unnamed(client) == set(), f"after {changes} changes"
                assert len(await read_log(client)) in (2, 4)
        if not was_cut:
            return
    raise AssertionError("it never came to its end")


@pytest.mark.slow
async def test_trim_during_a_roll_deletes_no_named_ledger(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The trim deletes what is pending for the roll: the roll goes on with another ledger."""
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        async with client.write_log("log") as log:
            for number in range(40):
                world.metastore.delay_s = 0.01
                await log.append(b"%d" % number)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(log.roll)
                    await trio.sleep(0.002 * number)
                    before = replog.Position(max(1, log.segment - 1), 0)
                    nursery.start_soon(partial(other.trim_log, "log", before=before))
                world.metastore.delay_s = 0.0
        assert await unnamed(client) == set()
        assert (await read_log(client))[-1:] == [b"39"]


async def test_pending_ledgers_are_forgotten_after_a_while(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request to create the ledger may still be under way, and come after the ledger was deleted."""
    async with cluster() as world:
        for changes in (1, 2):  # it is pending, and it is created
            assert await run_until_cut(world, lead, changes, is_cancelled=True)
        key = f"{log_key_path('log')}/pending"
        async with world.client(QUICK) as client:
            await client.jobs.sweep("log")
            assert await client.ledgers() == []
            assert len(await world.metastore.children(key)) == 2
            monkeypatch.setattr(log_driver, "PENDING_KEPT_S", 0.0)
            await client.jobs.sweep("log")
            assert await world.metastore.children(key) == []


async def test_a_hanging_metastore_after_a_takeover_delays_no_append(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Leftovers of other clients are finished beside the appends; leaving waits for that, but not long."""
    async with cluster() as world:
        async with world.client(QUICK) as client:
            await write(client, 3)
        await run_until_cut(world, trim, 1, is_cancelled=True)
        inner = world.metastore.inner
        assert isinstance(inner, MemoryMetastore)
        slow = CutMetastore(inner, 3)  # the ledger is pending, it is created, the log names it
        started = trio.current_time()
        async with world.client(QUICK, metastore=slow) as client:
            async with client.write_log("log") as log:
                await log.append(b"served")
                assert trio.current_time() == started
                await slow.cut.wait()
                slow.left = -1  # the metastore is well again, but for the call that hangs
            assert trio.current_time() < started + 3.0
