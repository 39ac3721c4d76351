"""What `drain_status` and `repair` say of ledgers that cannot leave a bookie (C8, F1, B7, M5)."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from replog.config.client import ClientTuning
from replog.protocol.digest import ledger_key, ledger_key_check
from replog.protocol.messages import CopyReadRequest, CopyRequest, RangesRequest, Status
from replog.protocol.quorum import Quorum
from replog.records.paths import log_leaders_key_path
from tests.bookie.test_releasing import change
from tests.kit import cluster

QUICK = ClientTuning(add_timeout_s=1.0, add_quorum_timeout_s=10.0, read_timeout_s=1.0, recovery_timeout_s=10.0)
TWO = Quorum(2, 2, 2)
OF_ANOTHER = "is of another creation of this id"


async def test_ledger_of_another_creation_is_refused_in_words(autojump_clock: trio.testing.MockClock) -> None:
    """M5: audit, repair and drain have the bookies' words, and none says that a bookie did not answer."""
    async with cluster(3) as world, world.client(QUICK, TWO) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"0")
        check = ledger_key_check(ledger_key(writer.ledger_id, b"", "another"))
        await change(world, writer.ledger_id, creation="another", key_check=check)
        ensemble = writer.metadata.last_fragment.ensemble
        (lacking,) = (await client.admin.audit()).lacking
        assert {each.state for each in lacking.missing} == {"refused"}
        assert all(OF_ANOTHER in each.problem for each in lacking.missing)
        (without,) = lacking.without_copies
        assert without.refusing == without.awaited == tuple(sorted(ensemble))
        assert not without.is_gone
        reasons = (await client.admin.drain(ensemble[0])).reasons[writer.ledger_id]
        assert any(OF_ANOTHER in each and ensemble[1] in each for each in reasons)


async def test_target_of_another_creation_is_named_by_both(autojump_clock: trio.testing.MockClock) -> None:
    """M5, F1: the only bookie that could take the copies refuses them."""
    async with cluster(2) as world, world.client(QUICK, TWO) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"0")
        spare = await world.add_bookie()
        spare.wire.refuse = lambda request: (
            Status.UNAUTHORIZED if isinstance(request, RangesRequest | CopyRequest) else None
        )
        gone = world.bookies[0]
        (reason,) = (await client.admin.drain(gone.bookie_id)).reasons[writer.ledger_id]
        assert f"take its place: bookie {spare.bookie_id}: ledger {writer.ledger_id}: unauthorized" in reason
        await gone.kill()
        (lacking,) = (await client.admin.repair(lost=[gone.bookie_id])).lacking
        assert [each for each in lacking.hindrances if spare.bookie_id in each and "unauthorized" in each]
        spare.wire.refuse = lambda _request: None
        assert (await client.admin.repair()).under_replicated == 0


@pytest.mark.parametrize("password", [b"", b"secret"])
async def test_source_refusing_its_copies_is_named(password: bytes, autojump_clock: trio.testing.MockClock) -> None:
    """B7, M5, F3: it says what it holds, and gives none of it: that is not the same as to have none."""
    async with cluster(2) as world, world.client(QUICK, TWO) as client:
        async with client.create_ledger(password=password) as writer:
            await writer.append(b"0")
        spare = await world.add_bookie()
        gone, kept = world.named(writer.metadata.last_fragment.ensemble)
        kept.wire.refuse = lambda request: Status.UNAUTHORIZED if isinstance(request, CopyReadRequest) else None
        await gone.kill()
        (lacking,) = (await client.admin.repair(lost=[gone.bookie_id])).lacking
        words = f"bookie {kept.bookie_id}: ledger {writer.ledger_id}: unauthorized"
        assert [each for each in lacking.hindrances if words in each]
        assert gone.bookie_id in (await client.ledger_metadata(writer.ledger_id)).last_fragment.ensemble
        assert not [each for each in spare.wire.seen if isinstance(each, CopyRequest)]
        kept.wire.refuse = lambda _request: None
        assert (await client.admin.repair()).under_replicated == 0


async def test_unresponsive_source_is_named(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client(QUICK, TWO) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"0")
        gone, kept = world.named(writer.metadata.last_fragment.ensemble)
        kept.wire.lose_answer = lambda request: isinstance(request, CopyReadRequest)
        await gone.kill()
        (lacking,) = (await client.admin.repair(lost=[gone.bookie_id])).lacking
        assert [each for each in lacking.hindrances if kept.bookie_id in each]


@pytest.mark.parametrize(
    "status", [Status.UNKNOWN, Status.NO_ENTRY, Status.NO_ENTRY_IN_DOUBT, Status.NO_ENTRY_AFTER_LOSS]
)
async def test_source_without_an_intact_copy_refuses_nothing(
    status: Status, autojump_clock: trio.testing.MockClock
) -> None:
    """R4: damage and absence are no refusals."""
    async with cluster(3) as world, world.client(QUICK, TWO) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"0")
        gone, kept = world.named(writer.metadata.last_fragment.ensemble)
        kept.wire.refuse = lambda request: status if isinstance(request, CopyReadRequest) else None
        await gone.kill()
        (lacking,) = (await client.admin.repair(lost=[gone.bookie_id])).lacking
        assert lacking.hindrances == ()


