"""How the state machines are that a process runs comes out as Prometheus' parser wants it."""

from __future__ import annotations

import pytest
import trio

import replog
from replog.metrics import collect_machines
from tests.kit import cluster
from tests.metrics.kit import samples_of

pytestmark = pytest.mark.usefixtures("autojump_clock")


async def test_members_report_their_progress_and_leader() -> None:
    async with cluster() as world, world.client() as client, world.client() as other:
        async with client.run_machine("counter", replog.ReplicatedCounter) as first:
            for _ in range(3):
                await first.add(1)
            async with other.run_machine("counter", replog.ReplicatedCounter) as second:
                assert await second.add(1) == 4
                await trio.sleep(5)
                found = samples_of(collect_machines([first, second]))
                keys = [("counter", each.status.member_id) for each in (first, second)]
                assert found["replog_machine_commands_total"] == dict.fromkeys(keys, 4)
                assert found["replog_machine_leads"] == {keys[0]: 1, keys[1]: 0}
                assert found["replog_machine_sessions"] == dict.fromkeys(keys, 2)
                assert found["replog_machine_takeovers_total"] == dict.fromkeys(keys, 1)
                assert len(set(found["replog_machine_applied_entry"].values())) == 1
                assert all(each > 0 for each in found["replog_machine_applied_time_seconds"].values())
                assert "replog_machine_restored_ratio" not in found, "no snapshot is read"
        async with client.run_machine("counter", replog.ReplicatedCounter) as third:
            assert await third.add(1) == 5
            found = samples_of(collect_machines([third]))
            assert min(found["replog_machine_takeovers_total"].values()) >= 2, "with those that were replayed"
            assert list(found["replog_machine_leads"].values()) == [1]


async def test_machine_of_another_thread_has_samples() -> None:
    """`collect_machines` asks only for a name and a status: any face will do."""

    class Known:
        machine_name = "counter"
        status = replog.results.MachineStatus("me", replog.Position(3, 4), 5, 6, None, 0.25, 7, 8_000_000_000)

    found = samples_of(collect_machines([Known()]))
    key = ("counter", "me")
    assert {name: values[key] for name, values in found.items()} == {
        "replog_machine_commands_total": 5,
        "replog_machine_takeovers_total": 7,
        "replog_machine_leads": 0,
        "replog_machine_sessions": 6,
        "replog_machine_applied_segment": 3,
        "replog_machine_applied_entry": 4,
        "replog_machine_applied_time_seconds": 8,
        "replog_machine_restored_ratio": 0.25,
    }
    Known.status = replog.results.MachineStatus("me", replog.Position(0, 0), 0, 0, None, None, 0, 0)
    found = samples_of(collect_machines([Known()]))
    assert not found.keys() & {"replog_machine_applied_time_seconds", "replog_machine_restored_ratio"}, (
        "nothing is known"
    )
