"""Snapshots: kept in the cluster, restored by members that join, and never older than what the log was trimmed for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

import replog
from replog.errors import StateDivergedError, TrimmedError, UnknownCommandError, UnsavableStateError
from replog.log import snapshot_format
from replog.log.log_options import LogOptions
from replog.machine import snapshots
from replog.machine.commands import MachineType
from replog.machine.core import Core
from replog.machine.entries import Kind, MachineEntry
from replog.machine.member import Member
from replog.protocol.model import Position
from tests.kit import ONE, Cluster, cluster, until
from tests.machine.counters import OPTIONS, Counters, member

EVERY_10 = attrs.evolve(OPTIONS, snapshot_every=10)
LOG = LogOptions(quorum=ONE)


async def load(client: replog.Client) -> bytes | None:
    return await snapshots.load("counters", client, b"", lambda _done, _all: None)


async def until_saved(client: replog.Client) -> None:
    with trio.fail_after(60):
        while await load(client) is None:  # noqa: ASYNC110 - another process saves it
            await trio.sleep(0.1)


@asynccontextmanager
async def saved(made: Cluster) -> AsyncIterator[replog.RunningMachine[Counters]]:
    """A leader that has saved a snapshot and trimmed its log, more than once."""
    async with made.client(quorum=ONE) as client, member(made, options=EVERY_10) as leader:
        for number in range(45):
            assert await leader.add("visits") == number + 1
            await trio.sleep(0.1)
        with trio.fail_after(60):
            while (await client.log_metadata("counters")).first_segment_number < 2:
                await leader.add("visits", 0)
                await trio.sleep(1)
        yield leader


async def test_joining_member_restores_a_snapshot_and_reads_on() -> None:
    async with cluster(1) as made, saved(made), member(made) as other:
        assert await other.read(lambda state: state.values) == {"visits": 45}
        assert other._member.core.snapshot_commands > 0
        assert await other.add("visits") == 46
        async with made.client() as client, client.read_log("counters") as reader:
            assert (await reader.receive()).segment > 1


async def test_restarted_member_restores_state_and_answers() -> None:
    """The sessions are in the snapshot: a repeat is answered, not applied."""
    async with cluster(1) as made:
        async with made.client(quorum=ONE) as client, member(made, options=EVERY_10) as leader:
            command_id = await leader.next_id()
            # Its answer was lost, so its session must remember it.
            await leader.add("visits")
            body = leader._member.core.machine.find(Counters.add).encode(("visits", 7), {})
            assert (await leader._caller.ask(MachineEntry(Kind.COMMAND, *command_id, body=body))).body == b"8"
            for _ in range(30):
                await leader.add("others")
            await until_saved(client)
            async with member(made) as other:
                await other.read(lambda state: state)
                assert other._member.core.snapshot_commands > 0
                assert await other.call_as(command_id, Counters.add, "visits", 7) == 8
                assert await other.read(lambda state: state.values["visits"]) == 8


async def test_snapshot_of_several_chunks_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_format, "CHUNK_BYTES", 7)
    data = bytes(range(100))
    async with cluster(1) as made, made.client(quorum=ONE) as client:
        assert await load(client) is None
        assert await snapshots.save("counters", Position(1, 5), data, client, LOG)
        assert await load(client) == data


async def test_older_snapshot_replaces_no_newer_one() -> None:
    async with cluster(1) as made, made.client(quorum=ONE) as client:
        assert await snapshots.save("counters", Position(2, 5), b"newer", client, LOG)
        assert not await snapshots.save("counters", Position(2, 4), b"older", client, LOG)
        assert await load(client) == b"newer"
        assert await snapshots.save("counters", Position(3, 0), b"newest", client, LOG)
        assert await load(client) == b"newest"
        assert len(await client.log_segments("counters.snapshots")) == 1


async def test_older_snapshot_goes_only_when_the_newer_is_found() -> None:
    """The one who saves may die at any moment: then nobody closes the newer one's ledger, whose end readers do not know."""
    found: list[bytes | None] = []

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(client, name)

        async def trim_log(self, name: str, *, before: Position) -> Position:
            trimmed = await client.trim_log(name, before=before)
            found.append(await load(other))
            return trimmed

    async with cluster(1) as made, made.client(quorum=ONE) as client, made.client() as other:
        assert await snapshots.save("counters", Position(1, 5), b"older", client, LOG)
        assert await snapshots.save("counters", Position(2, 5), b"newer", Watched(), LOG)  # type: ignore[arg-type]
        assert found == [b"newer"]


