"""Answers that are lost, late, wrong or refused: a call does what it says, or an error says what is known (M1)."""

from __future__ import annotations

import logging
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from bad_proxy import PASSING, BadProxy, Fault, bad_proxy
from s3_server import ACCESS_KEY, SECRET_KEY, SESSION_TOKEN, Bucket

from replog.errors import (
    KeyExistsError,
    KeyNotFoundError,
    MetastoreCorruptError,
    MetastoreError,
    MetastoreUnavailableError,
    MetastoreUncertainError,
    VersionConflictError,
)
from replog_objects.errors import BucketRefusedError
from replog_objects.metastore import ObjectsMetastore
from replog_objects.options import ObjectsOptions, Target
from replog_objects.requests import Listing, Requests

LOST = [each for each in PASSING if each.name.endswith("AFTER") and each is not Fault.SHORTENED_AFTER]


@asynccontextmanager
async def through_proxy(bucket: Bucket, timeout_s: float = 6.0) -> AsyncIterator[tuple[BadProxy, ObjectsMetastore]]:
    """A metastore that is open already, and the proxy that it goes through."""
    with bad_proxy(bucket.server.address) as (proxy, address):
        async with bucket.client(address, timeout_s=timeout_s, poll_s=0.05) as metastore:
            await opened(metastore)
            yield proxy, metastore


async def opened(metastore: ObjectsMetastore) -> None:
    """On a busy machine it takes longer than what one call may take."""
    with trio.fail_after(60):
        while True:
            try:
                await metastore.children("opened")
                return
            except (MetastoreUncertainError, MetastoreUnavailableError):
                pass


@pytest.mark.parametrize("fault", PASSING)
async def test_change_is_made_once_when_an_attempt_fails(bucket: Bucket, fault: Fault) -> None:
    async with through_proxy(bucket, timeout_s=1.5 if "SILENCE" in fault.name else 6.0) as (proxy, metastore):
        proxy.next_one(fault, "PUT")
        version = await metastore.create("a", b"1")
        proxy.next_one(fault, "PUT")
        assert await metastore.put("a", b"2", version) == version + 1
        proxy.next_one(fault, "GET")
        assert (await metastore.get("a")).value == b"2"
        proxy.next_one(fault, "GET")
        assert await metastore.children("other") == []
        proxy.next_one(fault, "PUT")
        await metastore.delete("a", version + 1)
        with pytest.raises(KeyNotFoundError):
            await metastore.get("a")
        assert proxy.faults[fault] == 5


@pytest.mark.parametrize("fault", LOST)
async def test_refusals_stay_definite_when_an_answer_is_lost(bucket: Bucket, fault: Fault) -> None:
    """The store refuses, the refusal is lost, and the next attempt finds what another client wrote."""
    async with through_proxy(bucket, timeout_s=1.5) as (proxy, metastore), bucket.client() as other:
        version = await other.create("a", b"1")
        await metastore.get("a")
        second = await other.put("a", b"2", version)
        proxy.next_one(fault, "PUT")
        with pytest.raises(VersionConflictError) as raised:
            await metastore.put("a", b"3", version)
        assert raised.value.expected == version
        assert (await other.get("a")).version == second
        await other.delete("a")
        with pytest.raises(KeyNotFoundError):
            await metastore.delete("a")


async def test_change_is_uncertain_when_it_was_overwritten(bucket: Bucket) -> None:
    """The first attempt is done, its answer lost, and another client goes on from it before the second attempt."""
    async with through_proxy(bucket) as (proxy, metastore), bucket.client() as other:
        version = await metastore.create("a", b"1")
        lost, overwritten = trio.Event(), trio.Event()
        token = trio.lowlevel.current_trio_token()
        puts = 0

        def plan(method: str, path: str) -> Fault:
            nonlocal puts
            if method != "PUT":
                return Fault.NONE
            puts += 1
            if puts == 1:
                token.run_sync_soon(lost.set)
                return Fault.RESET_AFTER
            trio.from_thread.run(overwritten.wait, trio_token=token)
            return Fault.NONE

        async def overwrite() -> None:
            await lost.wait()
            while True:
                found = await other.get("a")
                if found.version != version:
                    break
            await other.put("a", b"3", found.version)
            overwritten.set()

        proxy.plan = plan
        async with trio.open_nursery() as nursery:
            nursery.start_soon(overwrite)
            with pytest.raises(MetastoreUncertainError, match="read back"):
                await metastore.put("a", b"2", version)
        assert (await other.get("a")).value == b"3"


