"""A metastore's keys are read as of one moment, and moved whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

import replog
from replog.abc import Metastore, Versioned
from replog.api.metadata_copy import KEPT_KEYS, check_nobody_lives, read_metadata, write_metadata
from replog.errors import ConfigError, KeyNotFoundError, MetastoreError
from replog.metastores.memory import MemoryMetastore
from replog.metastores.quorum.beginning import begin_with
from replog.registry import Registry
from replog.testing import Fault, FaultyMetastore
from tests.machine.counters import Counters
from tests.test_peers import PEERS, Programs

# What says who lives, and is made again wherever they are started: see `records` and the modules that elect.
LIVING_KEYS = {
    "bookies",
    "read-only-bookies",
    "repairs",
    "leaders",
    "elections",
    "machines",
    "cursor-elections",
    "backups",
}
KEYS = {
    "cookies/b-1": b"cookie",
    "next-ledger-id": b"12",
    "logs/log": b"log",
    "logs/log/pages/1": b"page",
    "ledger-chunks/3/1": b"chunk",
    "ledgers": b"all",
    "ledgers/00/0000/0001": b"one",
    "long-ledgers/001/0000/0000/0000/0001": b"long",
}


class Recording(MemoryMetastore):
    """It keeps the keys that anybody ever made."""

    def __init__(self) -> None:
        super().__init__()
        self.made: set[str] = set()

    async def create(self, key: str, value: bytes) -> int:
        self.made.add(key)
        return await super().create(key, value)

    async def put(self, key: str, value: bytes, expected: int) -> int:
        self.made.add(key)
        return await super().put(key, value, expected)


async def filled(keys: dict[str, bytes] = KEYS) -> MemoryMetastore:
    metastore = MemoryMetastore()
    for key, value in keys.items():
        await metastore.create(key, value)
    return metastore


async def test_each_key_that_replog_makes_is_copied_or_says_who_lives(tmp_path: Path) -> None:
    metastore = Recording()
    async with replog.embed(tmp_path, metastore=metastore) as client:
        async with client.lead_log("log") as log:
            await log.append(b"one")
        async with client.cursor("log", "cursor") as cursor:
            await cursor.commit("0:0")
        async with client.run_machine("machine", Counters) as machine:
            await machine.call(Counters.add, "key", 1)
        await client.admin.backup(tmp_path / "backup")
        await client.admin.pause_repairs()
        kept = await read_metadata(metastore)
    words = {key.partition("/")[0] for key in metastore.made}
    assert words <= LIVING_KEYS | {key.partition("/")[0] for key in KEPT_KEYS}
    assert {"logs", "cookies", "ledgers", "next-ledger-id", "repairs"} <= {key.partition("/")[0] for key in kept}
    assert [key for key in kept if key.startswith("repairs")] == ["repairs/paused"]
    assert [*kept][-1] == "ledgers"


async def test_all_keys_are_moved_and_the_one_that_counts_comes_last() -> None:
    keys = await read_metadata(await filled())
    assert keys == KEYS
    assert [*keys][-1] == "ledgers"
    target = MemoryMetastore()
    await write_metadata(target, keys)
    assert await read_metadata(target) == KEYS


@pytest.mark.parametrize("key", sorted(set(KEYS) - {"ledgers"}))
async def test_copy_with_a_key_missing_is_no_cluster(key: str) -> None:
    """Keys are written side by side; the one that counts waits for all of them."""
    target = FaultyMetastore(MemoryMetastore())
    target.fail_next("create", Fault.UNAVAILABLE, under=key)
    keys = await read_metadata(await filled())
    with pytest.raises(MetastoreError, match="on purpose"):
        await write_metadata(target, keys)
    with pytest.raises(KeyNotFoundError):
        await target.get("ledgers")


async def test_source_that_changes_while_it_is_read_is_refused() -> None:
    class Changing(MemoryMetastore):
        async def values(self, key: str) -> dict[str, Versioned]:
            found = await super().values(key)
            if key == "logs" and (log := found.get("log")):
                await self.put("logs/log", log.value, log.version)
            return found

    changing = Changing()
    await write_metadata(changing, KEYS)
    with pytest.raises(ConfigError, match="changed while it was read"):
        await read_metadata(changing)


async def test_metastore_without_a_cluster_is_refused() -> None:
    with pytest.raises(ConfigError, match="no cluster has begun"):
        await read_metadata(await filled({"logs/log": b"log"}))
    with pytest.raises(ConfigError, match="no cluster has begun"):
        await read_metadata(MemoryMetastore())


async def test_metastore_that_has_keys_is_not_written_to() -> None:
    target = await filled({"cookies/b-9": b"of another cluster"})
    with pytest.raises(ConfigError, match=r"1 keys are there already, such as 'cookies/b-9'"):
        await write_metadata(target, KEYS)
    assert await target.children("ledgers") == []


@pytest.mark.parametrize("key", ["bookies/b-1", "read-only-bookies/b-1"])
async def test_metastore_of_bookies_that_live_is_not_left(key: str) -> None:
    metastore = await filled()
    async with metastore.announce(key, b"here"):
        with pytest.raises(ConfigError, match="bookies run with this metastore: b-1"):
            await check_nobody_lives(metastore)
    await check_nobody_lives(metastore)


async def test_zookeeper_is_copied(zookeeper_url: str) -> None:
    source: Metastore = Registry().open_metastore(zookeeper_url)
    try:
        await write_metadata(source, KEYS)
        assert await read_metadata(source) == KEYS
    finally:
        await source.aclose()


async def test_programs_go_on_with_a_metastore_of_their_own(tmp_path: Path, nursery: trio.Nursery) -> None:
    """One directory of an embedded log becomes the first of three programs that keep their metastore themselves."""
    programs, place = Programs(tmp_path, nursery), tmp_path / "0"
    async with replog.embed(place) as client, client.write_log("log") as log:
        await log.append(b"kept")
    source = Registry().open_metastore(f"lmdb:{place / 'metadata'}")
    try:
        keys = await read_metadata(source)
    finally:
        await source.aclose()
    begin_with(place / "metastore", PEERS[0], keys)
    with pytest.raises(ConfigError, match="belongs to a cluster"):
        begin_with(place / "metastore", PEERS[0], keys)
    (place / "metadata").rename(tmp_path / "left")
    programs.start(0, peers=PEERS[:1], quorum=replog.Quorum(1, 1, 1))
    await programs.have_entered(0)
    async with programs.clients[0].read_log("log") as reader:
        assert [entry.data async for entry in reader] == [b"kept"]
    await programs.end(0)
