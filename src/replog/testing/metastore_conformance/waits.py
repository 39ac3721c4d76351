"""Waiting for changes: no wait may miss a change, whenever it happens."""

from __future__ import annotations

import trio

from replog.abc import Metastore
from replog.testing.metastore_conformance.bench import MOMENT_S, Bench, differs, exists, until, until_children
from replog.testing.promises import promise, soon

_LATER_S = 0.02
_WHILE_S = 0.1
_TURNS_MAX = 1000  # in that while
_MOMENTS = 8


async def check_wait_changed(bench: Bench) -> None:
    """A key is created, replaced and deleted while clients wait."""
    key = f"{bench.root}/a"
    with soon("wait_changed(None) returns soon after the key exists"):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(until, lambda: exists(bench.one, key), lambda: bench.one.wait_changed(key, None))
            await trio.sleep(_LATER_S)
            version = await bench.other.create(key, b"1")
    with soon("wait_changed returns soon after the version is another"):
        async with trio.open_nursery() as nursery:
            for client in bench.clients * 3:
                nursery.start_soon(_until_differs, client, key, version)
            await trio.sleep(_LATER_S)
            second = await bench.other.put(key, b"2", version)
    with soon("wait_changed returns soon after the key was deleted"):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_until_differs, bench.one, key, second)
            await trio.sleep(_LATER_S)
            await bench.other.delete(key)


async def _until_differs(client: Metastore, key: str, version: int) -> None:
    await until(lambda: differs(client, key, version), lambda: client.wait_changed(key, version))


async def check_wait_for_what_happened_before(bench: Bench) -> None:
    """A change happens after the client has read, and before it waits."""
    key, root = f"{bench.root}/a", bench.root
    first = await bench.other.create(key, b"1")
    for client in bench.clients:
        with soon("wait_changed(None) returns at once if the key exists already"):
            await client.wait_changed(key, None)
        with soon("wait_children_changed returns at once if they differ already"):
            await client.wait_children_changed(root, [])
    second = await bench.other.put(key, b"2", first)
    for client in bench.clients:
        with soon("wait_changed returns at once if the version is another already"):
            await client.wait_changed(key, first)
    await bench.one.delete(key)
    for client in bench.clients:
        with soon("wait_changed returns at once if the key was deleted already"):
            await client.wait_changed(key, second)
        with soon("wait_children_changed returns at once if a child was deleted already"):
            await client.wait_children_changed(root, ["a"])


async def check_no_wait_misses_a_change(bench: Bench) -> None:
    """A change happens at any moment while a wait begins, after waits that were cancelled."""
    key = f"{bench.root}/a"
    version = await bench.one.create(key, b"0")
    for number in range(_MOMENTS):
        with trio.move_on_after(MOMENT_S * number):
            await bench.one.wait_changed(key, version)
        with soon("wait_changed misses no change, whenever it comes"):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_until_differs, bench.one, key, version)
                await trio.sleep(MOMENT_S * number)
                version = await bench.clients[number % 2].put(key, b"%d" % number, version)
    for number in range(_MOMENTS):
        known, coming = (["a"], ["a", "b"]) if number % 2 == 0 else (["a", "b"], ["a"])
        with trio.move_on_after(MOMENT_S * number):
            await bench.one.wait_children_changed(bench.root, known)
        with soon("wait_children_changed misses no change, whenever it comes"):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(until_children, bench.one, bench.root, known, coming)
                await trio.sleep(MOMENT_S * number)
                change = (
                    bench.other.create(f"{bench.root}/b", b"")
                    if known == ["a"]
                    else bench.other.delete(f"{bench.root}/b")
                )
                await change
    await bench.one.delete(key)


async def check_wait_children_changed(bench: Bench) -> None:
    """Children appear and vanish, also because of keys further below."""
    root = bench.root
    with soon("wait_children_changed returns soon after a child was created"):
        async with trio.open_nursery() as nursery:
            for client in bench.clients:
                nursery.start_soon(until_children, client, root, [], ["a"])
            await trio.sleep(_LATER_S)
            # Two levels at once: the word `a` appears because of a key further below.
            await bench.other.create(f"{root}/a/deep", b"")
    with soon("wait_children_changed returns soon after a child was deleted"):
        async with trio.open_nursery() as nursery:
            for client in bench.clients:
                nursery.start_soon(until_children, client, f"{root}/a", ["deep"], [])
                nursery.start_soon(until_children, client, root, ["a"], [])
            await trio.sleep(_LATER_S)
            await bench.other.delete(f"{root}/a/deep")


async def check_waits_wait(bench: Bench) -> None:
    """A wait may return too early, but not again and again at once."""
    key = f"{bench.root}/a"
    version = await bench.one.create(key, b"")
    turns = 0
    with trio.move_on_after(_WHILE_S):
        while turns < _TURNS_MAX:
            await bench.one.wait_changed(key, version)
            turns += 1
            await trio.lowlevel.checkpoint()
    promise(turns < _TURNS_MAX, f"wait_changed waits: it returned {turns} times at once though nothing changed")
    await bench.one.delete(key)


CHECKS = (
    check_waits_wait,
    check_wait_changed,
    check_wait_for_what_happened_before,
    check_no_wait_misses_a_change,
    check_wait_children_changed,
)
