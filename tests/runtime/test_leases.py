"""Leases and elections of stores that have none of their own, on a virtual clock; what fails, fails on demand."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
import trio.testing

from replog.abc import Metastore
from replog.errors import (
    KeyExistsError,
    KeyNotFoundError,
    LocalProtocolError,
    MetastoreCorruptError,
    MetastoreError,
    MetastoreUncertainError,
)
from replog.runtime import leases
from replog.runtime.keys import Versioned
from replog.testing import Fault
from tests.lanes.seeds import seeds
from tests.plain_metastore import FaultyPlainMetastore, PlainMap, PlainMetastore

LEASE_S = 8.0
KEY = "live/a"

Clock = trio.testing.MockClock


@pytest.fixture
def shared() -> PlainMap:
    return PlainMap()


@pytest.fixture
def one(shared: PlainMap) -> PlainMetastore:
    return PlainMetastore(shared, LEASE_S)


@pytest.fixture
def other(shared: PlainMap) -> PlainMetastore:
    return PlainMetastore(shared, LEASE_S)


async def can_announce(metastore: Metastore, key: str = KEY) -> bool:
    try:
        async with metastore.announce(key, b"tried"):
            return True
    except KeyExistsError:
        return False


async def stopped_holder(
    metastore: PlainMetastore, task_status: trio.TaskStatus[trio.CancelScope] = trio.TASK_STATUS_IGNORED
) -> None:
    """Announces, and stops in the next beat, until it may go on."""
    with trio.CancelScope() as scope:
        async with metastore.announce(KEY, b"stopped"):
            metastore.going_on = trio.Event()
            task_status.started(scope)
            await trio.sleep_forever()


# -- announcing ---------------------------------------------------------------------------------------------------


async def test_a_holder_is_seen_for_as_long_as_it_holds(
    one: PlainMetastore, other: PlainMetastore, autojump_clock: Clock
) -> None:
    async with one.announce(KEY, b"1"):
        for _ in range(50):
            assert await other.announced("live") == {"a": b"1"}
            assert not await can_announce(other)
            await trio.sleep(LEASE_S / 3)
    assert await other.announced("live") == {}
    assert one.shared.values == {}
    assert await can_announce(other)


async def test_a_dead_holder_is_gone_after_the_observers_lease(
    one: PlainMetastore, other: PlainMetastore, autojump_clock: Clock
) -> None:
    await other.create(KEY, leases._Stored(b"0123456789abcdef", b"dead").encode())
    await trio.sleep(10 * LEASE_S)
    for _ in range(8):
        assert await one.announced("live") == {"a": b"dead"}, "it was never looked at before"
        await trio.sleep(LEASE_S / 8)
    assert await one.announced("live") == {}
    assert await other.announced("live") == {"a": b"dead"}, "another observer has a clock of its own"
    assert not await can_announce(other)
    async with one.announce(KEY, b"next"):
        assert await one.announced("live") == {"a": b"next"}
        await trio.sleep(LEASE_S)
        assert await other.announced("live") == {"a": b"next"}, "another announcement begins another lease"


async def test_versions_continue_when_a_dead_holder_is_replaced(
    one: PlainMetastore, shared: PlainMap, autojump_clock: Clock
) -> None:
    """Deleted and created anew, the key might have the version again that the old holder's late beat expects."""
    dead = leases._Stored(b"0123456789abcdef", b"dead").encode()
    shared.values[KEY] = Versioned(dead, 7)
    assert not await can_announce(one)
    await trio.sleep(LEASE_S)
    async with one.announce(KEY, b"1"):
        assert shared.values[KEY].version == 8


async def test_recurring_version_does_not_fool_observers(
    one: PlainMetastore, shared: PlainMap, autojump_clock: Clock
) -> None:
    """Between two looks one holder left and another came: the same version, and not the same announcement."""
    other = PlainMetastore(shared, LEASE_S)
    async with one.announce(KEY, b"1"):
        assert await other.announced("live") == {"a": b"1"}
        version = shared.values[KEY].version
    await trio.sleep(LEASE_S * 2)
    async with one.announce(KEY, b"1"):
        assert shared.values[KEY].version == version
        assert await other.announced("live") == {"a": b"1"}
        assert not await can_announce(other)


