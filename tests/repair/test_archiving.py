"""Archiving and recalling: the record names the archive last, and bookies drop nothing before (F1, F5, B6a)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
import trio.testing

import replog
from replog import LogOptions
from replog.abc import Metastore
from replog.client.ledger_records import LedgerRecords
from replog.config.client import ClientTuning
from replog.errors import (
    ArchiveError,
    ArchiveUnreadableError,
    ConfigError,
    MetastoreDoubtedError,
    MetastoreError,
    UnauthorizedError,
)
from replog.protocol import archiving
from replog.protocol.archived import ObjectName
from replog.protocol.digest import DigestType
from replog.protocol.messages import CopyRequest, Request
from replog.protocol.model import LedgerMetadata
from replog.protocol.quorum import Quorum
from replog.records.archives import ArchiveRecord
from replog.records.paths import NEXT_LEDGER_ID_KEY, ledger_key_path
from replog.repair.archiver import Archiver
from replog.testing.faults import Fault
from tests.archiving import URL, MemoryArchive, held, release, with_archive
from tests.interleaving import Between, each_place
from tests.kit import Cluster, cluster, read_log
from tests.went_back import put_back, snapshot_of

QUICK = ClientTuning(add_timeout_s=1.0, read_timeout_s=1.0, add_quorum_timeout_s=5.0, roll_entries=10)


async def write(
    client: replog.Client, segments: int = 3, entries: int = 5, options: LogOptions | None = None, **others: Any
) -> list[bytes]:
    """A log with so many closed segments, and one that is open when it is left."""
    data = [b"%d" % each for each in range(segments * entries)]
    async with client.write_log("log", options=options, **others) as log:
        for start in range(0, len(data), entries):
            for each in data[start : start + entries]:
                await log.append(each)
            await log.roll()
    return data


@asynccontextmanager
async def ready(
    bookies: int = 3, **written: Any
) -> AsyncIterator[tuple[Cluster, MemoryArchive, replog.Client, list[bytes]]]:
    """A cluster, its archive, and a client that has added it and written a log."""
    async with cluster(bookies) as world:
        store = with_archive(world)
        async with world.client(QUICK) as client:
            data = await write(client, **written)
            await client.admin.add_archive(URL)
            yield world, store, client, data


async def ledger_ids(client: replog.Client) -> list[int]:
    return [each.ledger_id for each in (await client.log_metadata("log")).segments]


async def test_archived_log_reads_as_before(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(4) as world:
        store = with_archive(world)
        async with world.client(QUICK) as client:
            data = await write(client)
            await client.admin.add_archive(URL)
            moved = await client.admin.archive_log("log")
            assert (moved.ledgers, moved.fragments) == (3, 3)
            await release(world)
            ids = await ledger_ids(client)
            assert [held(world, each) for each in ids[:3]] == [0, 0, 0]
            assert await read_log(client) == data
            async with client.open_ledger(ids[1]) as reader:
                assert await reader.read(2, 3) == data[7:9]
                assert await reader.read(4, 4) == data[9:10]
            assert (await client.admin.archive_log("log")).fragments == 0, "nothing is archived twice"
            assert len(store.objects_here) == 3
            assert (await client.admin.audit()).under_replicated == 0
        async with world.client(QUICK) as other:
            assert await read_log(other) == data


class Kills:
    """Cancels a client at an effect of this number: a call of the store, a copy for a bookie, or a change of the metastore."""

    def __init__(self, number: int, scope: trio.CancelScope) -> None:
        self.has_happened = False
        self._left = number
        self._scope = scope

    def effect(self, _call: str = "put") -> None:
        if not self._left:
            self.has_happened = True
            self._scope.cancel()
        self._left -= 1

    def request(self, request: Request) -> bool:
        """For `Wire.holds`."""
        if isinstance(request, CopyRequest):
            self.effect()
        return False


class KillingMetastore(Between):
    """Has changes counted as effects."""

    def __init__(self, inner: Metastore, kills: Kills) -> None:
        super().__init__(inner, 0)
        self._kills = kills

    async def put(self, key: str, value: bytes, expected: int) -> int:
        self._kills.effect()
        await trio.lowlevel.checkpoint()
        version = await self._inner.put(key, value, expected)
        self._kills.effect()
        await trio.lowlevel.checkpoint()
        return version


async def killed_at(number: int, world: Cluster, store: MemoryArchive, what: Callable[[replog.Client], Any]) -> bool:
    """Runs it in a client that is killed at this effect; False if there are fewer."""
    with trio.CancelScope() as scope:
        kills = Kills(number, scope)
        store.begins = store.ended = kills.effect
        for bookie in world.bookies:
            bookie.wire.holds = kills.request
        async with world.client(QUICK, metastore=KillingMetastore(world.metastore, kills)) as client:
            await what(client)
    store.begins = store.ended = lambda _call: None
    for bookie in world.bookies:
        bookie.wire.holds = lambda _request: False
    return kills.has_happened


async def every_kill(
    world: Cluster, store: MemoryArchive, what: Callable[[replog.Client], Any], data: list[bytes]
) -> int:
    """Kills it at each effect in turn. Readers see every entry each time, whatever bookies have dropped since. Returns how often
    it was killed."""
    number = 0
    while await killed_at(number, world, store, what):
        await release(world)
        async with world.client(QUICK) as client:
            assert await read_log(client) == data, f"killed at effect {number}"
            for ledger_id in (await ledger_ids(client))[:-1]:
                record = await client.ledger_metadata(ledger_id)
                is_archived = [bool(each.archive) for each in record.fragments]
                assert held(world, ledger_id) or all(is_archived), f"killed at effect {number}: {record}"
        number += 1
    return number


@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), Quorum(3, 2, 2)])
async def test_f5_kill_at_each_effect_of_archiving_loses_nothing(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, quorum: Quorum
) -> None:
    """Rules F5, F6 and B6a: no bookie drops a copy before the record names the archive, and all objects are there then."""
    monkeypatch.setattr(archiving, "OBJECT_BYTES_MAX", 200)
    async with cluster(3) as world:
        store = with_archive(world)
        async with world.client(QUICK) as client:
            data = await write(client, segments=2, entries=7, quorum=quorum)
            await client.admin.add_archive(URL)
        kills = await every_kill(world, store, lambda client: client.admin.archive_log("log"), data)
        assert kills >= 12
        async with world.client(QUICK) as client:
            young = await client.admin.collect_archives()
            assert (young.objects, young.young > 0) == (0, True), "an archiving may be under way for a day"
            store.clock_s += 25 * 3600
            assert (await client.admin.collect_archives()).objects == young.young
            report = await client.admin.audit_archives()
            assert (report.fragments, report.problems) == (2, ())
            assert report.objects == len(store.objects_here) > 2
            assert await read_log(client) == data


async def test_f1_kill_at_each_effect_of_a_recall_loses_nothing(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "OBJECT_BYTES_MAX", 200)
    async with cluster(3) as world:
        store = with_archive(world)
        async with world.client(QUICK) as client:
            data = await write(client, segments=2, entries=7, quorum=Quorum(3, 2, 2))
            await client.admin.add_archive(URL)
            await client.admin.archive_log("log")
            await release(world)
        assert await every_kill(world, store, lambda client: client.admin.recall_log("log"), data) >= 12
        store.contents.clear()
        async with world.client(QUICK) as client:
            assert await read_log(client) == data, "bookies have all of it again"
            assert (await client.admin.audit()).under_replicated == 0


async def test_keyed_log_is_archived_and_recalled(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(4) as world:
        with_archive(world)
        async with world.client(QUICK) as client:
            keyed = LogOptions(digest=DigestType.HMAC_SHA256)
            data = await write(client, options=keyed, password=b"secret")
            await client.admin.add_archive(URL)
            with pytest.raises(UnauthorizedError):
                await client.admin.archive_log("log")
            assert (await client.admin.archive_log("log", password=b"secret")).fragments == 3
            await release(world)
            assert await read_all(client, b"secret") == data
            gone = (await client.ledger_metadata((await ledger_ids(client))[0])).fragments[0].ensemble[0]
            await world.named([gone])[0].kill()
            recalled = await client.admin.recall_log("log", password=b"secret")
            assert (recalled.fragments, recalled.size_bytes > 0) == (3, True)
            assert await read_all(client, b"secret") == data
            report = await client.admin.audit()
            assert report.under_replicated == 0
            for ledger_id in (await ledger_ids(client))[:3]:
                (fragment,) = (await client.ledger_metadata(ledger_id)).fragments
                assert not fragment.archive
                assert gone not in fragment.ensemble, "another bookie took the place of the one that is gone"


async def read_all(client: replog.Client, password: bytes = b"") -> list[bytes]:
    async with client.read_log("log", password=password) as reader:
        return [record.data async for record in reader]


async def test_bookies_drop_archived_copies_within_seconds(autojump_clock: trio.testing.MockClock) -> None:
    """They are told, and one that is not told finds out at its next garbage collection."""
    async with ready() as (world, _, client, data):
        await client.admin.archive_log("log")
        await trio.sleep(3)
        assert [held(world, each) for each in (await ledger_ids(client))[:3]] == [0, 0, 0]
        assert await read_log(client) == data


async def test_recall_without_room_keeps_the_archive(autojump_clock: trio.testing.MockClock) -> None:
    async with ready() as (world, _, client, data):
        await client.admin.archive_log("log")
        await release(world)
        await world.bookies[0].kill()
        with pytest.raises(ArchiveError, match=r"entries 0 to 4 of ledger \d+ stay archived.*Recall them again"):
            await client.admin.recall_log("log")
        await release(world)
        assert await read_log(client) == data
        await world.bookies[0].start()
        assert (await client.admin.recall_log("log")).fragments == 3
        assert await read_log(client) == data


@pytest.mark.parametrize("damage", ["deleted", "flipped", "cut", "emptied", "another's"])
async def test_damaged_archive_is_named_and_nothing_else_is_dropped(
    autojump_clock: trio.testing.MockClock, damage: str
) -> None:
    async with cluster(3) as world:
        store = with_archive(world)
        async with world.client(QUICK) as client:
            data = await write(client)
            await client.admin.add_archive(URL)
            await client.admin.archive_log("log", before=replog.Position(2, 0))
            await release(world)
            (name,) = store.objects_here
            before = dict(store.contents)
            if damage == "deleted":
                del store.contents[name]
            elif damage == "flipped":
                store.contents[name] = store.contents[name][:60] + b"\xff" + store.contents[name][61:]
            elif damage == "cut":
                store.contents[name] = store.contents[name][:-1]
            elif damage == "emptied":
                store.contents.clear()
            else:
                store.contents["cookie"] = b"another's"
        async with world.client(QUICK) as client:
            with pytest.raises(ArchiveUnreadableError, match=r"archive test:bucket: .*[Pp]ut .*"):
                await read_log(client)
            report = await client.admin.audit_archives()
            assert [(each.first_entry_id, each.last_entry_id) for each in report.problems] == [(0, 4)]
            if damage in ("emptied", "another's"):
                with pytest.raises(ArchiveError, match="B4"):
                    await client.admin.archive_log("log")
                with pytest.raises(ArchiveError, match="B4"):
                    await client.admin.collect_archives(grace_s=0.0)
                ids = await ledger_ids(client)
                await release(world)
                assert all(held(world, each) for each in ids[1:3])
            store.contents.update(before)
        async with world.client(QUICK) as client:
            assert await read_log(client) == data


async def test_b4_emptied_archive_gets_no_new_cookie(autojump_clock: trio.testing.MockClock) -> None:
    """A directory that is not mounted looks empty: what was put there would be hidden by the mount."""
    async with ready(segments=1) as (world, store, client, _):
        await client.admin.archive_log("log")
        mounted, store.contents = store.contents, {}
        with pytest.raises(ArchiveError, match=r"has no cookie: it was emptied, or is not mounted \(B4\)"):
            await client.admin.add_archive(URL)
        async with world.client(QUICK) as another:
            options = LogOptions(archive=replog.Archiving(URL, after_bytes=0))
            async with another.lead_log("log", options=options) as log:
                await log.append(b"three")
                await log.roll()
                await trio.sleep(2 * another._opened.ledgers.options.retention_interval_s)
        assert store.contents == {}
        store.contents = mounted
        assert (await client.admin.add_archive(URL)).url == URL


@pytest.mark.parametrize("is_copying", [False, True])
async def test_b4_archive_emptied_while_it_is_used_gets_no_entries(
    autojump_clock: trio.testing.MockClock, is_copying: bool
) -> None:
    """A directory that is mounted no more takes objects, and loses them when it is mounted again."""
    async with ready(segments=2) as (world, store, client, data):
        await client.admin.archive_log("log", before="2:0")
        mounted = store.contents

        def unmount(call: str) -> None:
            if call == "put" or not is_copying:
                store.begins, store.contents = (lambda _call: None), {}

        store.begins = unmount
        with pytest.raises(ArchiveError, match=r"has no cookie: it was emptied, or is not mounted \(B4\)"):
            await client.admin.archive_log("log")
        store.contents = mounted
        await release(world)
        assert await read_log(client) == data


async def test_b4_half_added_archive_is_not_begun_beside_a_whole_one() -> None:
    """A client was killed before it deleted the record of its own attempt: that is no archive whose cookie may be put."""
    async with cluster(3) as world:
        store = with_archive(world)
        async with world.client(QUICK) as client:
            added = await client.admin.add_archive(URL)
            left = ArchiveRecord("0" * 16, URL, "nonce", is_unfinished=True)
            await world.metastore.create(f"archives/{left.archive_id}", left.encoded())
            mounted, store.contents = store.contents, {}
            with pytest.raises(ArchiveError, match="B4"):
                await client.admin.add_archive(URL)
            assert store.contents == {}
            store.contents = mounted
            assert await client.admin.add_archive(URL) == added
            assert await world.metastore.children("archives") == [added.archive_id]


def no_space(call: str) -> None:
    if call == "put":
        raise ArchiveError(URL, "no space")


@pytest.mark.parametrize("is_killed", [False, True])
async def test_two_clients_add_one_archive_at_once(monkeypatch: pytest.MonkeyPatch, is_killed: bool) -> None:
    """Both have a record before either puts its cookie. One may be killed then: its record stands in nobody's way."""
    async with cluster(3) as world:
        with_archive(world)
        async with world.client(QUICK) as client, world.client(QUICK) as other:
            await write(client, segments=1)
            begun, both = list[str](), trio.Event()
            create_key = LedgerRecords.create_key

            async def create_both(self: LedgerRecords, key: str, value: bytes) -> bool:
                begun.append(key)
                found = await create_key(self, key, value)
                if len(begun) == 2:
                    both.set()
                await both.wait()
                if is_killed and key == begun[1]:
                    raise ConnectionAbortedError
                return found

            monkeypatch.setattr(LedgerRecords, "create_key", create_both)
            added = list[ArchiveRecord]()

            async def add(by: replog.Client) -> None:
                with contextlib.suppress(ConnectionAbortedError):
                    added.append(await by.admin.add_archive(URL))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(add, client)
                nursery.start_soon(add, other)
            monkeypatch.undo()
            assert len(begun) == 2
            assert len({each.archive_id for each in added}) == 1
            assert list(await client.admin.archives()) == [await other.admin.add_archive(URL)] == added[:1]
            assert len(await world.metastore.children("archives")) == 1
            assert (await client.admin.archive_log("log", archive=URL)).fragments == 1


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.CONFLICT])
async def test_archive_added_halfway_is_used_for_nothing(fault: Fault) -> None:
    async with cluster(3) as world:
        store = with_archive(world)
        async with world.client(QUICK) as client:
            await write(client, segments=1)
            if fault is Fault.CONFLICT:  # another client has finished it
                world.metastore.fail_next("put", fault, under="archives/")
                await client.admin.add_archive(URL)
                return
            world.metastore.fail_next("put", fault, under="archives/", times=10_000)
            with pytest.raises(MetastoreError):
                await client.admin.add_archive(URL)
            world.metastore._planned.clear()
            with pytest.raises(ConfigError, match="names none of the archives"):
                await client.admin.archive_log("log", archive=URL)
            assert (await client.admin.collect_archives(grace_s=0.0)).objects == 0
            store.contents.clear()  # killed before it had put the cookie
            store.begins = no_space
            for _ in range(2):
                with pytest.raises(ArchiveError, match="no space"):
                    await client.admin.add_archive(URL)
            store.begins = lambda _call: None
            await client.admin.add_archive(URL)
            assert len(await world.metastore.children("archives")) == 1
            assert (await client.admin.archive_log("log")).fragments == 1
            with pytest.raises(ArchiveError, match="B4"):
                store.contents.clear()
                await client.admin.add_archive(URL)


