"""Bookies of replog's in a cluster of BookKeeper, judged by Java's client and tools."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from java_bookies import Cluster, Driver, JavaError, PythonBookie, digest_of, payload
from wire_bookie import LEDGER, Served, entry, fence_of

import replog
import replog_bookkeeper
from replog.abc import UNBOUNDED
from replog.config.bookie import BookieTuning
from replog.errors import (
    ConfigError,
    KeyNotFoundError,
    MetastoreDoubtedError,
    StorageIdentityError,
    StorageInUseError,
)
from replog.metastores.zookeeper.options import ZooKeeperOptions
from replog_bookkeeper.bookies import AVAILABLE, COOKIES, READ_ONLY
from replog_bookkeeper.frames import Code
from replog_bookkeeper.layouts import Target
from replog_bookkeeper.nodes import LedgersRoot
from replog_bookkeeper.records import INSTANCE
from replog_bookkeeper.serving import BookKeeperBookie, serve_bookie

pytestmark = pytest.mark.needs_bookkeeper

SEED, SIZE = 7, 1000
FENCED = -101  # of Java's client


@pytest.fixture
def java(mixed_driver: Driver) -> Driver:
    """Java's client, as "v2" and "v3"."""
    return mixed_driver


def of_python(cluster: Cluster) -> list[PythonBookie]:
    return [each for each in cluster.bookies if isinstance(each, PythonBookie)]


def expected(count: int) -> str:
    return digest_of([payload(SEED, place, SIZE) for place in range(count)])


def begun(
    java: Driver,
    version: str,
    digest: str = "CRC32C",
    password: str = "-",
    quorum: Any = (5, 5, 3),
    *,
    handle: str = "own",
) -> int:
    """A ledger of Java's on all bookies, which is still being written, as this handle."""
    (ledger_id,) = java("create", version, handle, *quorum, digest, password)
    java("append", handle, 30, SIZE, SEED)
    assert java("flush", handle, 20_000) == ["30", "0"]
    return int(ledger_id)


# -- Java's client ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["v2", "v3"])
@pytest.mark.parametrize("digest", ["CRC32", "CRC32C", "MAC", "DUMMY"])
@pytest.mark.parametrize("password", ["-", b"secret".hex()])
async def test_java_writes_recovers_and_reads(
    mixed: Cluster, java: Driver, version: str, digest: str, password: str
) -> None:
    ledger_id = begun(java, version, digest, password, (4, 3, 2))
    assert java("open", version, "other", ledger_id, digest, password, "recover") == ["29"]
    assert java("read", "other", 0, 29) == [expected(30)]
    java("append", "own", 1, SIZE, SEED)
    assert java("flush", "own", 20_000)[0] == "30", "its writer is fenced"
    async with (
        replog_bookkeeper.connect(mixed.uri) as client,
        client.open_ledger(ledger_id, password=bytes.fromhex(password.strip("-"))) as reader,
    ):
        assert digest_of([entry.data async for entry in reader]) == expected(30)


@pytest.mark.long(is_sampled=False)
def test_nothing_is_lost_when_all_are_killed(mixed: Cluster, java: Driver) -> None:
    """B1: what was acknowledged, and a fence, are there again, whichever version of the protocol the writer speaks."""
    ledger_ids = {version: begun(java, version, quorum=(3, 3, 3), handle=f"own-{version}") for version in ("v2", "v3")}
    for each in mixed.bookies:
        each.kill()
    mixed.heal()
    for version, ledger_id in ledger_ids.items():
        recovered(java, version, ledger_id)
    for each in mixed.bookies:
        each.kill()
    mixed.heal()
    for version, ledger_id in ledger_ids.items():
        java("append", f"own-{version}", 1, SIZE, SEED)
        confirmed, code = java("flush", f"own-{version}", 30_000)
        assert (confirmed, int(code)) != ("31", 0)
        assert java("open", version, "other", ledger_id, "CRC32C", "-", "plain") == ["29"]
        assert java("read", "other", 0, 29) == [expected(30)]


def recovered(java: Driver, version: str, ledger_id: int) -> None:
    """Java's client hears late of bookies that are back."""
    for attempt in range(30):
        try:
            assert java("open", version, "other", ledger_id, "CRC32C", "-", "recover") == ["29"]
        except JavaError:
            if attempt == 29:
                raise
        else:
            return