@pytest.mark.parametrize("fault", [Fault.EXPIRED, Fault.DENIED])
async def test_refused_credentials_are_named_and_never_shown(
    bucket: Bucket, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with through_proxy(bucket) as (proxy, metastore):
        version = await metastore.create("a", b"1")
        proxy.plan = lambda method, path: fault
        shown = [repr(metastore), str(vars(metastore))]
        words = "expired" if fault is Fault.EXPIRED else "may not do that"
        for call in (
            lambda: metastore.get("a"),
            lambda: metastore.create("b", b"1"),
            lambda: metastore.put("a", b"2", version),
            lambda: metastore.delete("a"),
            lambda: metastore.children("a"),
            lambda: metastore.values("a"),
        ):
            with pytest.raises(BucketRefusedError, match=words) as raised:
                await call()
            assert "nothing was written" in str(raised.value)
            assert raised.value.__context__ is None or raised.value.__suppress_context__
            shown += ["".join(traceback.format_exception(raised.value)), str(raised.value.__context__)]
        proxy.plan = lambda method, path: Fault.NONE
        assert (await metastore.get("a")).value == b"1"
    shown.append(caplog.text)
    for secret in (ACCESS_KEY, SECRET_KEY, SESSION_TOKEN):
        assert not [each for each in shown if secret in each]


async def test_expiry_after_a_lost_answer_leaves_doubt(bucket: Bucket) -> None:
    async with through_proxy(bucket) as (proxy, metastore):
        version = await metastore.create("a", b"1")
        faults = iter([Fault.RESET_AFTER, Fault.EXPIRED])
        proxy.plan = lambda method, path: next(faults)
        with pytest.raises(MetastoreUncertainError, match="expired"):
            await metastore.put("a", b"2", version)


async def test_only_a_missing_object_is_a_missing_key(bucket: Bucket) -> None:
    async with through_proxy(bucket) as (proxy, metastore):
        version = await metastore.create("a", b"1")
        proxy.plan = lambda method, path: Fault.MISDIRECTED
        with pytest.raises(BucketRefusedError):
            await metastore.get("a")
        with pytest.raises(BucketRefusedError):
            await metastore.put("a", b"2", version)
    async with Bucket(bucket.server, "there-is-none").client() as metastore:
        with pytest.raises(BucketRefusedError, match="the bucket does not exist"):
            await metastore.get("a")


@pytest.mark.parametrize("fault", [Fault.INTERNAL_ERROR, Fault.SILENCE, Fault.SLOW_DOWN])
async def test_calls_end_by_their_deadline_when_nothing_answers(bucket: Bucket, fault: Fault) -> None:
    async with through_proxy(bucket, timeout_s=2.0) as (proxy, metastore):
        version = await metastore.create("a", b"1")
        proxy.plan = lambda method, path: fault
        with trio.fail_after(20):
            with pytest.raises(MetastoreUnavailableError, match="nothing was written"):
                await metastore.get("a")
            with pytest.raises(MetastoreUncertainError, match="read back"):
                await metastore.put("a", b"2", version)


async def test_absent_server_is_not_written_to(bucket: Bucket) -> None:
    async with through_proxy(bucket) as (_, metastore):
        version = await metastore.create("a", b"1")
    async with bucket.client("127.0.0.1:9", timeout_s=0.6) as metastore:
        with pytest.raises(MetastoreUnavailableError, match=r"cannot be connected to.*nothing was written"):
            await metastore.put("a", b"2", version)


async def test_damaged_objects_are_named(bucket: Bucket) -> None:
    async with bucket.client() as metastore:
        version = await metastore.create("logs/orders", b"a value")
        good = bucket.get("some/prefix/k/logs/orders=")
        for number in (0, 20, 40, 68, len(good) - 1):
            bad = bytearray(good)
            bad[number] ^= 1
            bucket.put("some/prefix/k/logs/orders=", bytes(bad))
            for call in (metastore.get("logs/orders"), metastore.values("logs")):
                with pytest.raises(MetastoreCorruptError, match="logs/orders"):
                    await call
            with pytest.raises(MetastoreError):  # a put must not paint over damage
                await metastore.put("logs/orders", b"another", version)
        bucket.put("some/prefix/k/logs/orders=", good)
        assert (await metastore.get("logs/orders")).value == b"a value"
        bucket.put("some/prefix/k/logs/it=zz=", b"a stranger's")
        with pytest.raises(MetastoreCorruptError, match="another program"):
            await metastore.children("logs")


class Replacing(Requests):
    """Shows at first a file that is about to replace an object, as versitygw does."""

    has_shown = False

    def right_below(self, name: str) -> Listing:
        listing = super().right_below(name)
        if self.has_shown:
            return listing
        self.has_shown = True
        strange = attrs.evolve(listing.objects[0], name=f"{name}/.orders=.sgwtmp.1799797201")
        return attrs.evolve(listing, objects=[strange, *listing.objects])


async def test_file_about_to_replace_an_object_is_no_damage(bucket: Bucket) -> None:
    options = ObjectsOptions(endpoint=f"http://{bucket.server.address}")
    metastore = ObjectsMetastore(Target("s3", bucket.name, "some/prefix"), options, Replacing)
    try:
        await metastore.create("logs/orders", b"a value")
        assert await metastore.children("logs") == ["orders"]
    finally:
        await metastore.aclose()


async def test_cancelled_change_happens_or_not_and_blocks_nobody(bucket: Bucket) -> None:
    async with through_proxy(bucket, timeout_s=3.0) as (proxy, metastore):
        version = await metastore.create("a", b"1")
        proxy.next_one(Fault.SILENCE_AFTER, "PUT")
        with trio.move_on_after(0.2) as scope:
            await metastore.put("a", b"2", version)
        assert scope.cancelled_caught
        with trio.fail_after(10):
            found = await metastore.get("a")
            assert (found.value, found.version) == (b"2", version + 1)
            with pytest.raises(KeyExistsError):
                await metastore.create("a", b"3")
