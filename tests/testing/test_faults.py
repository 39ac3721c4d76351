"""The metastore that fails on demand fails only in ways that the contract allows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from replog.abc import Metastore
from replog.errors import (
    KeyExistsError,
    KeyNotFoundError,
    MetastoreError,
    MetastoreUnavailableError,
    MetastoreUncertainError,
    VersionConflictError,
)
from replog.metastores.memory import MemoryMetastore
from replog.testing import Call, Fault, FaultyMetastore, check_metastore


@pytest.fixture
def faulty() -> FaultyMetastore:
    return FaultyMetastore(MemoryMetastore())


async def test_without_faults_it_passes_the_conformance_suite(request: pytest.FixtureRequest) -> None:
    name = request.node.nodeid

    @asynccontextmanager
    async def client() -> AsyncIterator[Metastore]:
        faulty = FaultyMetastore(MemoryMetastore(name))
        yield faulty
        await faulty.aclose()

    await check_metastore(client)
    MemoryMetastore.discard(name)


async def test_an_answer_is_lost_after_the_change(faulty: FaultyMetastore) -> None:
    faulty.fail_next("create", Fault.ANSWER_LOST)
    with pytest.raises(MetastoreUncertainError, match=r"'a'.*create was lost on purpose"):
        await faulty.create("a", b"1")
    version = (await faulty.get("a")).version
    faulty.fail_next("put", Fault.ANSWER_LOST)
    with pytest.raises(MetastoreUncertainError):
        await faulty.put("a", b"2", version)
    assert (await faulty.get("a")).value == b"2"
    faulty.fail_next("delete", Fault.ANSWER_LOST)
    with pytest.raises(MetastoreUncertainError):
        await faulty.delete("a")
    with pytest.raises(KeyNotFoundError):
        await faulty.get("a")


async def test_a_request_is_lost_before_the_change(faulty: FaultyMetastore) -> None:
    version = await faulty.create("a", b"1")
    faulty.fail_next("put", Fault.REQUEST_LOST)
    with pytest.raises(MetastoreUncertainError):
        await faulty.put("a", b"2", version)
    assert (await faulty.get("a")).version == version
    await faulty.put("a", b"2", version)


async def test_an_old_request_arrives_after_it_was_looked_for(faulty: FaultyMetastore) -> None:
    """The trap: reading back finds nothing, and the change lands all the same. Repeating the same CAS stays safe."""
    version = await faulty.create("a", b"1")
    faulty.fail_next("put", Fault.ARRIVES_LATE)
    with pytest.raises(MetastoreUncertainError):
        await faulty.put("a", b"2", version)
    assert (await faulty.get("a")).value == b"1"
    assert (await faulty.inner.get("a")).value == b"2"
    with pytest.raises(VersionConflictError):
        await faulty.put("a", b"2", version)
    faulty.fail_next("put", Fault.ARRIVES_LATE)  # and too late does nothing
    found = await faulty.get("a")
    with pytest.raises(MetastoreUncertainError):
        await faulty.put("a", b"3", found.version)
    await faulty.put("a", b"4", found.version)
    await faulty.get("a")
    assert (await faulty.get("a")).value == b"4"


async def test_a_conflict_is_a_real_one(faulty: FaultyMetastore) -> None:
    version = await faulty.create("a", b"1")
    faulty.fail_next("put", Fault.CONFLICT)
    with pytest.raises(VersionConflictError):
        await faulty.put("a", b"2", version)
    found = await faulty.get("a")
    assert found.value == b"1"
    assert found.version != version
    await faulty.put("a", b"2", found.version)


async def test_reads_fail_and_never_lie(faulty: FaultyMetastore) -> None:
    await faulty.create("a/b", b"1")
    faulty.fail_next("get", Fault.UNAVAILABLE)
    faulty.fail_next("children", Fault.UNAVAILABLE)
    with pytest.raises(MetastoreError, match="try again") as raised:
        await faulty.get("a/b")
    assert type(raised.value) is MetastoreUnavailableError
    with pytest.raises(MetastoreError):
        await faulty.children("a")
    assert await faulty.children("a") == ["b"]


async def test_faults_wait_for_their_operation_and_key(faulty: FaultyMetastore) -> None:
    faulty.fail_next("create", Fault.UNAVAILABLE, under="logs/", times=2)
    await faulty.create("ledgers/1", b"")
    assert faulty.planned() == 2
    for _ in range(2):
        with pytest.raises(MetastoreError, match="nothing was written"):
            await faulty.create("logs/a", b"")
    await faulty.create("logs/a", b"")
    assert faulty.planned() == 0
    assert faulty.calls == [
        Call("create", "ledgers/1", None),
        Call("create", "logs/a", Fault.UNAVAILABLE),
        Call("create", "logs/a", Fault.UNAVAILABLE),
        Call("create", "logs/a", None),
    ]


async def test_chooser_decides_everything_outside_the_plan() -> None:
    faulty = FaultyMetastore(MemoryMetastore(), lambda operation, key: Fault.UNAVAILABLE if key == "b" else None)
    await faulty.create("a", b"")
    with pytest.raises(MetastoreError):
        await faulty.create("b", b"")


async def test_calls_take_their_time(autojump_clock: trio.testing.MockClock) -> None:
    faulty = FaultyMetastore(MemoryMetastore(), delay_s=2.0)
    start = trio.current_time()
    await faulty.create("a", b"")
    await faulty.get("a")
    async with faulty.announce("b/c", b""), faulty.elect("leader", b""):
        assert await faulty.announced("b") == {"c": b""}
        assert sorted(await faulty.values("b")) == ["c"]
    assert trio.current_time() - start == 12.0


async def test_announcing_and_electing_fail_before_anything_is_there(faulty: FaultyMetastore) -> None:
    expected = {
        Fault.CONFLICT: KeyExistsError,
        Fault.UNAVAILABLE: MetastoreUnavailableError,
        Fault.ANSWER_LOST: MetastoreUncertainError,
        Fault.REQUEST_LOST: MetastoreUncertainError,
        Fault.ARRIVES_LATE: MetastoreUncertainError,
    }
    assert expected.keys() == set(Fault)
    for operation, begin in (("announce", faulty.announce), ("elect", faulty.elect)):
        for fault, error in expected.items():
            faulty.fail_next(operation, fault, under="live/")
            with pytest.raises(MetastoreError, match=f"'live/a': .*{operation}") as raised:
                async with begin("live/a", b""):
                    pass
            assert type(raised.value) is error
            assert await faulty.inner.children("live") == []
    assert faulty.planned() == 0


async def test_reads_of_many_keys_fail_too(faulty: FaultyMetastore) -> None:
    for operation, read in (("values", faulty.values), ("announced", faulty.announced)):
        faulty.fail_next(operation, Fault.UNAVAILABLE)
        with pytest.raises(MetastoreError, match=f"'a': {operation} failed on purpose"):
            await read("a")
        assert await read("a") == {}


async def test_lease_is_the_stores() -> None:
    inner = MemoryMetastore()
    inner.lease_s = 3.5
    assert FaultyMetastore(inner).lease_s == 3.5