async def test_a_plain_key_is_not_announced_and_never_taken(one: PlainMetastore, autojump_clock: Clock) -> None:
    await one.create(KEY, b"plain")
    for _ in range(3):
        assert await one.announced("live") == {}
        with pytest.raises(
            KeyExistsError, match="'live/a': it has a value that was not announced: nothing was written"
        ):
            async with one.announce(KEY, b""):
                pass
        await trio.sleep(LEASE_S)
    assert (await one.get(KEY)).value == b"plain"


@pytest.mark.parametrize("value", [b"", leases._MARK, leases._MARK + b"0123456789abcdef", leases._MARK + bytes(17)])
async def test_key_resembling_an_announcement_is_plain(
    one: PlainMetastore, value: bytes, autojump_clock: Clock
) -> None:
    await one.create(KEY, value)
    assert await one.announced("live") == {}


async def test_any_value_may_be_announced(one: PlainMetastore, other: PlainMetastore, autojump_clock: Clock) -> None:
    for value in (b"", b"\n", leases._MARK, bytes(range(256))):
        async with one.announce(KEY, value):
            assert await other.announced("live") == {"a": value}


async def test_slow_holder_returns_when_it_was_not_replaced(
    one: PlainMetastore, other: PlainMetastore, autojump_clock: Clock
) -> None:
    async with trio.open_nursery() as nursery:
        scope = await nursery.start(stopped_holder, one)
        assert await other.announced("live") == {"a": b"stopped"}
        await trio.sleep(LEASE_S * 1.5)
        await other.announced("live")
        await trio.sleep(LEASE_S)
        assert await other.announced("live") == {}
        one.going_on.set()
        await trio.sleep(LEASE_S)
        assert await other.announced("live") == {"a": b"stopped"}
        scope.cancel()
    assert one.shared.values == {}


async def test_slow_holder_yields_until_its_successor_leaves(
    one: PlainMetastore, other: PlainMetastore, autojump_clock: Clock
) -> None:
    async with trio.open_nursery() as nursery:
        scope = await nursery.start(stopped_holder, one)
        assert not await can_announce(other)
        await trio.sleep(LEASE_S)
        async with other.announce(KEY, b"next"):
            one.going_on.set()
            for _ in range(10):
                assert await other.announced("live") == {"a": b"next"}
                await trio.sleep(LEASE_S / 2)
        await trio.sleep(LEASE_S)
        assert await other.announced("live") == {"a": b"stopped"}
        scope.cancel()
    assert one.shared.values == {}


async def test_leaving_slow_holder_keeps_its_successor(autojump_clock: Clock) -> None:
    shared = PlainMap(versions_repeat=False)
    one, other = PlainMetastore(shared, LEASE_S), PlainMetastore(shared, LEASE_S)
    async with trio.open_nursery() as nursery:
        scope = await nursery.start(stopped_holder, one)
        for _ in range(4):
            await can_announce(other)
            await trio.sleep(LEASE_S)
        async with other.announce(KEY, b"next"):
            scope.cancel()
            one.going_on.set()
            await trio.sleep(LEASE_S / 8)
            assert await other.announced("live") == {"a": b"next"}


async def test_a_late_holder_looks_before_it_beats(one: PlainMetastore, autojump_clock: Clock) -> None:
    """A process that was stopped between two beats: the version that it expects may be another announcement's by now."""
    async with one.announce(KEY, b"1"):
        await trio.sleep(LEASE_S / 8)  # no beat is under way
        version = one.shared.values[KEY].version
        stranger = Versioned(leases._Stored(b"fedcba9876543210", b"2").encode(), version)
        one.shared.values[KEY] = stranger
        autojump_clock.jump(LEASE_S * 2)
        await trio.sleep(LEASE_S / 2)
        assert one.shared.values[KEY] == stranger
    assert one.shared.values[KEY] == stranger


