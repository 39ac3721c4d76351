"""F4: a writer or a recovery whose compare-and-set conflicts with a repair adopts it, for earlier fragments only."""

from __future__ import annotations

import attrs
import pytest

from replog.protocol.effects import WriteMetadata
from replog.protocol.gaps import Gap
from replog.protocol.model import LedgerMetadata, LedgerState
from tests.protocol.driving import Cluster, Writer

REPAIRED = ("b1", "b2", "b8")


def two_fragments() -> tuple[Cluster, Writer]:
    """b3 was replaced after entry 0; its fragment is the first one."""
    cluster = Cluster()
    writer = cluster.writer()
    writer.add(b"a")
    writer.run()
    writer.bookie_failed("b3")
    writer.run()
    writer.add(b"b")
    writer.run()
    assert [fragment.ensemble for fragment in cluster.metadata().fragments] == [("b1", "b2", "b3"), ("b1", "b2", "b4")]
    return cluster, writer


def repair(cluster: Cluster) -> None:
    """A repair puts b8 in the place of b3."""
    metadata = cluster.metadata()
    first = attrs.evolve(metadata.fragments[0], ensemble=REPAIRED)
    cluster.change(attrs.evolve(metadata, fragments=(first, *metadata.fragments[1:])))


def ensembles(metadata: LedgerMetadata) -> list[tuple[str, ...]]:
    return [fragment.ensemble for fragment in metadata.fragments]


def test_writers_change_keeps_the_repair() -> None:
    cluster, writer = two_fragments()
    writer.bookie_failed("b2")
    writer.choose({1: "b5"})
    repair(cluster)
    writer.run()
    assert ensembles(cluster.metadata()) == [REPAIRED, ("b1", "b2", "b4"), ("b1", "b5", "b4")]
    writer.add(b"c")
    writer.run()
    assert writer.confirmed[-1] == 2
    assert writer.error is None


def test_a_writers_change_is_settled_when_a_repair_follows_it() -> None:
    """M1: the answer was lost, and the token is no longer the writer's; the last fragment is."""
    cluster, writer = two_fragments()
    writer.bookie_failed("b2")
    writer.choose({1: "b5"})
    writer.write_loses_answer()
    repair(cluster)
    writer.run()
    writer.add(b"c")
    writer.run()
    assert ensembles(cluster.metadata()) == [REPAIRED, ("b1", "b2", "b4"), ("b1", "b5", "b4")]
    assert writer.confirmed[-1] == 2


@pytest.mark.parametrize("is_answer_lost", [False, True])
def test_closing_keeps_the_repair(is_answer_lost: bool) -> None:
    cluster, writer = two_fragments()
    writer.close()
    if is_answer_lost:
        writer.write_loses_answer()
    repair(cluster)
    writer.run()
    metadata = cluster.metadata()
    assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 1)
    assert ensembles(metadata) == [REPAIRED, ("b1", "b2", "b4")]
    assert writer.error is None


def test_recovery_keeps_the_repair() -> None:
    """R6, R9: it fenced and read the last fragment, which is the same."""
    cluster, _ = two_fragments()
    recovery = cluster.recovery()
    recovery.claim()
    recovery.run_without(WriteMetadata)
    repair(cluster)
    recovery.run()
    metadata = cluster.metadata()
    assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 1)
    assert ensembles(metadata) == [REPAIRED, ("b1", "b2", "b4")]


def test_gap_filled_by_a_repair_does_not_return() -> None:
    """W7: the writer's next change records what it knows itself, and what the record says."""
    cluster, writer = two_fragments()
    cluster.change(attrs.evolve(cluster.metadata(), gaps=(Gap(2, 0, 0),)))
    writer.bookie_failed("b2")
    writer.choose({1: "b5"})
    repair(cluster)
    cluster.change(attrs.evolve(cluster.metadata(), gaps=()))
    writer.run()
    assert not [gap for gap in cluster.metadata().gaps if gap.first_entry_id == 0]
