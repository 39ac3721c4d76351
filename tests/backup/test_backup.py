"""Back-ups: incremental, while writers go on; restored with the same positions into another cluster; damage is named."""

from __future__ import annotations

import itertools
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

import replog
from replog.backup.format import MANIFEST_NAME, LedgerFile
from replog.config import ClientOptions
from replog.errors import (
    BackupDamagedError,
    BackupError,
    ConfigError,
    LogNotFoundError,
    MetastoreUncertainError,
    NotEnoughBookiesError,
    UnauthorizedError,
)
from replog.protocol.digest import DigestType
from replog.protocol.model import Position
from replog.protocol.quorum import Quorum
from replog.records.paths import log_key_path
from replog.testing import Fault
from tests.backup.places import check
from tests.interleaving import Between, each_place
from tests.kit import ONE, Cluster, cluster, read_log

QUICK = ClientOptions(add_timeout_s=1.0, add_quorum_timeout_s=10.0)


async def records_of(client: replog.Client, name: str, password: bytes = b"") -> list[tuple[str, bytes, int]]:
    """Positions, data and times. The times are those of the ledgers: where entries stripe, records have that of their group."""
    found = []
    for segment in await client.log_segments(name):
        async with client.open_ledger(segment.ledger_id, password=password) as reader:
            found += [(f"{segment.number}:{each.entry_id}", each.data, each.timestamp_ns) async for each in reader]
    async with client.read_log(name, password=password) as log:
        assert [(str(record.position), record.data) async for record in log] == [each[:2] for each in found]
    return found


async def write(
    client: replog.Client, name: str, segments: int, begin: int = 0, password: bytes = b"", quorum: Quorum | None = None
) -> None:
    """Closed segments of five records each."""
    digest_type = DigestType.HMAC_SHA256 if password else DigestType.CRC32C
    async with client.write_log(
        name, password=password, quorum=quorum, options=replog.LogOptions(digest=digest_type)
    ) as log:
        for segment in range(segments):
            for number in range(5):
                await log.append(b"%s %d.%d" % (name.encode(), begin + segment, number))
            if segment < segments - 1:
                await log.roll()


@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), Quorum(3, 2, 2)])
async def test_a_log_comes_back_with_its_positions_and_times(quorum: Quorum, tmp_path: Path) -> None:
    async with cluster(3) as world, world.client(QUICK, quorum) as client:
        await write(client, "orders", 4)
        await write(client, "täglich/7", 1)
        await client.trim_log("orders", before="3:0")
        wanted = {name: await records_of(client, name) for name in ("orders", "täglich/7")}
        report = await client.admin.backup(tmp_path / "saved")
        assert [(each.name, each.first_segment, each.last_segment) for each in report.logs] == [
            ("orders", 3, 4),
            ("täglich/7", 1, 1),
        ]
    assert check(tmp_path / "saved").problems == ()
    async with cluster(5) as world, world.client(QUICK, Quorum(5, 3, 2)) as client:
        await client.admin.restore(tmp_path / "saved")
        assert {name: await records_of(client, name) for name in wanted} == wanted
        (segment, _) = await client.log_segments("orders")
        assert (await client.ledger_metadata(segment.ledger_id)).quorum == Quorum(5, 3, 2)
        async with client.write_log("orders") as log:
            assert str(await log.append(b"new")) == "5:0", "it goes on after what was restored"
        assert [data for _, data, _ in await records_of(client, "orders")][-1] == b"new"


async def test_l6_reader_continues_in_the_restored_log_after_a_trim(tmp_path: Path) -> None:
    async with cluster(3) as world, world.client(QUICK) as client:
        await write(client, "orders", 3)
        await client.trim_log("orders", before="2:0")
        await client.admin.backup(tmp_path)
        await write(client, "payments", 1)
        await client.admin.backup(tmp_path, ["payments"])
    async with cluster(3) as world, world.client(QUICK) as client:
        await client.admin.restore(tmp_path)
        assert (await client.log_metadata("orders")).trimmed_to == replog.Position(1, 5)
        assert (await client.log_metadata("payments")).trimmed_to == replog.Position(1, 0)
        async with client.read_log("orders", after="1:4") as reader:
            assert str((await reader.receive()).position) == "2:0"