def test_a_killed_bookie_serves_again_at_once(mixed: Cluster) -> None:
    """Its registration outlives it; by the lock of its directory it knows that it is its own."""
    bookie = of_python(mixed)[0]
    bookie.kill()
    began_s = time.monotonic()
    bookie.launch()
    bookie.wait_serving()
    assert time.monotonic() - began_s < 8, "a session lasts 10 s"


def test_java_reads_explicit_last_adds_confirmed(mixed: Cluster, java: Driver) -> None:
    """The explicit last add confirmed."""
    ledger_id = begun(java, "v3")
    java("open", "v3", "other", ledger_id, "CRC32C", "-", "plain")
    deadline_s = time.monotonic() + 20  # they do so 200 ms after their last entry
    while java("lac", "other") != ["29"] or java("explicit", "other") != ["29"]:
        assert time.monotonic() < deadline_s
    java("append", "own", 1, SIZE, SEED)
    assert java("poll", "other", 30, 20_000) == ["30", payload(SEED, 30, SIZE).hex()], "it waits at the bookies"


def test_java_reads_several_entries_with_one_request(mixed: Cluster, java: Driver) -> None:
    ledger_id = begun(java, "v2")
    java("close", "own")
    java("open", "v2", "other", ledger_id, "CRC32C", "-", "recover")
    assert java("batch", "other", 0, 30) == [expected(30)]


@pytest.mark.parametrize("version", ["v2", "v3"])
def test_java_writes_the_largest_entry(mixed: Cluster, java: Driver, version: str) -> None:
    size = (5 << 20) - 200
    (ledger_id,) = java("create", version, "large", 3, 3, 2, "CRC32C", "-")
    java("append", "large", 2, size, SEED)
    assert java("flush", "large", 20_000) == ["2", "0"]
    java("close", "large")
    java("open", version, "other", ledger_id, "CRC32C", "-", "recover")
    assert java("read", "other", 0, 1) == [digest_of([payload(SEED, place, size) for place in range(2)])]


def test_a_wrong_password_is_refused_by_each_bookie(mixed: Cluster, java: Driver) -> None:
    ledger_id = begun(java, "v3", password=b"secret".hex())
    with pytest.raises(JavaError):
        java("open", "v3", "other", ledger_id, "CRC32C", b"wrong".hex(), "recover")
    java("append", "own", 1, SIZE, SEED)
    assert java("flush", "own", 20_000) == ["31", "0"]


# -- Java's tools -----------------------------------------------------------------------------------------------------


def test_javas_shell_knows_the_bookies_and_reads_from_one(mixed: Cluster, java: Driver) -> None:
    ledger_id = str(begun(java, "v3"))
    java("close", "own")
    bookie = of_python(mixed)[0]
    ledgers, metadata, writable, all_bookies, entries, endpoint, disks = mixed.shell(
        "listledgers",
        f"ledgermetadata -ledgerid {ledger_id}",
        "listbookies -rw -h",
        "listbookies -a",
        f"readledger -l {ledger_id} -b {bookie.bookie_id} -fe 0 -le 29",
        f"endpointinfo -b {bookie.bookie_id}",
        "bookieinfo",
    )
    assert f"ledgerID: {ledger_id}" in ledgers
    assert "state=CLOSED, length=30000, lastEntryId=29" in metadata
    for listed in (writable, all_bookies):
        assert all(f"BookieID:{each.bookie_id}, IP:127.0.0.1, Port:{each.port}" in listed for each in mixed.bookies)
    read = {int(each) for each in re.findall(rf"Lid={ledger_id}, Eid=(\d+)", entries)}
    assert read == set(range(29)), "this command leaves the last one out"
    assert f"Address: 127.0.0.1 : {bookie.port}" in endpoint
    assert "Total disk capacity in the cluster" in disks