async def test_reader_without_the_archive_reads_up_to_it(autojump_clock: trio.testing.MockClock) -> None:
    """It needs the store when it comes to an archived entry, and not before."""
    async with cluster(3) as world:
        store = with_archive(world)
        async with world.client(QUICK) as client:
            data = await write(client)
            await client.admin.add_archive(URL)
            await client.admin.archive_log("log", before=replog.Position(2, 0))
        store.begins = store.away
        async with world.client(QUICK) as client:
            async with client.read_log("log", after=replog.Position(1, 4)) as reader:
                assert [record.data async for record in reader] == data[5:]
            with pytest.raises(ArchiveUnreadableError, match="the store does not answer: try again"):
                await read_log(client)
            store.begins = lambda _call: None
            assert await read_log(client) == data, "the next attempt finds it"


async def test_client_without_the_plugin_names_its_package(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world:
        plain = world.registry
        with_archive(world)
        async with world.client(QUICK) as client:
            await write(client)
            await client.admin.add_archive(URL)
            await client.admin.archive_log("log")
        world.registry = plain
        async with world.client(QUICK) as client:
            with pytest.raises(ArchiveUnreadableError, match="no plugin offers the archive scheme 'test'"):
                await read_log(client)
            with pytest.raises(ConfigError, match="pip install 'replog-objects'"):
                await client.admin.add_archive("s3://bucket/prefix")


async def test_l7_deleting_and_trimming_delete_objects(autojump_clock: trio.testing.MockClock) -> None:
    """Rule L7: after the record, or by a collection."""
    async with ready() as (_, store, client, _):
        await client.admin.archive_log("log")
        await client.trim_log("log", before=replog.Position(2, 0))
        assert len(store.objects_here) == 2
        store.begins = store.away
        await client.trim_log("log", before=replog.Position(3, 0))
        store.begins = lambda _call: None
        assert len(store.objects_here) == 2, "the store was away"
        await client.delete_log("log")
        assert len(store.objects_here) == 1
        assert (await client.admin.collect_archives(grace_s=-1.0)).objects == 1
        assert store.objects_here == []


async def test_b6a_collection_doubts_an_older_metastore(autojump_clock: trio.testing.MockClock) -> None:
    async with ready() as (world, store, client, _):
        await client.admin.archive_log("log")
        before = store.objects_here
        newest = snapshot_of(world.metastore)
        gone = {ledger_key_path(each) for each in (await ledger_ids(client))[:3]}
        older = {key: value for key, value in newest.values.items() if key not in gone}
        put_back(world.metastore, attrs.evolve(newest, values={**older, NEXT_LEDGER_ID_KEY: b"1"}))
        await trio.sleep(5)
        with pytest.raises(MetastoreDoubtedError):
            await client.admin.collect_archives(grace_s=-1.0)
        assert store.objects_here == before


async def test_slow_archiving_is_not_named(autojump_clock: trio.testing.MockClock) -> None:
    """Its first objects could be collected before the record names them."""
    async with ready() as (world, store, client, data):

        def passes(call: str) -> None:
            store.clock_s += (call == "put") * 13 * 3600

        store.ended = passes
        with pytest.raises(ArchiveError, match="bookies keep them; it took longer than 12 hours"):
            await client.admin.archive_log("log")
        store.ended = lambda _call: None
        await release(world)
        assert await read_log(client) == data


async def test_f6_copy_is_not_named_once_it_was_collected(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule F6: its machine sleeps for two days behind the first object, and a client that is awake collects."""
    monkeypatch.setattr(archiving, "OBJECT_BYTES_MAX", 200)
    async with ready(segments=1) as (world, store, client, data):
        names: list[str] = []

        def sleeps(call: str) -> None:
            if call == "put" and not names:
                names.extend(store.objects_here)
                store.contents.pop(names[0])

        store.ended = sleeps
        with pytest.raises(ArchiveError, match="it is missing"):
            await client.admin.archive_log("log")
        names.clear()
        store.ended = lambda _call: None
        reads = store.read

        def read(name: str, start: int, size_bytes: int) -> bytes | None:
            found = reads(name, start, size_bytes)
            if name.startswith("ledgers/") and not names:
                names.append(name)
                store.contents.pop(name)
            return found

        monkeypatch.setattr(store, "read", read)
        with pytest.raises(ArchiveError, match="bookies keep them; an object that it had stored is gone"):
            await client.admin.archive_log("log")
        await release(world)
        assert await read_log(client) == data


async def test_f6_late_request_names_no_collected_copy(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule F6: the objects were all there when they were looked at last, and then the machine sleeps for two days."""
    async with cluster(3) as world:
        store = with_archive(world)
        async with world.client(QUICK) as client, world.client() as awake:
            data = await write(client, segments=1)
            await client.admin.add_archive(URL)
            check, collected = Archiver._check_copy, list[Any]()

            async def check_then_sleep(self: Archiver, *what: Any) -> None:
                await check(self, *what)
                if not collected:
                    store.clock_s += 48 * 3600
                    collected.append(await awake.admin.collect_archives())

            monkeypatch.setattr(Archiver, "_check_copy", check_then_sleep)
            with pytest.raises(ArchiveError, match="bookies keep them; an object that it had stored is gone"):
                await client.admin.archive_log("log")
            assert collected[0].objects > 0
            await release(world)
            assert await read_log(client) == data


async def test_f6_collection_goes_on_beside_changes_of_a_record(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule F6: a repair changes the record between the reading and the writing of a collection."""
    async with ready(segments=1) as (_, store, client, _):
        left = ObjectName((await ledger_ids(client))[0], "ab" * 16, 0, 4, "cd" * 32)
        store.put(str(left), [b"of an archiving that was killed"])
        put, changes = LedgerRecords.put, list[int]()

        async def put_second(self: LedgerRecords, metadata: LedgerMetadata, expected: int) -> int:
            if not changes:
                changes.append(await put(self, metadata, expected))
            return await put(self, metadata, expected)

        monkeypatch.setattr(LedgerRecords, "put", put_second)
        collected = await client.admin.collect_archives(grace_s=-86400.0)
        assert (collected.objects, len(changes)) == (1, 1)


async def test_garbling_store_is_noticed_before_the_record_changes(autojump_clock: trio.testing.MockClock) -> None:
    async with ready() as (world, store, client, data):

        def garbles(_call: str) -> None:
            for name in store.objects_here:
                store.contents[name] = store.contents[name][:-1] + b"!"

        store.ended = garbles
        with pytest.raises(ArchiveError, match="other bytes than were written"):
            await client.admin.archive_log("log")
        await release(world)
        assert await read_log(client) == data


async def test_losses_and_drains_pass_over_archived_fragments(autojump_clock: trio.testing.MockClock) -> None:
    async with ready(4) as (world, _, client, data):
        await client.admin.archive_log("log")
        await release(world)
        ids = await ledger_ids(client)
        gone = (await client.ledger_metadata(ids[0])).fragments[0].ensemble[0]
        assert not set((await client.admin.drain_status(gone)).copies) & set(ids[:3])
        await client.admin.undrain(gone)
        named = world.named((await client.ledger_metadata(ids[0])).fragments[0].ensemble)
        for bookie in named:
            await bookie.kill()
        at_risk = await client.admin.declare_lost([each.bookie_id for each in named], accept_loss=True)
        assert not {each.ledger_id for each in at_risk} & set(ids[:3])
        async with client.open_ledger(ids[0]) as reader:
            assert await reader.read(0, 4) == data[:5]


async def test_open_reader_goes_on_when_its_ledger_is_archived(autojump_clock: trio.testing.MockClock) -> None:
    """It knows an older record: bookies deny the next entry, and the record is read again. And the other way round."""
    async with ready(segments=1, entries=8) as (world, store, client, data):
        (ledger_id, *_) = await ledger_ids(client)
        async with client.open_ledger(ledger_id) as reader:
            assert await reader.read(0, 1) == data[:2]
            await client.admin.archive_log("log")
            await release(world)
            assert await reader.read(2, 3) == data[2:4]
            async with client.open_ledger(ledger_id) as another:
                await client.admin.recall_log("log")
                store.contents = {"cookie": store.contents["cookie"]}
                assert await another.read(4, 7) == data[4:]


@pytest.mark.parametrize("fault", [Fault.ANSWER_LOST, Fault.REQUEST_LOST, Fault.ARRIVES_LATE, Fault.CONFLICT])
async def test_m1_lost_answers_of_the_metastore_are_settled(
    autojump_clock: trio.testing.MockClock, fault: Fault
) -> None:
    async with ready(segments=1) as (world, _, client, data):
        world.metastore.fail_next("put", fault, under="ledgers/")
        assert (await client.admin.archive_log("log")).fragments == 1
        assert not world.metastore.planned()
        await release(world)
        assert await read_log(client) == data
        world.metastore.fail_next("put", fault, under="ledgers/")
        await client.admin.recall_log("log")
        assert not world.metastore.planned()
        await release(world)
        assert await read_log(client) == data
        assert (await client.admin.audit()).under_replicated == 0


async def test_summary_says_how_many_bytes_are_archived(autojump_clock: trio.testing.MockClock) -> None:
    """Whole segments of 5 bytes each, of which one is empty, from the beginning on."""
    async with cluster(3) as world:
        with_archive(world)
        async with world.client(QUICK) as client:
            await write(client, segments=2)
            async with client.write_log("log"):
                pass
            async with client.write_log("log") as log:
                for _ in range(4):
                    await log.append(b"abcde")
                    await log.roll()
                await client.admin.add_archive(URL)
                assert (await client.log_summary("log")).archived_bytes == 0
                for number, expected in [(2, 5), (3, 10), (4, 10), (5, 10), (6, 15), (7, 20)]:
                    await client.admin.archive_log("log", before=replog.Position(number, 0))
                    for is_bounded in (False, True):
                        summary = await client.log_summary("log", bounded=is_bounded)
                        assert (summary.archived_bytes, summary.size_bytes) == (expected, 30), number
                await client.admin.recall_log("log")
                assert (await client.log_summary("log")).archived_bytes == 0


async def test_recall_goes_from_the_newest_segment_on(autojump_clock: trio.testing.MockClock) -> None:
    async with ready() as (world, store, client, data):
        await client.admin.archive_log("log")
        await release(world)
        await client.admin.audit_archives()  # opens the archive
        _, name, _ = store.objects_here
        del store.contents[name]
        with pytest.raises(ArchiveError, match="entries 0 to 4 of ledger 2 stay archived"):
            await client.admin.recall_log("log")
        summary = await client.log_summary("log")
        assert (summary.archived_bytes, summary.size_bytes) == (10, len(b"".join(data)))


async def put_back_records(world: Cluster, records: dict[str, bytes]) -> None:
    for key, value in records.items():
        await world.metastore.put(key, value, (await world.metastore.get(key)).version)


@pytest.mark.parametrize("digest", [DigestType.CRC32C, DigestType.HMAC_SHA256])
async def test_copies_are_adopted_after_old_metadata_was_restored(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, digest: DigestType
) -> None:
    """Rules F2, F4 and M5: one copy is whole, one was cut, one is another ledger's, and one segment has its copies on bookies."""
    monkeypatch.setattr(archiving, "OBJECT_BYTES_MAX", 200)
    async with cluster(3) as world:
        store = with_archive(world)
        async with world.client(QUICK) as client:
            data = await write(client, segments=4, options=LogOptions(digest=digest), password=b"secret")
            keys = [ledger_key_path(each) for each in (await ledger_ids(client))[:4]]
            older = {key: (await world.metastore.get(key)).value for key in keys}
            await client.admin.add_archive(URL)
            await client.admin.archive_log("log", before=replog.Position(4, 0), password=b"secret")
            await release(world)
            names = [name for each in store.objects_here if (name := ObjectName.parse(each)) is not None]
            gone = next(str(each) for each in names if each.ledger_id == 2)
            body = store.contents.pop(gone)
            foreign = [(each, store.contents[str(each)]) for each in names if each.ledger_id == 1]
            for each, theirs in foreign:
                store.put(str(attrs.evolve(each, ledger_id=4, copy="theirs")), [theirs])
            await put_back_records(world, older)
        async with world.client(QUICK) as client:
            wrong = await client.admin.adopt_archives(password=b"wrong")
            assert (wrong.fragments, len(wrong.problems)) == (0, 3), wrong
            found = await client.admin.adopt_archives(password=b"secret")
            assert (found.fragments, len(found.problems)) == (2, 1), found
            assert "other entries than this ledger's writer wrote" in found.problems[0]
            store.contents[gone] = body
            assert (await client.admin.adopt_archives(password=b"secret")).fragments == 1
            assert (await client.admin.adopt_archives(password=b"secret")).fragments == 0
            await release(world)
            assert await read_all(client, b"secret") == data
            assert not (await client.ledger_metadata(4)).fragments[0].archive


async def test_two_archive_one_log_and_one_copy_is_named(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world:
        store = with_archive(world)
        async with world.client(QUICK) as one, world.client(QUICK) as other:
            data = await write(one)
            await one.admin.add_archive(URL)
            moved: list[int] = []

            async def archive(client: replog.Client) -> None:
                moved.append((await client.admin.archive_log("log")).fragments)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(archive, one)
                nursery.start_soon(archive, other)
            assert sum(moved) == 3
            await release(world)
            store.clock_s += 25 * 3600
            await one.admin.collect_archives()
            assert len(store.objects_here) == 3
            assert await read_log(other) == data


async def as_admin(world: Cluster, verb: str) -> None:
    async with world.client(QUICK) as client:
        if verb == "archive":
            await client.admin.archive_log("log")
        elif verb == "recall":
            await client.admin.recall_log("log")
        elif verb == "repair":
            await client.admin.repair()
        elif verb == "trim":
            await client.trim_log("log", before=replog.Position(2, 0))
        else:
            await release(world)


@pytest.mark.parametrize(
    ("verb", "meanwhile"),
    [("archive", "archive"), ("archive", "trim"), ("recall", "release"), ("recall", "recall"), ("recall", "repair")],
)
async def test_f5_other_verbs_amid_archiving_lose_nothing(
    autojump_clock: trio.testing.MockClock, verb: str, meanwhile: str
) -> None:
    """Rules F5 and F6: between any two calls of the metastore another client does something, and bookies drop what they may."""

    async def race(make: Callable[[Cluster], Between]) -> Between:
        async with cluster(3) as world:
            with_archive(world)
            async with world.client(QUICK) as client:
                data = await write(client, segments=1, entries=3)
                await client.admin.add_archive(URL)
                if verb == "recall":
                    await client.admin.archive_log("log")
                    await release(world)
            between = make(world)
            async with world.client(QUICK, metastore=between) as client:

                async def both() -> None:
                    await as_admin(world, meanwhile)
                    await release(world)

                between.meanwhile = both
                await (client.admin.archive_log("log") if verb == "archive" else client.admin.recall_log("log"))
            await release(world)
            async with world.client(QUICK) as client:
                assert await read_log(client) == data[3 * (meanwhile == "trim" and between.has_run) :]
                assert (await client.admin.audit()).under_replicated == 0
                assert (await client.admin.audit_archives()).problems == ()
            return between

    await each_place(race)


async def test_recall_finds_an_object_again_once_it_is_put_back(autojump_clock: trio.testing.MockClock) -> None:
    async with ready() as (world, store, client, data):
        await client.admin.archive_log("log")
        await release(world)
        name = store.objects_here[0]
        body = store.contents.pop(name)
        with pytest.raises(ArchiveError, match=r"entries 0 to 4 of ledger \d+ stay archived"):
            await client.admin.recall_log("log")
        store.contents[name] = body
        assert (await client.admin.recall_log("log")).fragments == 1, "the segments behind it were recalled"
        assert await read_log(client) == data