@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), Quorum(3, 2, 2)])
async def test_keys_headers_and_tombstones_are_restored(quorum: Quorum, tmp_path: Path) -> None:
    async def read(client: replog.Client) -> list[replog.Record]:
        async with client.read_log("log") as reader:
            return [record async for record in reader]

    async with cluster(3) as world, world.client(QUICK, quorum) as client:
        async with client.write_log("log") as log:
            await log.extend([b"1", None, b"3"], keys=[b"a", b"a", None], headers=[{"h": b"v"}, None, {"i": b""}])
            await log.append(b"plain")
            # One gathering: what is sent at once has one time.
            await log.extend([b"5", b"6", b"7"], keys=[None, b"b", None])
        wanted = await read(client)
        await client.admin.backup(tmp_path / "saved")
    assert [each.key for each in wanted] == [b"a", b"a", None, None, None, b"b", None]
    assert check(tmp_path / "saved").problems == ()
    async with cluster(3) as world, world.client(QUICK, quorum) as client:
        await client.admin.restore(tmp_path / "saved")
        assert await read(client) == wanted


async def test_restored_log_knows_the_ids_of_its_entries(tmp_path: Path) -> None:
    """L11: nobody has read them there, and the log's first segments may be trimmed before the next roll."""
    async with cluster(3) as world, world.client(QUICK) as client:
        places = []
        for each in range(3):
            async with client.write_log("log") as log:
                places.append(await log.append(b"x", id=("me", each)))
        await client.admin.backup(tmp_path / "saved")
    async with cluster(3) as world, world.client(QUICK) as client:
        await client.admin.restore(tmp_path / "saved")
        assert await client.trim_log("log", before="3:0") == replog.Position(1, 0)
        async with client.write_log("log") as log:
            assert [await log.append(b"x", id=("me", each)) for each in range(3)] == places
            assert await client.trim_log("log", before="3:0") == replog.Position(3, 0)
            assert await log.append(b"x", id=("me", 0)) == places[0]


async def test_v1_cursors_and_metadata_of_a_log_are_restored(tmp_path: Path) -> None:
    """A cursor that has come further than what is saved is at its end: all of that is worked off."""

    async def places(client: replog.Client) -> dict[str, str]:
        return {each.name: str(each.begins_at) for each in await client.cursors.list("orders")}

    async with cluster(3) as world, world.client(QUICK) as client:
        await write(client, "orders", 2)
        async with client.create_ledger(custom={"log": "orders", "job": "job"}) as ledger:
            await ledger.append(b"of a job")
        await client.jobs.append_ledgers("orders", [ledger.ledger_id], job="job", custom={"schema": "7"})
        for name, place in (("first", None), ("second", "2:3")):
            async with client.cursor("orders", name, start=place):
                pass
        async with client.write_log("orders") as log:
            await log.append(b"not closed")
            async with client.cursor("orders", "ahead", start="4:1"):
                pass
            await client.admin.backup(tmp_path)
            assert await places(client) == {"ahead": "4:1", "first": "1:0", "second": "2:3"}
    for wanted in ({"ahead": "3:1", "first": "1:0", "second": "2:3"}, {}):
        async with cluster(3) as world, world.client(QUICK) as client:
            await client.admin.restore(tmp_path, cursors=bool(wanted))
            assert await places(client) == wanted
            assert (await client.log_metadata("orders")).custom == {"schema": "7"}
            if wanted:
                async with client.write_log("orders") as log:
                    await log.append(b"new")
                    async with client.cursor("orders", "ahead") as cursor:
                        assert [each.data async for each in cursor] == [b"new"]


async def test_second_back_up_saves_only_new_entries(tmp_path: Path) -> None:
    directory = tmp_path / "saved"
    async with cluster(3) as world, world.client(QUICK) as client:
        async with client.write_log("orders") as log:
            await log.append(b"0")
            await log.roll()
            await log.append(b"1")
            (first,) = (await client.admin.backup(directory)).logs
            assert (first.first_segment, first.last_segment, first.new_segments) == (1, 1, 1), (
                "the open one is not in it"
            )
            await log.append(b"2")
            await log.roll()
            seen = len(world.bookies[0].wire.seen)
            (second,) = (await client.admin.backup(directory)).logs
            assert (second.first_segment, second.last_segment, second.new_segments) == (1, 2, 1)
            await log.append(b"3")
        assert len(world.bookies[0].wire.seen) > seen
        await client.trim_log("orders", before="3:0")
        (third,) = (await client.admin.backup(directory)).logs
        assert (third.first_segment, third.last_segment, third.new_segments) == (3, 3, 1)
        assert len(list((directory / "ledgers").iterdir())) == 1, "what was trimmed is removed"


