"""What bookies count comes out as Prometheus' parser wants it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio.testing
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

import replog
from replog import metrics
from replog.errors import StorageFailedError
from replog.metrics import collecting
from tests.kit import ONE, cluster


def samples_of(client: replog.Client) -> dict[str, dict[str, float]]:
    """By name and bookie; each name once."""

    class Once(Collector):
        def collect(self) -> Iterator[Metric]:
            return metrics.collect(client.bookies)

    registry = CollectorRegistry()
    registry.register(Once())
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            if "le" not in sample.labels:
                assert sample.labels["bookie"] not in found.setdefault(sample.name, {})
                found[sample.name][sample.labels["bookie"]] = sample.value
    return found


@pytest.mark.parametrize("storage", ["files", "lmdb", "memory"])
async def test_counters_gauges_and_histograms(tmp_path: Path, storage: str) -> None:
    everybody = replog.Quorum(3, 3, 3)  # else one of them may be amid its commit
    async with replog.embed(tmp_path, bookies=3, storage=storage, quorum=everybody) as client:
        async with client.write_log("orders") as log:
            await log.extend([b"x" * 100] * 10)
        found = samples_of(client)
        ids = {each._server.bookie_id for each in client.bookies}
        assert all(set(by_bookie) <= ids for by_bookie in found.values())
        for bookie in client.bookies:
            bookie_id = bookie._server.bookie_id
            counted = bookie.statistics()
            assert found["replog_bookie_added_entries_total"][bookie_id] == counted["added_entries"] >= 10
            assert found["replog_bookie_added_bytes_total"][bookie_id] == counted["added_bytes"] > 1000
            assert found["replog_bookie_commit_latency_seconds_count"][bookie_id] >= 1
            assert found["replog_bookie_commit_latency_seconds_sum"][bookie_id] > 0
            assert found["replog_bookie_read_only"][bookie_id] == 0
            assert found["replog_bookie_storage_failed"][bookie_id] == 0
        names = set(found)
        assert not [name for name in names if name.endswith("_s") or "_s_" in name], "units are spelled out"
        assert "replog_bookie_last_commit_seconds" in names


async def test_every_growing_number_is_a_counter(tmp_path: Path) -> None:
    """What is called a counter here is counted by somebody; and what is known is described."""
    known: set[str] = set()
    for storage in ("files", "lmdb", "memory"):
        options = replog.BookieOptions(storage=storage, repair="auto")
        async with replog.embed(tmp_path / storage, bookie_options=options) as client:
            known |= set(client.bookies[0].statistics())
    counters = {name for name in collecting._COUNTERS if not name.startswith(("tcp_", "unix_"))}
    assert counters <= known


async def test_stopped_storage_is_reported(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(1) as world, world.client(quorum=ONE) as client:
        (bookie,) = world.bookies
        served = bookie.served
        assert served is not None
        bookie.storage.commit_error = StorageFailedError("gone", "Buy another")
        with pytest.raises(replog.ReplogError):
            async with client.create_ledger() as ledger:
                await ledger.append(b"0")
        found = {each.name: each for each in metrics.collect([served])}
        assert found["replog_bookie_storage_failed"].samples[0].value == 1
        health = metrics.health_of([served])
        assert not health.is_well
        assert health.to_json()["state"] == "failed"
        assert "gone" in health.problems[served._server.bookie_id]
