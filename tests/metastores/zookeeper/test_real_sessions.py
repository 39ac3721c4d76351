"""Sessions that the server ends, or that nobody knows the fate of: what was announced comes back, elections move."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from replog.abc import Metastore
from replog.errors import MetastoreError, MetastoreUnavailableError, MetastoreUncertainError
from replog.testing import serve_proxy
from tests.failures.processes import until
from tests.metastores.zookeeper.opening import all_opened, opened
from tests.servers.zookeeper import ZooKeeper, url

pytestmark = pytest.mark.needs_zookeeper

DEADLINE_S = 60.0  # for what takes a second or two on a quiet machine
SESSION = {"lease_s": 1}


async def eventually(look: Callable[[], object], expected: object) -> None:
    """Waits until this is what is seen."""
    await until(lambda: look() == expected, DEADLINE_S, f"{expected!r} is seen")


async def announces(observer: Metastore, expected: dict[str, bytes]) -> None:
    """Waits until this is what is announced, as somebody else sees it."""
    with trio.fail_after(DEADLINE_S):
        while True:
            known = await observer.children("live")
            if await observer.announced("live") == expected:
                return
            with trio.move_on_after(1.0):
                await observer.wait_children_changed("live", known)


async def test_announcements_are_made_again_after_session_expiry(zookeeper: ZooKeeper, zookeeper_chroot: str) -> None:
    async with (
        serve_proxy(zookeeper.address) as proxy,
        all_opened(url(proxy.address, zookeeper_chroot, **SESSION), zookeeper.url(zookeeper_chroot)) as (mine, theirs),
        mine.announce("live/mine", b"here"),
    ):
        for lose in (proxy.swallow, proxy.cut):
            await announces(theirs, {"mine": b"here"})
            lose()
            await announces(theirs, {})
            proxy.mend()
        await announces(theirs, {"mine": b"here"})
        key = await mine.create("still", b"works")
        assert (await theirs.get("still")).version == key
    await gone(zookeeper, zookeeper_chroot)


async def gone(zookeeper: ZooKeeper, chroot: str) -> None:
    async with opened(zookeeper.url(chroot)) as observer:
        await announces(observer, {})


async def lead(metastore: Metastore, name: str, led: list[str], task_status: trio.TaskStatus[trio.CancelScope]) -> None:
    with trio.CancelScope() as scope:
        task_status.started(scope)
        async with metastore.elect("election", name.encode()):
            led.append(name)
            await trio.sleep_forever()


async def test_session_counts_as_lost_without_a_server_saying_so(
    own_zookeeper: ZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    """The server hangs: it tells nobody anything, so the client's own timer does; and in the end the session was not lost."""
    address = own_zookeeper.url(lease_s=4)

    def told() -> int:
        return sum("counts as gone" in record.message for record in caplog.records)

    async with opened(address) as mine, mine.announce("live/mine", b"here"):
        own_zookeeper.freeze()
        await eventually(told, 1)
        own_zookeeper.thaw()
        await announces(mine, {"mine": b"here"})
        assert told() == 1, "once for each time"


async def test_another_is_elected_when_the_leaders_session_expires(zookeeper: ZooKeeper, zookeeper_chroot: str) -> None:
    async with (
        serve_proxy(zookeeper.address) as proxy,
        all_opened(url(proxy.address, zookeeper_chroot, **SESSION), *[zookeeper.url(zookeeper_chroot)] * 2) as opened_,
        trio.open_nursery() as nursery,
    ):
        led: list[str] = []
        scopes = []
        for name, metastore in zip(("first", "second", "third"), opened_, strict=True):
            scopes.append(await nursery.start(lead, metastore, name, led))
            if name == "first":
                await eventually(lambda: led, ["first"])
        proxy.swallow()
        await until(lambda: len(led) == 2, DEADLINE_S, "another one is elected")
        proxy.mend()
        scopes[0].cancel()
        scopes[1 if led[1] == "second" else 2].cancel()
        await eventually(lambda: sorted(led), ["first", "second", "third"])
        nursery.cancel_scope.cancel()


