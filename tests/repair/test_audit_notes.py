"""Audits that ask only about what may have changed, their progress, pausing, and copies in the wrong zone (F1, F3, M3)."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from replog import Client, Quorum
from replog.abc import UNBOUNDED, Damage, Doubt
from replog.backends.memory import MemoryStorage
from replog.client.administration import BookieStatistics
from replog.config import BookieOptions
from replog.config.client import ClientTuning
from replog.errors import ConfigError
from replog.hookspecs import AuditEnded, FragmentRepaired
from replog.protocol.messages import CopyRequest, RangesRequest
from replog.repair.audit_notes import AuditNotes, BookieState
from replog.repair.progress import RepairProgress
from replog.testing import Fault
from tests.kit import Cluster, cluster, read_ledger, until

QUICK = ClientTuning(add_timeout_s=1.0, add_quorum_timeout_s=10.0, read_timeout_s=1.0)
ENTRIES = [b"%d" % number for number in range(20)]
STATE = BookieState(1.0, 0.0, 0.0, 0.0)


async def written(client: Client, count: int = 1) -> list[int]:
    ledger_ids = []
    for _ in range(count):
        async with client.create_ledger(quorum=Quorum(3, 3, 2)) as writer:
            await writer.extend(ENTRIES)
        ledger_ids.append(writer.ledger_id)
    await trio.testing.wait_all_tasks_blocked()
    return ledger_ids


def asked(world: Cluster) -> set[int]:
    """The ledgers that bookies were asked about since the last call."""
    found = {each.ledger_id for bookie in world.bookies for each in bookie.wire.seen if isinstance(each, RangesRequest)}
    for bookie in world.bookies:
        bookie.wire.seen.clear()
    return found


async def test_second_audit_asks_only_about_new_ledgers(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client(QUICK) as client:
        before = await written(client, 3)
        report = await client.admin.audit()
        assert (report.ledgers, report.unchanged, asked(world)) == (3, 0, set(before))
        (new,) = await written(client)
        report = await client.admin.audit()
        assert (report.ledgers, report.unchanged, asked(world)) == (4, 3, {new})
        await client.delete_ledger(before[0])
        report = await client.admin.audit()
        assert (report.ledgers, report.unchanged, asked(world)) == (3, 3, set())


async def test_records_of_many_ledgers_are_read_in_pages(autojump_clock: trio.testing.MockClock) -> None:
    """A read for each of 100,000 took the leader of a metastore a minute, at each audit."""
    async with cluster(3) as world, world.client(QUICK) as client:
        await written(client, 30)
        world.metastore.calls.clear()
        assert (await client.admin.audit()).ledgers == 30
        read = [call.operation for call in world.metastore.calls if call.key.startswith(("ledgers", "long-ledgers"))]
        assert (read.count("values_page"), read.count("get")) == (1, 0)
        world.metastore.fail_next("values_page", Fault.UNAVAILABLE)
        assert (await client.admin.audit()).ledgers == 30, "reading a page is repeated"


async def test_ledgers_of_a_restarted_bookie_are_asked_about_again(autojump_clock: trio.testing.MockClock) -> None:
    """It may have lost something while nobody looked."""
    async with cluster(4) as world, world.client(QUICK) as client:
        ledger_ids = await written(client, 8)
        await client.admin.audit()
        victim = world.bookies[0]
        named = [
            each
            for each in ledger_ids
            if victim.bookie_id in (await client.ledger_metadata(each)).last_fragment.ensemble
        ]
        await victim.kill()
        report = await client.admin.audit()
        assert report.under_replicated == len(named)
        assert report.unchanged == 8 - len(named)
        await victim.start()
        inner = victim.storage.inner
        assert isinstance(inner, MemoryStorage)
        inner._content.ledgers.clear()
        report = await client.admin.audit()
        assert report.under_replicated == len(named)
        assert (await client.admin.repair()).under_replicated == 0
        assert (await client.admin.audit()).unchanged == 8


async def test_damage_and_doubt_make_an_audit_ask_again(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client(QUICK) as client:
        (ledger_id,) = await written(client)
        await client.admin.audit()
        asked(world)
        storage = world.bookies[1].storage
        storage.damage = lambda: [Damage(ledger_id, 1, 0, 19, "a bit is flipped")]  # type: ignore[method-assign]
        await trio.sleep(20)
        await client.admin.audit()
        assert asked(world) == {ledger_id}
        storage.doubts = Doubt(100, 0, ("it is short",))
        await trio.sleep(20)
        await client.admin.audit()
        assert asked(world) == {ledger_id}
        await client.admin.audit()
        assert asked(world) == set()


@pytest.mark.slow
async def test_doubt_healed_between_two_audits_is_seen(autojump_clock: trio.testing.MockClock) -> None:
    """The bookie vouches again, with the fences that it made. But the entries that it lost are missing."""
    async with cluster(3) as world, world.client(QUICK) as client:
        await written(client)
        await client.admin.audit()
        storage = world.bookies[1].storage
        storage.doubts = Doubt(UNBOUNDED, UNBOUNDED, ("a page is damaged",))
        assert isinstance(storage.inner, MemoryStorage)
        storage.inner._content.ledgers.clear()
        await until(lambda: storage.doubt().doubted_below == 0, within_s=300)
        assert (await client.admin.audit()).under_replicated == 1


def test_notes_hold_for_one_version_and_one_state() -> None:
    notes = AuditNotes()
    first = notes.begin({"a": STATE, "b": STATE})
    notes.note(7, 1, first)
    notes.begin({"a": STATE, "b": STATE})
    assert notes.is_full(7, 1, ["a", "b"])
    assert not notes.is_full(7, 2, ["a", "b"])
    assert not notes.is_full(7, 1, ["a", "c"])
    assert not notes.is_full(8, 1, ["a"])
    notes.begin({"a": STATE, "b": BookieState(1.0, 1.0, 0.0, 0.0)})
    assert notes.is_full(7, 1, ["a"])
    assert not notes.is_full(7, 1, ["b"])
    notes.begin({"a": None})
    assert not notes.is_full(7, 1, ["a"])
    # It told the same before and after, and nothing in between: it may be another bookie's answer that was late.
    notes.begin({"a": STATE})
    assert not notes.is_full(7, 1, ["a"])


def test_note_of_an_older_round_does_not_survive_a_change() -> None:
    """Two audits at once: what one noted before the other saw a change is asked about again."""
    notes = AuditNotes()
    older = notes.begin({"a": STATE})
    notes.begin({"a": BookieState(2.0, 0.0, 0.0, 0.0)})
    notes.note(7, 1, older)
    assert not notes.is_full(7, 1, ["a"])


async def test_audit_of_a_new_process_asks_only_about_new_ledgers(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    notes = tmp_path / "notes"
    async with cluster(3) as world:
        async with world.client(QUICK) as client:
            before = await written(client, 3)
            assert (await client.admin.audit(notes=notes)).unchanged == 0
            assert asked(world) == set(before)
        async with world.client(QUICK) as client:
            (new,) = await written(client)
            report = await client.admin.audit(notes=notes)
            assert (report.ledgers, report.unchanged, asked(world)) == (4, 3, {new})
            await client.delete_ledger(before[0])
        async with world.client(QUICK) as client:
            report = await client.admin.audit(notes=notes)
            assert (report.ledgers, report.unchanged, asked(world)) == (3, 3, set())
            assert (await client.admin.audit()).unchanged == 3
        async with world.client(QUICK) as client:
            assert (await client.admin.audit()).unchanged == 0, "without notes, it trusts nobody"


async def test_saved_notes_do_not_outlive_a_bookies_loss(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Even if the audit that noticed the restart was not the one that could ask: the bookie was away meanwhile."""
    notes = tmp_path / "notes"
    async with cluster(3) as world:
        async with world.client(QUICK) as client:
            await written(client, 2)
            assert (await client.admin.audit(notes=notes)).under_replicated == 0
        victim = world.bookies[1]
        await victim.kill()
        async with world.client(QUICK) as client:
            assert (await client.admin.audit(notes=notes)).under_replicated == 2
        await victim.start()
        assert isinstance(victim.storage.inner, MemoryStorage)
        victim.storage.inner._content.ledgers.clear()
        for _ in range(2):
            async with world.client(QUICK) as client:
                assert (await client.admin.audit(notes=notes)).under_replicated == 2


