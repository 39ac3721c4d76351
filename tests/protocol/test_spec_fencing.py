"""Ledgers: claiming and fencing for recovery (rules R2 and R3)."""

from __future__ import annotations

from itertools import combinations

import pytest

from replog.errors import (
    FencedError,
    RecoveryUndecidedError,
)
from replog.protocol.digest import ledger_key, stored_ledger_key
from replog.protocol.effects import (
    ReadMetadata,
    SendAdd,
    SendFence,
    SendRecoveryRead,
    WriteMetadata,
)
from replog.protocol.messages import FenceRequest, RecoveryReadRequest
from replog.protocol.model import LedgerState
from replog.protocol.quorum import Quorum
from tests.protocol.bookies import Bookie
from tests.protocol.driving import PASSWORD, STRIPED, THREE, Cluster, fenced

KEY = ledger_key(7, PASSWORD)
QUORUMS = [Quorum(1, 1, 1), Quorum(2, 2, 2), THREE, Quorum(3, 2, 2), Quorum(4, 3, 2), STRIPED, Quorum(6, 2, 2)]


@pytest.mark.parametrize("quorum", QUORUMS)
def test_r2_reading_begins_when_each_write_quorum_is_covered(quorum: Quorum) -> None:
    """R2: for every set of bookies that answer, and in every quorum: reading begins iff no ack quorum avoids them."""
    names = [f"b{number}" for number in range(1, quorum.ensemble + 1)]
    rotations = [{names[index] for index in quorum.write_set(rotation)} for rotation in range(quorum.ensemble)]
    for size in range(quorum.ensemble + 1):
        for answering in combinations(names, size):
            cluster = Cluster(quorum)
            cluster.create_ledger()
            recovery = fenced(cluster, *answering)
            assert bool(recovery.find(SendRecoveryRead)) == _covers(rotations, quorum, answering)


def _covers(rotations: list[set[str]], quorum: Quorum, answering: tuple[str, ...]) -> bool:
    return all(len(write_set & set(answering)) >= quorum.write - quorum.ack + 1 for write_set in rotations)


def test_r2_the_claim_comes_before_the_fences() -> None:
    """R2: no bookie is fenced before IN_RECOVERY is durable: else a writer could change the ensemble behind the fence."""
    cluster = Cluster()
    cluster.create_ledger()
    recovery = cluster.recovery()
    recovery.start()
    assert [type(effect) for effect in recovery.waiting] == [WriteMetadata]
    recovery.write_loses_answer()
    assert not recovery.find(SendFence)
    recovery.deliver(ReadMetadata)
    assert [effect.bookie_id for effect in recovery.find(SendFence)] == ["b1", "b2", "b3"]


def test_r2_the_last_fragment_after_the_claim_is_fenced() -> None:
    """R2: the writer changed its ensemble between recovery's read of the metadata and its CAS."""
    cluster = Cluster()
    writer = cluster.writer()
    recovery = cluster.recovery()  # has read the metadata
    writer.add(b"a")
    writer.fail(SendAdd, "b1")
    writer.run()
    recovery.start()
    recovery.deliver(WriteMetadata)
    recovery.deliver(ReadMetadata)
    recovery.deliver(WriteMetadata)
    assert [effect.bookie_id for effect in recovery.find(SendFence)] == ["b4", "b2", "b3"]
    recovery.run()
    assert cluster.metadata().last_entry_id == 0


def test_r2_too_few_fenceable_bookies_is_an_error_to_retry() -> None:
    """R2, R4: b2 and b3 silent: two bookies might still take the writer's adds. The ledger stays as it is."""
    cluster = Cluster()
    cluster.writer()
    cluster.down = {"b2", "b3"}
    with pytest.raises(RecoveryUndecidedError, match="b2, b3"):
        cluster.recovery().recover()
    assert cluster.metadata().state is LedgerState.IN_RECOVERY
    cluster.down = set()
    assert cluster.recovery(nonce="w3").recover().last_entry_id == -1


@pytest.mark.parametrize("request_kind", ["fence", "recovery read"])
@pytest.mark.parametrize("known", [True, False])
def test_r3_no_answer_before_key_and_fence_are_durable(request_kind: str, known: bool) -> None:
    """R3: whatever the answer is, {key, fence} are in the mutations that come before it, also for an unknown ledger;
    and they stay after a restart."""
    cluster = Cluster()
    bookie = cluster["b1"]
    writer = cluster.writer()
    if known:
        writer.add(b"a")
        writer.deliver(SendAdd, "b1")
    request = FenceRequest(1, 7, KEY, 2) if request_kind == "fence" else RecoveryReadRequest(1, 7, KEY, 2, 5, 1)
    accepted = bookie.accept(request)
    bookie.disk.commit(accepted.mutations)
    bookie.crash()  # right before the answer
    assert bookie.disk.marks[7].key == stored_ledger_key(KEY)
    assert bookie.disk.marks[7].fence_term == 2
    writer.add(b"b")
    writer.deliver(SendAdd, "b1", 0 if not known else 1)
    assert isinstance(writer.error, FencedError)


def test_r3_a_fence_lost_before_its_commit_is_not_answered() -> None:
    """R3: the fence is accepted, the bookie dies before its commit: nobody was told, so the writer may go on."""
    bookie = Bookie()
    bookie.accept(FenceRequest(1, 7, KEY, 2))
    bookie.crash()
    assert not bookie.disk.marks
    assert bookie.ledger(7).fence_term == 0


def test_r3_recovery_adds_pass_the_fence_and_writers_adds_dont() -> None:
    """R3: behind the fence only who has its term writes."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    writer.deliver(SendAdd, "b1")
    recovery = fenced(cluster, "b1", "b2", "b3")
    writer.deliver(SendAdd, "b2")
    assert isinstance(writer.error, FencedError)
    recovery.run()
    assert cluster.holders(0) == {"b1", "b2", "b3"}