async def test_back_up_keeps_logs_outside_the_choice(tmp_path: Path) -> None:
    async with cluster(3) as world, world.client(QUICK) as client:
        await write(client, "a", 1)
        await write(client, "b", 1)
        await client.admin.backup(tmp_path, ["a"])
        report = await client.admin.backup(tmp_path, ["b"])
        assert [each.name for each in report.logs] == ["a", "b"]
        with pytest.raises(LogNotFoundError):
            await client.admin.backup(tmp_path, ["c"])


@pytest.mark.parametrize("name", ["orders", "payments"])
async def test_another_cluster_needs_another_directory(name: str, tmp_path: Path) -> None:
    """Its ledgers have the same ids and its segments the same numbers: they were taken for what was saved, or replaced it."""
    async with cluster(3) as world, world.client(QUICK) as client:
        await write(client, "orders", 2)
        wanted = await records_of(client, "orders")
        await client.admin.backup(tmp_path)
    async with cluster(3) as world, world.client(QUICK) as client:
        await write(client, name, 2, begin=7)
        with pytest.raises(BackupError, match="back-up of another cluster: nothing was changed"):
            await client.admin.backup(tmp_path)
    assert check(tmp_path).problems == ()
    async with cluster(3) as world, world.client(QUICK) as client:
        await client.admin.restore(tmp_path)
        assert await records_of(client, "orders") == wanted


async def test_file_of_another_clusters_back_up_is_refused(tmp_path: Path) -> None:
    """It was killed before it had a manifest. Its file has the same name, of a ledger with the same id (M5)."""
    async with cluster(3) as world, world.client(QUICK) as client:
        await write(client, "orders", 2)
        await client.admin.backup(tmp_path)
        (tmp_path / MANIFEST_NAME).unlink()
    async with cluster(3) as world, world.client(QUICK) as client:
        await write(client, "orders", 2, begin=7)
        wanted = await records_of(client, "orders")
        await client.admin.backup(tmp_path)
    assert check(tmp_path).problems == ()
    async with cluster(3) as world, world.client(QUICK) as client:
        await client.admin.restore(tmp_path)
        assert await records_of(client, "orders") == wanted


@pytest.mark.parametrize("what", ["trim", "deletion"])
async def test_back_up_has_one_log_without_holes_under_any_change(what: str, tmp_path: Path) -> None:
    """V1: at each call to the metastore, the log is trimmed, or deleted and begun again."""
    numbers = itertools.count()

    async def race(make: Callable[[Cluster], Between]) -> Between:
        async with cluster(1) as world, world.client(QUICK, ONE) as client:
            await write(client, "orders", 4)
            before = {position: data for position, data, _ in await records_of(client, "orders")}
            between = make(world)

            async def happen() -> None:
                if what == "trim":
                    await client.trim_log("orders", before="4:0")
                else:
                    await client.delete_log("orders")
                    await write(client, "orders", 2, begin=7)

            path = tmp_path / str(next(numbers))
            async with world.client(QUICK, ONE, between) as first:
                between.meanwhile = happen
                await first.admin.backup(path)
                between.meanwhile = None
            after = {position: data for position, data, _ in await records_of(client, "orders")}
        assert check(path).problems == ()
        async with cluster(1) as world, world.client(QUICK, ONE) as client:
            if (await client.admin.restore(path)).logs:
                found = {position: data for position, data, _ in await records_of(client, "orders")}
                last = max(map(Position.parse, before))
                is_old = not found or min(map(Position.parse, found)) <= last
                known = {**before, **after} if what == "trim" else (before if is_old else after)
                assert found.items() <= known.items(), "it has what was never in that log"
                assert [each for each in map(str, sorted(map(Position.parse, known))) if each in found] == list(found)
                segments = {Position.parse(each).segment for each in found}
                assert segments == set(range(min(segments), max(segments) + 1)) if segments else True, "it has a hole"
        return between

    await each_place(race)


async def test_a_damaged_head_is_saved_again(tmp_path: Path) -> None:
    async with cluster(3) as world, world.client(QUICK) as client:
        await write(client, "orders", 1)
        await client.admin.backup(tmp_path)
        (path,) = (tmp_path / "ledgers").iterdir()
        data = path.read_bytes()
        path.write_bytes(data[:40] + b"?" + data[41:])
        (report,) = (await client.admin.backup(tmp_path)).logs
        assert report.new_segments == 1
        assert path.read_bytes() == data


