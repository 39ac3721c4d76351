"""Embedded bookies whose disks run full, end to end: writers move on, readers and recoveries stay (B5, C2)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

import replog
import replog.abc
import replog.errors
from replog.abc import Metastore, Storage
from replog.backends.memory import MemoryStorage
from replog.config import BookieOptions
from replog.config.bookie import tuned
from replog.config.client import ClientTuning
from replog.hookspecs import Backend, DamageFound, EnsembleChanged, Event, NoOptions, StorageFailed, hookimpl
from replog.metastores.memory import MemoryMetastore
from replog.records.bookies import COOKIES_KEY
from replog.registry import Registry
from replog.testing import Fault, FaultyMetastore
from tests.bookie.disks import SmallStorage
from tests.kit import read_ledger, read_log, until

MIB = 1 << 20
OPTIONS = BookieOptions(storage="small", read_only_below_bytes=2 * MIB)
CLIENT = ClientTuning(bookie_retry_after_s=0.5)
TWO = replog.Quorum(2, 2, 2)


class Disks:
    """A plugin: the storage `small`, with 16 MiB for each bookie; and what observers were told."""

    def __init__(self, *, is_instant: bool = True) -> None:
        self.is_instant = is_instant
        self.storages: list[SmallStorage] = []
        self.events: list[Event] = []

    @hookimpl
    def replog_storages(self) -> list[Backend[Storage]]:
        return [Backend("small", self._open, NoOptions, "a small disk")]

    def _open(self, rest: str, options: object) -> Storage:
        self.storages.append(SmallStorage(MemoryStorage(), 16 * MIB, is_instant=self.is_instant))
        return self.storages[-1]

    @hookimpl
    def replog_observe(self, event: Event) -> None:
        self.events.append(event)

    def of(self, bookie_id: str) -> SmallStorage:
        return next(each for each in self.storages if each.bookie_id == bookie_id)


@asynccontextmanager
async def embedded(
    directory: Path,
    disks: Disks,
    bookies: int = 3,
    metastore: Metastore | None = None,
    bookie_options: BookieOptions = OPTIONS,
) -> AsyncIterator[replog.Client]:
    async with replog.embed(
        directory,
        bookies=bookies,
        metastore=metastore or MemoryMetastore(),
        options=CLIENT,
        bookie_options=bookie_options,
        quorum=TWO,
        registry=Registry({"disks": disks}, load_installed=False),
    ) as client:
        yield client


def read_only(client: replog.Client) -> set[str]:
    return {each._server.bookie_id for each in client.bookies if each._server.is_read_only}


@pytest.mark.parametrize("how", ["a low disk", "a commit without space"])
async def test_a_writer_changes_ensemble_and_a_reader_goes_on(
    how: str, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    disks = Disks()
    async with embedded(tmp_path, disks) as client:
        expected = [b"%d" % number for number in range(30)]
        async with client.create_ledger() as writer:
            for data in expected[:10]:
                await writer.append(data)
            ensemble = writer.metadata.last_fragment.ensemble
            full, (spare,) = disks.of(ensemble[0]), {each.bookie_id for each in disks.storages} - set(ensemble)
            async with client.open_ledger(writer.ledger_id) as reader:
                assert await reader.read(0, 8) == expected[:9]
                if how == "a low disk":
                    full.left_bytes = MIB
                    await until(lambda: read_only(client) == {full.bookie_id})
                else:
                    full.tells_space, full.left_bytes = False, 0
                for data in expected[10:20]:
                    await writer.append(data)
                assert read_only(client) == {full.bookie_id}
                assert writer.metadata.last_fragment.ensemble == (spare, ensemble[1])
                await reader.refresh()
                disks.of(ensemble[1]).read_errors[writer.ledger_id] = replog.errors.StorageUncertainError("gone", "")
                assert await reader.read(0, 9) == expected[:10], "only the full bookie can have answered"
                disks.of(ensemble[1]).read_errors.clear()
            for data in expected[20:]:
                await writer.append(data)
        assert await read_ledger(client, writer.ledger_id) == expected
        (changed,) = [each for each in disks.events if isinstance(each, EnsembleChanged)]
        assert changed.replaced == {0: (full.bookie_id, spare)}
        assert [each.bookie_id for each in disks.events if isinstance(each, StorageFailed)] == [full.bookie_id]


@pytest.mark.slow
async def test_a_log_moves_between_full_disks_until_it_is_trimmed(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """48 MiB of disks take 4 times as much, since what was trimmed is given back by itself."""
    disks = Disks()
    async with embedded(tmp_path, disks) as client, client.write_log("log") as log:
        for number in range(24):
            position = await log.extend([b"%04d" % number + bytes(MIB // 4)] * 16)
            await log.roll()
            await client.trim_log("log", before=position[-1])
            await trio.sleep(10)
        assert (await read_log(client))[-1].startswith(b"0023")
        assert any(isinstance(each, StorageFailed) for each in disks.events), (
            "no disk ever was full: the test shows nothing"
        )
        assert any("major compaction" in each.calls for each in disks.storages)


async def test_a_ledger_on_full_bookies_can_be_recovered_and_read(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """B5: fences and recovery adds go on, into what is kept free for them."""
    disks = Disks()
    async with embedded(tmp_path, disks, bookies=2) as client:
        with pytest.raises(replog.FencedError):
            async with client.create_ledger() as writer:
                await writer.append(b"0")
                await writer.append(b"1")
                for each in disks.storages:
                    each.left_bytes = MIB
                await until(lambda: len(read_only(client)) == 2)
                metadata = await client.recover_ledger(writer.ledger_id)
                assert metadata.last_entry_id == 1
                await writer.append(b"late")
        assert await read_ledger(client, writer.ledger_id) == [b"0", b"1"]
        with pytest.raises(replog.errors.NotEnoughBookiesError, match=r"read-only: .* make space on their disks"):
            async with client.create_ledger():
                pass
        for each in disks.storages:
            each.left_bytes = 8 * MIB
        await trio.sleep(3)
        async with client.create_ledger() as writer:
            await writer.append(b"0")


async def test_embedded_bookies_do_maintenance_on_demand(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    disks = Disks()
    async with embedded(tmp_path, disks) as client:
        for each in client.bookies:
            assert await each.collect_garbage() == []
            await each.compact(is_major=True)
            disks.of(each._server.bookie_id).found_by_scrubbing = [replog.abc.Damage(1, 1, 0, 9, "a bad sector")]
            assert len(await each.scrub()) == 1
        assert len([event for event in disks.events if isinstance(event, DamageFound)]) == 3
        statistics = client.statistics()
        assert {statistics[each._server.bookie_id]["damaged_batches"] for each in client.bookies} == {1}
    assert all(each.calls[-1] == "close" for each in disks.storages)


@pytest.mark.parametrize("which", [0, 1, 2])
async def test_every_storage_is_closed_if_a_bookie_cannot_be_served(which: int, tmp_path: Path) -> None:
    """This holds for storages that were served, and for those that were not."""
    disks = Disks()
    metastore = FaultyMetastore(MemoryMetastore())
    created: list[str] = []

    def choose(operation: str, key: str) -> Fault | None:
        if operation != "create" or not key.startswith(COOKIES_KEY):
            return None
        created.append(key)
        return Fault.UNAVAILABLE if len(created) == which + 1 else None

    metastore._choose = choose
    with pytest.raises(replog.errors.MetastoreError):
        async with embedded(tmp_path, disks, metastore=metastore):
            pytest.fail("it serves")
    assert len(created) == which + 1
    assert [each.calls[-1:] for each in disks.storages] == [["close"]] * 3


async def test_a_served_bookie_is_closed_too(tmp_path: Path) -> None:
    disks = Disks()
    registry = Registry({"disks": disks}, load_installed=False)
    config = replog.BookieConfig(directory=str(tmp_path), metastore=MemoryMetastore(), options=OPTIONS)
    async with replog.serve_bookie(config, registry=registry) as bookie:
        assert disks.of(bookie.bookie_id).calls == []
    assert disks.storages[0].calls == ["close"]


@pytest.mark.real
async def test_a_client_can_be_left_when_a_disk_does_not_answer(tmp_path: Path) -> None:
    """W6; and its storage is not closed under the call, by nobody."""
    disks = Disks(is_instant=False)
    impatient = attrs.evolve(tuned(OPTIONS), close_timeout_s=0.2)
    with trio.fail_after(10):
        async with embedded(tmp_path, disks, bookie_options=impatient) as client, trio.open_nursery() as nursery:
            async with client.create_ledger() as writer:
                await writer.append(b"0")
                hanging = disks.of(writer.metadata.last_fragment.ensemble[0])
                gate = hanging.hang("commit")
                nursery.start_soon(writer.append, b"1")
                await until(hanging.begun["commit"].is_set)
                nursery.cancel_scope.cancel()
                await trio.sleep_forever()
    assert [each.calls for each in disks.storages if each is not hanging] == [["close"]] * 2
    assert hanging.calls == []
    (event,) = [each for each in disks.events if isinstance(each, StorageFailed)]
    assert event.bookie_id == hanging.bookie_id
    gate.set()
