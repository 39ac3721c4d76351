"""Back-ups of state machines (V1): whatever a leader does meanwhile, a restored member has all that the newest snapshot has, and
goes on; what can't be joined is said."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

import replog
from replog.backup import restoring, saving
from replog.backup.content import open_backup
from replog.errors import BackupDamagedError, UnknownCommandError
from replog.log.log_options import LogOptions
from replog.log.snapshot_format import Header
from replog.machine import snapshots
from replog.protocol.model import LedgerMetadata, Position, Segment
from replog.registry import Registry
from tests.backup.places import check
from tests.kit import ONE, Cluster, cluster
from tests.machine.counters import OPTIONS, Counters, member

EVERY_5 = attrs.evolve(OPTIONS, snapshot_every=5)
LOG = LogOptions(quorum=ONE)
COMMANDS, SNAPSHOTS = "counters", "counters.snapshots"


@attrs.define
class Led:
    """A leader, and how often its counter was counted."""

    client: replog.Client
    leader: replog.RunningMachine[Counters]
    count: int = 0

    async def add(self) -> None:
        self.count += 1
        assert await self.leader.add("n") == self.count

    async def snapshot(self) -> None:
        """Adds until the leader has saved a snapshot, and trimmed its log for that."""
        before = (await self.client.log_metadata(COMMANDS)).first_segment_number
        with trio.fail_after(60):
            while (await self.client.log_metadata(COMMANDS)).first_segment_number == before:
                await self.add()


@asynccontextmanager
async def led() -> AsyncIterator[Led]:
    async with cluster(1) as world, world.client(quorum=ONE) as client, member(world, options=EVERY_5) as leader:
        machine = Led(client, leader)
        await machine.add()
        yield machine


@asynccontextmanager
async def restored(directory: Path, problems: int = 0) -> AsyncIterator[tuple[Cluster, replog.Client]]:
    async with cluster(1) as world, world.client(quorum=ONE) as client:
        assert len((await client.admin.restore(directory)).problems) == problems
        yield world, client


async def counted(directory: Path) -> int:
    """What a member counts that is restored from there; another count goes on behind that."""
    async with restored(directory) as (world, _):
        async with member(world) as first:
            count = (await first.read(lambda state: state.values)).get("n", 0)
            assert await first.add("n") == count + 1
        async with member(world) as second:
            assert (await second.read(lambda state: state.values))["n"] == count + 1
    return count


def when_saved(
    monkeypatch: pytest.MonkeyPatch, name: str, happens: Callable[[], Awaitable[None]], *, before: bool
) -> None:
    """Has something happen once, before or behind the first time that the log of this name is saved."""
    original: Any = saving._Saving._log
    left = [happens]

    async def log(self: object, log_name: str, *rest: object) -> object:
        if before and log_name == name and left:
            await left.pop()()
        found = await original(self, log_name, *rest)
        if not before and log_name == name and left:
            await left.pop()()
        return found

    monkeypatch.setattr(saving._Saving, "_log", log)


@pytest.mark.parametrize("snapshots_before", [0, 1, 2])
@pytest.mark.parametrize("name", [COMMANDS, SNAPSHOTS])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("snapshots_meanwhile", [1, 3])
async def test_v1_machine_is_restored_with_concurrent_snapshots(
    snapshots_before: int,
    name: str,
    before: bool,
    snapshots_meanwhile: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with led() as machine:
        for _ in range(snapshots_before):
            await machine.snapshot()
        await machine.add()
        least = machine.leader._member.core.snapshot_commands

        async def meanwhile() -> None:
            for _ in range(snapshots_meanwhile):
                await machine.snapshot()

        when_saved(monkeypatch, name, meanwhile, before=before)
        report = await machine.client.admin.backup(tmp_path)
        most = machine.count
    assert all("no closed segment" in each for each in report.problems)
    assert check(tmp_path).problems == ()
    assert least <= await counted(tmp_path) <= most


async def test_v1_trims_during_the_save_of_the_log_itself_cost_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its older segments are saved, and then the next one is gone."""
    async with led() as machine:
        for _ in range(3):
            await machine.snapshot()
        least = machine.leader._member.core.snapshot_commands
        original: Any = saving._Saver._saved
        left = [None]

        async def saved(self: object, segment: Segment, metadata: LedgerMetadata) -> object:
            found = await original(self, segment, metadata)
            if metadata.custom.get("position") is None and left:
                left.pop()
                await machine.snapshot()
                await machine.snapshot()
            return found

        monkeypatch.setattr(saving._Saver, "_saved", saved)
        report = await machine.client.admin.backup(tmp_path)
    assert report.problems == ()
    assert least <= await counted(tmp_path)


async def test_v1_back_ups_beside_a_busy_leader_are_always_joined(tmp_path: Path) -> None:
    least = []
    async with led() as machine, trio.open_nursery() as nursery:

        async def add() -> None:
            while True:
                await machine.add()

        await machine.snapshot()
        nursery.start_soon(add)
        for number in range(4):
            least.append(machine.leader._member.core.snapshot_commands)
            assert (await machine.client.admin.backup(tmp_path / str(number))).problems == ()
        nursery.cancel_scope.cancel()
    for number, count in enumerate(least):
        assert check(tmp_path / str(number)).problems == ()
        assert await counted(tmp_path / str(number)) >= count


