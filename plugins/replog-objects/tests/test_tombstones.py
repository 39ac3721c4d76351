"""What a deletion leaves, and its removal: with writers in between, at every moment."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import attrs
import pytest
import trio
from bad_proxy import Fault, bad_proxy
from s3_server import Bucket

from replog.errors import KeyExistsError, KeyNotFoundError, VersionConflictError
from replog_objects.layout import TOMBSTONE_BYTES
from replog_objects.metastore import ObjectsMetastore
from replog_objects.options import ObjectsOptions, Target
from replog_objects.requests import Requests, Tag

WAIT_S = 30.0


@attrs.define(eq=False)
class Gate:
    """Holds the next request of this method for an object whose name ends so."""

    method: str
    name: str
    reached: threading.Event = attrs.field(factory=threading.Event)
    opened: threading.Event = attrs.field(factory=threading.Event)
    is_used: bool = False

    async def wait_reached(self) -> None:
        assert await trio.to_thread.run_sync(self.reached.wait, WAIT_S), f"no {self.method} of {self.name}"


class GatedRequests(Requests):
    """Requests that a test can hold."""

    def __init__(self, target: Target, options: ObjectsOptions, gates: list[Gate]) -> None:
        super().__init__(target, options)
        self._gates = gates

    def put(self, name: str, body: bytes, expected: Tag | None) -> Tag:
        self._pass("put", name)
        return super().put(name, body, expected)

    def delete(self, name: str, expected: Tag) -> bool:
        self._pass("delete", name)
        return super().delete(name, expected)

    def _pass(self, method: str, name: str) -> None:
        for gate in self._gates:
            if not gate.is_used and gate.method == method and name.endswith(gate.name):
                gate.is_used = True
                gate.reached.set()
                assert gate.opened.wait(WAIT_S)


@asynccontextmanager
async def gated(bucket: Bucket, *gates: Gate) -> AsyncIterator[ObjectsMetastore]:
    options = ObjectsOptions(endpoint=f"http://{bucket.server.address}", tombstone_s=0.0, timeout_s=60.0)
    metastore = ObjectsMetastore(
        Target("s3", bucket.name, "some/prefix"),
        options,
        lambda target, options: GatedRequests(target, options, list(gates)),
    )
    try:
        yield metastore
    finally:
        for gate in gates:
            gate.opened.set()
        await metastore.aclose()


async def until_older() -> None:
    """S3 tells times in whole seconds: waits until the next listing takes every tombstone for old."""
    await trio.sleep(1.05)


async def test_listing_removes_the_tombstone_of_a_deletion(bucket: Bucket) -> None:
    async with bucket.client(tombstone_s=0.0) as metastore, bucket.client() as patient:
        version = await metastore.create("a/b/c", b"1")
        await metastore.delete("a/b/c", version)
        assert len(bucket.get("some/prefix/k/a/b/c=")) == TOMBSTONE_BYTES
        assert await patient.children("a/b") == await patient.children("a") == []
        again = await metastore.create("a/b/c", b"2")
        assert again == version + 2, "versions go on over a tombstone"
        await metastore.delete("a/b/c")
        await until_older()
        assert await patient.children("a/b") == []
        assert "k/a/b/c=" in bucket.names(), "it is younger than an hour"
        assert await metastore.children("a") == []
        assert bucket.names() == ["replog-metastore"]
        assert await metastore.create("a/b/c", b"3") > again + 1, "they go on without one, too"


async def test_late_removal_spares_a_later_creation(bucket: Bucket) -> None:
    gate = Gate("delete", "k/a/b=")
    async with gated(bucket, gate) as collector, bucket.client() as writer:
        await writer.create("a/b", b"1")
        await writer.delete("a/b")
        await until_older()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collector.children, "a")
            await gate.wait_reached()
            version = await writer.create("a/b", b"2")
            gate.opened.set()
        found = await writer.get("a/b")
        assert (found.value, found.version) == (b"2", version)


async def test_creation_goes_on_when_its_tombstone_goes(bucket: Bucket) -> None:
    """The creator has seen the tombstone and is about to replace it; a collector removes it first."""
    gate = Gate("put", "k/a/b=")
    async with gated(bucket, gate) as creator, bucket.client(tombstone_s=0.0) as collector:
        await collector.create("a/b", b"1")
        await collector.delete("a/b")
        await until_older()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(creator.create, "a/b", b"2")
            await gate.wait_reached()
            assert await collector.children("a") == []
            assert bucket.names() == ["replog-metastore"]
            gate.opened.set()
        assert (await collector.get("a/b")).value == b"2"


async def test_one_of_two_creators_wins_amid_a_removal(bucket: Bucket) -> None:
    gates = [Gate("put", "k/a/b="), Gate("put", "k/a/b="), Gate("delete", "k/a/b=")]
    async with gated(bucket, gates[0]) as one, gated(bucket, gates[1]) as two, gated(bucket, gates[2]) as collector:
        async with bucket.client() as writer:
            for order in ([0, 1, 2], [0, 2, 1], [2, 0, 1], [2, 1, 0]):
                for gate in gates:
                    gate.is_used, gate.reached, gate.opened = True, threading.Event(), threading.Event()
                await writer.create("a/b", b"0")
                await writer.delete("a/b")
                await until_older()
                won: list[bytes] = []

                async def create(client: ObjectsMetastore, value: bytes, won: list[bytes] = won) -> None:
                    with suppress(KeyExistsError):
                        await client.create("a/b", value)
                        won.append(value)

                for gate in gates:
                    gate.is_used = False
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(create, one, b"one")
                    nursery.start_soon(create, two, b"two")
                    nursery.start_soon(collector.children, "a")
                    for gate in gates:
                        await gate.wait_reached()
                    for number in order:
                        gates[number].opened.set()
                        await trio.sleep(0.02)
                assert len(won) == 1
                assert (await writer.get("a/b")).value == won[0]
                await writer.delete("a/b")


async def test_old_version_matches_no_later_creation(bucket: Bucket) -> None:
    async with bucket.client(tombstone_s=0.0) as metastore, bucket.client() as late:
        version = await late.create("a/b", b"1")
        await metastore.delete("a/b")
        await until_older()
        await metastore.children("a")
        assert "k/a/b=" not in bucket.names()
        await metastore.create("a/b", b"2")
        with pytest.raises(VersionConflictError):
            await late.put("a/b", b"3", version)
        with pytest.raises(VersionConflictError):
            await late.delete("a/b", version)


async def test_tombstones_stay_where_deletions_ignore_conditions(bucket: Bucket) -> None:
    """A proxy that drops the condition of a DELETE: the look at the store finds it, and nothing is removed."""
    async with bucket.client() as writer:
        await writer.create("a/b", b"1")
        await writer.delete("a/b")
    await until_older()
    with bad_proxy(bucket.server.address) as (proxy, address):
        proxy.ignores_conditions_of = ("DELETE",)
        async with bucket.client(address, tombstone_s=0.0) as metastore:
            assert await metastore.children("a") == await metastore.children("a") == []
            assert "k/a/b=" in bucket.names()
            assert proxy.counts["DELETE"] == 1, "it looks once"


async def test_listing_answers_when_the_removal_is_refused(bucket: Bucket) -> None:
    async with bucket.client() as writer:
        await writer.create("a/b", b"1")
        await writer.delete("a/b")
        await writer.create("a/c", b"1")
    await until_older()
    with bad_proxy(bucket.server.address) as (proxy, address):
        proxy.plan = lambda method, path: Fault.DENIED if method == "DELETE" else Fault.NONE
        async with bucket.client(address, tombstone_s=0.0) as metastore:
            assert await metastore.children("a") == ["c"]
            assert list(await metastore.values("a")) == ["c"]
        with pytest.raises(KeyNotFoundError):
            async with bucket.client() as reader:
                await reader.get("a/b")