@pytest.mark.long(is_sampled=False)
def test_javas_auditor_replaces_a_lost_bookie(mixed: Cluster, java: Driver) -> None:
    """Its copies go to bookies of both kinds."""
    lost = of_python(mixed)[0]
    ledger_ids = []
    for _ in range(8):
        ledger_ids.append(begun(java, "v3", quorum=(3, 3, 2)))
        java("close", "own")

    def named() -> list[int]:
        return [each for each in ledger_ids if lost.bookie_id in java("state", "v3", each)[3]]

    assert named(), "each has three of five bookies, chosen at random"
    with mixed.autorecovery():
        lost.server.terminate()
        deadline_s = time.monotonic() + 60
        while named():
            assert time.monotonic() < deadline_s
    for ledger_id in ledger_ids:
        java("open", "v3", "other", ledger_id, "CRC32C", "-", "recover")
        assert java("read", "other", 0, 29) == [expected(30)]


# -- the cluster ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def a_root(cluster: Cluster) -> AsyncIterator[LedgersRoot]:
    root = LedgersRoot(Target.parse(cluster.uri).place, ZooKeeperOptions())
    try:
        yield root
    finally:
        await root.aclose()


@pytest.fixture
async def root(mixed: Cluster) -> AsyncIterator[LedgersRoot]:
    async with a_root(mixed) as found:
        yield found


@asynccontextmanager
async def served(cluster: Cluster, directory: Path, **options: Any) -> AsyncIterator[BookKeeperBookie]:
    """One more bookie, in this process."""
    chosen = BookieTuning(garbage_collection_interval_s=3600.0, announce_timeout_s=2.0)
    serving = serve_bookie(cluster.uri, directory / "data", listen="127.0.0.1:0", options=chosen, **options)
    async with serving as bookie:
        yield bookie


async def registered(root: LedgersRoot, bookie: BookKeeperBookie, key: str, *, is_there: bool) -> None:
    """Returns when the bookie is registered there, or is not any more."""
    with trio.fail_after(10):
        while True:
            names = await root.children(key)
            if (bookie.bookie_id in names) is is_there:
                return
            await root.wait_children_changed(key, names)


async def test_a_bookie_is_registered_while_it_serves(mixed: Cluster, root: LedgersRoot, tmp_path: Path) -> None:
    async with replog_bookkeeper.connect(mixed.uri) as client, served(mixed, tmp_path) as bookie:
        found = {each.bookie_id: each for each in await client.bookies()}[bookie.bookie_id]
        assert (found.address, found.is_read_only) == (bookie.address, False)
        bookie.server.mode.turn(metastore_problem="as a test says")
        await registered(root, bookie, AVAILABLE, is_there=False)
        found = {each.bookie_id: each for each in await client.bookies()}[bookie.bookie_id]
        assert (found.address, found.is_read_only) == (bookie.address, True)
        bookie.server.mode.turn(metastore_problem="")
        await registered(root, bookie, f"{AVAILABLE}/{READ_ONLY}", is_there=False)
        assert bookie.bookie_id in await root.children(AVAILABLE)
    assert bookie.bookie_id not in await root.children(AVAILABLE)
    assert READ_ONLY in await root.children(AVAILABLE), "the nodes above stay"
    assert bookie.bookie_id in await root.children(COOKIES)


async def test_the_cookie_is_as_javas(mixed: Cluster, root: LedgersRoot, tmp_path: Path) -> None:
    java_bookie = (await root.get(f"{COOKIES}/bookie-1")).value.decode()
    async with served(mixed, tmp_path) as bookie:
        cookie = (await root.get(f"{COOKIES}/{bookie.bookie_id}")).value.decode()
    instance = (await root.get(INSTANCE)).value.decode()
    names = re.findall(r"^(\d+$|\w+:)", java_bookie, re.MULTILINE)
    assert re.findall(r"^(\d+$|\w+:)", cookie, re.MULTILINE) == [each for each in names if each != "indexDirs:"]
    assert f'bookieHost: "{bookie.bookie_id}"\n' in cookie
    assert f'instanceId: "{instance}"\n' in cookie