@pytest.mark.parametrize("name", [COMMANDS, SNAPSHOTS])
async def test_v1_one_of_a_machine_s_logs_brings_the_other(name: str, tmp_path: Path) -> None:
    async with led() as machine:
        await machine.snapshot()
        assert [each.name for each in (await machine.client.admin.backup(tmp_path, [name])).logs] == [
            COMMANDS,
            SNAPSHOTS,
        ]
        await machine.snapshot()
        await machine.client.admin.backup(tmp_path, [name])
        least = machine.leader._member.core.snapshot_commands
    assert check(tmp_path).problems == ()
    async with cluster(1) as world, world.client(quorum=ONE) as client:
        assert {each.name for each in (await client.admin.restore(tmp_path, [name])).logs} == {COMMANDS, SNAPSHOTS}
    assert await counted(tmp_path) >= least


async def commands(client: replog.Client, *, trims_to: int | None = None) -> None:
    """A log of closed segments, as a leader's; the last one is empty."""
    async with client.write_log(COMMANDS) as log:
        for _ in range(3):
            await log.append(b"x")
            await log.roll()
    if trims_to is not None:
        await client.trim_log(COMMANDS, before=Position(trims_to, 0))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "_PAUSES_S", (0.01,))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("position", "trims_to", "problem"),
    [
        (Position(9, 0), None, "ends with segment 4.*has all up to 9:0"),
        (Position(1, 0), 3, "begins with segment 3.*has all up to 1:0"),
    ],
)
async def test_v1_disjoint_logs_are_reported_and_change_nothing(
    position: Position, trims_to: int | None, problem: str, tmp_path: Path
) -> None:
    async with cluster(1) as world, world.client(quorum=ONE) as client:
        await commands(client, trims_to=2)
        await snapshots.save(COMMANDS, Position(2, 0), b"{}", client, LOG)
        await client.admin.backup(tmp_path / "there")
        if trims_to is not None:
            await client.trim_log(COMMANDS, before=Position(trims_to, 0))
            await client.delete_log(SNAPSHOTS)
        await snapshots.save(COMMANDS, position, b"{}", client, LOG)
        (kept,) = (await client.admin.backup(tmp_path / "there")).problems
        assert "keeps what it had" in kept
        (said,) = (await client.admin.backup(tmp_path / "new")).problems
    assert check(tmp_path / "there").problems == ()
    (found,) = check(tmp_path / "new").problems
    assert found in said
    assert re.search(problem, found)


@pytest.mark.usefixtures("impatient")
async def test_restored_log_goes_on_behind_the_newest_snapshot(tmp_path: Path) -> None:
    """A new command would get a position that the snapshot counts as applied."""
    async with cluster(1) as world, world.client(quorum=ONE) as client:
        await commands(client)
        await snapshots.save(COMMANDS, Position(9, 4), b"{}", client, LOG)
        await client.admin.backup(tmp_path)
    async with restored(tmp_path, problems=1) as (_, client):
        async with client.write_log(COMMANDS) as log:
            assert await log.append(b"new") == Position(11, 0)
        async with client.read_log(COMMANDS, after="9:4") as reader:
            assert [each.data async for each in reader] == [b"new"]


@pytest.mark.usefixtures("impatient")
async def test_machine_without_its_snapshots_does_not_restart_empty(tmp_path: Path) -> None:
    """A log that was restored begins behind a number because it was trimmed: the guard knew only logs that were never deleted."""
    async with led() as machine:
        await machine.snapshot()
        await machine.client.admin.backup(tmp_path)
    async with restored(tmp_path) as (world, client):
        await client.delete_log(SNAPSHOTS)
        with trio.fail_after(60), pytest.RaisesGroup(UnknownCommandError, allow_unwrapped=True, flatten_subgroups=True):
            async with member(world) as alone:
                await alone.add("n")


async def test_machine_with_lost_snapshot_and_no_commands_stops(tmp_path: Path) -> None:
    """Nothing in the log itself tells that there was something before: its record has to."""
    async with cluster(1) as world, world.client(quorum=ONE) as client:
        await commands(client, trims_to=4)
        await snapshots.save(COMMANDS, Position(3, 0), b"{}", client, LOG)
        await client.admin.backup(tmp_path)
    async with restored(tmp_path) as (world, client):
        await client.delete_log(SNAPSHOTS)
        with trio.fail_after(60), pytest.RaisesGroup(UnknownCommandError, allow_unwrapped=True, flatten_subgroups=True):
            async with member(world) as alone:
                await alone.add("n")