async def test_deleted_key_returns(one: PlainMetastore, autojump_clock: Clock) -> None:
    async with one.announce(KEY, b"1"):
        await one.delete(KEY)
        assert await one.announced("live") == {}
        await trio.sleep(LEASE_S / 2)
        assert await one.announced("live") == {"a": b"1"}
    assert one.shared.values == {}


# -- faults -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Fault.ANSWER_LOST, Fault.REQUEST_LOST])
async def test_a_lost_answer_of_an_announcement_is_looked_up(
    one: PlainMetastore, fault: Fault, autojump_clock: Clock
) -> None:
    faulty = FaultyPlainMetastore(one)
    faulty.fail_next("create", fault)
    async with faulty.announce(KEY, b"1"):
        assert await one.announced("live") == {"a": b"1"}
    assert faulty.planned() == 0
    assert one.shared.values == {}


async def test_lost_answers_of_beats_and_of_leaving_leave_nothing(one: PlainMetastore, autojump_clock: Clock) -> None:
    for fault in (Fault.ANSWER_LOST, Fault.REQUEST_LOST, Fault.ARRIVES_LATE, Fault.CONFLICT, Fault.UNAVAILABLE):
        faulty = FaultyPlainMetastore(one)
        faulty.fail_next("put", fault, times=3)
        async with faulty.announce(KEY, b"1"):
            for _ in range(20):
                await trio.sleep(LEASE_S / 7)
                assert await one.announced("live") == {"a": b"1"}
            if fault is not Fault.UNAVAILABLE:
                faulty.fail_next("delete", fault)
        assert faulty.planned() == 0
        assert one.shared.values == {}, fault


async def test_an_announcement_without_answers_is_taken_back(one: PlainMetastore, autojump_clock: Clock) -> None:
    faulty = FaultyPlainMetastore(one)
    faulty.fail_next("create", Fault.ANSWER_LOST)
    faulty.fail_next("put", Fault.ANSWER_LOST, times=3)
    with pytest.raises(MetastoreUncertainError, match="'live/a'"):
        async with faulty.announce(KEY, b"1"):
            pass
    assert faulty.planned() == 0
    assert one.shared.values == {}


async def test_unreadable_announcement_ends_with_its_lease(one: PlainMetastore, autojump_clock: Clock) -> None:
    gets = iter([None] + [Fault.UNAVAILABLE] * 100)
    faulty = FaultyPlainMetastore(one, lambda operation, key: next(gets) if operation == "get" else Fault.ANSWER_LOST)
    with pytest.raises(MetastoreUncertainError):
        async with faulty.announce(KEY, b"1"):
            pass
    assert await one.announced("live") == {"a": b"1"}
    await trio.sleep(LEASE_S)
    assert await can_announce(one)
    assert one.shared.values == {}


async def test_initially_absent_store_is_an_error(one: PlainMetastore, autojump_clock: Clock) -> None:
    faulty = FaultyPlainMetastore(one, lambda operation, key: Fault.UNAVAILABLE)
    with pytest.raises(MetastoreError, match="'live/a': get failed on purpose"):
        async with faulty.announce(KEY, b"1"):
            pass
    with pytest.raises(MetastoreError, match="children failed on purpose"):
        await faulty.announced("live")


async def test_later_absent_store_is_awaited(one: PlainMetastore, autojump_clock: Clock) -> None:
    is_away = False
    faulty = FaultyPlainMetastore(one, lambda operation, key: Fault.UNAVAILABLE if is_away else None)
    async with faulty.announce(KEY, b"1"):
        is_away = True
        assert await one.announced("live") == {"a": b"1"}
        await trio.sleep(LEASE_S * 2)
        await one.announced("live")
        await trio.sleep(LEASE_S)
        assert await one.announced("live") == {}
        is_away = False
        await trio.sleep(LEASE_S / 2)
        assert await one.announced("live") == {"a": b"1"}
    assert one.shared.values == {}