async def test_foreign_notes_are_refused(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    notes = tmp_path / "notes"
    async with cluster(3) as world, world.client(QUICK) as client:
        for value in (b"", b"[]", b'{"format":2,"states":{},"ledgers":[]}', b'{"format":1,"states":{},"ledgers":[1]}'):
            notes.write_bytes(value)
            with pytest.raises(ConfigError, match="delete it"):
                await client.admin.audit(notes=notes)
            assert notes.read_bytes() == value
        with pytest.raises(ConfigError, match="cannot be read"):
            await client.admin.audit(notes=tmp_path)
        with pytest.raises(ConfigError, match="cannot be written"):
            await client.admin.audit(notes=tmp_path / "missing" / "notes")


def test_saved_notes_are_those_of_the_last_round() -> None:
    notes = AuditNotes()
    first = notes.begin({"a": STATE})
    notes.note(7, 1, first)
    notes.note(9, 4, notes.begin({"a": BookieState(2.0, 0.0, 0.0, 0.0)}))
    saved = notes.saved()
    assert saved == b'{"format":1,"states":{"a":[2.0,0.0,0.0,0.0]},"ledgers":[9,4]}'
    restored = AuditNotes()
    restored.restore(saved)
    restored.begin({"a": BookieState(2.0, 0.0, 0.0, 0.0)})
    assert restored.is_full(9, 4, ["a"])
    assert not restored.is_full(7, 1, ["a"]), "it was noted before the bookie was started again"
    restored.begin({"a": BookieState(3.0, 0.0, 0.0, 0.0)})
    assert not restored.is_full(9, 4, ["a"])


def test_restored_notes_change_no_known_facts() -> None:
    notes = AuditNotes()
    notes.begin({"a": BookieState(3.0, 0.0, 0.0, 0.0)})
    notes.restore(b'{"format":1,"states":{"a":[3.0,0.0,0.0,0.0]},"ledgers":[9,4]}')
    assert not notes.is_full(9, 4, ["a"])


def test_bookies_of_older_versions_have_no_state() -> None:
    assert BookieState.of(BookieStatistics("a", "0", {"damage_reports": 0.0}, {})) is None


async def test_progress_names_the_stages_and_the_time_left(autojump_clock: trio.testing.MockClock) -> None:
    told: list[RepairProgress] = []
    slow = ClientTuning(add_timeout_s=1.0, add_quorum_timeout_s=10.0, read_timeout_s=1.0, repair_bytes_per_s=1000)
    async with cluster(4) as world, world.client(slow) as client:
        ledger_ids = await written(client, 6)
        victim = world.named((await client.ledger_metadata(ledger_ids[0])).last_fragment.ensemble)[0]
        await victim.kill()
        lacking = (await client.admin.audit(progress=told.append)).under_replicated
        assert [(each.stage, each.done, each.total) for each in (told[0], told[-1])] == [
            ("audit", 0, 6),
            ("audit", 6, 6),
        ]
        assert told[-1].under_replicated == lacking
        told.clear()
        report = await client.admin.repair([victim.bookie_id], progress=told.append)
        assert report.under_replicated == 0
        copying = [each for each in told if each.stage == "copy"]
        assert [each.stage for each in told if each.done == 0] == ["audit", "copy", "audit"]
        assert (copying[-1].done, copying[-1].total, copying[-1].left_s) == (lacking, lacking, 0.0)
        assert copying[-1].copied_bytes > 0
        assert 0 < copying[-1].bytes_per_s <= 2000
        assert len(world.told(FragmentRepaired)) == lacking
        assert [each.under_replicated for each in world.told(AuditEnded)] == [lacking, lacking, 0]  # type: ignore[union-attr]


async def test_paused_repairs_copy_nothing_until_they_are_resumed(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(4) as world, world.client(QUICK) as client, world.client(QUICK) as other:
        (ledger_id,) = await written(client)
        victim = world.named((await client.ledger_metadata(ledger_id)).last_fragment.ensemble)[0]
        await victim.kill()
        await other.admin.pause_repairs()
        await other.admin.pause_repairs()
        assert (await client.admin.repair(lost=[victim.bookie_id])).under_replicated == 1
        assert not [each for bookie in world.bookies for each in bookie.wire.seen if isinstance(each, CopyRequest)]
        await other.admin.resume_repairs()
        await other.admin.resume_repairs()
        await trio.sleep(3)
        assert (await client.admin.repair()).under_replicated == 0


@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), Quorum(4, 2, 2)])
async def test_copies_in_the_wrong_zone_are_named_and_moved(
    quorum: Quorum, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster(0) as world:
        for zone in "aaaa":
            await world.add_bookie(BookieOptions(storage="memory", labels=(f"zone={zone}",)))
        async with world.client(QUICK, placement="zones:?at_least=2") as client, world.client(QUICK) as other:
            async with client.create_ledger(quorum=quorum) as writer:
                await writer.extend(ENTRIES)
            await trio.testing.wait_all_tasks_blocked()
            (found,) = (await client.admin.audit()).misplaced
            assert (found.ledger_id, found.first_entry_id, found.last_entry_id) == (writer.ledger_id, 0, 19)
            assert "spans 1 of 2 zones" in found.shortfall
            assert len((await client.admin.repair()).misplaced) == 1, "there is no other zone yet"
            for _ in range(2):
                await world.add_bookie(BookieOptions(storage="memory", labels=("zone=b",)))
            assert (await other.admin.audit()).misplaced == (), "that client has no wishes"
            report = await client.admin.repair()
            assert (report.misplaced, report.under_replicated) == ((), 0)
            assert await read_ledger(client, writer.ledger_id) == ENTRIES


async def test_bookies_of_a_fragment_change_places_if_no_other_will_do(autojump_clock: trio.testing.MockClock) -> None:
    """Four bookies in two zones, side by side in their zones: each is in the ensemble, so nobody from outside can help."""
    async with cluster(0) as world:
        for zone in "aabb":
            await world.add_bookie(BookieOptions(storage="memory", labels=(f"zone={zone}",)))
        async with world.client(QUICK, placement="zones:?at_least=2") as client, world.client(QUICK) as other:
            # By chance two of three ensembles have neighbours in one zone.
            writers = []
            for _ in range(20):
                async with other.create_ledger(quorum=Quorum(4, 2, 2)) as writer:
                    await writer.extend(ENTRIES)
                writers.append(writer)
            await trio.testing.wait_all_tasks_blocked()
            misplaced = {each.ledger_id for each in (await client.admin.audit()).misplaced}
            assert misplaced
            report = await client.admin.repair()
            assert (report.misplaced, report.under_replicated) == ((), 0)
            for writer in writers:
                (fragment,) = (await client.ledger_metadata(writer.ledger_id)).fragments
                is_moved = fragment.ensemble != writer.metadata.fragments[0].ensemble
                assert is_moved == (writer.ledger_id in misplaced)
                assert await read_ledger(client, writer.ledger_id) == ENTRIES