async def test_leader_restoring_a_later_snapshot_is_deposed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was paused before it had caught up; meanwhile another one has led, and trimmed away what this one was to read."""
    catch_up = Member._catch_up

    async def paused(self: Member, *arguments: Any) -> None:
        monkeypatch.undo()
        core, entry = Core(MachineType(Counters)), MachineEntry(Kind.BEGIN)
        async with client.write_log("counters") as log:
            core.apply(await log.append(entry.encode()), entry)
            assert await snapshots.save("counters", core.position, core.dump(), client, LOG)
            await client.trim_log("counters", before=core.position)
            await log.append(MachineEntry(Kind.BARRIER).encode())
        await catch_up(self, *arguments)

    monkeypatch.setattr(Member, "_catch_up", paused)
    async with cluster(1) as made, made.client(quorum=ONE) as client, member(made) as counters:
        assert await counters.add("visits") == 1
        assert counters.status.leads_from == Position(3, 0)


@pytest.mark.parametrize(
    "records",
    [
        [b"H{}"],
        [b"Hx", b"Cabc"],
        [b'H{"format":1,"position":"9:9","bytes":9,"sha256":""}', b"Cabc"],
        [b'H{"format":1,"position":"9:9","bytes":3,"sha256":"other"}', b"Cabc"],
        [b'H{"format":2,"position":"9:9","bytes":3,"sha256":""}', b"Cabc"],
        [b"Cabc", b""],
    ],
)
async def test_incomplete_snapshot_does_not_count(records: list[bytes]) -> None:
    async with cluster(1) as made, made.client(quorum=ONE) as client:
        assert await snapshots.save("counters", Position(1, 5), b"whole", client, LOG)
        async with client.write_log("counters.snapshots") as log:
            await log.extend(records)
        assert await load(client) == b"whole"


@pytest.mark.parametrize("is_idle", [False, True])
async def test_member_stops_when_log_is_trimmed_without_snapshot(is_idle: bool) -> None:
    """Also if nothing is left but leaders: else the next one would begin the machine again, without its state."""
    async with cluster(1) as made, made.client(quorum=ONE) as client:
        for number in range(2):
            async with member(made) as leader:
                if number and is_idle:
                    await until(lambda: leader.status.leads_from is not None)
                else:
                    await leader.add("visits")
        await client.trim_log("counters", before="2:0")
        with pytest.raises(UnknownCommandError, match=r"was trimmed away.* Restore both logs"):
            async with member(made):
                await trio.sleep(60)


async def test_machine_begins_again_when_its_log_was_deleted() -> None:
    async with cluster(1) as made, made.client(quorum=ONE) as client:
        for _ in range(2):
            async with member(made) as leader:
                assert await leader.add("visits") == 1
            await client.delete_log("counters")


async def test_absent_member_stops_when_trimmed_without_snapshot() -> None:
    with pytest.raises(TrimmedError):
        async with cluster(1) as made, made.client(quorum=ONE) as client, member(made) as other:
            await other.add("visits")
            for _ in range(3):
                async with client.write_log("counters"):
                    pass
            await client.trim_log("counters", before="3:0")
            other._member.core.position = Position(1, 0)  # as if it had read nothing more
            async with client.write_log("counters"):
                pass
            await trio.sleep(60)


async def test_absent_member_stops_when_the_snapshot_is_older() -> None:
    """What was trimmed is behind both: it never goes back to that snapshot, from which nobody can read on either."""
    with pytest.raises(TrimmedError):
        async with cluster(1) as made, made.client(quorum=ONE) as client, member(made) as other:
            await other.add("visits")
            core = other._member.core
            assert await snapshots.save("counters", core.position, core.dump(), client, LOG)
            await other.add("visits")
            ahead = core.position
            await other.add("visits")
            for _ in range(3):
                async with client.write_log("counters"):
                    pass
            await client.trim_log("counters", before="3:0")
            other._member.core.position = ahead  # as if it had read nothing more
            async with client.write_log("counters"):
                pass
            await trio.sleep(60)


async def test_unwritable_state_of_a_young_machine_stops_the_member() -> None:
    @attrs.define
    class Odd(Counters):
        other: dict[str, Any] = attrs.field(factory=dict)

        @replog.command
        def spoil(self) -> None:
            self.other["x"] = object()

    with pytest.raises(UnsavableStateError, match="field 'other' can't be saved: TypeError"):
        async with cluster(1) as made, member(made, Odd, attrs.evolve(OPTIONS, snapshot_every=1)) as odd:
            await odd.spoil()
            await trio.sleep(60)
    async with cluster(1) as made, made.client(quorum=ONE) as client:
        assert await load(client) is None


@pytest.mark.parametrize("is_log_there", [True, False])
async def test_member_ahead_of_its_log_reports_it(*, is_log_there: bool) -> None:
    """As after the metastore went back, or if only the snapshots of a back-up were restored: it was a bare PositionError, or a
    leader that was deposed by nobody, again and again."""
    core = Core(MachineType(Counters))
    core.position = Position(7, 3)
    async with cluster(1) as made, made.client(quorum=ONE) as client:
        await snapshots.save("counters", core.position, core.dump(), client, LOG)
        if is_log_there:
            async with client.write_log("counters"):
                pass
        with (
            trio.fail_after(60),
            pytest.RaisesGroup(
                pytest.RaisesExc(StateDivergedError, match="ends with segment.*has applied all up to 7:3"),
                allow_unwrapped=True,
                flatten_subgroups=True,
            ),
        ):
            async with member(made):
                await trio.sleep_forever()