async def test_a_directory_belongs_to_its_cluster(mixed: Cluster, root: LedgersRoot, tmp_path: Path) -> None:
    """B4."""
    async with served(mixed, tmp_path) as bookie:
        pass
    other = Cluster(mixed.java, tmp_path, mixed.zookeeper, f"/ledgers-of-{bookie.bookie_id}")
    await trio.to_thread.run_sync(other.begin)
    with pytest.raises(StorageIdentityError, match="it belongs to the cluster"):
        async with served(other, tmp_path):
            pass
    async with served(mixed, tmp_path) as again:
        assert again.bookie_id == bookie.bookie_id
    await root.delete(f"{COOKIES}/{bookie.bookie_id}")  # as by `bookkeeper shell decommissionbookie`
    with pytest.raises(StorageIdentityError, match="decommissioned"):
        async with served(mixed, tmp_path):
            pass


async def test_a_bookie_is_served_once(mixed: Cluster, root: LedgersRoot, tmp_path: Path) -> None:
    async with served(mixed, tmp_path) as bookie:
        with pytest.raises(StorageInUseError):
            async with served(mixed, tmp_path):
                pass
    key = f"{AVAILABLE}/{bookie.bookie_id}"
    async with root.announce(key, b""):  # by another process: a copy of the directory
        with pytest.raises(StorageInUseError, match="is registered"):
            async with served(mixed, tmp_path):
                pass
    async with served(mixed, tmp_path):
        pass


async def test_an_address_in_use_is_refused(mixed: Cluster, tmp_path: Path) -> None:
    async with served(mixed, tmp_path) as bookie:
        with pytest.raises(ConfigError, match="cannot listen there"):
            async with serve_bookie(mixed.uri, tmp_path / "other", listen=bookie.address):
                pass


