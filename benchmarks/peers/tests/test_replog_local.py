"""replog in process as a system of the comparison: it does all that the runner may ask of one on a single node."""

from pathlib import Path

import pytest

from benchmarks.peers.system import Load, NotMeasured
from benchmarks.peers.systems.replog_local import ReplogLocal


def test_replog_in_process_supports_every_request_of_the_runner(tmp_path: Path) -> None:
    system = ReplogLocal()
    system.warm_up_bytes = 0
    assert system.missing() is None
    assert not system.is_replicated
    with system.running(tmp_path) as running:
        for entries_per_call in (1, 100):
            found = running.append(Load(100, 1, 0.02, entries_per_call))
            assert found["entries"] > 0
            assert found["entries"] % entries_per_call == 0
            assert found["server_cpu_us"] == 0
            assert found["p50_us"] <= found["p99_us"] <= found["p999_us"]
        assert running.scan(100, 1500)["entries_per_s"] > 0
        assert running.tail(100, 10)["p50_us"] > 0
        assert running.restart()["held_bytes"] > 64 << 20
        with pytest.raises(NotMeasured, match="nobody who could take over"):
            running.take_over(100)
        with pytest.raises(NotMeasured, match="one transaction at a time"):
            running.append(Load(100, 10, 0.01))