async def test_leaving_while_the_store_hangs_ends(one: PlainMetastore, autojump_clock: Clock) -> None:
    async with one.announce(KEY, b"1"):
        await trio.sleep(LEASE_S / 8)  # no beat is under way
        one.going_on = trio.Event()
    assert trio.current_time() < LEASE_S / 8 + 10
    assert KEY in one.shared.values


async def test_cancelled_at_any_moment_nothing_stays(shared: PlainMap, autojump_clock: Clock) -> None:
    slow = PlainMetastore(shared, LEASE_S, delay_s=0.1)
    for number in range(120):  # over the claim, two beats, and the farewell
        with trio.move_on_after(number * 0.04):
            async with slow.announce(KEY, b"1"):
                await trio.sleep(4.4)
        assert shared.values == {}, number


async def test_errors_leave_the_context_as_they_are(one: PlainMetastore, autojump_clock: Clock) -> None:
    with pytest.raises(ZeroDivisionError):
        async with one.announce(KEY, b"1"):
            raise ZeroDivisionError
    with pytest.raises(KeyNotFoundError):
        async with one.elect(KEY, b"1"):
            await one.get("nothing")
    assert one.shared.values == {}


async def test_memory_is_bounded(one: PlainMetastore, monkeypatch: pytest.MonkeyPatch, autojump_clock: Clock) -> None:
    monkeypatch.setattr(leases, "_SEEN_MAX", 20)
    dead = leases._Stored(b"0123456789abcdef", b"dead").encode()
    for number in range(100):
        await one.create(f"other/{number}", dead)
        assert not await can_announce(one, f"other/{number}")
    assert len(one._leases._seen) == 20
    await one.create("live/b", dead)
    await one.announced("live")
    assert "live/b" in one._leases._seen
    await one.delete("live/b")
    await one.announced("live")
    assert "live/b" not in one._leases._seen
    assert len(one._leases._seen) == 19


# -- elections ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_one_leads_at_a_time_and_everybody_in_turn(shared: PlainMap, autojump_clock: Clock) -> None:
    led: list[int] = []
    leading = 0

    async def lead(number: int) -> None:
        nonlocal leading
        async with PlainMetastore(shared, LEASE_S, delay_s=0.01).elect("leader", b"%d" % number):
            leading += 1
            assert leading == 1
            led.append(number)
            await trio.sleep(number % 3 * LEASE_S)
            leading -= 1

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(lead, number)
    assert sorted(led) == list(range(8))
    assert shared.values == {}


async def test_a_dead_leader_is_succeeded_soon_after_the_lease(
    one: PlainMetastore, shared: PlainMap, autojump_clock: Clock
) -> None:
    shared.values["leader"] = Versioned(leases._Stored(b"0123456789abcdef", b"dead").encode(), 3)
    start_s = trio.current_time()
    async with one.elect("leader", b"next"):
        assert LEASE_S <= trio.current_time() - start_s <= LEASE_S * 1.5
        with trio.move_on_after(LEASE_S * 5) as scope:
            async with PlainMetastore(shared, LEASE_S).elect("leader", b"third"):
                pass
        assert scope.cancelled_caught, "who lives leads on"


async def test_orderly_departure_is_succeeded_at_once(
    one: PlainMetastore, other: PlainMetastore, autojump_clock: Clock
) -> None:
    left_at_s = 0.0

    async def lead() -> None:
        nonlocal left_at_s
        async with one.elect("leader", b"1"):
            await trio.sleep(LEASE_S * 3)
            left_at_s = trio.current_time()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lead)
        await trio.sleep(1)
        async with other.elect("leader", b"2"):
            assert 0 < left_at_s <= trio.current_time() <= left_at_s + 0.2