async def test_a_waiting_candidate_queues_again_after_session_expiry(
    zookeeper: ZooKeeper, zookeeper_chroot: str
) -> None:
    async with (
        serve_proxy(zookeeper.address) as proxy,
        all_opened(zookeeper.url(zookeeper_chroot), url(proxy.address, zookeeper_chroot, **SESSION)) as (first, second),
        trio.open_nursery() as nursery,
    ):
        led: list[str] = []
        scope = await nursery.start(lead, first, "first", led)
        await eventually(lambda: led, ["first"])
        async with second.announce("live/second", b""):
            await nursery.start(lead, second, "second", led)
            await announces(first, {"second": b""})
            proxy.swallow()
            await announces(first, {})  # the session has expired, and its place in the queue with it
            proxy.mend()
            await announces(first, {"second": b""})
            assert led == ["first"]
            scope.cancel()
            await eventually(lambda: led, ["first", "second"])
            nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_left_announcement_goes_though_its_session_lives(zookeeper: ZooKeeper, zookeeper_chroot: str) -> None:
    """Nothing else is asked of that client: what it could not take back must not wait for that."""
    async with (
        serve_proxy(zookeeper.address) as proxy,
        all_opened(url(proxy.address, zookeeper_chroot), zookeeper.url(zookeeper_chroot)) as (mine, theirs),
        trio.open_nursery() as nursery,
    ):
        led: list[str] = []
        async with mine.elect("election", b"first"):
            await nursery.start(lead, theirs, "second", led)
            proxy.cut()
        proxy.mend()
        await eventually(lambda: led, ["second"])
        async with mine.announce("live/mine", b"here"):
            await announces(theirs, {"mine": b"here"})
            proxy.cut()
        proxy.mend()
        await announces(theirs, {})
        nursery.cancel_scope.cancel()


async def test_waits_go_on_over_expired_sessions(zookeeper: ZooKeeper, zookeeper_chroot: str) -> None:
    async with (
        serve_proxy(zookeeper.address) as proxy,
        all_opened(url(proxy.address, zookeeper_chroot, **SESSION), zookeeper.url(zookeeper_chroot)) as (mine, theirs),
        mine.announce("live/mine", b""),
        trio.open_nursery() as nursery,
    ):
        version = await theirs.create("watched", b"old")
        seen: list[bytes] = []
        nursery.start_soon(follow, mine, version, seen)
        await announces(theirs, {"mine": b""})
        proxy.swallow()
        await announces(theirs, {})
        await theirs.put("watched", b"new", version)  # in between: nobody watches now
        proxy.mend()
        await eventually(lambda: seen, [b"new"])
        nursery.cancel_scope.cancel()


async def follow(metastore: Metastore, version: int, seen: list[bytes]) -> None:
    while True:
        await metastore.wait_changed("watched", version)  # it may return early
        try:
            found = await metastore.get("watched")
        except MetastoreError:
            continue
        if found.version != version:
            version = found.version
            seen.append(found.value)


@pytest.mark.slow
async def test_calls_end_in_named_errors_while_no_server_answers(own_zookeeper: ZooKeeper) -> None:
    """Each within its deadline, whether the server hangs, was killed, or comes back; and nothing is said to be absent."""
    address = own_zookeeper.url(timeout_s=1)
    async with opened(address) as metastore:
        version = await metastore.create("key", b"value")
        for harm, mend in ((own_zookeeper.freeze, own_zookeeper.thaw), (own_zookeeper.kill, None)):
            harm()
            async with trio.open_nursery() as nursery:
                for call in (metastore.get, metastore.children, metastore.values, metastore.delete):
                    nursery.start_soon(fails, call)
            if mend is None:
                await own_zookeeper.start()
            else:
                mend()
            await reads(metastore, version)


async def fails(call: Callable[[str], Awaitable[object]]) -> None:
    with pytest.raises(MetastoreError, match="other-key") as caught, trio.fail_after(DEADLINE_S):
        await call("other-key")
    assert type(caught.value) in (MetastoreUnavailableError, MetastoreUncertainError)


async def reads(metastore: Metastore, version: int) -> None:
    with trio.fail_after(DEADLINE_S):
        while True:
            try:
                found = await metastore.get("key")
            except MetastoreUnavailableError:
                await trio.sleep(0.05)
            else:
                assert found.version == version
                return