async def test_machine_s_log_is_restored_before_its_snapshots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that starts in between finds no beginning, and ends; the other way round it would begin anew."""
    async with led() as machine:
        await machine.snapshot()
        await machine.client.admin.backup(tmp_path)
    original: Any = restoring.Restorer._restore
    async with cluster(1) as world, world.client(quorum=ONE) as client:

        async def restore(self: object, name: str, log: object) -> object:
            if name == SNAPSHOTS:
                with pytest.RaisesGroup(UnknownCommandError, allow_unwrapped=True, flatten_subgroups=True):
                    async with member(world) as early:
                        await early.add("n")
            return await original(self, name, log)

        monkeypatch.setattr(restoring.Restorer, "_restore", restore)
        with trio.fail_after(60):
            await client.admin.restore(tmp_path)
        async with member(world) as late:
            assert (await late.read(lambda state: state.values))["n"] > 1


def damage_snapshot(directory: Path, place: int) -> Path:
    """Flips a bit of the newest snapshot's file; returns its path."""
    manifest = open_backup(directory, Registry(load_installed=False)).existing_manifest()
    path = directory / "ledgers" / manifest.logs[SNAPSHOTS].segments[-1].file_name
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    return path


async def test_damaged_snapshot_is_saved_again(tmp_path: Path) -> None:
    async with led() as machine:
        await machine.snapshot()
        await machine.client.admin.backup(tmp_path)
        damage_snapshot(tmp_path, -1)
        assert "wrong checksum" in check(tmp_path).problems[0]
        assert (await machine.client.admin.backup(tmp_path)).problems == ()
    assert check(tmp_path).problems == ()


@pytest.mark.usefixtures("impatient")
async def test_verify_reads_the_snapshot_itself(tmp_path: Path) -> None:
    """Not what its ledger's metadata say: a member that reads no whole one begins anew."""
    async with cluster(1) as world, world.client(quorum=ONE) as client:
        await commands(client, trims_to=2)
        async with client.write_log(SNAPSHOTS, options=replog.LogOptions(custom={"position": "2:0"})) as log:
            await log.append(Header.of(Position(2, 0), b"whole").encode())
            await log.append(b"Cwhol")
        (said,) = (await client.admin.backup(tmp_path)).problems
    assert "no snapshot in log 'counters.snapshots' is whole" in said
    (found,) = check(tmp_path).problems
    assert found in said


async def test_log_named_like_snapshots_is_restored_as_a_log(tmp_path: Path) -> None:
    async with cluster(1) as world, world.client(quorum=ONE) as client:
        await commands(client, trims_to=3)
        async with client.write_log(SNAPSHOTS) as log:
            await log.append(b"H is not a header")
        assert (await client.admin.backup(tmp_path)).problems == ()
    assert check(tmp_path).problems == ()


async def test_deleted_machine_stays_in_the_back_up_with_its_snapshots(tmp_path: Path) -> None:
    async with cluster(1) as world, world.client(quorum=ONE) as client:
        await commands(client, trims_to=2)
        await snapshots.save(COMMANDS, Position(2, 0), b"{}", client, LOG)
        await client.admin.backup(tmp_path)
        await client.delete_log(COMMANDS)
        await snapshots.save(COMMANDS, Position(7, 0), b"{}", client, LOG)
        assert (await client.admin.backup(tmp_path)).problems == ()
    assert check(tmp_path).problems == ()


async def test_log_made_while_others_are_saved_is_saved_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(1) as world, world.client(quorum=ONE) as client:
        await commands(client)

        async def make() -> None:
            async with client.write_log("another") as log:
                await log.append(b"x")

        when_saved(monkeypatch, COMMANDS, make, before=False)
        assert [each.name for each in (await client.admin.backup(tmp_path)).logs] == ["another", COMMANDS]


async def test_log_deleted_while_others_are_saved_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(1) as world, world.client(quorum=ONE) as client:
        await commands(client)
        async with client.write_log("zebra") as log:
            await log.append(b"x")

        async def delete() -> None:
            await client.delete_log("zebra")

        when_saved(monkeypatch, COMMANDS, delete, before=False)
        assert [each.name for each in (await client.admin.backup(tmp_path)).logs] == [COMMANDS]


async def test_log_without_a_closed_segment_is_reported_and_empty(tmp_path: Path) -> None:
    async with cluster(1) as world, world.client(quorum=ONE) as client, client.write_log("open") as log:
        await log.append(b"x")
        (problem,) = (await client.admin.backup(tmp_path)).problems
        assert "'open' has no closed segment, so nothing of it is in the back-up: have its writer roll it" in problem
    async with restored(tmp_path) as (_, client):
        assert await client.logs() == ["open"]
        async with client.read_log("open") as reader:
            assert [each async for each in reader] == []
        async with client.write_log("open") as log:
            assert await log.append(b"y") == Position(2, 0)


async def test_damaged_snapshot_is_not_restored(tmp_path: Path) -> None:
    async with led() as machine:
        await machine.snapshot()
        await machine.client.admin.backup(tmp_path)
    path = damage_snapshot(tmp_path, 100)
    async with cluster(1) as world, world.client(quorum=ONE) as client:
        with pytest.raises(BackupDamagedError, match=f"{path.name}.*'counters' needs it.* whole: none.* in its place$"):
            await client.admin.restore(tmp_path)
        assert await client.logs() == []