async def test_a_candidate_waits_on_while_the_store_is_away(
    one: PlainMetastore, other: PlainMetastore, autojump_clock: Clock
) -> None:
    is_away = False
    faulty = FaultyPlainMetastore(other, lambda operation, key: Fault.UNAVAILABLE if is_away else None)
    elected = trio.Event()

    async def run() -> None:
        async with faulty.elect("leader", b"2"):
            elected.set()

    async with trio.open_nursery() as nursery:
        async with one.elect("leader", b"1"):
            nursery.start_soon(run)
            await trio.sleep(LEASE_S)
            is_away = True
            await trio.sleep(LEASE_S * 5)
        await trio.sleep(LEASE_S)
        assert not elected.is_set()
        is_away = False


async def test_certain_failure_is_reported_at_once(one: PlainMetastore, autojump_clock: Clock) -> None:
    faulty = FaultyPlainMetastore(one, lambda operation, key: Fault.UNAVAILABLE)
    with pytest.raises(MetastoreError, match="'leader': get failed on purpose"):
        async with faulty.elect("leader", b""):
            pass
    with pytest.raises(LocalProtocolError):
        async with one.elect("a//b", b""):
            pass
    with pytest.raises(MetastoreError, match="bytes exceed"):
        async with one.elect("leader", bytes(1_000_000)):
            pass


async def test_candidate_cancelled_at_any_moment_blocks_no_other(shared: PlainMap, autojump_clock: Clock) -> None:
    for number in range(60):
        leader = PlainMetastore(shared, LEASE_S, delay_s=0.1)
        candidate = PlainMetastore(shared, LEASE_S, delay_s=0.1)

        async def run(candidate: PlainMetastore = candidate, after_s: float = number * 0.04) -> None:
            with trio.move_on_after(after_s):
                async with candidate.elect("leader", b"2"):
                    await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            async with leader.elect("leader", b"1"):
                nursery.start_soon(run)
                await trio.sleep(1.0)
        assert shared.values == {}


# -- waits --------------------------------------------------------------------------------------------------------


async def test_waits_last_while_the_store_is_away(one: PlainMetastore, autojump_clock: Clock) -> None:
    is_away = True
    faulty = FaultyPlainMetastore(one, lambda operation, key: Fault.UNAVAILABLE if is_away else None)
    faulty.inner = one
    version = await one.create("a/b", b"")
    woken: list[str] = []

    async def wait(name: str, wait_for: object) -> None:
        await wait_for()  # type: ignore[operator]
        woken.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, "changed", partial(Metastore.wait_changed, faulty, "a/b", version))
        nursery.start_soon(wait, "children", partial(Metastore.wait_children_changed, faulty, "a", ["b"]))
        await trio.sleep(1)
        await one.delete("a/b")
        await trio.sleep(100)
        assert woken == []
        is_away = False
        await trio.sleep(1)
        assert sorted(woken) == ["changed", "children"]


async def test_a_wait_does_not_last_over_damage(
    one: PlainMetastore, monkeypatch: pytest.MonkeyPatch, autojump_clock: Clock
) -> None:
    async def damaged(key: str) -> Versioned:
        raise MetastoreCorruptError(f"key {key!r}: damaged")

    monkeypatch.setattr(one, "get", damaged)
    with pytest.raises(MetastoreCorruptError):
        await one.wait_changed("a", 1)
    with pytest.raises(MetastoreCorruptError):
        async with one.elect("a", b""):
            pass


# -- at random ----------------------------------------------------------------------------------------------------


class Judge:
    """Sees every change of the one key, and knows the rules of the store's side of a lease."""

    def __init__(self) -> None:
        self.changed_at_s = -float("inf")
        self.owner: dict[bytes, object] = {}
        self.replaced = 0

    def watch(self, who: object, before: Versioned | None, after: Versioned | None) -> None:
        old = leases._Stored.decode(before.value) if before is not None else None
        new = leases._Stored.decode(after.value) if after is not None else None
        if new is None:
            assert old is not None
            assert self.owner[old.token] is who, "one who is not its holder deleted it"
        elif old is not None and old.token != new.token:
            self.replaced += 1
            quiet_s = trio.current_time() - self.changed_at_s
            assert quiet_s >= LEASE_S, f"its holder was heard of {quiet_s} s ago"
        if new is not None:
            assert self.owner.setdefault(new.token, who) is who, "a token has one holder"
        self.changed_at_s = trio.current_time()