async def test_a_cut_file_is_saved_again(tmp_path: Path) -> None:
    """While its ledger can still be read."""
    async with cluster(3) as world, world.client(QUICK) as client:
        await write(client, "orders", 1)
        await client.admin.backup(tmp_path)
        (path,) = (tmp_path / "ledgers").iterdir()
        data = path.read_bytes()
        path.write_bytes(data[:-1])
        (report,) = (await client.admin.backup(tmp_path)).logs
        assert report.new_segments == 1
        assert path.read_bytes() == data


async def test_file_outside_the_manifest_is_not_restored(tmp_path: Path) -> None:
    """A whole file of another ledger in its place: as of another back-up, or of another day."""
    async with cluster(3) as world, world.client(QUICK) as client:
        await write(client, "orders", 2)
        await client.admin.backup(tmp_path)
    first, second = sorted((tmp_path / "ledgers").iterdir())
    shutil.copy(first, second)
    async with cluster(3) as world, world.client(QUICK) as client:
        with pytest.raises(BackupDamagedError, match=f"{second.name}.* it is of ledger"):
            await client.admin.restore(tmp_path)
        assert await client.logs() == []


async def test_a_killed_back_up_goes_on(tmp_path: Path) -> None:
    """Finished files are found though no manifest names them; half a file is written anew."""
    async with cluster(3) as world, world.client(QUICK) as client:
        await write(client, "orders", 3)
        await client.admin.backup(tmp_path)
        files = sorted((tmp_path / "ledgers").iterdir())
        whole = files[1].read_bytes()
        (tmp_path / MANIFEST_NAME).unlink()
        files[1].write_bytes(whole[:-10])
        files[2].rename(files[2].with_suffix(".unfinished"))
        before = files[0].stat().st_mtime_ns
        (report,) = (await client.admin.backup(tmp_path)).logs
        assert report.last_segment == 3
        assert files[0].stat().st_mtime_ns == before
        assert files[1].read_bytes() == whole
        assert {each.name for each in (tmp_path / "ledgers").iterdir()} == {each.name for each in files}
        assert check(tmp_path).problems == ()


async def test_every_damaged_byte_is_named(tmp_path: Path) -> None:
    async with cluster(3) as world, world.client(QUICK) as client:
        await write(client, "orders", 1)
        await client.admin.backup(tmp_path)
    (path,) = (tmp_path / "ledgers").iterdir()
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        (problem,) = check(tmp_path).problems
        assert str(path) in problem
    for size in range(0, len(data), 7):
        path.write_bytes(data[:size])
        assert len(check(tmp_path).problems) == 1
    path.write_bytes(data + b"x")
    assert "behind its end" in check(tmp_path).problems[0]
    path.unlink()
    assert "can't be opened" in check(tmp_path).problems[0]
    path.write_bytes(data)
    assert check(tmp_path).problems == ()
    manifest = tmp_path / MANIFEST_NAME
    for data in (b"", b"{}", manifest.read_bytes().replace(b"orders", b"order5"), manifest.read_bytes()[:-9]):
        manifest.write_bytes(data)
        with pytest.raises(BackupDamagedError, match="manifest"):
            check(tmp_path)


async def test_a_damaged_file_restores_no_part_of_its_log(tmp_path: Path) -> None:
    async with cluster(3) as world, world.client(QUICK) as client:
        await write(client, "orders", 3)
        wanted = await records_of(client, "orders")
        await client.admin.backup(tmp_path / "saved")
    shutil.copytree(tmp_path / "saved", tmp_path / "bad")
    path = sorted((tmp_path / "bad" / "ledgers").iterdir())[1]
    data = path.read_bytes()
    path.write_bytes(data[:-60] + b"?" + data[-59:])
    async with cluster(3) as world, world.client(QUICK) as client:
        with pytest.raises(BackupDamagedError, match=path.name):
            await client.admin.restore(tmp_path / "bad")
        assert await client.logs() == []
        await client.admin.restore(tmp_path / "saved")
        assert await records_of(client, "orders") == wanted
        assert len(await client.ledgers()) == 3, "what the first one left was swept"