def damaged(directory: Path) -> None:
    """The disk lost the second half of what was written last."""
    journal = max((directory / "data").rglob("*.journal"), key=lambda path: path.stat().st_mtime_ns)
    content = journal.read_bytes().rstrip(b"\0")
    journal.write_bytes(content[: len(content) // 2])


async def test_a_bookie_in_doubt_denies_nothing(mixed: Cluster, java: Driver, tmp_path: Path) -> None:
    """B8: of ledgers that existed when it was opened."""
    old = begun(java, "v3")
    async with served(mixed, tmp_path) as bookie:
        caller = await Served(bookie.server, bookie.address).call()
        for entry_id in range(40):
            assert await caller.add(entry_id, entry(entry_id, bytes(1000), ledger_id=old), ledger_id=old) is Code.OK
        await caller.stream.aclose()
    damaged(tmp_path)
    async with served(mixed, tmp_path) as bookie:
        assert old < bookie.server.storage.doubt().doubted_below < UNBOUNDED
        (new,) = java("create", "v3", "new", 3, 3, 2, "CRC32C", "-", bookie.server.storage.doubt().doubted_below + 1)
        caller = await Served(bookie.server, bookie.address).call()
        assert (await caller.read(0, ledger_id=old)).code is Code.OK
        for entry_id in (39, 40):
            assert (await caller.read(entry_id, ledger_id=old)).code is Code.UNKNOWN_LEDGER_STATE
            assert (await caller.fence(entry_id, ledger_id=old)).code is Code.UNKNOWN_LEDGER_STATE
        assert await caller.add(40, entry(40, ledger_id=old), ledger_id=old) in (Code.FENCED, Code.UNKNOWN_LEDGER_STATE)
        assert (await caller.read(0, ledger_id=int(new))).code is Code.NO_LEDGER
        assert await caller.add(0, entry(0, ledger_id=int(new)), ledger_id=int(new)) is Code.OK
        await caller.stream.aclose()


# -- garbage ----------------------------------------------------------------------------------------------------------


async def fenced(bookie: BookKeeperBookie, *ledger_ids: int) -> None:
    """The bookie knows these ledgers: somebody has fenced them."""
    caller = await Served(bookie.server, bookie.address).call()
    for ledger_id in ledger_ids:
        await caller.ask(*fence_of(ledger_id=ledger_id))
    await caller.stream.aclose()


async def test_a_ledger_missing_from_two_listings_is_dropped(mixed: Cluster, java: Driver, tmp_path: Path) -> None:
    """B6."""
    there = begun(java, "v3")
    missing, long_id = 1_999_999_999, 1 << 40
    async with served(mixed, tmp_path) as bookie:
        await fenced(bookie, there, missing, long_id)
        assert await bookie.collect_garbage() == []
        java("delete", "v3", there)
        assert await bookie.collect_garbage() == [missing, long_id]
        assert await bookie.collect_garbage() == [there]
        assert bookie.server.storage.ledger_ids() == []


async def test_a_late_ledger_is_kept(mixed: Cluster, java: Driver, tmp_path: Path) -> None:
    async with served(mixed, tmp_path) as bookie:
        await fenced(bookie, LEDGER + 1_000_000)
        assert await bookie.collect_garbage() == []
        java("create", "v3", "late", 3, 3, 2, "CRC32C", "-", LEDGER + 1_000_000)
        assert await bookie.collect_garbage() == []
        assert bookie.server.storage.ledger_ids() == [LEDGER + 1_000_000]


async def test_nothing_is_dropped_after_a_restore_of_zookeeper(
    mixed: Cluster, root: LedgersRoot, tmp_path: Path
) -> None:
    """B6a: the cookie's version is a counter that only rises."""
    async with served(mixed, tmp_path) as bookie:
        key = f"{COOKIES}/{bookie.bookie_id}"
        await fenced(bookie, 77_777_777)
        await bookie.collect_garbage()
        cookie = (await root.get(key)).value
        await root.delete(key)
        with pytest.raises(MetastoreDoubtedError, match="no cookie"):
            await bookie.collect_garbage()
        await root.create(key, cookie)
        for _ in range(2):
            with pytest.raises(MetastoreDoubtedError, match="was raised 0 times"):
                await bookie.collect_garbage()
        await registered(root, bookie, f"{AVAILABLE}/{READ_ONLY}", is_there=True)
    async with served(mixed, tmp_path) as bookie:
        with pytest.raises(MetastoreDoubtedError, match="was raised 0 times"):
            await bookie.collect_garbage()
        await registered(root, bookie, f"{AVAILABLE}/{READ_ONLY}", is_there=True)
        caller = await Served(bookie.server, bookie.address).call()
        assert (await caller.ask(*fence_of(ledger_id=77_777_777))).code is Code.IO_ERROR, "it takes part in no recovery"
        await caller.stream.aclose()
    async with served(mixed, tmp_path, after_restore=True) as bookie:
        assert await bookie.collect_garbage() == []
        assert await bookie.collect_garbage() == [77_777_777]
        await registered(root, bookie, AVAILABLE, is_there=True)
    await root.delete(key)  # restored from a time before the bookie
    with pytest.raises(StorageIdentityError, match="no cookie here"):
        async with served(mixed, tmp_path):
            pass
    async with served(mixed, tmp_path, after_restore=True) as bookie:
        assert bookie.bookie_id in await root.children(COOKIES)


async def test_a_missing_cluster_is_refused(mixed: Cluster, tmp_path: Path) -> None:
    never = Cluster(mixed.java, tmp_path, mixed.zookeeper, "/never-begun")
    with pytest.raises((ConfigError, KeyNotFoundError), match="no BookKeeper cluster"):
        async with served(never, tmp_path):
            pass


# -- the command ------------------------------------------------------------------------------------------------------


async def test_the_first_signal_makes_it_leave_in_order(mixed: Cluster, root: LedgersRoot) -> None:
    bookie = of_python(mixed)[-1]
    await trio.to_thread.run_sync(bookie.server.terminate)
    assert b'"event": "stopped"' in bookie.server.log_path.read_bytes().splitlines()[-1]
    assert bookie.bookie_id not in await root.children(AVAILABLE)


def test_the_client_of_replog_takes_bookies_of_both_kinds(mixed: Cluster) -> None:
    async def write() -> int:
        async with (
            replog_bookkeeper.connect(mixed.uri, quorum=replog.Quorum(5, 5, 3)) as client,
            client.create_ledger() as writer,
        ):
            for place in range(30):
                await writer.push(payload(SEED, place, SIZE))
            return writer.ledger_id

    ledger_id = trio.run(write)
    driver = Driver(mixed.java, mixed.uri, mixed.directory / "reading.log")
    try:
        driver("client", "own", "v2")
        assert driver("open", "own", "it", ledger_id, "CRC32C", "-", "recover") == ["29"]
        assert driver("read", "it", 0, 29) == [expected(30)]
    finally:
        driver.kill()
