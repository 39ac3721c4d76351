"""The exam of metastores: what passes `check_metastore` may hold the metadata of a log."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress

import attrs
import trio

from replog.abc import Metastore
from replog.errors import KeyExistsError, KeyNotFoundError, MetastoreUncertainError, VersionConflictError
from replog.testing.promises import plain_assertions, promise, promised_error, soon

OpenMetastore = Callable[[], AbstractAsyncContextManager[Metastore]]

_MOMENT_S = 0.0002
_MISSING = "reading, replacing or deleting a key that does not exist raises KeyNotFoundError, which has the key"


@attrs.frozen
class _Bench:
    """Two clients of one store, a part of it that nobody else uses, and a way to open more clients."""

    one: Metastore
    other: Metastore
    root: str
    open: OpenMetastore


async def check_metastore(open_metastore: OpenMetastore) -> None:
    """Examines a metastore; raises AssertionError with the first promise of `replog.abc.Metastore` that it breaks.

    `open_metastore()` is a context that gives a client of one and the same store, each time another one; it closes it.
    The exam uses keys below "exam/" and a random word, and leaves none behind if it is passed. Needs no pytest.
    """
    with plain_assertions():
        async with open_metastore() as one, open_metastore() as other:
            for check in _CHECKS:
                await check(_Bench(one, other, f"exam/{secrets.token_hex(8)}", open_metastore))
        async with open_metastore() as one:
            await one.aclose()
            await one.aclose()  # idempotent


async def _check_create_and_get(bench: _Bench) -> None:
    key = f"{bench.root}/a"
    with promised_error(KeyNotFoundError, _MISSING) as raised:
        await bench.one.get(key)
    promise(raised[0].key == key, _MISSING)
    version = await bench.one.create(key, b"first")
    found = await bench.one.get(key)
    promise(found.value == b"first", "a get sees every change that was answered before it began")
    promise(found.version == version, "create returns the version that get tells")
    promise(await bench.other.get(key) == found, "a get sees what other clients changed before it began")
    exists = "creating a key that exists raises KeyExistsError, which has the key, and changes nothing"
    with promised_error(KeyExistsError, exists) as again:
        await bench.other.create(key, b"second")
    promise(again[0].key == key, exists)
    promise((await bench.one.get(key)) == found, exists)
    await bench.one.delete(key)


async def _check_put(bench: _Bench) -> None:
    key = f"{bench.root}/a"
    with promised_error(KeyNotFoundError, _MISSING) as missing:
        await bench.one.put(key, b"", 1)
    promise(missing[0].key == key, _MISSING)
    first = await bench.one.create(key, b"1")
    second = await bench.one.put(key, b"2", first)
    promise(second != first, "put returns the new version, which is another one")
    promise((await bench.other.get(key)).version == second, "put returns the version that get tells")
    stale = "a put that expects another version raises VersionConflictError, with key and expected, and changes nothing"
    for client in (bench.one, bench.other):
        with promised_error(VersionConflictError, stale) as conflict:
            await client.put(key, b"3", first)
        promise((conflict[0].key, conflict[0].expected) == (key, first), stale)
    promise((await bench.one.get(key)).value == b"2", stale)
    third = await bench.other.put(key, b"2", second)
    promise(third != second, "a put of the same value gives a new version all the same")
    await bench.one.delete(key)


async def _check_versions_never_repeat(bench: _Bench) -> None:
    key = f"{bench.root}/a"
    versions = [await bench.one.create(key, b"")]
    for number in range(50):
        client = bench.one if number % 2 else bench.other
        versions.append(await client.put(key, b"%d" % (number % 3), versions[-1]))
    promise(len(set(versions)) == len(versions), "versions of one key never repeat while the key exists")
    await bench.one.delete(key)


async def _check_delete(bench: _Bench) -> None:
    key = f"{bench.root}/a"
    for expected in (None, 1):
        with promised_error(KeyNotFoundError, _MISSING) as missing:
            await bench.one.delete(key, expected)
        promise(missing[0].key == key, _MISSING)
    first = await bench.one.create(key, b"1")
    second = await bench.one.put(key, b"2", first)
    stale = "a delete with another version than expected raises VersionConflictError and deletes nothing"
    with promised_error(VersionConflictError, stale):
        await bench.other.delete(key, first)
    promise((await bench.one.get(key)).value == b"2", stale)
    await bench.other.delete(key, second)
    with promised_error(KeyNotFoundError, "a key that was deleted does not exist"):
        await bench.one.get(key)
    await bench.one.create(key, b"anew")
    await bench.one.delete(key, None)
    with promised_error(KeyNotFoundError, "a delete that expects no version deletes any"):
        await bench.other.get(key)


async def _check_children(bench: _Bench) -> None:
    root = bench.root
    promise(await bench.one.children(root) == [], "children of a key without any, existing or not, are []")
    words = ["b", "a", "a-b", "a.b", "a0", "B", "00", "\N{LATIN SMALL LETTER E WITH ACUTE}", "a%2Fb"]
    for word in words:
        await bench.one.create(f"{root}/{word}", b"")
    await bench.one.create(f"{root}/a/x/y", b"")
    await bench.one.create(f"{root}/a/z", b"")
    for client in (bench.one, bench.other):
        found = await client.children(root)
        promise(found == sorted(words), f"children are the words below a key, each once, sorted; got {found}")
        promise(await client.children(f"{root}/a") == ["x", "z"], "a key may have both a value and children")
    promise((await bench.one.get(f"{root}/a")).value == b"", "a key may have both a value and children")
    promise(await bench.one.children(f"{root}/b") == [], "what begins with the same letters is not below")
    await bench.one.delete(f"{root}/a/x/y")
    promise(await bench.other.children(f"{root}/a/x") == [], "a deleted key is no child")
    promise("z" in await bench.other.children(f"{root}/a"), "a deletion takes no sibling with it")
    await bench.one.delete(f"{root}/a/z")
    for word in words:
        await bench.one.delete(f"{root}/{word}")
    promise(await bench.other.children(root) == [], "deleted keys are no children")


async def _check_values(bench: _Bench) -> None:
    values = (b"", bytes(range(256)) * 3, b"\0", secrets.token_bytes(512 << 10))
    for number, value in enumerate(values):
        key = f"{bench.root}/{number}"
        version = await bench.one.create(key, b"x")
        await bench.one.put(key, value, version)
        promise((await bench.other.get(key)).value == value, f"any {len(value)} bytes come back as they are")
        await bench.one.delete(key)


async def _check_counting(bench: _Bench) -> None:
    """Tasks of two clients add one each, many times, by CAS."""
    key, tasks, times = f"{bench.root}/counter", 8, 15
    await bench.one.create(key, b"0")
    versions: list[int] = []

    async def count(client: Metastore) -> None:
        for _ in range(times):
            while True:
                found = await client.get(key)
                with suppress(VersionConflictError):
                    versions.append(await client.put(key, b"%d" % (int(found.value) + 1), found.version))
                    break

    with soon("changes end"):
        async with trio.open_nursery() as nursery:
            for number in range(tasks):
                nursery.start_soon(count, bench.one if number % 2 else bench.other)
    total = int((await bench.one.get(key)).value)
    promise(
        total == tasks * times, f"of puts that expect one version one succeeds: {tasks * times} added, {total} counted"
    )
    promise(len(set(versions)) == len(versions), "versions of one key never repeat while the key exists")
    await bench.one.delete(key)


async def _check_creating_at_once(bench: _Bench) -> None:
    key = f"{bench.root}/a"
    winners: list[bytes] = []

    async def create(client: Metastore, value: bytes) -> None:
        with suppress(KeyExistsError):
            await client.create(key, value)
            winners.append(value)

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(create, bench.one if number % 2 else bench.other, b"%d" % number)
    promise(len(winners) == 1, f"of several who create a key one succeeds; {len(winners)} did")
    promise((await bench.one.get(key)).value == winners[0], "the value is that of the one who created the key")
    await bench.one.delete(key)


async def _check_wait_changed(bench: _Bench) -> None:
    key, contract = f"{bench.root}/a", "wait_changed returns soon after the version is another"
    with soon("wait_changed(None) returns soon after the key exists"):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_until, lambda: _exists(bench.one, key), lambda: bench.one.wait_changed(key, None))
            await trio.sleep(0.02)
            version = await bench.other.create(key, b"1")
    with soon("wait_changed returns at once if the version is another already"):
        await bench.one.wait_changed(key, None)
    with soon(contract):
        async with trio.open_nursery() as nursery:
            for client in (bench.one, bench.other):
                nursery.start_soon(
                    _until,
                    lambda client=client: _differs(client, key, version),
                    lambda c=client: c.wait_changed(key, version),
                )
            await trio.sleep(0.02)
            second = await bench.other.put(key, b"2", version)
    with soon("wait_changed returns soon after the key was deleted"):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                _until, lambda: _differs(bench.one, key, second), lambda: bench.one.wait_changed(key, second)
            )
            await trio.sleep(0.02)
            await bench.other.delete(key)


async def _check_wait_children_changed(bench: _Bench) -> None:
    root = bench.root
    with soon("wait_children_changed returns soon after a child was created"):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_until_children, bench.one, root, [], ["a"])
            await trio.sleep(0.02)
            await bench.other.create(f"{root}/a/deep", b"")
    with soon("wait_children_changed returns at once if they differ already"):
        await bench.one.wait_children_changed(root, ["b"])
    with soon("wait_children_changed returns soon after a child was deleted"):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_until_children, bench.one, f"{root}/a", ["deep"], [])
            await trio.sleep(0.02)
            await bench.other.delete(f"{root}/a/deep")


async def _check_announce(bench: _Bench) -> None:
    root, key = bench.root, f"{bench.root}/me"
    promise(await bench.one.announced(root) == {}, "announced is {} if nothing is")
    async with bench.one.announce(key, b"here"):
        promise(await bench.other.announced(root) == {"me": b"here"}, "what is announced is seen by others")
        promise(await bench.other.children(root) == ["me"], "what is announced is a child")
        with promised_error(KeyExistsError, "announcing what somebody else announces raises KeyExistsError"):
            async with bench.other.announce(key, b"another"):
                pass
        promise(await bench.one.announced(root) == {"me": b"here"}, "who may not announce changes nothing")
    with soon("what is announced vanishes soon after its context"):
        await _until_children(bench.other, root, ["me"], [])
    async with bench.other.announce(key, b"there"):
        promise(await bench.one.announced(root) == {"me": b"there"}, "what vanished may be announced again")
    await _check_announcer_leaves(bench, key)


async def _check_announcer_leaves(bench: _Bench, key: str) -> None:
    with promised_error(ZeroDivisionError, "an error leaves the context of announce as it is, in no group"):
        async with bench.one.announce(key, b""):
            promise(divmod(1, len(await bench.one.children(f"{key}/none"))), "not reached: this divides by zero")
    with soon("what is announced vanishes soon after its context ended in an error"):
        await _until_children(bench.other, bench.root, ["me"], [])
    with trio.CancelScope() as scope:
        async with bench.one.announce(key, b""):
            scope.cancel()
            await trio.sleep_forever()
    with soon("what is announced vanishes soon after its context was cancelled"):
        await _until_children(bench.other, bench.root, ["me"], [])
    for number in range(20):
        with trio.move_on_after(number * _MOMENT_S):
            async with bench.one.announce(key, b""):
                await trio.sleep_forever()
        with soon("what was being announced when it was cancelled vanishes soon, whether it was announced or not"):
            await _until_announceable(bench.other, key)
    with soon("what is announced vanishes soon after somebody deleted it"):
        async with bench.one.announce(key, b""):
            await bench.other.delete(key)  # leaving the context is no error then
        promise(await bench.one.announced(bench.root) == {}, "what was deleted is not announced")
    async with bench.open() as third, third.announce(key, b"third"):
        promise(await bench.one.announced(bench.root) == {"me": b"third"}, "any client may announce")


async def _until_announceable(client: Metastore, key: str) -> None:
    while True:
        try:
            async with client.announce(key, b"again"):
                return
        except KeyExistsError:
            await trio.sleep(_MOMENT_S)


async def _check_cancellation(bench: _Bench) -> None:
    """A cancelled change has an unknown outcome, but one of two, and the client stays usable."""
    key = f"{bench.root}/a"
    version = await bench.one.create(key, b"old")
    for delay_s in (0.0, 0.0001, 0.001, 0.01):
        with trio.move_on_after(delay_s), suppress(VersionConflictError, MetastoreUncertainError):
            await bench.one.put(key, b"new", version)
        found = await bench.one.get(key)
        promise(found.value in (b"old", b"new"), "a cancelled change happened, or did not")
        promise((found.value == b"new") == (found.version != version), "a version changes with the value")
        version = await _settled(bench.one, key)
    await bench.one.delete(key)


async def _settled(client: Metastore, key: str) -> int:
    """Makes the value b"old" whatever may still arrive, by putting it until that succeeds."""
    while True:
        found = await client.get(key)
        try:
            return await client.put(key, b"old", found.version)
        except VersionConflictError:
            continue  # it arrived just now


async def _until(condition: Callable[[], Awaitable[bool]], wait: Callable[[], Awaitable[None]]) -> None:
    """Waits until it is so; `wait` may return early, but must not return late."""
    while True:
        await wait()
        if await condition():
            return


async def _until_children(client: Metastore, key: str, known: list[str], expected: list[str]) -> None:
    while (found := await client.children(key)) != expected:
        promise(found == known, f"children are {known}, then {expected}; got {found}")
        await client.wait_children_changed(key, known)


async def _exists(client: Metastore, key: str) -> bool:
    return await _version(client, key) is not None


async def _differs(client: Metastore, key: str, version: int) -> bool:
    return await _version(client, key) != version


async def _version(client: Metastore, key: str) -> int | None:
    try:
        return (await client.get(key)).version
    except KeyNotFoundError:
        return None


_CHECKS = (
    _check_create_and_get,
    _check_put,
    _check_versions_never_repeat,
    _check_delete,
    _check_children,
    _check_values,
    _check_counting,
    _check_creating_at_once,
    _check_wait_changed,
    _check_wait_children_changed,
    _check_announce,
    _check_cancellation,
)