async def test_cancelled_restore_can_be_repeated(tmp_path: Path) -> None:
    async with cluster(3) as world, world.client(QUICK) as client:
        await write(client, "orders", 3)
        wanted = await records_of(client, "orders")
        await client.admin.backup(tmp_path)
    async with cluster(3) as world, world.client(QUICK) as client:
        for bookie in world.bookies:
            bookie.wire.delay_s = 0.05
        with trio.move_on_after(0.12):
            await client.admin.restore(tmp_path)
        assert await client.logs() == []
        for bookie in world.bookies:
            bookie.wire.delay_s = 0.0
        await client.admin.restore(tmp_path)
        assert await records_of(client, "orders") == wanted


async def test_back_up_is_refused_when_its_directory_has_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was made in the working directory."""
    monkeypatch.chdir(tmp_path)
    async with cluster(1) as world, world.client() as client:
        for verb in (client.admin.backup, client.admin.restore):
            with pytest.raises(ConfigError, match="the directory of a back-up is ''"):
                await verb("")
    assert os.listdir(tmp_path) == []


async def test_existing_log_is_not_touched(tmp_path: Path) -> None:
    async with cluster(3) as world, world.client(QUICK) as client:
        await write(client, "orders", 2)
        await client.admin.backup(tmp_path)
        with pytest.raises(BackupError, match="'orders' already"):
            await client.admin.restore(tmp_path)
        await client.delete_log("orders")
        with pytest.raises(BackupError, match="segments up to 2, and this one begins with 1"):
            await client.admin.restore(tmp_path)
        with pytest.raises(BackupError, match="no log 'others'; it has orders"):
            await client.admin.restore(tmp_path, ["others"])
        with pytest.raises(BackupError, match="no finished back-up"):
            await client.admin.restore(tmp_path / "nothing")


async def test_a_log_with_a_password(tmp_path: Path) -> None:
    """Who reads it needs the password; what is saved is in the clear; it is restored with a password, maybe another one."""
    async with cluster(3) as world, world.client(QUICK) as client:
        await write(client, "orders", 2, password=b"old")
        wanted = await records_of(client, "orders", b"old")
        with pytest.raises(UnauthorizedError):
            await client.admin.backup(tmp_path)
        await client.admin.backup(tmp_path, password=b"old")
    assert b"orders 0.0" in sorted((tmp_path / "ledgers").iterdir())[0].read_bytes()
    async with cluster(3) as world, world.client(QUICK) as client:
        with pytest.raises(ConfigError, match="had a password"):
            await client.admin.restore(tmp_path)
        await client.admin.restore(tmp_path, password=b"new")
        assert await records_of(client, "orders", b"new") == wanted
        segment = (await client.log_segments("orders"))[0]
        assert (await client.ledger_metadata(segment.ledger_id)).digest_type is DigestType.HMAC_SHA256
        with pytest.raises(UnauthorizedError):
            await records_of(client, "orders", b"old")


@pytest.mark.parametrize("limit", [0, 100, 100_000])
async def test_a_full_disk_is_named_and_leaves_the_back_up(limit: int, tmp_path: Path) -> None:
    """What is small is written only when the file is ended, and fails once more when it is closed."""
    async with cluster(3) as world, world.client(QUICK) as client:
        await write(client, "orders", 1)
        await client.admin.backup(tmp_path)
        async with client.write_log("orders") as log:
            await log.append(bytes(200_000))
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            with pytest.raises(BackupError, match="File too large"):
                await client.admin.backup(tmp_path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        (log_there,) = check(tmp_path).logs
        assert log_there.last_segment == 1
        await client.admin.backup(tmp_path)
        assert check(tmp_path).problems == ()


@pytest.mark.parametrize("fault", [Fault.ANSWER_LOST, Fault.REQUEST_LOST, Fault.ARRIVES_LATE, Fault.UNAVAILABLE])
async def test_m1_restore_begins_a_log_once_when_the_answer_is_lost(
    fault: Fault, tmp_path: Path, patient_clock: trio.testing.MockClock
) -> None:
    async with cluster(3) as world, world.client(QUICK) as client:
        await write(client, "orders", 2)
        wanted = await records_of(client, "orders")
        await client.admin.backup(tmp_path)
    async with cluster(3) as world, world.client(QUICK) as client:
        # Its key alone: that of a ledger that is pending for it begins with the same.
        faults = iter([fault])
        at = ("create", log_key_path("orders"))
        world.metastore._choose = lambda *call: next(faults, None) if call == at else None
        await client.admin.restore(tmp_path)
        assert next(faults, None) is None
        assert await records_of(client, "orders") == wanted
        assert (await client.log_metadata("orders")).deletions == 1


async def test_restore_ends_when_the_metastore_loses_every_request(
    tmp_path: Path, patient_clock: trio.testing.MockClock
) -> None:
    async with cluster(3) as world, world.client(QUICK) as client:
        await write(client, "orders", 1)
        await client.admin.backup(tmp_path)
    async with cluster(3) as world, world.client(attrs.evolve(QUICK, metastore_timeout_s=1.0)) as client:
        at = ("create", log_key_path("orders"))
        world.metastore._choose = lambda *call: Fault.REQUEST_LOST if call == at else None
        with trio.fail_after(60), pytest.raises(MetastoreUncertainError):
            await client.admin.restore(tmp_path)
        assert await client.logs() == []


async def test_a_restore_without_bookies_says_so(tmp_path: Path) -> None:
    async with cluster(3) as world, world.client(QUICK) as client:
        await write(client, "orders", 1)
        await client.admin.backup(tmp_path)
    async with cluster(1) as world, world.client(QUICK) as client:
        with pytest.raises(NotEnoughBookiesError):
            await client.admin.restore(tmp_path)
        assert await client.logs() == []


async def test_two_at_once_in_one_directory(tmp_path: Path) -> None:
    async with cluster(3) as world, world.client(QUICK) as client:
        await write(client, "orders", 3)
        raised = []

        async def back_up() -> None:
            try:
                await client.admin.backup(tmp_path)
            except BackupError as error:
                raised.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(back_up)
            nursery.start_soon(back_up)
        assert len(raised) <= 1
        assert all("another back-up is writing" in str(error) for error in raised)
        assert check(tmp_path).problems == ()


def test_a_head_of_another_version_is_refused(tmp_path: Path) -> None:
    golden = (Path(__file__).parents[1] / "formats" / "backup-ledger-v1.bin").read_bytes()
    path = tmp_path / "x.ledger"
    path.write_bytes(golden.replace(b"replog-backup\n\x01", b"replog-backup\n\x02"))
    with path.open("rb") as file, pytest.raises(BackupDamagedError, match="of this version"):
        LedgerFile(path, file)


async def test_it_may_be_read_while_it_is_written(tmp_path: Path) -> None:
    """Writers go on, and what they append is in the next back-up."""
    async with cluster(3) as world, world.client(QUICK) as client, client.write_log("orders") as log:
        async with trio.open_nursery() as nursery:

            async def append() -> None:
                for number in range(200):
                    await log.append(b"%d" % number)
                    if number % 20 == 19:
                        await log.roll()

            nursery.start_soon(append)
            for _ in range(5):
                await client.admin.backup(tmp_path)
        (report,) = (await client.admin.backup(tmp_path)).logs
        assert report.last_segment == 10
        wanted = await read_log(client, "orders")
    async with cluster(3) as world, world.client(QUICK) as client:
        await client.admin.restore(tmp_path)
        assert await read_log(client, "orders") == wanted


async def test_restore_of_a_damaged_file_names_the_other_logs(tmp_path: Path) -> None:
    """And what it says can be done."""
    async with cluster(3) as world, world.client(QUICK) as client:
        for name in ("a", "b", "c"):
            await write(client, name, 2)
        wanted = {name: await records_of(client, name) for name in ("a", "b", "c")}
        b = (await client.log_segments("b"))[1].ledger_id
        await client.admin.backup(tmp_path)
    (path,) = (each for each in (tmp_path / "ledgers").iterdir() if int(each.stem) == b)
    intact = path.read_bytes()
    path.write_bytes(intact[:-60] + b"?" + intact[-59:])
    async with cluster(3) as world, world.client(QUICK) as client:
        with pytest.raises(BackupDamagedError) as caught:
            await client.admin.restore(tmp_path)
        assert caught.value.path == str(path)
        said = str(caught.value)
        assert said.count(str(path)) == 1
        assert "Log 'b' needs it, and is not restored. Restored whole: 'a'. Restore it by its name" in said
        assert said.endswith("Those that are left can be restored from here, by their names: 'c'")
        await client.admin.restore(tmp_path, ["c"])
        with pytest.raises(BackupDamagedError, match=r"Restored whole: none\. .* is in its place$"):
            await client.admin.restore(tmp_path, ["b"])
        path.write_bytes(intact)
        await client.admin.restore(tmp_path, ["b"])
        assert {name: await records_of(client, name) for name in wanted} == wanted