async def test_entries_of_others_hinder_nothing(autojump_clock: trio.testing.MockClock) -> None:
    """The bookie that drains lacks an entry: a repair copies it from the other one, so there is no reason to tell."""
    quorum = Quorum(2, 2, 1)
    async with cluster(2) as world, world.client(QUICK, quorum) as client:
        async with client.create_ledger(quorum=quorum) as writer:
            await writer.append(b"0")
            _, lacks = world.named(writer.metadata.last_fragment.ensemble)
            lacks.wire.is_deaf = True
            await writer.append(b"1")
        lacks.wire.is_deaf = False
        assert (await client.admin.audit()).under_replicated == 1
        await world.add_bookie()
        assert (await client.admin.drain(lacks.bookie_id)).reasons == {}
        await client.admin.repair()
        assert (await client.admin.drain_status(lacks.bookie_id)).is_safe_to_stop


async def test_password_without_the_role_is_a_reason(autojump_clock: trio.testing.MockClock) -> None:
    """B7: every bookie refuses to tell this client what it holds."""
    async with cluster(3) as world, world.client(QUICK, TWO) as client:
        async with client.create_ledger(password=b"secret") as writer:
            await writer.append(b"0")
        for bookie in world.bookies:
            bookie.wire.refuse = lambda request: Status.UNAUTHORIZED if isinstance(request, RangesRequest) else None
        reasons = (await client.admin.drain(writer.metadata.last_fragment.ensemble[0])).reasons[writer.ledger_id]
        assert sum("unauthorized" in each for each in reasons) >= 2


@pytest.mark.parametrize("is_other_away", [False, True])
async def test_lack_of_a_replacement_is_a_reason(is_other_away: bool, autojump_clock: trio.testing.MockClock) -> None:
    """The bookie that drains has all, so a copy that is away hinders nothing; that no other bookie is there does."""
    async with cluster(2) as world, world.client(QUICK, TWO) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"0")
        if is_other_away:
            await world.bookies[1].kill()
        status = await client.admin.drain(world.bookies[0].bookie_id)
        assert status.reasons == {
            writer.ledger_id: ("no other bookie can take its place: start another one",),
        }
        await world.add_bookie()
        await trio.sleep(5)
        assert (await client.admin.drain_status(world.bookies[0].bookie_id)).reasons == {}
        await client.admin.repair()
        assert (await client.admin.drain_status(world.bookies[0].bookie_id)).is_safe_to_stop


async def test_last_copy_on_an_absent_bookie_is_a_reason(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client(QUICK, Quorum(2, 2, 1)) as client:
        async with client.create_ledger(quorum=Quorum(2, 2, 1)) as writer:
            kept, lacks = world.named(writer.metadata.last_fragment.ensemble)
            lacks.wire.is_deaf = True
            await writer.append(b"0")
            await kept.kill()
        lacks.wire.is_deaf = False
        if writer.metadata.last_entry_id != 0:
            pytest.fail("the entry was confirmed by one bookie")
        (reason,) = (await client.admin.drain(lacks.bookie_id)).reasons[writer.ledger_id]
        assert f"{kept.bookie_id} is away" in reason
        assert "no copy of entries 0-0" in reason
        (reason,) = (await client.admin.drain(kept.bookie_id)).reasons[writer.ledger_id]
        assert "is away: start it" in reason


async def test_open_ledger_without_a_leader_is_a_reason(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(2) as world, world.client(QUICK, TWO) as client:
        gone = world.bookies[0].bookie_id
        async with client.write_log("orders") as log:
            await log.append(b"1")
            status = await client.admin.drain(gone)
            (ledger,) = status.open_ledgers
            assert not any("leader" in each for each in status.reasons.get(ledger.ledger_id, ()))
            path = log_leaders_key_path("orders")
            for leader in await world.metastore.children(path):  # as if its process had died
                await world.metastore.delete(f"{path}/{leader}")
            reasons = (await client.admin.drain_status(gone)).reasons[ledger.ledger_id]
            assert any("the log 'orders' has no leader" in each for each in reasons)


async def test_holder_hiding_its_holdings_is_named(autojump_clock: trio.testing.MockClock) -> None:
    """It is not one that has nothing: nobody else has the entries, and it may be well again soon."""
    async with cluster(4) as world, world.client(QUICK) as client:
        async with client.create_ledger(quorum=Quorum(3, 3, 1)) as writer:
            holder, *others = world.named(writer.metadata.last_fragment.ensemble)
            for bookie in others:
                bookie.wire.is_deaf = True
            await writer.append(b"0")
        for bookie in others:
            bookie.wire.is_deaf = False
        holder.wire.lose_answer = lambda request: isinstance(request, RangesRequest)
        report = await client.admin.repair()
        (lacking,) = report.lacking
        assert any(holder.bookie_id in str(each) and "did not answer" in str(each) for each in lacking.hindrances)