class Contest:
    """Clients that are elected again and again, while calls fail and clients stop."""

    def __init__(self, seed: int, *, is_calm: bool, versions_repeat: bool = False) -> None:
        self.random = random.Random(seed)
        self.is_calm = is_calm
        self.judge = Judge()
        self.shared = PlainMap(versions_repeat=versions_repeat)
        if not versions_repeat:
            self.shared.watch = self.judge.watch
        self.leading: set[int] = set()
        self.elected = 0
        self.overlaps = 0

    def _fate(self, operation: str, key: str) -> Fault | None:
        if self.is_calm or self.random.random() > 0.15:
            return None
        return self.random.choice(
            [fault for fault in Fault if fault is not Fault.CONFLICT]
        )  # nobody else puts our tokens

    @asynccontextmanager
    async def _stops(self, metastore: PlainMetastore) -> AsyncIterator[None]:
        async def stop() -> None:
            while True:
                await trio.sleep(self.random.uniform(0, LEASE_S * 6))
                if not self.is_calm:
                    metastore.going_on = trio.Event()
                    await trio.sleep(self.random.uniform(0, LEASE_S * 3))
                    metastore.going_on.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop)
            yield
            nursery.cancel_scope.cancel()

    async def run_client(self, number: int) -> None:
        plain = PlainMetastore(self.shared, LEASE_S, delay_s=LEASE_S / 10)
        metastore = FaultyPlainMetastore(plain, self._fate)
        async with self._stops(plain):
            while True:
                try:
                    with trio.move_on_after(self.random.uniform(0, LEASE_S * 12)):
                        async with metastore.elect("leader", b"%d" % number):
                            await self._lead(number)
                except MetastoreError:  # at first
                    await trio.sleep(self.random.random())

    async def _lead(self, number: int) -> None:
        self.elected += 1
        self.overlaps += bool(self.leading)
        self.leading.add(number)
        try:
            await trio.sleep(self.random.uniform(0, LEASE_S * 4))
        finally:
            self.leading.discard(number)

    async def run(self, for_s: float) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(self.run_client, number)
            await trio.sleep(for_s)
            self.is_calm = True
            await trio.sleep(LEASE_S * 4)
            elected = self.elected
            await trio.sleep(LEASE_S * 30)
            assert self.elected > elected, "somebody is elected once it is calm"
            nursery.cancel_scope.cancel()
        await PlainMetastore(self.shared).children("leader")


@pytest.mark.parametrize("seed", seeds(6, few=1))
async def test_in_the_calm_two_never_lead(seed: int, autojump_clock: Clock) -> None:
    contest = Contest(seed, is_calm=True)
    await contest.run(LEASE_S * 60)
    assert contest.elected > 20
    assert contest.overlaps == 0
    assert contest.judge.replaced == 0
    assert contest.shared.values == {}


@pytest.mark.parametrize("seed", seeds(8, few=1))
async def test_holder_heard_within_its_lease_is_not_replaced(seed: int, autojump_clock: Clock) -> None:
    """Two may believe that they lead, but who is replaced was not heard of for a lease; and it all ends when it is calm."""
    contest = Contest(seed, is_calm=False)
    await contest.run(LEASE_S * 80)
    assert contest.elected > 20
    assert contest.judge.replaced, "a contest in which nobody was ever taken for gone shows little"


@pytest.mark.parametrize("seed", seeds(4, few=1))
async def test_restarting_versions_still_end_well(seed: int, autojump_clock: Clock) -> None:
    contest = Contest(seed, is_calm=False, versions_repeat=True)
    await contest.run(LEASE_S * 60)
